"""What befalls a topic: other settings, a new life, records that are gone."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import admin as kafka_admin

from offsetstore.kafka import admin
from tests.faults.chaos.harness.scene import Scene
from tests.support.waiting import wait_until

_API: Any = kafka_admin
_SECONDS = 30


def alter_topic(servers: str, topic: str, settings: Mapping[str, str]) -> None:
    """Change the topic's own settings."""
    client = _API.AdminClient({"bootstrap.servers": servers, "log_level": 0})
    changes = [
        _API.ConfigEntry(name, value, incremental_operation=_API.AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = _API.ConfigResource(_API.ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    client.incremental_alter_configs([resource])[resource].result(_SECONDS)


def recreate(scene: Scene, *, partitions: int | None = None, pause: float = 0) -> None:
    """Delete the topic and create one of the same name, and tell the ledger.

    :param pause: seconds without a topic.
    """
    if partitions is not None:
        scene.partitions = partitions
    admin.delete_topic(scene.servers, scene.topic)
    time.sleep(pause)
    admin.create_topic(scene.servers, scene.topic, partitions=scene.partitions)
    scene.new_generation()


def add_partitions(scene: Scene, count: int) -> list[int]:
    """Give the topic more partitions; return their numbers."""
    first = scene.partitions
    admin.create_partitions(scene.servers, scene.topic, total=first + count)
    scene.ledger.close()
    scene.partitions = first + count
    return list(range(first, scene.partitions))


def beginnings(servers: str, topic: str) -> dict[int, int]:
    """Where each partition's log begins."""
    return {partition: low for partition, (low, _) in _watermarks(servers, topic).items()}


def high_watermarks(servers: str, topic: str) -> dict[int, int]:
    """Where each partition's log ends for a reader who does not mind open transactions."""
    return {
        partition: high
        for partition, (_, high) in _watermarks(servers, topic, **{"isolation.level": "read_uncommitted"}).items()
    }


def last_stable_offsets(servers: str, topic: str) -> dict[int, int]:
    """Where each partition's log ends for a reader of committed records."""
    return {
        partition: high
        for partition, (_, high) in _watermarks(servers, topic, **{"isolation.level": "read_committed"}).items()
    }


def all_offsets(servers: str, topic: str) -> dict[int, list[int]]:
    """Every offset at which there is a record, tombstones too."""
    return {partition: list(_offsets(servers, topic, partition)) for partition in _watermarks(servers, topic)}


def settled_offsets(servers: str, topic: str, *, pause: float = 1.0) -> dict[int, list[int]]:
    """The same, when two looks so many seconds apart show the same."""

    def twice() -> dict[int, list[int]] | None:
        before = all_offsets(servers, topic)
        time.sleep(pause)
        return before if all_offsets(servers, topic) == before else None

    found = wait_until(twice, timeout=60)
    assert found is not None
    return found


def _consumer(servers: str, **settings: Any) -> Consumer:
    return Consumer({
        "bootstrap.servers": servers,
        "group.id": f"look-{uuid4()}",
        "enable.auto.commit": False,
        "log_level": 0,
        **settings,
    })  # fmt: skip


def _watermarks(servers: str, topic: str, **settings: Any) -> dict[int, tuple[int, int]]:
    consumer = _consumer(servers, **settings)
    try:
        numbers = consumer.list_topics(topic, timeout=_SECONDS).topics[topic].partitions
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_SECONDS)
            for number in sorted(numbers)
        }
    finally:
        consumer.close()


def _offsets(servers: str, topic: str, partition: int) -> Iterator[int]:
    consumer = _consumer(servers, **{"isolation.level": "read_uncommitted", "enable.partition.eof": True})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_SECONDS)
        if low == high:
            return
        consumer.assign([TopicPartition(topic, partition, low)])
        while True:
            message = consumer.poll(_SECONDS)
            assert message is not None, "Kafka is silent"
            if message.error() is not None:  # the end
                return
            yield int(message.offset() or 0)
    finally:
        consumer.close()
