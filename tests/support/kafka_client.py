"""Kafka's client of a consumer, which is none: it is assigned partitions, and polls what a test gives it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from offsetstore.errors import BrokerUnavailable
from offsetstore.offsets import CommittedOffset, TopicPartition
from offsetstore.testing import StaticBroker


class FakeCluster(StaticBroker):
    """Kafka, without connections, which may be away."""

    is_away = False

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        """See `StaticBroker`."""
        if self.is_away:
            raise BrokerUnavailable("no answer from Kafka")
        return super().committed_offsets(group, partitions)

    def close(self) -> None:
        """There are no connections."""


class FakeClient:
    """See the module.

    :param partitions: assigned once it has subscribed.

    ``reports`` are given to ``error_cb`` by a poll; ``closing`` ends the wait of `close`.
    """

    def __init__(self, *partitions: TopicPartition) -> None:
        self.config: dict[str, Any] = {}
        self.polls: deque[Callable[[], list[Any] | None]] = deque()
        self.reads: dict[TopicPartition, int] = {}
        self.reports: list[KafkaError] = []
        self.committed: list[int] = []
        self.closing = threading.Event()
        self.closing.set()
        self._partitions = partitions
        self._callbacks: dict[str, Any] = {}

    def made(self, config: dict[str, Any]) -> FakeClient:
        """In place of `confluent_kafka.Consumer`."""
        self.config = config
        return self

    def give(self, polled: list[Any]) -> None:
        """Let one poll return this."""
        self.polls.append(lambda: polled)

    def assign(self, *partitions: TopicPartition) -> None:
        self._callbacks["on_assign"](self, [confluent_kafka.TopicPartition(*tp) for tp in partitions])

    def revoke(self, *partitions: TopicPartition) -> None:
        self._callbacks["on_revoke"](self, [confluent_kafka.TopicPartition(*tp) for tp in partitions])

    def subscribe(self, _: Any, **callbacks: Any) -> None:
        self._callbacks = callbacks
        if self._partitions:
            self.polls.appendleft(lambda: self.assign(*self._partitions))

    def incremental_assign(self, assigned: Iterable[Any]) -> None:
        self.reads |= {TopicPartition(one.topic, one.partition): one.offset for one in assigned}

    def incremental_unassign(self, given: Iterable[Any]) -> None:
        for one in given:
            if self.reads.pop(TopicPartition(one.topic, one.partition), None) is None:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    def seek(self, one: Any) -> None:
        tp = TopicPartition(one.topic, one.partition)
        if tp not in self.reads:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.reads[tp] = one.offset

    def consume(self, _: int, seconds: float) -> list[Any]:
        while self.reports:
            self.config["error_cb"](self.reports.pop())
        if not self.polls:
            threading.Event().wait(min(seconds, 0.01))
            return []
        return self.polls.popleft()() or []

    def commit(self, *, offsets: Any, asynchronous: bool) -> None:
        assert asynchronous
        self.committed += [one.offset for one in offsets]

    def pause(self, _: Any) -> None: ...

    def resume(self, _: Any) -> None: ...

    def get_watermark_offsets(self, _: Any, *, cached: bool) -> tuple[int, int]:
        assert cached
        return -1001, -1001

    def close(self) -> None:
        self.closing.wait(60)
