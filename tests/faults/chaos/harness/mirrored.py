"""What Kafka has for the group, watched all the while: the mirror is never ahead of the store (I7)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Self

import confluent_kafka
import psycopg

if TYPE_CHECKING:
    from tests.faults.chaos.harness.scene import Scene

_PAUSE = 0.4
_SECONDS = 10.0


def committed(servers: str, group: str, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    """Kafka's committed offsets of the group."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    try:
        return _ask(consumer, topics, 60.0)
    finally:
        consumer.close()


def _ask(consumer: confluent_kafka.Consumer, topics: Sequence[str], seconds: float) -> dict[tuple[str, int], int]:
    known = consumer.list_topics(timeout=seconds).topics
    places = [confluent_kafka.TopicPartition(t, p) for t in topics if t in known for p in known[t].partitions]
    found = consumer.committed(places, timeout=seconds) if places else []
    return {(tp.topic, tp.partition): tp.offset for tp in found if tp.offset >= 0}


class MirrorWatch:
    """Asks Kafka first and the store then, whose offset only grows: one that Kafka has above it was ahead.

    ``is_exempt`` is set by a fault in which Kafka may be ahead: another tool has moved its offsets, or the store's were
    moved back.
    """

    def __init__(self, scene: Scene) -> None:
        self.ahead: list[str] = []
        self.is_exempt = False
        self.count = 0
        self._scene = scene
        self._leaving = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._thread.join(60)

    def _watch(self) -> None:
        scene = self._scene
        consumer = confluent_kafka.Consumer({
            "bootstrap.servers": scene.servers, "group.id": scene.group, "log_level": 0
        })  # fmt: skip
        while not self._leaving.wait(_PAUSE):
            with suppress(confluent_kafka.KafkaException, psycopg.Error):
                found = _ask(consumer, list(scene.topics), _SECONDS)
                if not found or self.is_exempt:
                    continue
                with psycopg.connect(scene.url, autocommit=True) as connection:
                    rows = connection.execute(
                        "SELECT consumer_group, topic, partition, next_offset FROM kafka_partitions"
                    )
                    stored = {(t, p): offset for g, t, p, offset in rows if g == scene.group}
                self.count += 1
                if not self.is_exempt:
                    self.ahead += [
                        f"Kafka had {offset} for {place}, the store {stored.get(place)}"
                        for place, offset in found.items()
                        if offset > stored.get(place, -1)
                    ]
        consumer.close()
