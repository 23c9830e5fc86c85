"""Listens, and serves the pages until it is told to end."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Thread
from types import TracebackType
from typing import Final, Self

import uvicorn

from offsetstore.errors import ConfigurationError
from offsetstore.monitoring.dashboard.application import make_application
from offsetstore.monitoring.dashboard.context import Dashboard, Deciding
from offsetstore.monitoring.dashboard.security import LOCAL, Access, host_name
from offsetstore.monitoring.dashboard.snapshots import Snapshots
from offsetstore.monitoring.web import MAKE_A_TOKEN, check_token, family, is_loopback, listening, url_host
from offsetstore.offset_store import OffsetStore
from offsetstore.protocol.ports import BrokerOverview

PORT: Final = 9466

_PATIENCE: Final = 5  # seconds for requests that are being answered


@dataclass(frozen=True, slots=True)
class Settings:
    """Where to listen, and who may see the pages.

    :param port: 0 for any free one.
    :param allowed_hosts: names under which browsers may ask for the pages, besides those of this machine.
    :param token: who enters it may see the pages; ``None``: all who can connect.
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
        return Access((*LOCAL, url_host(self.host.lower()), *(name.lower() for name in self.allowed_hosts)), self.token)


class DashboardServer:
    """The pages at ``http://host:port/``.

    It listens from the start. `run` answers until the process is told to end; `start` and `close` do so beside other
    work.

    :param store: it is left open, as is the broker.
    :param kafka_groups: the groups in Kafka that have another name there, by the name in the store.
    :param actions: lets groups be reset, paused and resumed, and dead letters be replayed and discarded, on the pages.
    :raises ConfigurationError: it can't listen there.
    """

    def __init__(
        self,
        store: OffsetStore,
        broker: BrokerOverview,
        settings: Settings | None = None,
        *,
        kafka_groups: Mapping[str, str] | None = None,
        actions: Deciding | None = None,
    ) -> None:
        self._settings = settings or Settings()
        self._snapshots = Snapshots(store, broker, kafka_groups=kafka_groups)
        app = make_application(Dashboard(store, self._snapshots, self._settings.access, actions))
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,  # which proxies could be believed? None is needed
            server_header=False,
            timeout_graceful_shutdown=_PATIENCE,
        )
        self._server = uvicorn.Server(config)
        self._socket = _listen(self._settings)
        self._thread: Thread | None = None

    @property
    def url(self) -> str:
        """The address of the first page."""
        return f"http://{url_host(self._settings.host)}:{self._socket.getsockname()[1]}/"

    @property
    def snapshots(self) -> Snapshots:
        """What the pages show of Kafka."""
        return self._snapshots

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM."""
        self._snapshots.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._snapshots.close()

    def start(self) -> None:
        """Answer in a thread of its own."""
        self._thread = Thread(target=self.run, name="offsetstore-dashboard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
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


def _listen(settings: Settings) -> socket.socket:
    address = settings.host, settings.port
    with listening("the dashboard", *address):
        listener = socket.create_server(address, family=family(settings.host))
    # What it accepts inherits this. asyncio would set it only for a socket whose protocol number is given; without it,
    # an answer's last part waits 40 ms for the browser's ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
