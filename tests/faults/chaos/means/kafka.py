"""What befalls a topic, and what other tools do to the group's offsets in Kafka."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import admin as kafka_admin

from offsetstore.kafka import admin
from tests.faults.chaos.harness.mirrored import committed, consumer, watermarks
from tests.faults.chaos.harness.scene import Scene
from tests.support.consumer_groups import set_offsets_by_tool
from tests.support.waiting import wait_until

_API: Any = kafka_admin
_SECONDS = 30


def alter_topic(servers: str, topic: str, settings: Mapping[str, str]) -> None:
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
    scene.mirror_watch.is_exempt = True
    if partitions is not None:
        scene.partitions = partitions
    admin.delete_topic(scene.servers, scene.topic)
    time.sleep(pause)
    admin.create_topic(scene.servers, scene.topic, partitions=scene.partitions)
    scene.ledger.new_generation(scene.topic)


def add_partitions(scene: Scene, count: int) -> list[int]:
    """Give the topic more partitions; return their numbers."""
    first = scene.partitions
    admin.create_partitions(scene.servers, scene.topic, total=first + count)
    scene.ledger.close()
    scene.partitions = first + count
    return list(range(first, scene.partitions))


def beginnings(scene: Scene) -> dict[int, int]:
    return {partition: low for partition, (low, _) in watermarks(scene.servers, scene.topic).items()}


def high_watermarks(scene: Scene) -> dict[int, int]:
    """Where each partition's log ends for a reader who does not mind open transactions."""
    return scene.ends(**{"isolation.level": "read_uncommitted"})


def last_stable_offsets(scene: Scene) -> dict[int, int]:
    """Where each partition's log ends for a reader of committed records."""
    return scene.ends(**{"isolation.level": "read_committed"})


def all_offsets(scene: Scene) -> dict[int, list[int]]:
    """Every offset at which there is a record, tombstones too."""
    return {
        number: [*_offsets(scene, number, *ends)] for number, ends in watermarks(scene.servers, scene.topic).items()
    }


def settled_offsets(scene: Scene) -> dict[int, list[int]]:
    """The same, when two looks a second apart show the same."""

    def twice() -> dict[int, list[int]]:
        before = all_offsets(scene)
        time.sleep(1)
        return before if all_offsets(scene) == before else {}

    return wait_until(twice, timeout=60)


def _offsets(scene: Scene, partition: int, low: int, high: int) -> Iterator[int]:
    if low == high:
        return
    how = {"isolation.level": "read_uncommitted", "enable.partition.eof": True}
    with consumer(scene.servers, "look", **how) as reader:
        reader.assign([TopicPartition(scene.topic, partition, low)])
        while True:
            message = reader.poll(_SECONDS)
            assert message is not None, "Kafka is silent"
            if message.error() is not None:  # the end
                return
            yield int(message.offset() or 0)


# -- the group's offsets


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
    found = committed(scene.servers, scene.group, [scene.topic])
    return {partition: copy.next_offset for (_, partition), copy in found.items()}


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


def mirrored(scene: Scene, count: int, /, **settings: Any) -> None:
    """As `Scene.catch_up`, and the mirror follows."""
    with scene.supervise(**settings):
        scene.produce(count)
        scene.caught_up()
        wait_for_the_mirror(scene)


def read(member: Consumer, count: int) -> None:
    """Read records, and commit where that got to; only once it has some, so that the group has this member."""
    left = count
    while left > 0:
        left -= len(member.consume(left, 0.5))
    member.commit(asynchronous=False)


def commit(scene: Scene, offsets: Mapping[int, int]) -> None:
    """Commit as a plain consumer; a mirror that runs may overwrite it at once."""
    with consumer(scene.servers, scene.group) as other:
        wanted = [TopicPartition(scene.topic, partition, offset) for partition, offset in offsets.items()]
        refused = [each for each in other.commit(offsets=wanted, asynchronous=False) or () if each.error is not None]
        assert not refused, refused
