"""The state of one group or many beside Kafka: owners, stored offsets, and how far these are behind.

Nothing is locked and nothing is written. Lag has one definition, `lag_of`; so have a log that an offset does not belong
to, `another_log`, and a live owner, `GroupRow.is_live`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, TypeVar
from uuid import UUID

from offsetstore.errors import BrokerError, OffsetStoreError, StartError, TopicRecreated, WrongCluster
from offsetstore.offsets import CommittedOffset, Pause, StoredOffset, TopicPartition, Watermarks
from offsetstore.operations.first_unread import FirstUnread, find_first_unread
from offsetstore.operations.people import LastRun, Requested, StoreOverview
from offsetstore.operations.samples import Sample
from offsetstore.protocol.database import GroupRow
from offsetstore.protocol.letters import LetterState
from offsetstore.protocol.outbox import OutboxState, RelayStatus
from offsetstore.protocol.ports import BrokerOverview, GroupSnapshot, KafkaSnapshot, LogEnds, TopicSnapshot
from offsetstore.protocol.runs import FleetMember, RunState, run_state
from offsetstore.runtime.functions import without_frames
from offsetstore.text import counted

_N = TypeVar("_N", int, float)

# Where the search finds only a bound, up to this many records are read, the oldest first (decision 0037).
_RECORDS_READ: Final = 20
_NAMED: Final = 3
# One that was killed stays in the table for a day: it may only be frozen, and go on. Whoever looks while others take
# its partitions sees it.
_REPLACED: Final = timedelta(minutes=5)


def end_of(log: Watermarks) -> int:
    # The high watermark, as in Kafka's own tool: records behind an open transaction are unread, too (decision 0037).
    return log.end if log.high is None else log.high


def lag_of(next_offset: int, log: Watermarks) -> int | None:
    """Count the offsets from ``next_offset`` to the end of the log.

    ``None`` if the log ends before it: records are missing, so nobody can tell what is unread. See `beyond_end`.
    """
    lag = end_of(log) - next_offset
    return None if lag < 0 else lag


def beyond_end(next_offset: int, log: Watermarks) -> int:
    """Count the offsets by which ``next_offset`` is beyond the end of the log; 0 if the log reaches it."""
    return max(0, next_offset - end_of(log))


def another_log(
    tp: TopicPartition, row: StoredOffset, *, cluster_id: str | None, topic_id: str | None, has_partition: bool
) -> StartError | None:
    """Return why the row does not belong to Kafka's log, with the error of a start; ``None`` if it does or may.

    :param has_partition: whether Kafka has the partition at all.
    """
    if row.is_of_another_cluster(cluster_id):
        return WrongCluster(
            f"stored offsets of {tp.topic} belong to another Kafka cluster", found=cluster_id, expected=row.cluster_id
        )
    if row.is_of_another_topic(topic_id):
        return TopicRecreated(
            f"the topic {tp.topic} was created anew: stored offsets belong to the log that was deleted",
            found=f"topic id {topic_id}",
            expected=f"topic id {row.topic_id}",
        )
    # An offset of 0 waits for the partition, and loses nothing.
    if not has_partition and row.next_offset > 0:
        return TopicRecreated(f"Kafka no longer has {tp}, and offset {row.next_offset} is stored for it")
    return None


def _in_all(values: Iterable[_N | None], combine: Callable[[Iterable[_N]], _N]) -> _N | None:
    """Combine the values; ``None`` if any is not known, or if there are none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return combine(known) if known and len(known) == len(found) else None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition.

    ``stored`` is the row of the store, ``age`` the time since it last changed, by the database's clock; both are
    ``None`` if no job of the group reads the partition yet. ``log`` is ``None`` if Kafka did not answer for it, or if
    the stored offset does not belong to its log: then ``error`` says why. ``committed`` is Kafka's copy for the group.

    ``lag_seconds`` is the age of the first unread record, 0 if nothing is unread, and ``None`` if it is not known:
    Kafka was not asked (``is_asked``), or the record has no timestamp. With ``is_bound`` the record may be younger,
    with ``is_ahead`` its timestamp is ahead of the clock; see `FirstUnread`.
    If the stored offset is beyond the log's end, neither lag is known: it is never 0.
    """

    stored: StoredOffset | None = None
    log: LogEnds | None = None
    committed: CommittedOffset | None = None
    error: StartError | None = None
    age: timedelta | None = None
    lag_seconds: float | None = None
    is_bound: bool = False
    is_ahead: bool = False
    is_asked: bool = False

    @property
    def lag(self) -> int | None:
        """Offsets from the stored offset to the high watermark, as Kafka's own tool counts.

        ``None`` if not known, or if the log ends before the stored offset.
        """
        return None if self.stored is None or self.log is None else lag_of(self.stored.next_offset, self.log)

    @property
    def beyond_end(self) -> int:
        """How far the stored offset is beyond the high watermark: records that were read are missing from the log."""
        return 0 if self.stored is None or self.log is None else beyond_end(self.stored.next_offset, self.log)

    @property
    def is_suspect(self) -> bool:
        """Whether there is evidence that the log lost records: each start is refused until a reset."""
        return self.stored is not None and self.stored.suspect is not None

    @property
    def headroom(self) -> int | None:
        """Offsets from the beginning of the log to the stored offset, negative if records were removed unread.

        Retention has to remove this many before it removes unread records. ``None`` if nothing is unread, or if that is
        not known.
        """
        return self.stored.next_offset - self.log.beginning if self.stored and self.log and self.lag else None


class _Together:
    """Sums over the partitions of a topic, or of all topics of a group."""

    __slots__ = ()

    def _parts(self) -> Collection[PartitionState]:
        raise NotImplementedError

    @property
    def lag(self) -> int | None:
        """The sum of the partitions' lags, ``None`` if that of a partition with a stored offset is not known."""
        return _in_all((part.lag for part in self._parts() if part.stored is not None), sum)

    @property
    def lag_seconds(self) -> float | None:
        """The largest of the partitions' lags in time, ``None`` as for `lag`."""
        return _in_all((part.lag_seconds for part in self._parts() if part.stored is not None), max)

    @property
    def headroom(self) -> int | None:
        """The smallest of the partitions' headrooms, ``None`` if nothing is unread."""
        return min((part.headroom for part in self._parts() if part.headroom is not None), default=None)

    @property
    def beyond_end(self) -> int:
        """How far stored offsets are beyond the logs' ends, in all partitions together."""
        return sum(part.beyond_end for part in self._parts())

    @property
    def without_offset(self) -> int:
        """How many of Kafka's partitions have no stored offset."""
        return sum(part.stored is None for part in self._parts())


@dataclass(frozen=True, slots=True)
class TopicState(_Together):
    """One topic of a group: its partitions that the store or Kafka has, in order.

    Partitions that Kafka no longer has, and whose stored offset is 0, are left out.

    ``error`` is set if Kafka did not answer for the topic or for some of its partitions, or if a stored offset does not
    belong to Kafka's log: see `another_log`.
    """

    partitions: Mapping[TopicPartition, PartitionState]
    error: OffsetStoreError | None = None

    def _parts(self) -> Collection[PartitionState]:
        return self.partitions.values()

    @property
    def is_bound(self) -> bool:
        """Whether the partition that is furthest behind in time may be less far behind."""
        seconds = self.lag_seconds
        return any(part.is_bound and part.lag_seconds == seconds for part in self.partitions.values())


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member of a fleet, and the partitions that it was the last to take; it may have given some of them back."""

    member: FleetMember
    partitions: tuple[TopicPartition, ...]

    @property
    def state(self) -> RunState:
        """``live`` or ``silent``: one that ends leaves the fleet."""
        return run_state(None, self.member.alive_for)


@dataclass(frozen=True, slots=True)
class GroupState(_Together):
    """A group at one moment, ``read_at`` by the database's clock; Kafka was asked right after it.

    ``owner`` is the last claim. ``decision`` is ``"reset"``, ``"rename"``, ``"copy"``, ``"delete"``, ``"delete-topic"``
    or ``"new-id"`` if an operator has decided that since then: the owner is then the operator and not a job. Only
    `OffsetStore.group_state` looks it up. ``topics`` are the topics of its offsets; ``stored`` are all its offsets,
    also of partitions that a recreated topic lacks, whose letters are replayed all the same.

    ``kafka`` is what Kafka keeps under the group's name, ``None`` if Kafka was not asked, or did not answer at all.
    ``broker_error`` says why it did not, or why the lags in time are missing.

    ``dead_letters`` counts the letters whose record is not in the results, but may still get there: ``dead`` and
    ``requested``; ``requested`` has the latter of each partition. ``run`` is the run of the last claim, ``None`` if
    it recorded nothing. ``members`` are those of the fleet that has the group, the oldest first; none if a job has it.
    ``outbox`` is what the group has in the outbox, ``None`` if it has nothing there, and ``relay`` the relay that has
    the outbox or had it last, ``None`` if there never was one.
    """

    group: str
    owner: GroupRow
    read_at: datetime
    topics: Mapping[str, TopicState]
    kafka: GroupSnapshot | None = None
    broker_error: BrokerError | None = None
    decision: str | None = None
    dead_letters: Mapping[LetterState, int] = field(default_factory=dict["LetterState", int])
    requested: Mapping[TopicPartition, Requested] = field(default_factory=dict[TopicPartition, Requested])
    run: LastRun | None = None
    members: Sequence[FleetMember] = ()
    outbox: OutboxState | None = None
    relay: RelayStatus | None = None
    stored: Mapping[TopicPartition, StoredOffset] = field(default_factory=dict[TopicPartition, StoredOffset])

    @property
    def partitions(self) -> dict[TopicPartition, PartitionState]:
        """All partitions that the store or Kafka has of the topics."""
        return {tp: part for topic in self.topics.values() for tp, part in topic.partitions.items()}

    def _parts(self) -> Collection[PartitionState]:
        return [part for topic in self.topics.values() for part in topic.partitions.values()]

    @property
    def rows(self) -> dict[TopicPartition, StoredOffset]:
        """What is stored of the partitions of `topics`."""
        return {tp: part.stored for tp, part in self.partitions.items() if part.stored is not None}

    @property
    def of_members(self) -> list[MemberState]:
        """The members, each with the partitions that it was the last to take: their rows have its token.

        A killed member is left out after `_REPLACED`, once others have taken all of its partitions.
        """
        taken: dict[UUID, list[TopicPartition]] = {}
        for tp, row in self.stored.items():
            taken.setdefault(row.token.claim_id, []).append(tp)
        # The fleet's own token is in the rows until a member takes them.
        has_others = bool(taken.keys() - {self.owner.token.claim_id})
        return [
            MemberState(member, tuple(taken.get(member.member_id, ())))
            for member in self.members
            if member.member_id in taken or not has_others or member.alive_for <= _REPLACED
        ]

    @property
    def is_live(self) -> bool:
        """Whether a job owns the group and runs, as for claims and resets."""
        return self.owner.is_live

    @property
    def pause(self) -> Pause | None:
        """Why the group is paused, and until when; ``None`` if it is not."""
        return self.owner.pause

    @property
    def known_lag(self) -> int | None:
        """The sum of the topics' known lags, ``None`` if none is known: the group's lag is at least this."""
        known = [lag for topic in self.topics.values() if (lag := topic.lag) is not None]
        return sum(known) if known else None

    @property
    def known_lag_seconds(self) -> float | None:
        """The largest of the topics' known lags in time, ``None`` if none is known."""
        return max((lag for topic in self.topics.values() if (lag := topic.lag_seconds) is not None), default=None)

    @property
    def mirror_lag(self) -> int | None:
        """Offsets by which the copies in Kafka are behind the store; ``None`` if there are no copies, or not known.

        Of a partition of which Kafka has a log but no copy, all offsets count.
        """
        pairs = list(self._copies())
        uncopied = (
            part.stored.next_offset
            for part in self._parts()
            if part.stored is not None and part.log is not None and part.committed is None
        )
        return sum(max(0, row.next_offset - copy) for row, copy in pairs) + sum(uncopied) if pairs else None

    @property
    def mirror_lead(self) -> int:
        """Offsets by which the copies are ahead of the store, except pinned offsets, which take precedence over copies.

        While a job runs, a copy may be newer than the row that was read before it. Otherwise the database is older than
        its copies, or another application has committed.
        """
        return sum(max(0, copy - row.next_offset) for row, copy in self._copies() if not row.pinned)

    @property
    def pinned_lead(self) -> int:
        """Offsets by which the copies are ahead of pinned offsets, which the next job copies there."""
        return sum(max(0, copy - row.next_offset) for row, copy in self._copies() if row.pinned)

    def _copies(self) -> Iterator[tuple[StoredOffset, int]]:
        for part in self._parts():
            if part.stored is not None and part.committed is not None:
                yield part.stored, part.committed.next_offset

    @property
    def replays_letters(self) -> bool | None:
        """Whether the owner's job replays requested letters; ``None`` without any, or if the job has not said."""
        return self.run.replays_letters if self.run is not None and self.requested else None

    @property
    def unreplayed(self) -> str | None:
        """Who is to replay requested letters, if not only the running job; ``None`` if it is, or if no job runs."""
        if not self.requested or not self.is_live:
            return None
        if self.replays_letters is False:
            return "by no one: the job has no dead_letters="
        # A request is well only if a job has said in its own run that it carries it out (decision 0104).
        if self.run is None or self.replays_letters is None:
            return (
                "perhaps by no one: no sink or consumer with dead_letters= is known to run, and a job that stores "
                "offsets in transactions of its own replays none"
            )
        topics, rows = self.run.topics, self.stored
        live = {member.member_id for member in self.members if member.is_live}
        # In a fleet a partition may have no member, such as one that Kafka no longer has.
        is_fleet = self.owner.fleet is not None
        reasons = (
            ("which it does not read", [tp for tp in self.requested if tp.topic not in topics]),
            ("which have no stored offset", [tp for tp in self.requested if tp.topic in topics and tp not in rows]),
            (
                "which no process has",
                [tp for tp in self.requested if is_fleet and tp in rows and rows[tp].token.claim_id not in live],
            ),
        )
        told = [self._told(sorted(left), why) for why, left in reasons if left]
        return f"by the job, but for {' and '.join(told)}" if told else None

    def _told(self, left: list[TopicPartition], why: str) -> str:
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        count = counted(sum(self.requested[tp].letters for tp in left), "letter")
        return f"{count} of {', '.join(map(str, left[:_NAMED]))}{more}, {why}"

    def sample(self) -> Sample:
        """A sample of the group for trends; see `OffsetStore.record_samples`."""
        stored = [part for part in self._parts() if part.stored is not None]
        ends = [part.log.end for part in stored if part.log is not None]
        lag, counters = self.lag, None if self.run is None else self.run.counters
        return Sample(
            at=self.read_at,
            stored=sum(row.next_offset for row in self.rows.values()),
            log_end=sum(ends) if len(ends) == len(stored) else None,
            lag=lag,
            lag_seconds=self.lag_seconds,
            headroom=None if lag is None else self.headroom,
            batches=None if counters is None else counters.get("written", 0) + counters.get("kept", 0),
            batch_seconds=None if counters is None else counters.get("batch_milliseconds", 0) / 1000,
            rows=None if counters is None else counters.get("rows", 0),
            memory=None if self.run is None else self.run.memory,
            epoch=self.owner.token.epoch,
        )


@dataclass(frozen=True, slots=True)
class Lag:
    """Groups at one moment: the store was read first, then Kafka, so that no lag is negative.

    ``store`` is what was read from the database. ``kafka`` is ``None`` if Kafka did not answer at all; ``broker_error``
    says why, or why the lags in time are missing. ``clock_skew`` is how far the database's clock is ahead of this
    process's, in seconds, give or take the time that the read took.
    """

    groups: Mapping[str, GroupState]
    store: StoreOverview
    kafka: KafkaSnapshot | None = None
    broker_error: BrokerError | None = None
    clock_skew: float = 0.0

    @property
    def topics(self) -> Mapping[str, TopicSnapshot]:
        """Kafka's topics; empty if it did not answer."""
        return self.kafka.topics if self.kafka is not None else {}

    def samples(self) -> dict[str, Sample]:
        """Samples of all groups that have partitions; see `OffsetStore.record_samples`."""
        return {name: group.sample() for name, group in self.groups.items() if group.topics}


def measure(
    store: StoreOverview, broker: BrokerOverview | None, kafka_groups: Mapping[str, str], *, in_time: bool = True
) -> Lag:
    """Add Kafka's side to the store's, or the error if Kafka does not answer.

    :param broker: ``None`` for the store's side alone.
    :param kafka_groups: the names in Kafka of groups that have another name there.
    :param in_time: also find the first unread records, with more requests.
    """
    beside = _BesideKafka(store, kafka_groups)
    error = None
    try:
        if broker is not None:
            beside.take_snapshot(broker)
        if broker is not None and in_time:
            beside.find_ages(broker)
    except BrokerError as caught:
        # If only the search for ages failed, the snapshot still counts.
        error = without_frames(caught)
    return Lag({group: beside.state(group, error) for group in store.groups}, store, beside.kafka, error)


class _BesideKafka:
    """Combines the store and Kafka. Groups that have stored the same offset of a partition share a search."""

    def __init__(self, store: StoreOverview, kafka_groups: Mapping[str, str]) -> None:
        self.kafka: KafkaSnapshot | None = None
        self._store = store
        self._names = {group: kafka_groups.get(group, group) for group in store.groups}
        self._topics: Mapping[str, TopicSnapshot] = {}
        self._now = 0
        self._ages: dict[tuple[TopicPartition, int], FirstUnread] = {}

    def take_snapshot(self, broker: BrokerOverview) -> None:
        """Ask Kafka for all topics and groups at once."""
        asked: dict[str, set[str]] = {}
        for group, name in self._names.items():
            asked.setdefault(name, set()).update(tp.topic for tp in self._store.partitions.get(group, ()))
        self.kafka = broker.snapshot(asked)
        self._topics = self.kafka.topics
        self._now = int(time.time() * 1000)

    def find_ages(self, broker: BrokerOverview) -> None:
        """Find the first unread records, and read a few of them where the search finds only a bound."""
        unread = {
            (tp, row.next_offset): log.end
            for rows in self._store.partitions.values()
            for tp, row in rows.items()
            if (log := self._log(tp, self._another(tp, row))) is not None and lag_of(row.next_offset, log)
        }
        self._ages = find_first_unread(unread, self._now, broker.first_records)
        # Candidates for the oldest record, at most one of each partition. Ages that are not known come first.
        bounds = sorted((first.timestamp_ms or 0, key) for key, first in self._ages.items() if first.is_bound)
        wanted: dict[TopicPartition, int] = {}
        for _timestamp, (tp, offset) in bounds[:_RECORDS_READ]:
            wanted.setdefault(tp, offset)
        for tp, record in broker.read_records(wanted).items():
            # Without a record, only marks of transactions are unread, or compaction has removed the records.
            self._ages[tp, wanted[tp]] = FirstUnread(self._now if record is None else record.timestamp_ms)

    def state(self, group: str, broker_error: BrokerError | None) -> GroupState:
        store = self._store
        kafka = None if self.kafka is None else self.kafka.groups[self._names[group]]
        committed = (None if kafka is None else kafka.committed) or {}
        rows = store.partitions.get(group, {})
        stored: dict[str, dict[TopicPartition, PartitionState]] = {}
        for tp, row in rows.items():
            of_topic = stored.setdefault(tp.topic, {})
            part = self._partition(tp, row, committed.get(tp))
            # A topic that was created anew may have fewer partitions; a restart sets the others to 0.
            if row.next_offset > 0 or not self._lacks(tp, part):
                of_topic[tp] = part
        return GroupState(
            group,
            store.groups[group],
            store.at,
            {name: self._topic(name, partitions, committed) for name, partitions in stored.items()},
            kafka,
            broker_error,
            decision=store.decisions.get(group),
            dead_letters=store.letters.get(group, {}),
            requested=store.requested.get(group, {}),
            run=store.runs.get(group),
            members=store.members.get(group, ()),
            outbox=store.outbox.get(group),
            relay=store.relay,
            stored=rows,
        )

    def _topic(
        self,
        name: str,
        stored: Mapping[TopicPartition, PartitionState],
        committed: Mapping[TopicPartition, CommittedOffset],
    ) -> TopicState:
        found = self._topics.get(name, TopicSnapshot())
        logs = {TopicPartition(name, number): log for number, log in found.partitions.items()}
        others = {tp: PartitionState(log=log, committed=committed.get(tp)) for tp, log in logs.items()}
        partitions = dict(sorted({**others, **stored}.items()))
        another = next((part.error for part in partitions.values() if part.error is not None), None)
        return TopicState(partitions, another or found.error)

    def _partition(self, tp: TopicPartition, row: StoredOffset, committed: CommittedOffset | None) -> PartitionState:
        error = self._another(tp, row)
        log = self._log(tp, error)
        lag = None if log is None else lag_of(row.next_offset, log)
        since = None if row.updated_at is None else self._store.at - row.updated_at
        part = PartitionState(row, log, committed, error, since, lag_seconds=0.0 if lag == 0 else None)
        age = self._ages.get((tp, row.next_offset)) if lag else None
        if age is None:
            return part
        seconds, is_ahead = age.age(self._now), age.is_ahead(self._now)
        return replace(part, lag_seconds=seconds, is_bound=age.is_bound, is_ahead=is_ahead, is_asked=True)

    def _lacks(self, tp: TopicPartition, part: PartitionState) -> bool:
        """Whether the topic lacks the partition: one that was created anew."""
        topic = self._topics.get(tp.topic)
        return topic is not None and topic.error is None and part.error is None and part.log is None

    def _log(self, tp: TopicPartition, another: StartError | None) -> LogEnds | None:
        topic = self._topics.get(tp.topic)
        return None if topic is None or another is not None else topic.partitions.get(tp.partition)

    def _another(self, tp: TopicPartition, row: StoredOffset) -> StartError | None:
        topic = self._topics.get(tp.topic)
        # Kafka did not answer for the topic, so nothing is known of its log.
        if self.kafka is None or topic is None or topic.partition_count == 0:
            return None
        has_partition = tp.partition < topic.partition_count
        cluster_id = self.kafka.cluster_id
        return another_log(tp, row, cluster_id=cluster_id, topic_id=topic.topic_id, has_partition=has_partition)
