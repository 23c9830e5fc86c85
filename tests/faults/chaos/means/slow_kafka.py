"""A Kafka that tells its clients an address at which a proxy stands."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from offsetstore.local.free_ports import LOOPBACK, free_port
from offsetstore.local.kafka.properties import KafkaPorts, SaslUser, server_properties
from offsetstore.local.kafka.server import KafkaBroker
from tests.support.slow_proxy import SlowProxy


@contextmanager
def slow_kafka(dice: random.Random) -> Generator[tuple[KafkaBroker, SlowProxy]]:
    """Start a broker of its own that has one listener more. Whoever asks the proxy is always sent to the proxy."""
    ports = KafkaPorts.free()
    behind = free_port()
    with SlowProxy((LOOPBACK, behind), dice) as proxy:
        own = server_properties(ports, SaslUser(), Path())
        settings = {
            "listeners": f"{own['listeners']},SLOW://{LOOPBACK}:{behind}",
            "advertised.listeners": f"{own['advertised.listeners']},SLOW://{LOOPBACK}:{proxy.port}",
            "listener.security.protocol.map": f"{own['listener.security.protocol.map']},SLOW:PLAINTEXT",
        }
        with KafkaBroker(ports=ports, settings=settings, heap="384m") as broker:
            yield broker, proxy
