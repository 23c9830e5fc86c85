"""A broker for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from offsetstore import Broker
from offsetstore.local.kafka.server import KafkaBroker


@pytest.fixture
def broker(offsetstore_kafka: KafkaBroker) -> Iterator[Broker]:
    broker = Broker({"bootstrap.servers": offsetstore_kafka.bootstrap_servers})
    yield broker
    broker.close()
