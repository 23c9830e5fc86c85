"""Puts the pages together into one ASGI application."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from offsetstore.errors import MissingPrivilege, OffsetStoreError
from offsetstore.monitoring.dashboard.context import dashboard_of, show
from offsetstore.monitoring.dashboard.security import COOKIE, SESSION, Guard
from offsetstore.monitoring.dashboard.snapshots import Snapshot
from offsetstore.monitoring.dashboard.views import group, groups, partition

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from offsetstore.monitoring.dashboard.context import Dashboard

_PAUSE = 1.0  # seconds after a wrong token
_LONGEST = 10_000  # bytes of a login form


def make_application(dashboard: Dashboard) -> ASGIApp:
    """Return the pages behind the guard."""
    app = Starlette(
        routes=[
            *groups.ROUTES,
            *group.ROUTES,
            *partition.ROUTES,
            Route("/login", _ask, methods=["GET"]),
            Route("/login", _login, methods=["POST"]),
            Mount("/static", StaticFiles(packages=[("offsetstore.monitoring.dashboard", "static")])),
        ],
        exception_handlers={HTTPException: _on_http_error, OffsetStoreError: _on_error, Exception: _on_bug},
    )
    app.state.dashboard = dashboard
    return Guard(GZipMiddleware(app), dashboard.access)


def _ask(request: Request) -> Response:
    return _login_page(request)


def _login_page(request: Request, *, is_wrong: bool = False) -> Response:
    """It shows nothing that was measured."""
    return show(request, "login.html", status=403 if is_wrong else 200, is_wrong=is_wrong, snapshot=Snapshot())


async def _login(request: Request) -> Response:
    access = dashboard_of(request).access
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _LONGEST:
            raise HTTPException(413)
    fields = parse_qs(body.decode(errors="replace"))
    if not access.is_token(fields.get("token", [""])[0]):
        await asyncio.sleep(_PAUSE)
        return _login_page(request, is_wrong=True)
    answer = RedirectResponse("/", 303)
    is_https = request.url.scheme == "https"
    answer.set_cookie(COOKIE, access.session(), max_age=SESSION, httponly=True, samesite="strict", secure=is_https)
    return answer


def _on_http_error(request: Request, error: Exception) -> Response:
    status, detail = (error.status_code, error.detail) if isinstance(error, HTTPException) else (500, "")
    return show(request, "error.html", status=status, what=detail, next_step=None)


def _on_error(request: Request, error: Exception) -> Response:
    what, next_step = (error.what, error.next_step) if isinstance(error, OffsetStoreError) else ("", None)
    status = 403 if isinstance(error, MissingPrivilege) else 503
    return show(request, "error.html", status=status, what=what, next_step=next_step)


def _on_bug(request: Request, error: Exception) -> Response:
    """Name the error's class alone: its text may hold values."""
    return show(request, "error.html", status=500, what=f"The page failed: {type(error).__name__}.", next_step=None)
