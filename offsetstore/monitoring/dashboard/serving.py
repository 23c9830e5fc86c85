"""Puts the pages together into one ASGI application, listens, and serves it until it is told to end."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Thread
from types import TracebackType
from typing import Final, Self, cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from offsetstore.errors import ConfigurationError, MissingPrivilege, OffsetStoreError
from offsetstore.monitoring.dashboard.context import Dashboard, Deciding, dashboard_of, show
from offsetstore.monitoring.dashboard.forms import read_fields
from offsetstore.monitoring.dashboard.security import (
    AT_WORK,
    SESSION,
    Access,
    Guard,
    note_sign_in,
    note_wrong_token,
    own_address,
)
from offsetstore.monitoring.dashboard.snapshots import Snapshots
from offsetstore.monitoring.dashboard.views import actions, groups, letters, runs
from offsetstore.monitoring.web import (
    HEAD_SECONDS,
    MAKE_A_TOKEN,
    QUEUE,
    Seldom,
    check_token,
    family,
    host_name,
    is_loopback,
    listening,
    most_connections,
    own_names,
    url_host,
)
from offsetstore.offset_store import OffsetStore
from offsetstore.postgres.errors import of_database
from offsetstore.protocol.ports import BrokerOverview

PORT: Final = 9466

_PAUSE: Final = 1.0  # seconds after a wrong token
_PATIENCE: Final = 5  # seconds for requests that are being answered
_ANSWER_SECONDS: Final = 120.0  # for the whole answer; a browser's person has gone by then
# Connections that asyncio accepts in a row, before it reads from any of them.
_BURST: Final = 8
_LOUD: Final = ("asyncio", "uvicorn.error")
"""Loggers that a stranger can fill: by what is not a request, and by connections while no more files can be opened."""


@dataclass(frozen=True, slots=True)
class DashboardSettings:
    """Where to listen, and who may see the pages.

    :param port: 0 for any free one.
    :param allowed_hosts: names under which browsers may ask for the pages, besides those of this machine.
    :param token: whoever enters it may see the pages; ``None``: all who can connect.
    :raises ConfigurationError: the token is too short, or missing although other machines can connect; or a host name
        is invalid.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    allowed_hosts: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the token and the names."""
        check_token(self.token)
        for name in self.allowed_hosts:
            if host_name(name) != name.lower():
                raise ConfigurationError(
                    "not a host name",
                    found=repr(name),
                    expected="a name without a port; an IPv6 address stands in brackets",
                )
        if self.token is None and not is_loopback(self.host):
            raise ConfigurationError(
                "other machines can connect to the dashboard, and it has no token",
                found=self.host,
                expected="a token in OFFSETSTORE_DASHBOARD_TOKEN, or --host 127.0.0.1",
                next_step=MAKE_A_TOKEN,
            )

    @property
    def access(self) -> Access:
        """What is asked of requests. The address that it listens on is a name of the server, too."""
        return Access((*own_names(self.host), *(name.lower() for name in self.allowed_hosts)), self.token)


class _Connection(H11Protocol):
    """A browser's connection. It has `HEAD_SECONDS` for each request's head, and `_ANSWER_SECONDS` for its answer.

    If there are too many, the oldest is closed; those at work for someone who may see the pages come last.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, and begin to count the time for a head."""
        super().connection_made(transport)
        self.began = self.loop.time()
        self._timed: object = None
        self._timer = self.loop.call_later(HEAD_SECONDS, transport.abort)
        ours = cast("set[_Connection]", self.connections)
        if len(ours) > most_connections():
            oldest = min(ours, key=lambda connection: (connection.is_at_work, connection.began))
            # Else the next connection would choose it again: it is removed only once it is closed.
            ours.discard(oldest)
            oldest.transport.abort()

    @property
    def is_at_work(self) -> bool:
        """Whether a request that may see the page is being answered."""
        return self._answering() is not None and bool(self.scope.get("state", {}).get(AT_WORK))

    def data_received(self, data: bytes) -> None:
        """Count the time anew when a head has begun, or an answer."""
        super().data_received(data)
        if (answering := self._answering()) is not self._timed:
            self._timed = answering
            self._timer.cancel()
            seconds = HEAD_SECONDS if answering is None else _ANSWER_SECONDS
            self._timer = self.loop.call_later(seconds, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def _answering(self) -> object:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return None if cycle is None or cycle.response_complete else cycle


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # The kernel may keep more connections than a burst, which is the backlog that uvicorn has set.
        for listener in sockets or ():
            listener.listen(QUEUE)


class DashboardServer:
    """The pages at ``http://host:port/``.

    It listens at once. `run` answers until the process is told to end; `start` and `close` do so beside other work.

    :param store: it is left open, as is the broker.
    :param kafka_groups: Kafka's names of groups that have a different one there, by the name in the store.
    :param actions: lets groups be reset, paused and resumed, and dead letters be replayed and discarded, on the pages.
    :raises ConfigurationError: it can't listen there.
    """

    def __init__(
        self,
        store: OffsetStore,
        broker: BrokerOverview,
        settings: DashboardSettings | None = None,
        *,
        kafka_groups: Mapping[str, str] | None = None,
        actions: Deciding | None = None,
    ) -> None:
        self._settings = settings or DashboardSettings()
        self._snapshots = Snapshots(store, broker, kafka_groups=kafka_groups)
        app = make_application(Dashboard(store, self._snapshots, self._settings.access, actions))
        config = uvicorn.Config(
            app,
            # An h11 connection: httptools would take a head without an end (decision 0102).
            http=_Connection,
            loop="asyncio",
            backlog=_BURST,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            # No header of a proxy is believed; none is needed.
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_PATIENCE,
        )
        self._server = _Server(config)
        address = self._settings.host, self._settings.port
        with listening("the dashboard", *address):
            self._socket = socket.create_server(address, family=family(address[0]))
        # Accepted connections inherit this. asyncio would set it only for a socket whose protocol number is given;
        # without it, the last part of an answer waits 40 ms for the browser's ACK.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._thread: Thread | None = None

    @property
    def url(self) -> str:
        """The address of the first page."""
        return f"http://{url_host(self._settings.host)}:{self._socket.getsockname()[1]}/"

    @property
    def snapshots(self) -> Snapshots:
        return self._snapshots

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM."""
        self._snapshots.start()
        seldom, loggers = Seldom(), [logging.getLogger(name) for name in _LOUD]
        for logger in loggers:
            logger.addFilter(seldom)
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._snapshots.close()
            for logger in loggers:
                logger.removeFilter(seldom)

    def start(self) -> None:
        """Answer in a thread of its own."""
        self._thread = Thread(target=self.run, name="offsetstore-dashboard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def make_application(dashboard: Dashboard) -> ASGIApp:
    """Return the pages behind the guard."""
    app = Starlette(
        routes=[
            *groups.ROUTES,
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
