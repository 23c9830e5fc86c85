"""What Kafka has for the group, watched all the while: the mirror is never ahead of the store (I7)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import confluent_kafka
import psycopg

from offsetstore.offsets import CommittedOffset
from tests.support.background import repeating

if TYPE_CHECKING:
    from tests.faults.chaos.harness.scene import Scene

_SECONDS = 60.0
_STORED = "SELECT topic, partition, next_offset FROM kafka_partitions WHERE consumer_group = %s"


@contextmanager
def consumer(servers: str, group: str, **settings: Any) -> Generator[Any]:
    given = {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, "log_level": 0}
    made = confluent_kafka.Consumer({**given, **settings})
    try:
        yield made
    finally:
        made.close()


def watermarks(servers: str, topic: str, **settings: Any) -> dict[int, tuple[int, int]]:
    with consumer(servers, "harness", **settings) as asking:
        return {
            number: asking.get_watermark_offsets(confluent_kafka.TopicPartition(topic, number), timeout=30)
            for number in sorted(asking.list_topics(topic, timeout=30).topics[topic].partitions)
        }


def committed(servers: str, group: str, topics: Sequence[str]) -> dict[tuple[str, int], CommittedOffset]:
    with consumer(servers, group) as asking:
        return _ask(asking, topics)


def _ask(asking: Any, topics: Sequence[str], seconds: float = _SECONDS) -> dict[tuple[str, int], CommittedOffset]:
    known: Any = asking.list_topics(timeout=seconds).topics
    places = [confluent_kafka.TopicPartition(t, p) for t in topics if t in known for p in known[t].partitions]
    found: list[Any] = asking.committed(places, timeout=seconds) if places else []
    return {(tp.topic, tp.partition): CommittedOffset(tp.offset, tp.metadata) for tp in found if tp.offset >= 0}


class MirrorWatch:
    """Asks Kafka first and the store then, whose offset only grows: one that Kafka has above it was ahead.

    ``is_exempt`` is set by a fault in which Kafka may be ahead: another tool has moved its offsets, or the store's were
    moved back.
    """

    def __init__(self, scene: Scene) -> None:
        self.ahead: list[str] = []
        self.is_exempt = False
        self._scene = scene
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        self._asking = self._closing.enter_context(consumer(self._scene.servers, self._scene.group))
        self._closing.enter_context(repeating(self._try_to_look, every=0.4))
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def look(self, seconds: float = _SECONDS) -> None:
        found = _ask(self._asking, self._scene.topics, seconds)
        if not found or self.is_exempt:
            return
        with psycopg.connect(self._scene.url, autocommit=True) as connection:
            stored = {(t, p): offset for t, p, offset in connection.execute(_STORED, (self._scene.group,))}
        if not self.is_exempt:
            self.ahead += [
                f"Kafka had {copy.next_offset} for {place}, the store {stored.get(place)}"
                for place, copy in found.items()
                if copy.next_offset > stored.get(place, -1)
            ]

    def _try_to_look(self) -> None:
        with suppress(confluent_kafka.KafkaException, psycopg.Error):
            self.look(10)
