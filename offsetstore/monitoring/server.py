"""Serves a job's metrics over HTTP, from the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

from prometheus_client import start_http_server

from offsetstore.errors import ConfigurationError
from offsetstore.monitoring.metrics import Metrics

if TYPE_CHECKING:
    from types import TracebackType

    from prometheus_client import CollectorRegistry

PORT: Final = 9464
"""OpenTelemetry's port for an application's Prometheus metrics."""


class Monitoring(Metrics):
    """Metrics at ``http://host:port/metrics``, until it is closed or the process ends.

    ::

        with OffsetStore.connect(url, observers=[Monitoring()]) as store: ...

    :param port: 0 for any free one; see ``port``.
    :param host: the address to listen on. By default only this machine can connect: there is no password.
    :param registry: of other metrics, which are then served too.
    :raises ConfigurationError: it can't listen there.
    """

    def __init__(self, port: int = PORT, *, host: str = "127.0.0.1", registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
        try:
            self._server, self._thread = start_http_server(port, host, self.registry)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                "metrics can't be served there",
                found=f"{host}:{port}, {error}",
                expected="a free port and an address of this machine",
                next_step="Choose another one: Monitoring(port=...), or 0 for any free one.",
            ) from None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._server.server_port

    def close(self) -> None:
        """Stop listening. The events are still counted."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
