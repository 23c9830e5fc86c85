"""What is known about a group: its owner, its stored offsets, and what Kafka or an old checkpoint has next to them.

Nothing is locked and nothing is written. There is one definition of lag, `lag_of`, one of the log that an offset does
not belong to, `another_log`, and one of a live owner, `GroupRow.is_live`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, TypeVar
from uuid import UUID

from offsetstore.errors import (
    BrokerError,
    ConfigurationError,
    StartError,
    TopicRecreated,
    UncertainBatch,
    WrongCluster,
)
from offsetstore.offsets import CommittedOffset, Pause, StoredOffset, Suspect, TopicPartition, Watermarks
from offsetstore.operations.people import (
    OUTBOX_STATES,
    RELAY,
    REQUESTED,
    outbox_states,
    read_owner,
    read_runs,
    relay_status,
    requested_letters,
)
from offsetstore.operations.replays import unreplayed
from offsetstore.operations.stored_letters import count_letters
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol.database import EVENTS, TAKING, GroupRow, HistoryEvent, Session
from offsetstore.protocol.fleet import FleetMember
from offsetstore.protocol.functions import without_frames
from offsetstore.protocol.letters import OPEN, State
from offsetstore.protocol.numbers import check_whole
from offsetstore.protocol.outbox import OutboxState, RelayStatus
from offsetstore.protocol.policy import OnUncertain, StartPolicy
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.protocol.runs import SOURCES, JobError, Source
from offsetstore.store.adoption import QueryCheckpoint

_Line = TypeVar("_Line", "HistoryEvent", "JobError")

_INTERVAL: Final = 1.0
_OVERLAP: Final = timedelta(hours=1)


def end_of(log: Watermarks) -> int:
    """The high watermark: what lies behind an open transaction is unread, too."""
    return log.end if log.high is None else log.high


def lag_of(next_offset: int, log: Watermarks) -> int | None:
    """Count the offsets from ``next_offset`` to the end of the log.

    ``None`` if the log ends before it: records are missing there, and what is unread can't be told. See `beyond_end`.
    """
    lag = end_of(log) - next_offset
    return None if lag < 0 else lag


def beyond_end(next_offset: int, log: Watermarks) -> int:
    """Count the offsets by which ``next_offset`` is beyond the end of the log, 0 for one that the log holds."""
    return max(0, next_offset - end_of(log))


def headroom_of(next_offset: int, log: Watermarks) -> int | None:
    """Count the offsets that retention has to remove before unread ones, negative if it has removed some.

    ``None`` if nothing is unread, or if that can't be told.
    """
    return next_offset - log.beginning if lag_of(next_offset, log) else None


def another_log(
    tp: TopicPartition, row: StoredOffset, *, cluster_id: str | None, topic_id: str | None, has_partition: bool
) -> StartError | None:
    """Say why Kafka's log is not the one that the row belongs to, ``None`` if it is or may be. A start is refused then.

    :param has_partition: whether Kafka has the partition at all. An offset of 0 waits for it, and loses nothing.
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
    if not has_partition and row.next_offset > 0:
        return TopicRecreated(f"Kafka no longer has {tp}, and offset {row.next_offset} is stored for it")
    return None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition of a group.

    ``stored`` is the row of the store, ``age`` the time since it last changed, by the database's clock; both are
    ``None`` for a partition that the store has no offset of. ``committed`` is what Kafka keeps for the group, ``log``
    the ends of the log; both are ``None`` if no broker was asked, or if Kafka has none. With an ``error``, ``log``
    is ``None``, too: Kafka's is not the one that the stored offset belongs to.
    """

    stored: StoredOffset | None = None
    age: timedelta | None = None
    committed: CommittedOffset | None = None
    log: Watermarks | None = None
    error: StartError | None = None

    @property
    def end(self) -> int | None:
        """The log's end, see `end_of`."""
        return None if self.log is None else end_of(self.log)

    @property
    def lag(self) -> int | None:
        """Offsets from the stored one to the end of the log; ``None`` if not known, or if the log ends before it."""
        return None if self.stored is None or self.log is None else lag_of(self.stored.next_offset, self.log)

    @property
    def beyond_end(self) -> int:
        """Offsets by which the stored one is beyond the end of the log: records that were read are missing there."""
        return 0 if self.stored is None or self.log is None else beyond_end(self.stored.next_offset, self.log)

    @property
    def headroom(self) -> int | None:
        """Offsets that retention has to remove before unread ones, negative if it has removed some."""
        return None if self.stored is None or self.log is None else headroom_of(self.stored.next_offset, self.log)

    @property
    def suspect(self) -> Suspect | None:
        """Evidence that the log lost records, which refuses each start until a reset."""
        return None if self.stored is None else self.stored.suspect

    @property
    def pinned(self) -> bool:
        """Whether the stored offset was set by a decision, and takes precedence over what Kafka has."""
        return self.stored is not None and self.stored.pinned

    @property
    def contested(self) -> bool:
        """Whether another application used the group in Kafka while the job ran."""
        return self.stored is not None and self.stored.contested


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member of a fleet, and the partitions that it was the last to take: it may have given some of them back."""

    member: FleetMember
    partitions: tuple[TopicPartition, ...]


def with_partitions(members: Iterable[FleetMember], rows: Mapping[TopicPartition, StoredOffset]) -> list[MemberState]:
    """Give each member the partitions whose rows have its token."""
    taken: dict[UUID, list[TopicPartition]] = {}
    for tp, row in rows.items():
        taken.setdefault(row.token.claim_id, []).append(tp)
    return [MemberState(one, tuple(taken.get(one.member_id, ()))) for one in members]


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group at one moment, ``read_at`` by the database's clock; what Kafka has was asked for right after it.

    ``owner`` is the last claim, ``None`` if there was none. ``decision`` is ``"reset"``, ``"rename"``, ``"copy"``,
    ``"delete"``, ``"delete-topic"`` or ``"new-id"`` if an operator has decided that since the last claim: the owner is
    then the operator and not a job. ``partitions`` are those that the store or the log of a stored topic has, in order
    of (topic, partition).
    ``broker_error`` is the error of a broker that was asked and could not answer. ``dead_letters`` counts those whose
    record is not in the results, and may still get there: ``dead`` and ``requested``. ``replays_letters`` is whether
    the owner's job replays those that are requested; ``None`` if there are none, or if it has not said so.
    ``unreplayed`` says of a live job which of them it does not replay, and why; ``None`` if it replays all.
    ``members`` are those of the fleet that has the group, the oldest first; none if a job has it. ``outbox`` is what
    the group has in the outbox, ``None`` if it has nothing there, and ``relay`` the one that has the outbox or had it
    last, ``None`` if there never was one.
    """

    group: str
    owner: GroupRow | None
    decision: str | None
    read_at: datetime
    partitions: Mapping[TopicPartition, PartitionState]
    broker_error: BrokerError | None = None
    dead_letters: Mapping[State, int] = field(default_factory=dict["State", int])
    replays_letters: bool | None = None
    unreplayed: str | None = None
    members: Sequence[FleetMember] = ()
    outbox: OutboxState | None = None
    relay: RelayStatus | None = None

    @property
    def of_members(self) -> list[MemberState]:
        """The members, each with the partitions that it was the last to take."""
        rows = {tp: one.stored for tp, one in self.partitions.items() if one.stored is not None}
        return with_partitions(self.members, rows)

    @property
    def is_known(self) -> bool:
        """Whether the store has the group at all: a claim, or offsets."""
        return self.owner is not None or bool(self.partitions)

    @property
    def is_live(self) -> bool:
        """Whether a job owns the group and runs, as for claims and resets."""
        return self.owner is not None and self.owner.is_live

    @property
    def pause(self) -> Pause | None:
        """Why the group is paused, and until when; ``None`` if it is not."""
        return None if self.owner is None else self.owner.pause

    @property
    def lag(self) -> int | None:
        """The sum of the partitions' lags, ``None`` if that of a partition with a stored offset is not known.

        One that a recreated topic lacks, and of which nothing is stored, is left out.
        """
        known_topics = {tp.topic for tp, one in self.partitions.items() if one.log is not None}
        lags = [
            one.lag
            for tp, one in self.partitions.items()
            if one.stored is not None
            and (one.log or one.error or one.stored.next_offset or tp.topic not in known_topics)
        ]
        known = [one for one in lags if one is not None]
        return sum(known) if known and len(known) == len(lags) else None


def owner_of(session: Session, group: str) -> GroupRow | None:
    """Who claimed the group last, as people are told it: a store in memory has no more than what a job asks."""
    return read_owner(session, group) if isinstance(session, PostgresSession) else session.group(group)


def read_group(session: Session, group: str) -> GroupState:
    """Read what the store has of the group, without Kafka's part."""
    owner, rows = owner_of(session, group), session.read_partitions(group)
    decision = _decision(session, group, owner)
    letters = count_letters(session, group, OPEN) if isinstance(session, PostgresSession) else {}
    asked, requested = letters.get("requested"), None
    if asked and isinstance(session, PostgresSession):
        requested = requested_letters(session.rows(REQUESTED, groups=[group])).get(group)
    runs = read_runs(session, group, limit=1) if asked and isinstance(session, PostgresSession) else []
    replays = next((run.status.replays_letters for run in runs if owner and run.is_of(owner.token)), None)
    members = session.members(group) if owner is not None and owner.fleet is not None else ()
    left = None
    if requested and owner is not None:
        left = unreplayed(requested, owner, next(iter(runs), None), rows, {one.member_id for one in members})
    outbox = relay = None
    if isinstance(session, PostgresSession):
        outbox = outbox_states(session.rows(OUTBOX_STATES, groups=[group])).get(group)
        relay = relay_status(session.rows(RELAY))
    now = session.now()  # last, so that no age is negative
    partitions = {
        tp: PartitionState(row, None if row.updated_at is None else now - row.updated_at) for tp, row in rows.items()
    }
    return GroupState(
        group,
        owner,
        decision,
        now,
        partitions,
        dead_letters=letters,
        replays_letters=replays,
        unreplayed=left,
        members=members,
        outbox=outbox,
        relay=relay,
    )


def _decision(session: Session, group: str, owner: GroupRow | None) -> str | None:
    """Look it up in the history, which can be long, only if no job holds the group."""
    if owner is None or owner.alive_for is not None:
        return None
    of_owner = (line.event for line in reversed(session.history(group)) if line.token == owner.token)
    return next((event for event in of_owner if event in TAKING), None)


def check_history(since: datetime | None, events: Collection[str], limit: int | None) -> None:
    """Refuse invalid arguments of `OffsetStore.history`.

    :raises ConfigurationError: naming the argument.
    """
    _check_list(since, events, EVENTS, "the history has no such events")
    check_limit(limit, "events")


def check_errors(since: datetime | None, sources: Collection[Source], limit: int | None) -> None:
    """Refuse invalid arguments of `OffsetStore.errors`.

    :raises ConfigurationError: naming the argument.
    """
    _check_list(since, sources, SOURCES, "errors have no such sources")
    check_limit(limit, "errors")


def check_limit(limit: int | None, what: str) -> None:
    """Refuse a limit below 1.

    :raises ConfigurationError: it is.
    """
    if limit is not None:
        check_whole("limit", limit, what, least=1)


def _check_list(since: datetime | None, asked: Collection[str], known: Collection[str], what: str) -> None:
    if since is not None and since.tzinfo is None:
        raise ConfigurationError(
            "since is a time without a zone", found=since.isoformat(), expected="a datetime with tzinfo, such as UTC"
        )
    if unknown := sorted(set(asked) - set(known)):
        raise ConfigurationError(what, found=", ".join(unknown), expected=", ".join(known))


def follow(
    read: Callable[[datetime | None], list[_Line]], *, since: datetime | None, limit: int | None
) -> Generator[_Line]:
    """Yield what is there, of that the last ``limit`` lines, and then each line that is added.

    A line's time is that of its statement and not of the COMMIT, so the last hour is read again each time.

    :param read: reads the lines since a time.
    """
    found = read(since)
    yield from found if limit is None else found[-limit:]
    while True:
        time.sleep(_INTERVAL)
        seen = set(found)
        bounds = [line.at - _OVERLAP for line in found if line.at is not None]
        bounds += [] if since is None else [since]
        found = read(max(bounds) if bounds else None)
        yield from (line for line in found if line not in seen)


def add_kafka(state: GroupState, broker: BrokerOffsets, kafka_group: str | None) -> GroupState:
    """Add what Kafka has, in one view of all stored topics; if it can't answer, add the error."""
    topics = sorted({tp.topic for tp in state.partitions})
    if not topics:
        return state
    try:
        view = broker.view(kafka_group or state.group, topics)
    except BrokerError as error:
        return replace(state, broker_error=without_frames(error))
    logs = {
        TopicPartition(topic, number): log
        for topic, found in view.topics.items()
        for number, log in found.partitions.items()
    }
    partitions: dict[TopicPartition, PartitionState] = {}
    for tp in sorted(state.partitions.keys() | logs.keys()):
        one, topic = state.partitions.get(tp, PartitionState()), view.topics[tp.topic]
        error = None
        if one.stored is not None:
            error = another_log(
                tp,
                one.stored,
                cluster_id=view.cluster_id,
                topic_id=topic.topic_id,
                has_partition=topic.has(tp.partition),
            )
        log = logs.get(tp) if error is None else None
        partitions[tp] = replace(one, committed=view.committed.get(tp), log=log, error=error)
    return replace(state, partitions=partitions)


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a claim would take over from the checkpoint of a query.

    ``adopted`` is where the partitions start that the store has no offset of. With a ``refusal`` the claim would adopt
    nothing: ``adopted`` then holds the partitions that the uncertain batch leaves alone.
    """

    checkpoint: QueryCheckpoint
    stored: Mapping[TopicPartition, StoredOffset]
    adopted: Mapping[TopicPartition, int]
    refusal: UncertainBatch | None = None

    def start(self, tp: TopicPartition) -> int | None:
        """Where the partition starts: at the stored offset, else at the adopted one; ``None`` if it is refused."""
        return self.stored[tp].next_offset if tp in self.stored else self.adopted.get(tp)


def read_adoption(
    checkpoint: QueryCheckpoint, stored: Mapping[TopicPartition, StoredOffset], on_uncertain: OnUncertain
) -> Adoption:
    """Decide as a claim does what it adopts of the checkpoint, for all its topics."""
    topics = {tp.topic for tp in checkpoint.offsets}
    try:
        return Adoption(checkpoint, stored, checkpoint.starts(StartPolicy(on_uncertain=on_uncertain), stored, topics))
    except UncertainBatch as error:
        certain = checkpoint.starts(StartPolicy(on_uncertain="replay"), stored, topics)
        # A batch without records leaves no partition alone: windows also come out of it.
        alone = {tp: at for tp, at in certain.items() if checkpoint.uncertain and tp not in checkpoint.uncertain}
        return Adoption(checkpoint, stored, alone, error)
