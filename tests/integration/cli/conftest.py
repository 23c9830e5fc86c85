from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import confluent_kafka
import pytest
from click.testing import CliRunner, Result

from offsetstore import Broker, OffsetRange, OffsetStore, TopicPartition
from offsetstore.cli.commands import cli
from offsetstore.kafka.admin import Record, produce
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.testing.fixtures import NewTopic


class Run(Protocol):
    """Calls the command line with a database and brokers in its environment."""

    def __call__(self, *arguments: str, url: str | None = None, brokers: str | None = None) -> Result:
        """Return its exit code and what it printed."""
        ...


@pytest.fixture
def run() -> Run:
    def call(*arguments: str, url: str | None = None, brokers: str | None = None) -> Result:
        environment = {"OFFSETSTORE_URL": url, "OFFSETSTORE_BOOTSTRAP_SERVERS": brokers}
        return CliRunner(env=environment).invoke(cli, arguments, prog_name="offsetstore")

    return call


@pytest.fixture
def payments(offsetstore_topic: NewTopic, offsetstore_kafka: KafkaBroker) -> str:
    """A topic of three partitions, ten records in each."""
    topic = offsetstore_topic(3)
    produce(offsetstore_kafka.bootstrap_servers, topic, [Record(b"x", partition=i % 3) for i in range(30)])
    return topic


@pytest.fixture
def billing(
    offsetstore_database: str, offsetstore_kafka: KafkaBroker, payments: str, offsetstore_group: str
) -> Iterator[str]:
    """A group with a live job: 4, 5 and 0 are stored for `payments`, 2 and 8 are committed for partitions 0 and 1."""
    servers = offsetstore_kafka.bootstrap_servers
    with OffsetStore.connect(offsetstore_database) as store:
        broker = Broker({"bootstrap.servers": servers})
        claim = store.claim(offsetstore_group, broker, topics=[payments], mirror_every=None)
        ranges = {TopicPartition(payments, 0): OffsetRange(0, 4), TopicPartition(payments, 1): OffsetRange(0, 5)}
        with store.transaction(claim) as tx:
            tx.lock(ranges)
            tx.advance(ranges)
        commit(servers, offsetstore_group, payments, {0: 2, 1: 8})
        yield offsetstore_group


def commit(servers: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Commit as any other tool would."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group})
    consumer.commit(
        offsets=[confluent_kafka.TopicPartition(topic, partition, offset) for partition, offset in offsets.items()],
        asynchronous=False,
    )
    consumer.close()
