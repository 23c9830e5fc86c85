"""Puts the pages together into one ASGI application."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from offsetstore.errors import MissingPrivilege, OffsetStoreError
from offsetstore.monitoring.dashboard.context import Dashboard, dashboard_of, show
from offsetstore.monitoring.dashboard.forms import read_fields
from offsetstore.monitoring.dashboard.security import SESSION, Guard, note_sign_in, note_wrong_token, own_address
from offsetstore.monitoring.dashboard.views import actions, group, groups, letters, runs
from offsetstore.postgres.errors import of_database

_PAUSE = 1.0  # seconds after a wrong token


def make_application(dashboard: Dashboard) -> ASGIApp:
    """Return the pages behind the guard."""
    app = Starlette(
        routes=[
            *groups.ROUTES,
            *group.ROUTES,
            *runs.ROUTES,
            *letters.ROUTES,
            *(actions.ROUTES if dashboard.actions is not None else ()),
            Route("/login", _ask, methods=["GET"]),
            Route("/login", _login, methods=["POST"]),
            Route("/logout", _logout, methods=["POST"]),
            Mount("/static", StaticFiles(packages=[("offsetstore.monitoring.dashboard", "static")])),
        ],
        exception_handlers={HTTPException: _on_http_error, OffsetStoreError: _on_error, Exception: _on_bug},
    )
    app.state.dashboard = dashboard
    app.router.redirect_slashes = False
    return Guard(GZipMiddleware(app), dashboard.access)


def _ask(request: Request) -> Response:
    return _login_page(request, request.query_params.get("next", ""))


def _login_page(request: Request, wanted: str, *, is_wrong: bool = False) -> Response:
    address = own_address(wanted)
    return show(request, "login.html", status=403 if is_wrong else 200, is_wrong=is_wrong, wanted=address)


async def _login(request: Request) -> Response:
    access = dashboard_of(request).access
    fields = await read_fields(request)
    if not access.is_token(fields.get("token", "")):
        note_wrong_token(request.scope)
        # Each wrong token waits for a second, sixteen of them at a time (decision 0102).
        if access.pauses.locked():
            return PlainTextResponse("Too many wrong tokens are being sent; try again.\n", 429)
        async with access.pauses:
            await asyncio.sleep(_PAUSE)
        return _login_page(request, fields.get("next", ""), is_wrong=True)
    note_sign_in(request.scope)
    answer = RedirectResponse(own_address(fields.get("next", "")), 303)
    # The scheme that the browser speaks, also to a proxy in front of us; the guard has compared the rest with the host.
    is_https = request.headers["origin"].startswith("https:")
    answer.set_cookie(
        access.cookie, access.begin_session(), max_age=SESSION, httponly=True, samesite="strict", secure=is_https
    )
    return answer


def _logout(request: Request) -> Response:
    access = dashboard_of(request).access
    access.end_session(request.cookies.get(access.cookie, ""))
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(access.cookie, httponly=True, samesite="strict")
    return answer


def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = show(request, "error.html", status=error.status_code, what=error.detail, next_step=None)
    answer.headers.update(error.headers or {})
    return answer


def _on_error(request: Request, error: Exception) -> Response:
    what, next_step = (error.what, error.next_step) if isinstance(error, OffsetStoreError) else ("", None)
    status = 403 if isinstance(error, MissingPrivilege) else 503
    return show(request, "error.html", status=status, what=what, next_step=next_step)


def _on_bug(request: Request, error: Exception) -> Response:
    # The class alone of other errors: their texts may hold values.
    if (ours := of_database(error)) is not None:
        return _on_error(request, ours)
    return show(request, "error.html", status=500, what=f"The page failed: {type(error).__name__}.", next_step=None)
