"""Checks each request before a page sees it, and adds the security headers to each answer."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import math
import re
import secrets
import time
import traceback
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offsetstore.monitoring.dashboard.forms import plain_query
from offsetstore.monitoring.web import LOCAL, Seldom, host_name
from offsetstore.text import logger, visible

_log = logger(__name__)
_access = logging.getLogger(f"{__name__}.access")
_access.addFilter(Seldom())

SESSION: Final = 12 * 3600
"""Seconds for which a token that was entered is remembered."""

AT_WORK: Final = "offsetstore.at-work"
"""The key of a request's state that says whether it may see the page: if so, its connection is closed last."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: browsers would send our own forms with `Origin: null` (decision 0046).
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_OWN: Final = re.compile(r"/(?!/)[!-\[\]-~]*")
_SAFE: Final = ("GET", "HEAD")
_MOST_PAUSES: Final = 16


@dataclass(frozen=True, slots=True)
class Access:
    """Who may see the pages.

    :param hosts: the names under which browsers may ask for the server, without a port: see `own_names`.
    :param token: whoever enters it may see the pages; ``None``: all who can connect.
    :param pauses: one for each wrong token; if all are taken, the next one is refused at once.
    """

    hosts: Collection[str] = LOCAL
    token: str | None = field(default=None, repr=False)
    pauses: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_MOST_PAUSES), repr=False, compare=False
    )
    _sessions: dict[str, float] = field(default_factory=dict[str, float], init=False, repr=False, compare=False)
    """When each ends. They are in this process's memory alone: a restart signs everyone out."""

    @property
    def cookie(self) -> str:
        # Cookies are the same for all ports of a host: with one name, dashboards would overwrite each other's.
        key = (self.token or "").encode()
        return f"offsetstore-{hmac.new(key, b'cookie', hashlib.sha256).hexdigest()[:8]}"

    def begin_session(self) -> str:
        """Remember that the token was entered, and return the value of a cookie that proves it."""
        now = time.monotonic()
        for over in [old for old, until in list(self._sessions.items()) if until <= now]:
            self._sessions.pop(over, None)
        session = secrets.token_urlsafe(32)
        self._sessions[session] = now + SESSION
        return session

    def end_session(self, cookie: str) -> None:
        self._sessions.pop(cookie, None)

    def has_session(self, cookie: str) -> bool:
        """Whether the cookie is that of a session which was not ended, and whose time is not over."""
        return self._sessions.get(cookie, -math.inf) > time.monotonic()

    def is_token(self, text: str) -> bool:
        return self.token is not None and hmac.compare_digest(text.encode(errors="replace"), self.token.encode())


class Guard:
    """Lets a request through to the pages, or answers it; and adds `HEADERS` to each answer."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        is_answered = False
        # Here, so that no page sees what `hidden` has quoted.
        scope["query_string"] = plain_query(scope["query_string"])

        async def send_guarded(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        try:
            await (self._refusal(scope) or self._app)(scope, receive, send_guarded)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001 - its text may hold values, so it is not even logged
            places = traceback.extract_tb(error.__traceback__)
            where = ", ".join(f"{Path(place.filename).name}:{place.lineno}" for place in places[-3:])
            method, path = visible(scope["method"]), visible(scope["path"])
            _log.error("%s %s failed: %s at %s", method, path, type(error).__name__, where)
            if not is_answered:
                await PlainTextResponse("The page failed.\n", 500)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host_name(host) not in self._access.hosts:
            return PlainTextResponse("This server does not go by that name; see --allowed-host.\n", 421)
        if scope["method"] not in _SAFE and not is_same_origin(headers, host):
            return PlainTextResponse("The request comes from another page; nothing was done.\n", 403)
        # PostgreSQL has no text with a NUL.
        if b"%00" in scope["query_string"]:
            return PlainTextResponse("The address has a null character in it.\n", 400)
        is_known = self._access.token is None or self._is_known(scope, headers)
        scope.setdefault("state", {})[AT_WORK] = is_known
        if is_known or is_open(scope["path"]):
            return None
        if scope["method"] in _SAFE and "text/html" in headers.get("accept", ""):
            return RedirectResponse(login_address(scope["path"], scope["query_string"].decode("latin-1")), 303)
        return PlainTextResponse("A token is needed: open /login, or send it as Authorization: Bearer.\n", 401)

    def _is_known(self, scope: Scope, headers: Headers) -> bool:
        scheme, _space, sent = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if self._access.is_token(sent.strip()):
                return True
            note_wrong_token(scope)
        return self._access.has_session(Request(scope).cookies.get(self._access.cookie, ""))


def note_wrong_token(scope: Scope) -> None:
    """Log it, at most once a minute."""
    _access.warning("a wrong token was sent from %s", (scope.get("client") or ["?"])[0])


def note_sign_in(scope: Scope) -> None:
    """Log it, at most once a minute."""
    _access.info("someone has signed in from %s", (scope.get("client") or ["?"])[0])


def is_same_origin(headers: Headers, host: str) -> bool:
    """Whether the browser says that one of our own pages sends the request; not if it says nothing."""
    # The scheme is not compared: a proxy that ends TLS speaks another one with the browser than with us.
    is_ours = headers.get("origin", "").lower() in {f"http://{host.lower()}", f"https://{host.lower()}"}
    return is_ours and headers.get("sec-fetch-site") in {None, "same-origin"}


def is_open(path: str) -> bool:
    """Whether the page is served without a token, too. Such a page shows nothing that was measured."""
    return path in {"/login", "/logout"} or path.startswith("/static/")


def login_address(path: str, query: str) -> str:
    """The address of the login page. Signing in returns you to the requested page."""
    wanted = f"{path}?{query}" if query else path
    return "/login" if wanted == "/" else f"/login?{urlencode({'next': wanted})}"


def own_address(text: str) -> str:
    """The address if it is one of this server's pages, else the first page's.

    Browsers read ``//x`` as another host, a backslash as a slash, and leave out tabs and line breaks.
    """
    return text if _OWN.fullmatch(text) else "/"
