"""A broker with given answers, for tests without Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final, Self

from offsetstore.errors import BrokerError, GroupHasMembers, MetadataRefused, OffsetStoreError, TopicMissing
from offsetstore.offsets import BrokerView, CommittedOffset, EpochPair, TopicLog, TopicPartition, Watermarks
from offsetstore.protocol.ports import FoundRecord, GroupSnapshot, KafkaSnapshot, LogEnds, TopicSnapshot

# Java's characters: Kafka's default, less the zero byte that confluent-kafka adds (decision 0010).
_MAX_TEXT: Final = 4095


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
        self.asked_epochs: list[dict[TopicPartition, EpochPair]] = []
        """What each call of `find_truncated` asked."""
        self.asked: list[str] = []
        """The group of each call of `view`."""
        self.script: list[OffsetStoreError | BrokerView | Callable[[], object] | None] = []
        """What the next calls of `view` do, one entry each: an error is raised, a view is shown instead of `current`,
        a function is called before `current` is shown; `None` shows `current`, as an empty script does."""
        self.has_ids = True
        """Whether it shows the topics' ids; brokers before Kafka 2.8 have none."""
        self.records: dict[TopicPartition, dict[int, int]] = {}
        """The records' timestamps in milliseconds, by offset, as `first_records` and `read_records` find them."""
        self.last_stable: dict[TopicPartition, int] = {}
        """The last stable offset of partitions with an open transaction."""
        self.epochs: dict[TopicPartition, int] = {}
        """The leader epochs of logs that `truncate` has changed; the others have 0."""
        self._parts: dict[TopicPartition, list[tuple[int, int]]] = {}
        self.unanswered: dict[str, BrokerError] = {}
        """Topics and groups for which `snapshot` has this error instead of an answer."""
        self.may_read = True
        """Whether `read_records` may read; else only DESCRIBE is allowed."""
        self.lookups = 0
        """How often `first_records` was called."""
        self._guard = threading.Lock()  # a mirror's thread commits while a test changes what is shown

    @classmethod
    def with_topics(cls, partitions: dict[str, int], *, end: int = 0, cluster_id: str = "cluster") -> Self:
        """Make logs from 0 to ``end``, with nothing committed; a topic's id is its name and ``-id``.

        :param partitions: the number of partitions of each topic.
        """
        logs = {topic: dict.fromkeys(range(count), (0, end)) for topic, count in partitions.items()}
        return cls.with_logs(logs, cluster_id=cluster_id)

    @classmethod
    def with_logs(cls, logs: Mapping[str, Mapping[int, tuple[int, int]]], *, cluster_id: str = "cluster") -> Self:
        """Make logs with nothing committed; a topic's id is its name and ``-id``.

        :param logs: beginning and end of each partition's log, by topic and number.
        """
        topics = {
            topic: TopicLog(f"{topic}-id", {number: _watermarks(*ends) for number, ends in log.items()})
            for topic, log in logs.items()
        }
        return cls(BrokerView(cluster_id, topics, {}))

    def set_log(self, tp: TopicPartition, begin: int, end: int) -> None:
        """Set the beginning and the end of a partition's log; a partition or topic that is not there yet is made."""
        with self._guard:
            log = self.current.topics.get(tp.topic, TopicLog(f"{tp.topic}-id", {}))
            log = replace(log, partitions={**log.partitions, tp.partition: _watermarks(begin, end)})
            self.current = replace(self.current, topics={**self.current.topics, tp.topic: log})

    def truncate(self, tp: TopicPartition, at: int, *, end: int) -> None:
        """Lose the records from ``at`` upwards, under the same topic id, and write others, up to ``end``."""
        self._parts.setdefault(tp, []).append((self.epochs.get(tp, 0), at))
        self.change_leader(tp)
        self.set_log(tp, self.current.topics[tp.topic].partitions[tp.partition].beginning, end)

    def change_leader(self, tp: TopicPartition) -> None:
        """Begin a new leader epoch of the partition."""
        self.epochs[tp] = self.epochs.get(tp, 0) + 1

    def set_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit as another application does: without a text, and not listed in `commits`."""
        self._put({tp: CommittedOffset(offset) for tp, offset in offsets.items()})

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self.current.topics)

    def view(
        self,
        group: str,
        topics: Collection[str],
        *,
        timestamp_ms: int | None = None,
        partitions: Collection[TopicPartition] | None = None,
    ) -> BrokerView:
        self.asked.append(group)
        step = self.script.pop(0) if self.script else None
        if isinstance(step, OffsetStoreError):
            raise step
        if callable(step):
            step()
        shown = step if isinstance(step, BrokerView) else self.current
        self._check(topics, shown)
        view = replace(
            shown,
            topics={topic: self._log(topic, shown) for topic in topics},
            committed={tp: offset for tp, offset in shown.committed.items() if tp.topic in topics},
            timestamps=None if timestamp_ms is None else _timestamps(topics, shown),
        )
        return view if partitions is None else view.of(partitions)

    def topic_ids(self, topics: Collection[str]) -> dict[str, str | None]:
        shown = self.current
        self._check(topics, shown)
        return {topic: self._log(topic, shown).topic_id for topic in topics}

    def log_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Watermarks]:
        self._check({tp.topic for tp in partitions})
        logs = {topic: self._log(topic, self.current) for topic in {tp.topic for tp in partitions}}
        return {tp: logs[tp.topic].partitions[tp.partition] for tp in partitions}

    def find_truncated(self, pairs: Mapping[TopicPartition, EpochPair]) -> dict[TopicPartition, int | None]:
        self.asked_epochs.append(dict(pairs))
        logs = self.log_ends(pairs)
        truncated: dict[TopicPartition, int | None] = {}
        for tp, pair in pairs.items():
            parted = [at for epoch, at in self._parts.get(tp, ()) if epoch >= pair.leader_epoch and at < pair.offset]
            log = logs[tp]
            if parted and log.high is not None and log.beginning <= pair.offset <= log.high:
                truncated[tp] = min(parted)
        return truncated

    def committed_offsets(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, CommittedOffset]:
        self.asked_offsets.append(group)
        self._check({tp.topic for tp in partitions})
        return {tp: offset for tp, offset in self.current.committed.items() if tp in partitions}

    def has_members(self, group: str) -> bool:
        self._check(())
        return group in self.members

    def snapshot(self, groups: Mapping[str, Collection[str]]) -> KafkaSnapshot:
        self._check(())
        names = sorted({topic for topics in groups.values() for topic in topics})
        return KafkaSnapshot(
            self.current.cluster_id,
            {name: self._topic_snapshot(name) for name in names},
            {group: self._group_snapshot(group, topics) for group, topics in groups.items()},
        )

    def _topic_snapshot(self, name: str) -> TopicSnapshot:
        if name in self.unanswered:
            return TopicSnapshot(error=self.unanswered[name])
        if name not in self.current.topics:
            return TopicSnapshot(error=TopicMissing(f"Kafka has no topic {name}"))
        log = self._log(name, self.current)
        ends = {
            number: LogEnds(
                watermarks.beginning,
                watermarks.end,
                self.last_stable.get(TopicPartition(name, number), watermarks.end),
            )
            for number, watermarks in log.partitions.items()
        }
        return TopicSnapshot(log.topic_id, len(ends), ends)

    def _group_snapshot(self, group: str, topics: Collection[str]) -> GroupSnapshot:
        if group in self.unanswered:
            return GroupSnapshot(error=self.unanswered[group])
        committed = {tp: offset for tp, offset in self.current.committed.items() if tp.topic in topics}
        return GroupSnapshot(committed, group in self.members)

    def first_records(
        self, asked: Collection[tuple[TopicPartition, int]]
    ) -> dict[tuple[TopicPartition, int], FoundRecord | None]:
        self._check(())
        self.lookups += 1
        return {
            (tp, time): next((FoundRecord(*record) for record in self._records_of(tp) if record[1] >= time), None)
            for tp, time in asked
            if tp.topic in self.current.topics
        }

    def read_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, FoundRecord | None]:
        if not self.may_read:
            return {}
        return {
            tp: next((FoundRecord(*record) for record in self._records_of(tp) if record[0] >= offset), None)
            for tp, offset in offsets.items()
        }

    def _records_of(self, tp: TopicPartition) -> list[tuple[int, int]]:
        beginning = self.current.topics[tp.topic].partitions[tp.partition].beginning
        return sorted(record for record in self.records.get(tp, {}).items() if record[0] >= beginning)

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
        self._put(offsets)
        self.commits.append((group, dict(offsets)))  # last: tests wait for it

    def _put(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        with self._guard:
            self.current = replace(self.current, committed={**self.current.committed, **offsets})

    def _log(self, topic: str, shown: BrokerView) -> TopicLog:
        log = shown.topics[topic]
        whole = all(
            watermarks.high is not None and watermarks.leader_epoch is not None
            for watermarks in log.partitions.values()
        )
        if whole and self.has_ids and not self.epochs:
            return log
        known = {
            number: self._known(TopicPartition(topic, number), watermarks)
            for number, watermarks in log.partitions.items()
        }
        return replace(log, topic_id=log.topic_id if self.has_ids else None, partitions=known)

    def _known(self, tp: TopicPartition, shown: Watermarks) -> Watermarks:
        """Fill in what the view leaves out: its ends are high watermarks, and the leader has not changed."""
        high = shown.end if shown.high is None else shown.high
        epoch = self.epochs.get(tp, shown.leader_epoch or 0)
        return Watermarks(shown.beginning, shown.end, high=high, leader_epoch=epoch)

    def _check(self, topics: Collection[str], shown: BrokerView | None = None) -> None:
        if self.error is not None:
            raise self.error
        for topic in topics:
            if topic not in (shown or self.current).topics:
                raise TopicMissing("Kafka has no such topic", found=topic)


def _watermarks(beginning: int, end: int) -> Watermarks:
    return Watermarks(beginning, end, high=end, leader_epoch=0)


def _timestamps(topics: Collection[str], shown: BrokerView) -> dict[TopicPartition, int]:
    """The end of each log, unless the view itself says otherwise: Kafka's answer to a time in the future."""
    ends = {
        TopicPartition(topic, number): log.end
        for topic in topics
        for number, log in shown.topics[topic].partitions.items()
    }
    return ends | (shown.timestamps or {})
