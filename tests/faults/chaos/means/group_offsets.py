"""Another tool than ours at the group's offsets in Kafka."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import admin as kafka_admin

from tests.faults.chaos.harness.mirrored import committed
from tests.faults.chaos.harness.scene import Scene
from tests.support.consumer_groups import set_offsets_by_tool
from tests.support.waiting import wait_until

_API: Any = kafka_admin
_SECONDS = 30


def set_offsets(scene: Scene, offsets: Mapping[int, int], *, by_tool: bool = False) -> str:
    """Set the group's offsets as an operator would; return by what it was done.

    :param by_tool: by Kafka's own command line, else by a plain consumer.
    """
    scene.mirror_watch.is_exempt = True
    if by_tool:
        set_offsets_by_tool(scene.kafka, scene.group, scene.topic, offsets, scene.directory)
    else:
        commit(scene, offsets)
    found = in_kafka(scene)
    wanted = {partition: found.get(partition) for partition in offsets}
    assert wanted == dict(offsets), f"Kafka has {found} instead of {dict(offsets)}"
    return "kafka-consumer-groups --reset-offsets" if by_tool else "a consumer's commit"


def in_kafka(scene: Scene) -> dict[int, int]:
    """What Kafka has for the group."""
    found = committed(scene.servers, scene.group, [scene.topic])
    return {partition: offset for (_, partition), offset in found.items()}


def expire(scene: Scene) -> None:
    """Delete the group with all its offsets, as Kafka does a week after the last commit. A mirror may make it again."""
    client = _API.AdminClient({"bootstrap.servers": scene.servers, "log_level": 0})
    client.delete_consumer_groups([scene.group])[scene.group].result(_SECONDS)


def wait_for_the_mirror(scene: Scene) -> None:
    """Wait until Kafka has what is stored of its partitions, and watch the mirror again from then on."""

    def has_followed() -> bool:
        there = scene.ends()
        stored = {partition: offset for partition, offset in scene.stored().items() if partition in there}
        return in_kafka(scene) == stored

    wait_until(has_followed, timeout=30)
    scene.mirror_watch.is_exempt = False


@contextmanager
def member(scene: Scene) -> Generator[Consumer]:
    """Another application, which subscribes with the job's group and leaves it at the end."""
    consumer = Consumer({
        "bootstrap.servers": scene.servers, "group.id": scene.group, "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "log_level": 0,
    })  # fmt: skip
    consumer.subscribe([scene.topic])
    try:
        yield consumer
    finally:
        consumer.close()


def read(consumer: Consumer, count: int) -> None:
    """Read records, and commit where that got to; only once it has some, so that the group has this member."""
    left = count
    while left > 0:
        left -= len(consumer.consume(left, 0.5))
    consumer.commit(asynchronous=False)


def commit(scene: Scene, offsets: Mapping[int, int]) -> None:
    """Commit as a plain consumer; a mirror that runs may overwrite it at once."""
    consumer = Consumer({
        "bootstrap.servers": scene.servers, "group.id": scene.group, "enable.auto.commit": False, "log_level": 0
    })  # fmt: skip
    try:
        wanted = [TopicPartition(scene.topic, partition, offset) for partition, offset in offsets.items()]
        done = consumer.commit(offsets=wanted, asynchronous=False)
        refused = [each for each in done or () if each.error is not None]
        assert not refused, refused
    finally:
        consumer.close()
