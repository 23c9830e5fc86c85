"""A broker with given answers, for tests without Kafka."""

# ruff: noqa: D102 - the Protocol that they implement says what the methods do

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from offsetstore.errors import GroupHasMembers, MetadataRefused, TopicMissing
from offsetstore.offsets import BrokerView, TopicLog, TopicPartition, Watermarks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsetstore.errors import OffsetStoreError
    from offsetstore.offsets import CommittedOffset

_MAX_TEXT: Final = 4095  # characters of Java's: Kafka's default, less the zero byte that confluent-kafka adds


class StaticBroker:
    """Returns preset answers: set ``current`` to the next one.

    ::

        broker = StaticBroker.with_topics({"payments": 3}, end=100)
        claim = store.claim("billing", broker)

    :param current: the answer, for every group.
    """

    def __init__(self, current: BrokerView) -> None:
        self.current = current
        self.error: OffsetStoreError | None = None
        """Raised by every request and every commit while it is set: a broker that is down."""
        self.commit_error: OffsetStoreError | None = None
        """Raised by every commit while it is set: a broker that only lets us read."""
        self.commits: list[tuple[str, dict[TopicPartition, CommittedOffset]]] = []
        """Every commit that was made, in order: the group, and its offsets. `current` holds the latest."""
        self.members: set[str] = set()
        """Groups that have members: they can't be committed to."""
        self.asked_offsets: list[str] = []
        """The group of each call of `committed_offsets`."""
        self.asked: list[str] = []
        """The group of each call of `view`."""

    @classmethod
    def with_topics(cls, partitions: dict[str, int], *, end: int = 0, cluster_id: str = "cluster") -> Self:
        """Make logs from 0 to ``end``, with nothing committed; a topic's id is its name and ``-id``.

        :param partitions: the number of partitions of each topic.
        """
        topics = {
            topic: TopicLog(f"{topic}-id", {number: Watermarks(0, end) for number in range(count)})
            for topic, count in partitions.items()
        }
        return cls(BrokerView(cluster_id, topics, {}))

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self.current.topics)

    def view(self, group: str, topics: Collection[str], *, timestamp_ms: int | None = None) -> BrokerView:
        self.asked.append(group)
        self._check(topics)
        return replace(
            self.current,
            topics={topic: self.current.topics[topic] for topic in topics},
            committed={tp: offset for tp, offset in self.current.committed.items() if tp.topic in topics},
            timestamps=None if timestamp_ms is None else self._timestamps(topics),
        )

    def topic_ids(self, topics: Collection[str]) -> dict[str, str | None]:
        self._check(topics)
        return {topic: self.current.topics[topic].topic_id for topic in topics}

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        self.asked_offsets.append(group)
        self._check({tp.topic for tp in partitions})
        return {tp: offset for tp, offset in self.current.committed.items() if tp in partitions}

    def has_members(self, group: str) -> bool:
        self._check(())
        return group in self.members

    def commit(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        self._check({tp.topic for tp in offsets})
        if group in self.members:
            raise GroupHasMembers(f"the group {group} has members")
        if self.commit_error is not None:
            raise self.commit_error
        for tp, offset in offsets.items():
            if len((offset.metadata or "").encode("utf-16-le")) // 2 > _MAX_TEXT:
                raise MetadataRefused(
                    "the text is too long", topic_partition=tp, expected=f"at most {_MAX_TEXT} characters"
                )
        self.commits.append((group, dict(offsets)))
        self.current = replace(self.current, committed={**self.current.committed, **offsets})

    def _timestamps(self, topics: Collection[str]) -> dict[TopicPartition, int]:
        """The end of each log, unless the view itself says otherwise: Kafka's answer to a time in the future."""
        ends = {
            TopicPartition(topic, number): log.end
            for topic in topics
            for number, log in self.current.topics[topic].partitions.items()
        }
        return ends | (self.current.timestamps or {})

    def _check(self, topics: Collection[str]) -> None:
        if self.error is not None:
            raise self.error
        for topic in topics:
            if topic not in self.current.topics:
                raise TopicMissing("Kafka has no such topic", found=topic)
