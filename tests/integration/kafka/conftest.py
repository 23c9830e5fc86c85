"""A broker for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from offsetstore import Broker
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.store import mirror as mirrors


@pytest.fixture
def broker(offsetstore_kafka: KafkaBroker) -> Iterator[Broker]:
    broker = Broker({"bootstrap.servers": offsetstore_kafka.bootstrap_servers})
    yield broker
    broker.close()


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine Kafka may be silent for longer than a claim waits for its last copy, or for a look at members.

    What is copied, and whether there are members, has to be told all the same.
    """
    monkeypatch.setattr(mirrors, "LAST_COMMIT", 60.0)
    monkeypatch.setattr("offsetstore.kafka.broker._LOOK_SECONDS", 15.0)
