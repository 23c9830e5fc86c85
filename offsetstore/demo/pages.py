"""The dashboard, while the demo runs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from offsetstore.kafka.broker import Broker
from offsetstore.lazy import load
from offsetstore.offset_store import OffsetStore

_LAZY = {
    "DashboardServer": ("offsetstore.monitoring.dashboard.serving", "dashboard"),
    "Settings": ("offsetstore.monitoring.dashboard.serving", "dashboard"),
}


@contextmanager
def serve_dashboard(url: str, bootstrap_servers: str) -> Generator[str]:
    """Serve it on a free port, and yield its address.

    :raises MissingDependency: a package that it needs is not installed.
    """
    settings = load(__name__, "Settings", _LAZY)(port=0)
    broker = Broker({"bootstrap.servers": bootstrap_servers})
    try:
        with (
            OffsetStore.connect(url, schema="public") as store,
            load(__name__, "DashboardServer", _LAZY)(store, broker, settings) as server,
        ):
            yield server.url
    finally:
        broker.close()
