from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer

from offsetstore import TopicPartition
from offsetstore.local.kafka import KafkaBroker
from offsetstore.testing.fixtures import NewTopic
from tests.integration.conftest import Query

PARTITIONS = 4


@dataclass
class Cluster:
    """A topic with four partitions, whose records are numbers that count up."""

    bootstrap: str
    topic: str
    producer: Any
    count: int = 0

    def produce(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            self.producer.produce(self.topic, str(number).encode(), partition=number % PARTITIONS)
        assert self.producer.flush(30) == 0
        self.count += count

    @property
    def tps(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, number) for number in range(PARTITIONS)]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine Kafka may be silent for longer than a member waits for its last copies to be committed."""
    monkeypatch.setattr("offsetstore.consumer.commits.LAST_COMMIT", 60.0)
    monkeypatch.setattr("offsetstore.consumer.consumer.LAST_COMMIT", 60.0)
    monkeypatch.setattr("offsetstore.consumer.consumer._LEAVING", 65.0)


@pytest.fixture
def cluster(offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic) -> Iterator[Cluster]:
    bootstrap = offsetstore_kafka.bootstrap_servers
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        yield Cluster(bootstrap, offsetstore_topic(PARTITIONS), producer)


def numbers(query: Query) -> list[int]:
    """The records that were written to the table of results."""
    return [number for (number,) in query("SELECT record FROM results ORDER BY record")]


def owners(query: Query) -> int:
    """How many members have partitions."""
    return query("SELECT count(DISTINCT claim_id) FROM kafka_partitions")[0][0]
