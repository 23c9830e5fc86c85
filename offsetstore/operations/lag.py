"""How far groups are behind Kafka, in records and in time, for many groups at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from offsetstore.errors import BrokerError, OffsetStoreError, StartError
from offsetstore.offsets import StoredOffset, TopicPartition
from offsetstore.operations.first_unread import FirstUnread, find_first_unread
from offsetstore.operations.people import StoreOverview
from offsetstore.operations.reads import another_log, beyond_end, headroom_of, lag_of
from offsetstore.operations.samples import Sample
from offsetstore.protocol.database import GroupRow
from offsetstore.protocol.functions import without_frames
from offsetstore.protocol.ports import BrokerOverview
from offsetstore.protocol.snapshot import GroupSnapshot, KafkaSnapshot, LogEnds, TopicSnapshot

_RECORDS_READ: Final = 20


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition.

    ``stored`` is the row of the store, ``None`` if there is none: no job of the group reads the partition yet.
    ``log`` is ``None`` if Kafka did not tell, or if its log is another one. ``seconds`` is the age of the first
    unread record, 0 if nothing is unread, and ``None`` if it is not known: Kafka was not ``is_asked``, or the record
    has none. With ``is_bound`` the record may be younger, with ``is_ahead`` its timestamp is ahead of the clock; see
    `FirstUnread`.
    Of a stored offset beyond the log's end neither lag is known: it is never 0.
    """

    stored: StoredOffset | None
    log: LogEnds | None
    seconds: float | None = None
    is_bound: bool = False
    is_ahead: bool = False
    is_asked: bool = False

    @property
    def records(self) -> int | None:
        """Offsets from the stored one to the high watermark, as Kafka's own tool counts.

        ``None`` if not known, or if the log ends before the stored offset.
        """
        return None if self.stored is None or self.log is None else lag_of(self.stored.next_offset, self.log)

    @property
    def beyond_end(self) -> int:
        """Offsets by which the stored one is beyond the high watermark: records that were read are missing there."""
        return 0 if self.stored is None or self.log is None else beyond_end(self.stored.next_offset, self.log)

    @property
    def is_suspect(self) -> bool:
        """Whether there is evidence that the log lost records: each start is refused until a reset."""
        return self.stored is not None and self.stored.suspect is not None

    @property
    def headroom(self) -> int | None:
        """Offsets from the beginning of the log to the stored one, negative if records were removed unread.

        Retention has to remove that many before it removes unread ones. ``None`` if nothing is unread.
        """
        return None if self.stored is None or self.log is None else headroom_of(self.stored.next_offset, self.log)


@dataclass(frozen=True, slots=True)
class TopicLag:
    """One topic of a group: its partitions that the store or Kafka has, by number.

    Those are left out that Kafka no longer has, and of which nothing is stored: a topic that was created anew can have
    fewer, and a restart sets the others to 0.

    ``error`` is set if Kafka did not tell of the topic, or of some of its partitions, or if a stored offset does not
    belong to Kafka's log: see `another_log`.
    """

    partitions: Mapping[int, PartitionLag]
    error: OffsetStoreError | None = None

    @property
    def records(self) -> int | None:
        """The sum of the partitions' lags, ``None`` if that of a partition with a stored offset is not known."""
        lags = [one.records for one in self.partitions.values() if one.stored is not None]
        known = [one for one in lags if one is not None]
        return sum(known) if known and len(known) == len(lags) else None

    @property
    def seconds(self) -> float | None:
        """The largest of the partitions' lags in time, ``None`` as for `records`."""
        lags = [one.seconds for one in self.partitions.values() if one.stored is not None]
        known = [one for one in lags if one is not None]
        return max(known) if known and len(known) == len(lags) else None

    @property
    def is_bound(self) -> bool:
        """Whether the partition that is the furthest behind in time may be less far behind."""
        seconds = self.seconds
        return any(one.is_bound and one.seconds == seconds for one in self.partitions.values())

    @property
    def headroom(self) -> int | None:
        """The smallest of the partitions' headrooms, ``None`` if nothing is unread."""
        return min((one.headroom for one in self.partitions.values() if one.headroom is not None), default=None)

    @property
    def beyond_end(self) -> int:
        """The sum of the offsets by which stored ones are beyond the logs' ends."""
        return sum(one.beyond_end for one in self.partitions.values())

    @property
    def without_offset(self) -> int:
        """How many partitions Kafka has of which the store has no offset."""
        return sum(one.stored is None for one in self.partitions.values())


@dataclass(frozen=True, slots=True)
class GroupLag:
    """One group: the topics that it has offsets of, and what Kafka keeps under its name there."""

    owner: GroupRow
    topics: Mapping[str, TopicLag]
    kafka: GroupSnapshot = field(default_factory=GroupSnapshot)

    @property
    def records(self) -> int | None:
        """The sum of the topics' lags, ``None`` if none is known."""
        known = [lag for one in self.topics.values() if (lag := one.records) is not None]
        return sum(known) if known else None

    @property
    def seconds(self) -> float | None:
        """The largest of the topics' lags in time, ``None`` if none is known."""
        return max((lag for one in self.topics.values() if (lag := one.seconds) is not None), default=None)

    @property
    def is_part(self) -> bool:
        """Whether the lag of a topic is not known, so that the group's may be larger."""
        return any(one.records is None for one in self.topics.values())

    @property
    def is_bound(self) -> bool:
        """Whether the topic that is the furthest behind in time may be less far behind."""
        seconds = self.seconds
        return any(one.is_bound and one.seconds == seconds for one in self.topics.values())

    @property
    def headroom(self) -> int | None:
        """The smallest of the topics' headrooms, ``None`` if nothing is unread."""
        return min((one.headroom for one in self.topics.values() if one.headroom is not None), default=None)

    @property
    def beyond_end(self) -> int:
        """The sum of the offsets by which stored ones are beyond the logs' ends."""
        return sum(one.beyond_end for one in self.topics.values())

    @property
    def mirror_lag(self) -> int | None:
        """Offsets by which the copies in Kafka are behind the store; ``None`` if there are none, or it is not known.

        Of a partition that Kafka has a log of and no copy, all offsets count.
        """
        pairs = list(self._copies())
        return sum(max(0, row.next_offset - copy) for row, copy in pairs) + self._uncopied() if pairs else None

    @property
    def mirror_lead(self) -> int:
        """Offsets by which the copies are ahead of the store, but for pinned offsets, which count more than copies.

        While a job runs, a copy may be newer than the row that was read before it. Otherwise the database is older than
        its copies, or another application has committed.
        """
        return self._lead(pinned=False)

    @property
    def pinned_lead(self) -> int:
        """Offsets by which the copies are ahead of pinned offsets, which the next job copies there."""
        return self._lead(pinned=True)

    def _lead(self, *, pinned: bool) -> int:
        return sum(max(0, copy - row.next_offset) for row, copy in self._copies() if row.pinned == pinned)

    def _copies(self) -> Iterator[tuple[StoredOffset, int]]:
        for tp, copy in (self.kafka.committed or {}).items():
            one = self.topics[tp.topic].partitions.get(tp.partition) if tp.topic in self.topics else None
            if one is not None and one.stored is not None:
                yield one.stored, copy.next_offset

    def _uncopied(self) -> int:
        copied = self.kafka.committed or {}
        return sum(
            one.stored.next_offset
            for topic, found in self.topics.items()
            for number, one in found.partitions.items()
            if one.stored is not None and one.log is not None and TopicPartition(topic, number) not in copied
        )


@dataclass(frozen=True, slots=True)
class Lag:
    """Groups at one moment: the store was read first, then Kafka, so that no lag is negative.

    ``store`` is what was read there. ``kafka`` is ``None`` if Kafka did not answer at all; ``broker_error`` says why
    that is so, or why the lags in time are missing. ``clock_skew`` is how far the database's clock is ahead of this
    process's, in seconds, give or take the time that the read took.
    """

    groups: Mapping[str, GroupLag]
    store: StoreOverview
    kafka: KafkaSnapshot | None = None
    broker_error: BrokerError | None = None
    clock_skew: float = 0.0

    @property
    def topics(self) -> Mapping[str, TopicSnapshot]:
        """Kafka's topics; empty if it did not answer."""
        return self.kafka.topics if self.kafka is not None else {}

    def samples(self) -> dict[str, Sample]:
        """What is kept of it, of each group that has partitions; see `OffsetStore.record_samples`."""
        return {name: self._sample(name, one) for name, one in self.groups.items() if one.topics}

    def _sample(self, name: str, group: GroupLag) -> Sample:
        partitions = [one for topic in group.topics.values() for one in topic.partitions.values()]
        offsets = [(one.stored.next_offset, one.log) for one in partitions if one.stored is not None]
        ends = [log.end for _, log in offsets if log is not None]
        run = self.store.runs.get(name)
        counters = dict[str, int]() if run is None else run.counters
        return Sample(
            at=self.store.at,
            stored=sum(stored for stored, _ in offsets),
            log_end=sum(ends) if len(ends) == len(offsets) else None,
            lag=None if group.is_part else group.records,
            lag_seconds=None if group.is_part else group.seconds,
            headroom=None if group.is_part else group.headroom,
            batches=None if run is None else counters.get("written", 0) + counters.get("kept", 0),
            batch_seconds=None if run is None else counters.get("batch_milliseconds", 0) / 1000,
            rows=None if run is None else counters.get("rows", 0),
            memory=None if run is None else run.memory,
            epoch=group.owner.token.epoch,
        )


def measure_lag(store: StoreOverview, broker: BrokerOverview, kafka_groups: Mapping[str, str]) -> Lag:
    """Add what Kafka has; if it can't answer, add the error.

    :param kafka_groups: the groups in Kafka that have another name there.
    """
    asked: dict[str, set[str]] = {}
    for group in store.groups:
        topics = asked.setdefault(kafka_groups.get(group, group), set())
        topics.update(tp.topic for tp in store.partitions.get(group, ()))
    try:
        kafka = broker.snapshot(asked)
    except BrokerError as error:
        behind = _Behind(store, None)
        return Lag(
            {group: behind.of(group, GroupSnapshot()) for group in store.groups},
            store,
            broker_error=without_frames(error),
        )
    behind = _Behind(store, kafka)
    error = behind.find_ages(broker)
    groups = {group: behind.of(group, kafka.groups[kafka_groups.get(group, group)]) for group in store.groups}
    return Lag(groups, store, kafka, error)


class _Behind:
    """Puts the groups' lags together. Groups that have stored the same offset of a partition share a search."""

    def __init__(self, store: StoreOverview, kafka: KafkaSnapshot | None) -> None:
        self._store = store
        self._topics: Mapping[str, TopicSnapshot] = {} if kafka is None else kafka.topics
        self._cluster_id = None if kafka is None else kafka.cluster_id
        self._now = int(time.time() * 1000)
        self._ages: dict[tuple[TopicPartition, int], FirstUnread] = {}

    def find_ages(self, broker: BrokerOverview) -> BrokerError | None:
        """Find the first unread records, and read a few where the search can't tell; return why it could not."""
        unread = {
            (tp, row.next_offset): log.end
            for rows in self._store.partitions.values()
            for tp, row in rows.items()
            if (log := self._log(tp, row)) is not None and lag_of(row.next_offset, log)
        }
        try:
            self._ages = find_first_unread(unread, self._now, broker.first_records)
            self._read_some(broker)
        except BrokerError as error:
            return without_frames(error)
        return None

    def _read_some(self, broker: BrokerOverview) -> None:
        """Read those that may be the oldest, at most one of each partition."""
        bounds = sorted((one.timestamp_ms or 0, key) for key, one in self._ages.items() if one.is_bound)  # None first
        wanted: dict[TopicPartition, int] = {}
        for _timestamp, (tp, offset) in bounds[:_RECORDS_READ]:
            wanted.setdefault(tp, offset)
        for tp, record in broker.read_records(wanted).items():
            # Without a record, what is unread are the marks of transactions, or compaction has removed it.
            self._ages[tp, wanted[tp]] = FirstUnread(self._now if record is None else record.timestamp_ms)

    def of(self, group: str, kafka: GroupSnapshot) -> GroupLag:
        """The lag of one group."""
        stored: dict[str, dict[int, PartitionLag]] = {}
        for tp, row in self._store.partitions.get(group, {}).items():
            of_topic = stored.setdefault(tp.topic, {})
            if not self._lacks(tp, row):
                of_topic[tp.partition] = self._partition(tp, row)
        topics: dict[str, TopicLag] = {}
        for name, partitions in stored.items():
            found = self._topics.get(name, TopicSnapshot())
            others = {number: PartitionLag(None, log) for number, log in found.partitions.items()}
            rows = ((TopicPartition(name, n), one.stored) for n, one in sorted(partitions.items()) if one.stored)
            another = next((error for tp, row in rows if (error := self._another(tp, row)) is not None), None)
            topics[name] = TopicLag(dict(sorted((others | partitions).items())), another or found.error)
        return GroupLag(self._store.groups[group], topics, kafka)

    def _partition(self, tp: TopicPartition, row: StoredOffset) -> PartitionLag:
        log = self._log(tp, row)
        lag = None if log is None else lag_of(row.next_offset, log)
        if not lag:
            return PartitionLag(row, log, None if lag is None else 0.0)
        age = self._ages.get((tp, row.next_offset))
        if age is None:
            return PartitionLag(row, log)
        return PartitionLag(row, log, age.age(self._now), age.is_bound, age.is_ahead(self._now), is_asked=True)

    def _lacks(self, tp: TopicPartition, row: StoredOffset) -> bool:
        """Whether nothing was read of a partition that the topic lacks: one that was created anew, and restarted."""
        topic = self._topics.get(tp.topic)
        if topic is None or topic.error is not None or self._another(tp, row) is not None:
            return False
        return row.next_offset == 0 and tp.partition not in topic.partitions

    def _log(self, tp: TopicPartition, row: StoredOffset) -> LogEnds | None:
        """The log that the row belongs to, ``None`` if it is not there."""
        topic = self._topics.get(tp.topic)
        return None if topic is None or self._another(tp, row) is not None else topic.partitions.get(tp.partition)

    def _another(self, tp: TopicPartition, row: StoredOffset) -> StartError | None:
        topic = self._topics.get(tp.topic)
        if topic is None or topic.partition_count == 0:  # Kafka did not tell of it
            return None
        has_partition = tp.partition < topic.partition_count
        return another_log(tp, row, cluster_id=self._cluster_id, topic_id=topic.topic_id, has_partition=has_partition)
