"""What Kafka has of a group's offsets, with the text beside each."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, TopicPartition

from offsetstore.offsets import CommittedOffset
from tests.faults.chaos.harness.scene import Scene


def copies(scene: Scene) -> dict[int, CommittedOffset]:
    """Return what is committed for each partition of the run's topic."""
    consumer: Any = Consumer({"bootstrap.servers": scene.servers, "group.id": scene.group, "log_level": 0})
    try:
        places = [TopicPartition(scene.topic, partition) for partition in range(scene.partitions)]
        found = consumer.committed(places, timeout=30)
        return {tp.partition: CommittedOffset(tp.offset, tp.metadata) for tp in found if tp.offset >= 0}
    finally:
        consumer.close()
