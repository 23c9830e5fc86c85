"""Kafka's client as librdkafka is, without Kafka: one queue for all partitions, filled by fetches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, Message

from offsetstore import TopicPartition


class FetchingClient:
    """A queue of what was fetched, in that order: of each partition up to a chunk, of one after the other.

    As in librdkafka, nothing is fetched while the queue has ``ahead`` messages, and what it has of a partition is
    dropped when that is paused or sought: it is read on from what was handed over last, or from where it was sought.

    :param chunk: bytes of values that one fetch brings of a partition, and at least one record.
    :param on_empty: called when a poll finds nothing more.
    """

    def __init__(self, chunk: int, ahead: int, on_empty: Callable[[float], object] = lambda _: None) -> None:
        self.logs: dict[TopicPartition, list[bytes]] = {}
        self.high: dict[TopicPartition, int] = {}
        self.fetched = 0
        self.away = set[TopicPartition]()  # their leaders
        self.slow = 0  # polls that a fetch takes
        self.stable: dict[TopicPartition, int] = {}  # where open transactions begin
        self._polls = 0
        self._chunk = chunk
        self._ahead = ahead
        self._on_empty = on_empty
        self._queue: deque[tuple[TopicPartition, Message]] = deque()
        self._next: dict[TopicPartition, int] = {}
        self._handed: dict[TopicPartition, int] = {}  # up to where, or where it was sought
        self._told: dict[TopicPartition, int] = {}
        self._paused = set[TopicPartition]()

    def read(self, positions: Mapping[TopicPartition, int]) -> None:
        """Begin to read partitions."""
        for tp, offset in positions.items():
            self._seek(tp, offset)

    def get_watermark_offsets(self, one: Any, *, cached: bool) -> tuple[int, int]:
        """See confluent-kafka."""
        assert cached
        return 0, self.high.get(_tp(one), -1001)

    def pause(self, partitions: Iterable[Any]) -> None:
        """See confluent-kafka."""
        for tp in map(_tp, partitions):
            self._paused.add(tp)
            self._drop(tp)

    def resume(self, partitions: Iterable[Any]) -> None:
        """See confluent-kafka."""
        self._paused.difference_update(map(_tp, partitions))

    def seek(self, one: Any) -> None:
        """See confluent-kafka."""
        self._seek(_tp(one), one.offset)

    def consume(self, most: int, seconds: float) -> list[Message]:
        """See confluent-kafka."""
        found: list[Message] = []
        self._polls += 1
        has_come = self._polls % (1 + self.slow) == 0
        if has_come:
            self._fetch()
        while len(found) < most and (self._queue or (has_come and self._fetch())):
            tp, message = self._queue.popleft()
            found.append(message)
            if message.error() is None:
                self._handed[tp] = int(message.offset() or 0) + 1
        if len(found) < most:
            self._on_empty(seconds)
        return found

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        self._handed[tp] = offset
        self._drop(tp)

    def _drop(self, tp: TopicPartition) -> None:
        self._queue = deque(pair for pair in self._queue if pair[0] != tp)
        self._next[tp] = self._handed[tp]
        self._told.pop(tp, None)

    def _fetch(self) -> bool:
        """Fetch once, unless there is enough; return whether there was anything."""
        before = len(self._queue)
        if before < self._ahead:
            for tp in self._next:
                if tp not in self._paused | self.away:
                    self._fetch_of(tp)
        return len(self._queue) > before

    def _fetch_of(self, tp: TopicPartition) -> None:
        log, left = self.logs[tp], self._chunk
        self.high[tp] = len(log)
        end = self.stable.get(tp, len(log))
        while left > 0 and (offset := self._next[tp]) < end:
            self._queue.append((tp, message(tp, offset, log[offset])))
            self._next[tp] = offset + 1
            self.fetched += 1
            left -= len(log[offset])
        if self._next[tp] == end != self._told.get(tp):
            self._told[tp] = end
            self._queue.append((tp, message(tp, end, error=KafkaError(KafkaError._PARTITION_EOF))))


def message(tp: TopicPartition, offset: int, value: bytes | None = None, error: KafkaError | None = None) -> Message:
    """A record, or what the client says of a partition."""
    made: Any = Message
    return made(
        topic=tp.topic,
        partition=tp.partition,
        offset=offset,
        value=value,
        error=error,
        timestamp=(0, -1),
        leader_epoch=0,
    )


def _tp(one: Any) -> TopicPartition:
    return TopicPartition(one.topic, one.partition)
