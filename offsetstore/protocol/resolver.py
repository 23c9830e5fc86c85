"""Where a job starts, and why. Pure: it takes the store's and Kafka's offsets and decides for each partition.

It asks three questions, in this order. Is this the log that the stored offset belongs to (cluster, topic id,
partitions, no evidence of loss)? Which offset counts, the stored, the committed or the adopted one (`_RULES`, the first
that answers)? Is it inside the log? If records could be lost, the answer is an error that names the ways out, never a
silent skip. A *copy* is an offset that a store has committed in Kafka, known by its stamp. A *pinned* row was set by a
decision or a contested start: Kafka's offset doesn't count. A *contested* one: something else used the group in Kafka
while the job ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from uuid import UUID

from offsetstore.errors import (
    ForeignStore,
    KafkaGroupContested,
    KafkaGroupShared,
    NoStartingOffset,
    OffsetOutOfRange,
    OffsetsDisagree,
    StartError,
    StoreRewound,
    TopicRecreated,
    WrongCluster,
)
from offsetstore.offsets import (
    BrokerView,
    CommittedOffset,
    StoredOffset,
    TopicLog,
    TopicPartition,
    Watermarks,
    makes_many,
)
from offsetstore.protocol.log_evidence import known_ids, log_truncated
from offsetstore.protocol.starting import Reason, Start, StartingOffsets, StartPolicy
from offsetstore.protocol.store_facts import Stamp, digest

_T = TypeVar("_T")


@makes_many  # objects: the garbage collector is off meanwhile (decision 0073)
def resolve(
    stored: Mapping[TopicPartition, StoredOffset],
    view: BrokerView,
    policy: StartPolicy | None = None,
    *,
    store_id: UUID | None = None,
    group: str | None = None,
    adopted: Mapping[TopicPartition, int] | None = None,
    deleted: Mapping[str | None, int] | None = None,
    passed_over: dict[TopicPartition, StartError] | None = None,
) -> StartingOffsets:
    """Decide for every partition of every topic in ``view``.

    :param stored: the group's rows; rows of other topics are ignored.
    :param store_id: the store of the rows, by which our own copies in Kafka are recognized; ``None`` without a store.
    :param group: the group's name in the store, which distinguishes its copies from those of other groups.
    :param adopted: the offsets of the job's earlier checkpoint, for partitions without a stored offset.
    :param deleted: the epochs in which the offsets of a topic, or of the whole group (``None``), were last deleted:
        older copies of them in Kafka are ignored.
    :param passed_over: collects the `OffsetOutOfRange` (also a `LogTruncated`), `OffsetsDisagree` and
        `NoStartingOffset` of single partitions, so that the others can start. Without it, the first one is raised.
    :raises WrongCluster: a row belongs to another cluster.
    :raises TopicRecreated: a row or an adopted offset belongs to another log or to a missing partition, or lies beyond
        the end and the topic's id does not show that the topic is the same; unless ``policy.on_recreated`` is
        ``"restart"``.
    :raises OffsetOutOfRange: records were removed before they were read, unless ``policy.on_data_loss`` allows it.
        Another tool's committed offset lies beyond the end. The stored offset does, and the topic is the same.
    :raises LogTruncated: a row has evidence that its log lost records, whatever the policy says.
    :raises OffsetsDisagree, NoStartingOffset: as the policy demands.
    :raises StoreRewound: Kafka has a copy of ours that is beyond the row, unless ``policy.on_rewound`` allows it.
    :raises ForeignStore, KafkaGroupShared: Kafka has a copy that another store made, or this one before it was lost; or
        another group of this store.
    :raises KafkaGroupContested: a contested partition has an offset in Kafka, unless ``policy.prefer`` is ``"stored"``.
    """
    group_digest = None if group is None else digest(group)
    if deleted:
        view = _without_deleted(view, store_id, group_digest, deleted)
    asked = _Common(view, policy or StartPolicy(), store_id, group_digest, passed_over)
    _judge_cluster(stored, view)
    starts: dict[TopicPartition, Start] = {}
    vanished: list[TopicPartition] = []
    stored_of, adopted_of = _by_topic(stored), _by_topic(adopted or {})
    for topic, log in sorted(view.topics.items()):
        rows, offsets = stored_of.get(topic, {}), adopted_of.get(topic, {})
        try:
            _judge_log(rows, log)
            _judge_adopted(rows, log, offsets)
            starts |= _starts(topic, log, rows, offsets, asked)
        except TopicRecreated:
            if asked.policy.on_recreated != "restart":
                raise
            starts |= _restart(topic, log, rows, view)
            vanished += sorted(tp for tp in rows if not log.has(tp.partition))
    # The last argument is the group's name if the store has no offset of it: the start may warn that it is unknown.
    return StartingOffsets(starts, tuple(vanished), asked.policy.timestamp_ms, None if stored else group)


def _without_deleted(
    view: BrokerView, store_id: UUID | None, group: str | None, deleted: Mapping[str | None, int]
) -> BrokerView:
    """Leave out our copies of offsets that were deleted since; keep what another application has committed."""
    # Kafka keeps the copies of a deleted group. They would look like a rewound database (decision 0040).
    of_group = deleted.get(None, 0)
    kept = {
        tp: committed
        for tp, committed in view.committed.items()
        if (stamp := Stamp.of(committed)) is None
        or not stamp.is_of(store_id, group)
        or stamp.epoch > max(of_group, deleted.get(tp.topic, 0))
    }
    return replace(view, committed=kept)


def _by_topic(values: Mapping[TopicPartition, _T]) -> dict[str, dict[TopicPartition, _T]]:
    by_topic: dict[str, dict[TopicPartition, _T]] = {}
    for tp, value in values.items():
        by_topic.setdefault(tp.topic, {})[tp] = value
    return by_topic


def _judge_cluster(stored: Mapping[TopicPartition, StoredOffset], view: BrokerView) -> None:
    for tp, row in sorted(stored.items()):
        if tp.topic in view.topics and row.is_of_another_cluster(view.cluster_id):
            raise WrongCluster(
                "the stored offset belongs to another Kafka cluster",
                topic_partition=tp,
                found=view.cluster_id,
                expected=row.cluster_id,
            )


def _judge_log(rows: Mapping[TopicPartition, StoredOffset], log: TopicLog) -> None:
    for tp, row in sorted(rows.items()):
        if row.is_of_another_topic(log.topic_id):
            raise TopicRecreated(
                f"the topic was deleted and created again since offset {row.next_offset} was stored",
                topic_partition=tp,
                found=f"topic id {log.topic_id}",
                expected=f"topic id {row.topic_id}",
            )
        # A row at offset 0 has read nothing, so nothing is lost: it waits for its partition (decision 0004).
        if not log.has(tp.partition) and row.next_offset > 0:
            raise TopicRecreated(
                f"Kafka no longer has this partition, and offset {row.next_offset} is stored for it",
                topic_partition=tp,
                found=f"{len(log.partitions)} partitions",
            )


def _judge_adopted(
    rows: Mapping[TopicPartition, StoredOffset], log: TopicLog, adopted: Mapping[TopicPartition, int]
) -> None:
    for tp, offset in sorted(adopted.items()):
        if tp not in rows and offset > 0 and not log.has(tp.partition):
            raise TopicRecreated(
                f"Kafka no longer has this partition, and offset {offset} is to be adopted for it",
                topic_partition=tp,
                found=f"{len(log.partitions)} partitions",
            )


@dataclass(frozen=True, slots=True)
class _Common:
    """What all partitions have in common. ``group``, here and below, is the `digest` of the group's name."""

    view: BrokerView
    policy: StartPolicy
    store_id: UUID | None
    group: str | None
    passed_over: dict[TopicPartition, StartError] | None


# Not frozen: making ten thousand of these would take three times as long.
@dataclass(slots=True)
class _Facts:
    """All that is known about one partition."""

    tp: TopicPartition
    log: Watermarks
    stored: StoredOffset | None
    committed: CommittedOffset | None
    stamp: Stamp | None
    store_id: UUID | None
    group: str | None
    adopted: int | None
    at_timestamp: int | None
    topic_is_known: bool
    contested_epoch: int | None
    """``None`` if the partition is not contested. Otherwise the epoch in which that was seen, or of the last claim that
    has looked at Kafka since: the row's ``pinned_epoch``. A new partition has that of its topic's other rows."""
    policy: StartPolicy
    is_same_log: bool
    """Whether the topic's id is known and equals the stored one."""


def _starts(
    topic: str,
    log: TopicLog,
    rows: Mapping[TopicPartition, StoredOffset],
    adopted: Mapping[TopicPartition, int],
    asked: _Common,
) -> dict[TopicPartition, Start]:
    starts: dict[TopicPartition, Start] = {}
    contested = max((row.pinned_epoch for row in rows.values() if row.contested), default=None)
    timestamps = asked.view.timestamps or {}
    topic_id = known_ids(rows).get(topic)
    of_numbers = {tp.partition: tp for tp in rows}  # faster to look up than to make anew (decision 0073)
    for partition, watermarks in sorted(log.partitions.items()):
        tp = of_numbers.get(partition) or TopicPartition(topic, partition)
        row = rows.get(tp)
        committed = asked.view.committed.get(tp)
        facts = _Facts(
            tp=tp,
            log=watermarks,
            stored=row,
            committed=committed,
            stamp=Stamp.of(committed),
            store_id=asked.store_id,
            group=asked.group,
            adopted=adopted.get(tp),
            at_timestamp=timestamps.get(tp),
            topic_is_known=bool(rows or adopted),
            # Even for a new partition, the other application's offset is not taken over.
            contested_epoch=contested if row is None else row.pinned_epoch if row.contested else None,
            policy=asked.policy,
            is_same_log=row is not None and log.topic_id is not None and (row.topic_id or topic_id) == log.topic_id,
        )
        try:
            # No policy allows a start despite evidence of loss (decision 0049).
            if row is not None and row.suspect is not None:
                raise log_truncated(tp, row.suspect)
            starts[tp] = _judge_range(facts, _choose(facts))
        except (OffsetOutOfRange, OffsetsDisagree, NoStartingOffset) as error:
            if asked.passed_over is None:
                raise
            asked.passed_over[tp] = error
    return starts


def _choose(facts: _Facts) -> Start:
    for rule in _RULES:
        start = rule(facts)
        if start is not None:
            return start
    raise NoStartingOffset(
        "neither the store nor Kafka has an offset", topic_partition=facts.tp, found='auto_offset_reset="none"'
    )


def _contested(facts: _Facts) -> Start | None:
    ours = facts.stamp is not None and facts.stamp.is_of(facts.store_id, facts.group)
    is_adopted = facts.stored is None and facts.adopted is not None
    if facts.contested_epoch is None or facts.committed is None or ours or is_adopted:
        return None
    _foreign_copy(facts)  # raises if another store or group wrote it: that says more than a contest
    if facts.policy.prefer == "stored":
        # Pinned, even for a new partition: the next start must not take over Kafka's offset.
        at = facts.log.beginning if facts.stored is None else facts.stored.next_offset
        return _start(facts, at, Reason.CONTEST_STORED)
    what = "another application used the group in Kafka while the job ran, so its offset there may not be this job's"
    found = f"{facts.committed.next_offset} committed"
    stored = "no stored offset" if facts.stored is None else f"{facts.stored.next_offset} stored"
    raise KafkaGroupContested(what, topic_partition=facts.tp, found=f"{found}, {stored}", expected="a dedicated group")


def _copied(facts: _Facts) -> Start | None:
    """The start if a copy of the database has copied its offsets to our group in Kafka."""
    if facts.contested_epoch is None or facts.stamp is None or not facts.stamp.is_of(facts.store_id, facts.group):
        return None
    # Not compared with the row's token: claims that don't look at Kafka, and resets of other partitions, write tokens
    # too (decision 0050). Without a row, results that a checkpoint vouches for are here: `_our_copy` refuses the start,
    # unless `on_rewound` allows it.
    if facts.stamp.epoch <= facts.contested_epoch or (facts.stored is None and facts.adopted is not None):
        return None
    # A stamp later than the contest's epoch was written by a claim in a cloned database, or by one that a restore has
    # lost: its offsets belong to results that are not here. Pinned, as after a contest (decision 0050).
    at = facts.log.beginning if facts.stored is None else facts.stored.next_offset
    return _start(facts, at, Reason.COPY_STORED)


def _pinned(facts: _Facts) -> Start | None:
    if facts.stored is None or not facts.stored.pinned:
        return None
    return _start(facts, facts.stored.next_offset, Reason.PINNED)


def _foreign_copy(facts: _Facts) -> Start | None:
    if facts.stamp is not None and facts.store_id is not None and facts.stamp.store_id != facts.store_id:
        raise ForeignStore(
            "another offsetstore copied its offsets to this group in Kafka, or this one was lost and made anew",
            topic_partition=facts.tp,
            found=str(facts.stamp),
            expected=f"store {facts.store_id}",
        )
    if facts.stamp is not None and facts.store_id is not None and not facts.stamp.is_of(facts.store_id, facts.group):
        what = "another group of this store copied its offsets to this group in Kafka"
        found, expected = f"{facts.stamp} of group {facts.stamp.group}", f"group {facts.group}, by SHA-256"
        raise KafkaGroupShared(what, topic_partition=facts.tp, found=found, expected=expected)
    return None


def _our_copy(facts: _Facts) -> Start | None:
    """Start at the row if our copy is not beyond it, or older than the decision that set it; else data were lost."""
    if facts.stamp is None or facts.committed is None or facts.stamp.store_id != facts.store_id:
        return None  # another application's, or there is no store; `_foreign_copy` has refused other stores and groups
    row, committed = facts.stored, facts.committed.next_offset
    # Compared with the epoch in which the row was last pinned or contested, not with its token's: claims without a
    # broker and claims of other topics write tokens too, without reading Kafka's offset for this row (decision 0018).
    if row is not None and (committed <= row.next_offset or facts.stamp.epoch < row.pinned_epoch):
        return _start(facts, row.next_offset, Reason.STORED)
    match facts.policy.on_rewound:
        case "kafka":
            return _start(facts, committed, Reason.REWOUND_KAFKA)
        case "stored" if row is not None:
            return _start(facts, row.next_offset, Reason.REWOUND_STORED)
        case "stored" if facts.adopted is not None:
            # What was restored may lack results of the checkpoint, and the log's beginning would repeat them.
            raise StoreRewound(
                "the database was restored or lost, so it may lack results of the checkpoint to adopt",
                topic_partition=facts.tp,
                found=f"no stored offset, and {facts.adopted} to adopt",
                expected=f"at least {committed}, copied by {facts.stamp}",
                next_step="If the checkpoint's results are in this database, delete the group's offsets in Kafka, and "
                "start without on_rewound=. Otherwise remove its results, and start without adopt_checkpoint=.",
            )
        case "stored":
            first = facts.log.beginning if facts.at_timestamp is None else facts.at_timestamp
            return _start(facts, first, Reason.REWOUND_STORED)
        case _:
            found = "no stored offset" if row is None else f"offset {row.next_offset} stored"
            raise StoreRewound(
                "the database is older than our own copy in Kafka: it was restored, lost rows, or a copy of it runs",
                topic_partition=facts.tp,
                found=found,
                expected=f"at least {committed}, copied by {facts.stamp}",
            )


def _adopted(facts: _Facts) -> Start | None:
    if facts.stored is not None or facts.adopted is None:
        return None
    return _start(facts, facts.adopted, Reason.CHECKPOINT)


def _both(facts: _Facts) -> Start | None:
    if facts.stored is None or facts.committed is None:
        return None
    stored, committed = facts.stored.next_offset, facts.committed.next_offset
    if facts.policy.prefer == "agree" and stored != committed:
        raise OffsetsDisagree(
            'the store and Kafka differ, and prefer is "agree"',
            topic_partition=facts.tp,
            found=f"{stored} stored, {committed} committed",
            expected="the same offset",
        )
    if committed > stored and facts.policy.prefer == "larger":
        return _start(facts, committed, Reason.COMMITTED_IS_LARGER)
    return _start(facts, stored, Reason.STORED)


def _only_one(facts: _Facts) -> Start | None:
    if facts.stored is not None:
        return _start(facts, facts.stored.next_offset, Reason.ONLY_STORED)
    if facts.committed is not None:
        return _start(facts, facts.committed.next_offset, Reason.ONLY_COMMITTED)
    return None


def _neither(facts: _Facts) -> Start | None:
    reset = facts.policy.auto_offset_reset
    if reset == "none":
        return None
    # A new partition of a known topic: its records all came after the group's start.
    if facts.topic_is_known:
        return _start(facts, facts.log.beginning, Reason.NEW_PARTITION)
    if reset == "latest":
        return _start(facts, facts.log.end, Reason.LATEST)
    if facts.at_timestamp is not None:
        return _start(facts, facts.at_timestamp, Reason.TIMESTAMP)
    return _start(facts, facts.log.beginning, Reason.EARLIEST)


# A contest comes before a pin: a decision clears the contest, so a row with both was contested after it was pinned. Our
# own stamps come before the rules that take an offset in Kafka for another application's (decisions 0018 and 0022).
_RULES: tuple[Callable[[_Facts], Start | None], ...] = (
    _copied,  # a contest, too: by a copy of the database
    _contested,
    _pinned,
    _foreign_copy,  # refuses, or has no answer
    _our_copy,
    _adopted,
    _both,
    _only_one,
    _neither,
)


def _judge_range(facts: _Facts, start: Start) -> Start:
    beginning, end = facts.log.beginning, facts.log.end
    if start.offset > end and start.reason in {Reason.COMMITTED_IS_LARGER, Reason.ONLY_COMMITTED}:
        # Another tool wrote this offset, and the job has not read that far: nothing says that the topic is another one,
        # and a restart would read all of it again (decision 0009).
        raise OffsetOutOfRange(
            f"offset {start.offset}, which another tool committed in Kafka, lies beyond the end of the log",
            topic_partition=facts.tp,
            found=f"end {end}",
            expected=f"at least {start.offset}",
            next_step="Correct the group's offset in Kafka (kafka-consumer-groups --reset-offsets), or start with "
            'StartPolicy(prefer="stored").',
        )
    if start.offset > end and facts.is_same_log:
        # The readable log may end below the stored offset, at an open transaction. A restart would read the topic
        # twice (decision 0023).
        raise OffsetOutOfRange(
            f"offset {start.offset} ({start.reason.value}) lies beyond the end of the log, and the topic is the same",
            topic_partition=facts.tp,
            found=f"end {end}",
            expected=f"at least {start.offset}",
            next_step="With isolation.level=read_committed the log ends at its first open transaction: start again "
            "once that has ended (kafka-transactions.sh find-hanging shows one that does not end). If the log was "
            "truncated (an unclean leader election), or a reset went too far, run offsetstore reset to an offset that "
            "the log holds.",
        )
    # Without an id, stored or told, nothing shows that the topic is the same (decision 0023).
    if start.offset > end:
        raise TopicRecreated(
            f"offset {start.offset} ({start.reason.value}) lies beyond the end of the log",
            topic_partition=facts.tp,
            found=f"end {end}",
            expected=f"at least {start.offset}",
        )
    if start.offset < beginning:
        if facts.policy.on_data_loss == "earliest":
            return _start(facts, beginning, Reason.DATA_LOSS_ACCEPTED)
        raise OffsetOutOfRange(
            f"the records [{start.offset}, {beginning}) are no longer in the log",
            topic_partition=facts.tp,
            found=f"beginning {beginning}",
            expected=f"at most {start.offset}",
        )
    return start


def _restart(
    topic: str, log: TopicLog, rows: Mapping[TopicPartition, StoredOffset], view: BrokerView
) -> dict[TopicPartition, Start]:
    starts: dict[TopicPartition, Start] = {}
    for partition, watermarks in sorted(log.partitions.items()):  # all of them: topics are recreated as a whole
        tp = TopicPartition(topic, partition)
        starts[tp] = Start(
            watermarks.beginning, Reason.RECREATED_RESTART, rows.get(tp), view.committed.get(tp), watermarks
        )
    return starts


def _start(facts: _Facts, offset: int, reason: Reason) -> Start:
    return Start(offset, reason, facts.stored, facts.committed, facts.log)
