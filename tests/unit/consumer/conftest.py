"""A consumer without Kafka and without a database."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import confluent_kafka
import pytest

from offsetstore import Append, TopicPartition
from offsetstore.consumer import Consumer
from offsetstore.testing import InMemoryOffsetStore
from tests.support.background import in_background
from tests.support.kafka_client import FakeClient, FakeCluster

GROUP = "billing"
P0, P1 = (TopicPartition("payments", number) for number in range(2))


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster.with_topics({"payments": 2}, end=100)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    made = FakeClient(P0, P1)
    monkeypatch.setattr(confluent_kafka, "Consumer", made.made)
    return made


def unchanged(records: Any) -> Any:
    return records


def consumer_of(store: InMemoryOffsetStore, cluster: FakeCluster, **changes: Any) -> Consumer:
    arguments: dict[str, Any] = {
        "topics": ["payments"],
        "kafka": {"bootstrap.servers": "localhost:1"},
        "transform": unchanged,
        "into": Append("rows"),
    }
    made = Consumer(cast("Any", store), GROUP, **arguments | changes)
    made.request = replace(made.request, broker=cluster)
    made.asked = cast("Any", cluster)
    return made


@contextmanager
def running(consumer: Consumer) -> Generator[Future[None]]:
    """Let it run until the end of the block, which it must reach well."""
    done = in_background(consumer.run)
    try:
        yield done
    finally:
        consumer.stop()
    done.result(timeout=60)
