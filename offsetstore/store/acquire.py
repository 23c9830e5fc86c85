"""Acquires a group at the start of a job.

Kafka is asked first, so that a dead broker fences no job, and errors are found before the fence if possible. Then, in
one transaction: lock the group's row, lock all its partitions (which waits for a stale job's open transaction), ask
Kafka for the log ends again, resolve, and write the new token to every row of the group.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from offsetstore.errors import (
    BrokerError,
    GroupBusy,
    GroupRenamed,
    KafkaGroupInUse,
    OffsetOutOfRange,
    OffsetStoreError,
    StartError,
    StoreRewound,
    StoreUnavailable,
    TopicRecreated,
    TransactionLost,
)
from offsetstore.offsets import BrokerView, StoredOffset, Suspect, Token, TopicPartition, makes_many
from offsetstore.protocol.database import Database, GroupRow, HistoryEvent, NewOffset, Session, renamed
from offsetstore.protocol.log_evidence import LogLook, log_truncated, look, same_logs
from offsetstore.protocol.resolver import resolve
from offsetstore.protocol.retries import Retries
from offsetstore.protocol.runs import fleet_name
from offsetstore.protocol.starting import Reason, Start, StartingOffsets, StartPolicy, similar_names
from offsetstore.protocol.store_facts import Stamp, StoreIdentity, latest_epoch
from offsetstore.runtime import failpoints
from offsetstore.runtime.functions import call, without_frames
from offsetstore.store import adoption
from offsetstore.store.adoption import QueryCheckpoint
from offsetstore.store.claim import Acquired, Claim, ClaimRequest
from offsetstore.store.heartbeat import new_run, recording_refusals
from offsetstore.store.identity import fenced_by_claim, name_prefix, this_process
from offsetstore.store.log_watch import write_evidence
from offsetstore.store.sessions import Connected, fencing, read, read_offsets, repeat, transaction
from offsetstore.store.term import begin
from offsetstore.text import logger

_T = TypeVar("_T")

_log = logger(__name__)

# More than one attempt: a loss is evidence only if the last two have seen it, and only the last may restart a topic
# (decisions 0009 and 0049).
_RETRIES = Retries(attempts=3, shortest=0.5, longest=1.0)
AGAIN = "Claim again; the group's history shows whether this claim succeeded."
# Seconds between two looks at a group that has a live owner.
_PAUSE = 0.5

_EVENTS = {
    Reason.RECREATED_RESTART: "restart",
    Reason.DATA_LOSS_ACCEPTED: "skip",
    Reason.REWOUND_STORED: "rewound",
    Reason.REWOUND_KAFKA: "rewound",
    Reason.CONTEST_STORED: "contested",
    Reason.COPY_STORED: "contested",
}
# Recorded even if the offset does not change.
_DECIDED = {"rewound", "contested"}
# Kafka's offset must not override these at the next start, until the mirror has overwritten it (decision 0004).
_PINS = {
    Reason.RECREATED_RESTART,
    Reason.REWOUND_STORED,
    Reason.REWOUND_KAFKA,
    Reason.CONTEST_STORED,
    Reason.COPY_STORED,
}


def acquire(store: Connected, request: ClaimRequest) -> Claim:
    """Take the group over; see `OffsetStore.claim`.

    A broker that lags behind its leader reports a log that is too short, so a start that is out of range is tried again
    before it is believed. A claim that lost its connection is retried too.
    """
    # One id for all attempts: if a COMMIT happened and its answer was lost, the next attempt knows its own claim.
    claim_id = uuid.uuid4()
    with recording_refusals(store, request.group):
        return until_believed(store, request, lambda asked, evidence: _attempt(store, asked, claim_id, evidence))


def until_believed(
    store: Connected,
    request: ClaimRequest,
    attempt: Callable[[ClaimRequest, Evidence], _T],
    *,
    proven: Callable[[Mapping[TopicPartition, str]], Mapping[TopicPartition, str]] = lambda confirmed: confirmed,
) -> _T:
    """Take the group or a part of it, with retries; with ``takeover="wait"`` also while its owner is live.

    :param proven: selects the losses to record from the losses that the last attempt has confirmed.
    """
    deadline = time.monotonic() + request.takeover_timeout
    evidence = Evidence()

    def tried(number: int) -> _T:
        # Only the last attempt may restart: that reads a whole topic again.
        is_last = number == _RETRIES.attempts
        policy = request.policy if is_last else replace(request.policy, on_recreated="fail")
        try:
            return attempt(replace(request, policy=policy), evidence)
        except OffsetOutOfRange:
            if is_last:
                _record(store, request.group, evidence, proven(evidence.confirmed))
            raise

    while True:
        try:
            return repeat(store, request.group, nullcontext, tried, retry_if=_may_pass, retries=_RETRIES)
        except GroupBusy as busy:
            left = deadline - time.monotonic()
            if request.takeover != "wait" or left <= 0:
                raise
            without_frames(busy)
            time.sleep(min(_PAUSE, left))


class Evidence:
    """The logs that lost records, as the attempts of one claim see them: what two in a row have seen is no transient.

    ``unlocked`` is the latest attempt's first look, before the group was locked. ``tokens`` are the tokens of the rows
    whose logs lost records, and ``doubtful`` is of the latest look.
    """

    def __init__(self) -> None:
        self._former: Mapping[TopicPartition, str] = {}
        self._latest: Mapping[TopicPartition, str] = {}
        self._has_looked = False
        self.tokens: Mapping[TopicPartition, Token] = {}
        self.doubtful: Mapping[TopicPartition, int] = {}
        self.unlocked = LogLook()

    def begin(self) -> None:
        """Begin another attempt: what the last one has seen becomes the earlier of two looks."""
        # An attempt that failed before it looked has seen nothing, and must not stand between two looks.
        if self._has_looked:
            self._former, self._latest = self._latest, {}
        self._has_looked = False

    def note(self, rows: Mapping[TopicPartition, StoredOffset], looked: LogLook) -> None:
        """Record the latest look, and whose rows these were."""
        self._latest, self._has_looked = looked.lost, True
        self.doubtful = looked.doubtful
        self.tokens = {tp: rows[tp].token for tp in looked.lost}

    @property
    def confirmed(self) -> dict[TopicPartition, str]:
        """What the last attempt has seen again."""
        return {tp: what for tp, what in self._latest.items() if tp in self._former}


def _record(store: Connected, group: str, evidence: Evidence, proven: Mapping[TopicPartition, str]) -> None:
    """Record the loss for later starts; this fences nobody."""
    # By the next start the log may have grown past the offset, and nothing would show the loss (decision 0049).
    by_token: dict[Token, dict[TopicPartition, str]] = {}  # each member of a fleet has a token of its own
    for tp, what in proven.items():
        by_token.setdefault(evidence.tokens[tp], {})[tp] = what
    name = f"{name_prefix(group)}evidence"
    try:
        for token, lost in by_token.items():
            with transaction(store.database, name=name, lock_timeout=store.timeouts.lock) as session:
                write_evidence(session, group, token, lost, actor=this_process(), doubtful=evidence.doubtful)
    except OffsetStoreError as error:  # the start is refused all the same
        _log.warning("could not record that a log of group %r lost records: %s", group, error)


def _may_pass(error: Exception) -> bool:
    return isinstance(error, (OffsetOutOfRange, TopicRecreated, TransactionLost, StoreUnavailable))


@dataclass(frozen=True, slots=True)
class Asked:
    """What an attempt has found before it locks anything; ``view`` and ``starting`` are ``None`` without a broker.

    ``stored`` are the rows, without their metadata, as they were before Kafka was asked. ``passed_over`` are partitions
    that can't start, ``None`` if all can.
    """

    identity: StoreIdentity
    checkpoint: QueryCheckpoint | None
    stored: Mapping[TopicPartition, StoredOffset]
    view: BrokerView | None
    starting: StartingOffsets | None
    passed_over: Mapping[TopicPartition, StartError] | None = None


def ask(
    store: Connected,
    request: ClaimRequest,
    claim_id: uuid.UUID,
    evidence: Evidence,
    *,
    is_shared: Callable[[BrokerView], bool] = lambda _: False,
) -> Asked:
    """Ask the database and Kafka before anything is locked: an error found here fences no job and ends no transaction.

    :param is_shared: whether the group is only joined: partitions that can't start are then left to whoever takes them,
        and are ``passed_over`` here.
    """
    evidence.begin()
    if request.takeover != "fence":
        _check_owner(read(store.database, lambda session: session.group(request.group)), request, claim_id)
    identity = read(store.database, lambda session: _look_around(session, store.database.schema))
    # Read before Kafka is asked: a live job may advance meanwhile, and must not seem to be beyond the end.
    stored = read_offsets(store.database, request.group)
    view = request.view()
    checkpoint = adoption.read_for(request.checkpoint, stored, view)
    if view is None:
        return Asked(identity, checkpoint, stored, None, None)
    # Asked here, where no lock waits for the answer, and no job was fenced if a log is truncated.
    looked = evidence.unlocked = look(stored, same_logs(stored, view), request.find_truncated)
    passed_over: dict[TopicPartition, StartError] | None = {} if is_shared(view) else None
    if passed_over is None:
        evidence.note(stored, looked)
    adopted = checkpoint and checkpoint.starts(request.policy, stored, view.topics)
    try:
        starting = resolve_unlocked(
            store.database,
            request.group,
            stored,
            view,
            request.policy,
            store_id=identity.store_id,
            adopted=adopted,
            passed_over=passed_over,
        )
    except StoreRewound:
        # Kafka still has the copies of a group that was renamed, and they look like those of a lost store.
        if not stored:
            read(store.database, lambda session: _expect_its_name(session, request.group))
        raise
    if passed_over is not None:
        return Asked(identity, checkpoint, stored, view, starting, passed_over)
    for tp, what in looked.truncated.items():
        raise log_truncated(tp, Suspect(what))
    looked.expect_told()
    return Asked(identity, checkpoint, stored, view, starting)


def _attempt(store: Connected, request: ClaimRequest, claim_id: uuid.UUID, evidence: Evidence) -> Claim:
    asked = ask(store, request, claim_id, evidence)
    similar = asked.starting.similar if asked.starting is not None else ()
    has_members = _has_members(request)
    with fencing(store.database, request.group, request.takeover_timeout, name="claim", again=AGAIN) as session:
        locked = lock_whole(
            session, request, claim_id, evidence, schema=store.database.schema, checkpoint=asked.checkpoint
        )
        why = f"takeover={request.takeover}"
        acquired = write_whole(session, request, claim_id, locked, evidence, why=why, checkpoint=asked.checkpoint)
        session.begin_run(request.group, acquired.token, new_run(acquired.owner, request.topics))
        if acquired.starting is not None:
            starting = replace(acquired.starting, similar=similar)
            acquired = replace(acquired, starting=starting)
        failpoints.reach("in_claim")
    _warn_of_copy(request, acquired.starting)
    return Claim(store, request, acquired, has_members=has_members, after_fleet=_follows_fleet(request, locked))


def _look_around(session: Session, schema: str | None) -> StoreIdentity:
    """Read which store it is.

    :raises StoreMoved: its tables are in another database than before.
    :raises MissingPrivilege: the role may not do all that a job does.
    """
    identity = session.identity()
    identity.expect_home(schema)
    session.expect_grants()
    return identity


def _expect_its_name(session: Session, group: str) -> None:
    """Refuse a group without rows that was renamed.

    A supervisor may start a job under its old name again, and the job would read the whole topic again.
    """
    if (last := renamed(session.history(group))) is not None:
        raise GroupRenamed(f"the group {group!r} was renamed", found=last.reason, expected="a claim by its new name")


def _warn_of_copy(request: ClaimRequest, starting: StartingOffsets | None) -> None:
    if starting is None or all(start.reason is not Reason.COPY_STORED for start in starting.starts.values()):
        return
    _log.warning(
        "a copy of this database copied its offsets to group %r in Kafka while the last job of group %r ran: this job "
        "starts at the stored offsets. Give the copy an id (`offsetstore store new-id`) and a kafka_group= of its own",
        request.kafka_group,
        request.group,
    )


def _follows_fleet(request: ClaimRequest, locked: Locked) -> bool:
    """Whether the last fleet that had the group was one of the group in Kafka that the claim copies its offsets to.

    Jobs may have had it since: if a job ends soon after it has fenced a fleet, the next job still finds the fleet's
    members.
    """
    return (
        locked.owner is not None
        and locked.view is not None
        and locked.owner.last_fleet == fleet_name(locked.view.cluster_id, request.kafka_group)
    )


def _has_members(request: ClaimRequest) -> bool:
    """Whether another application uses the group that the claim would copy its offsets to."""
    broker = request.mirrored_to
    if broker is None:
        return False
    try:
        has_members = call(broker.has_members, request.kafka_group)
    except BrokerError as error:
        if request.policy.on_members == "refuse":
            raise
        # Kafka refuses every commit while there are members, and the mirror compares before each.
        without_frames(error)
        _log.warning("could not check whether group %r has members in Kafka: %s", request.kafka_group, error)
        return False
    if has_members and request.policy.on_members == "refuse":
        raise KafkaGroupInUse(
            f"the group {request.kafka_group!r} has members in Kafka: another application uses it",
            found='members, and on_members="refuse"',
            expected="a group that only this job uses",
        )
    return has_members


@dataclass(frozen=True, slots=True)
class Locked:
    """What an attempt has found under its locks; ``view`` and ``starting`` are ``None`` without a broker."""

    epoch: int
    owner: GroupRow | None
    store_id: uuid.UUID
    rows: Mapping[TopicPartition, StoredOffset]
    view: BrokerView | None
    starting: StartingOffsets | None


def lock_whole(
    session: Session,
    request: ClaimRequest,
    claim_id: uuid.UUID,
    evidence: Evidence,
    *,
    schema: str | None,
    checkpoint: QueryCheckpoint | None = None,
) -> Locked:
    """Lock the group and all of its rows, and resolve where each partition starts."""
    group = request.group
    # Before any partition's row, as a transaction does, or the two would deadlock.
    before = session.lock_group(group)
    # Once more: the connection may be another one, and the id may have been changed.
    identity = session.identity()
    identity.expect_home(schema)
    owner = session.group(group)
    if request.takeover != "fence":
        _check_owner(owner, request, claim_id)
    rows = session.lock_group_partitions(group)
    if not rows:
        _expect_its_name(session, group)
    view, starting = resolve_locked(session, request, rows, evidence, store_id=identity.store_id, checkpoint=checkpoint)
    return Locked(before.epoch, owner, identity.store_id, rows, view, starting)


def resolve_locked(
    session: Session,
    request: ClaimRequest,
    rows: Mapping[TopicPartition, StoredOffset],
    evidence: Evidence,
    *,
    store_id: uuid.UUID,
    checkpoint: QueryCheckpoint | None = None,
) -> tuple[BrokerView | None, StartingOffsets | None]:
    """Ask Kafka again, and resolve from rows that can't change any more."""
    view = request.view()
    if view is None:
        return None, None
    # Changed leader epochs are not asked about here: no lock waits for a consumer (decision 0049).
    evidence.note(rows, look(rows, same_logs(rows, view), None))
    starting = resolve(
        rows,
        view,
        request.policy,
        store_id=store_id,
        group=request.group,
        adopted=checkpoint.starts(request.policy, rows, view.topics) if checkpoint else None,
        deleted=session.deleted_epochs(request.group) if _is_behind(rows, view, store_id) else None,
    )
    return view, starting


def resolve_again(
    session: Session, request: ClaimRequest, asked: Asked, rows: Mapping[TopicPartition, StoredOffset]
) -> StartingOffsets:
    """Resolve from locked rows, by Kafka's earlier answer: no lock waits for Kafka.

    A row may have been advanced since. Kafka's answer is compared with the row as it was then, and the partition starts
    where the row is now.
    """
    view, store_id = asked.view, asked.identity.store_id
    assert view is not None
    known = _caught_up(asked.stored, rows, view)
    starting = resolve(
        known,
        view,
        request.policy,
        store_id=store_id,
        group=request.group,
        deleted=session.deleted_epochs(request.group) if _is_behind(known, view, store_id) else None,
    )
    starts = {tp: _start_of(start, asked.stored.get(tp), rows.get(tp)) for tp, start in starting.starts.items()}
    return replace(starting, starts=starts)


def _start_of(start: Start, before: StoredOffset | None, row: StoredOffset | None) -> Start:
    was_moved = row is not None and (before is None or before.next_offset < row.next_offset)
    if row is not None and was_moved and row.next_offset > start.offset and start.reason not in _PINS:
        return Start(row.next_offset, Reason.STORED, row, start.committed, start.log)
    return replace(start, stored=row)


def write_whole(
    session: Session,
    request: ClaimRequest,
    claim_id: uuid.UUID,
    locked: Locked,
    evidence: Evidence,
    *,
    why: str,
    checkpoint: QueryCheckpoint | None = None,
    fleet: str | None = None,
) -> Acquired:
    """Give the group and all of its rows a new token, and write where each partition starts.

    :param fleet: the name of the fleet whose claim it is.
    """
    group, rows = request.group, locked.rows
    copied = latest_epoch(locked.view.committed.values(), locked.store_id) if locked.view is not None else 0
    # Above every epoch whose stamp was seen: a restored database would use epochs a second time (decision 0018).
    token = Token(max(locked.epoch, copied) + 1, claim_id)
    owner = this_process()
    fenced = fenced_by_claim(session, group, locked.owner, claim_id)
    session.write_group(group, token, owner, fleet=fleet)
    why = why if fenced is None else f"{why}; fenced the owner, which was {fenced}"
    history = [HistoryEvent("claim", None, None, None, token, owner, why)]
    partitions = set(rows)
    metadata = {tp: row.metadata for tp, row in rows.items()}
    if locked.starting is not None and locked.view is not None:
        new = write_starts(
            session, group, token, rows, view=locked.view, starting=locked.starting, looked=evidence.unlocked
        )
        # Metadata belong to the offset that they were stored with (decision 0032).
        metadata |= {tp: None for tp, row in rows.items() if tp in new and new[tp].next_offset != row.next_offset}
        decided = decisions(rows, locked.starting, token, owner)
        history += checkpoint.annotate(decided, locked.starting, request.policy) if checkpoint else decided
        partitions |= locked.starting.starts.keys()
    session.append_history(group, history)
    terms = begin(session, group, partitions, metadata)
    return Acquired(token, terms, locked.starting, owner, locked.store_id, fenced)


def write_starts(
    session: Session,
    group: str,
    token: Token,
    rows: Mapping[TopicPartition, StoredOffset],
    *,
    view: BrokerView,
    starting: StartingOffsets,
    looked: LogLook,
) -> dict[TopicPartition, NewOffset]:
    """Write where the partitions start; return the rows that differ from that."""
    new = new_offsets(rows, starting, view, looked)
    session.set_partitions(group, token, new)
    # A letter is named by its record and its topic's id, so it gets an id that was unknown (decision 0036).
    learned = {tp.topic: new[tp].topic_id for tp, row in rows.items() if tp in new and row.topic_id is None}
    if ids := {topic: topic_id for topic, topic_id in learned.items() if topic_id is not None}:
        session.adopt_letters(group, ids)
    return new


def _check_owner(owner: GroupRow | None, request: ClaimRequest, claim_id: uuid.UUID) -> None:
    if owner is None or owner.token.claim_id == claim_id or not owner.is_live:
        return
    if request.shared and owner.fleet is not None:
        return
    raise GroupBusy(f"group {request.group!r} has a live owner", found=owner.in_words())


def resolve_unlocked(
    database: Database,
    group: str,
    stored: Mapping[TopicPartition, StoredOffset],
    view: BrokerView,
    policy: StartPolicy | None,
    *,
    store_id: uuid.UUID,
    adopted: Mapping[TopicPartition, int] | None = None,
    passed_over: dict[TopicPartition, StartError] | None = None,
) -> StartingOffsets:
    """Resolve while a job may be running, from rows that were read before Kafka was asked.

    A live job advances its row, and then copies it to Kafka. If both happened in between, the copy is above the row
    that we read, as after a restore. Reading the rows again tells the two apart.

    If the group is unknown, groups with similar names are looked up.
    """
    is_behind = _is_behind(stored, view, store_id)
    deleted = read(database, lambda session: session.deleted_epochs(group)) if is_behind else None
    resolved = partial(
        resolve,
        view=view,
        policy=policy,
        store_id=store_id,
        group=group,
        adopted=adopted,
        deleted=deleted,
        passed_over=passed_over,
    )
    try:
        starting = resolved(stored)
    except StoreRewound:
        caught_up = _caught_up(stored, read_offsets(database, group), view)
        if caught_up == stored:
            raise
        return resolved(caught_up)
    if starting.warning is None:
        return starting
    others = read(database, lambda session: session.names_of_groups())
    return replace(starting, similar=similar_names(group, others))


def _is_behind(stored: Mapping[TopicPartition, StoredOffset], view: BrokerView, store_id: uuid.UUID) -> bool:
    """Whether Kafka has a copy of ours beyond its row: only then does it matter whether the group was deleted."""
    beyond = (
        copy for tp, copy in view.committed.items() if tp not in stored or stored[tp].next_offset < copy.next_offset
    )
    return latest_epoch(beyond, store_id) > 0


def _caught_up(
    stored: Mapping[TopicPartition, StoredOffset], now: Mapping[TopicPartition, StoredOffset], view: BrokerView
) -> dict[TopicPartition, StoredOffset]:
    """The rows as of Kafka's answer: a row that has reached its copy since it was read gets the copy's offset."""
    rows = dict(stored)
    for tp, row in now.items():
        committed = view.committed.get(tp)
        before = stored[tp].next_offset if tp in stored else 0
        if committed is not None and before < committed.next_offset <= row.next_offset:
            rows[tp] = replace(row, next_offset=committed.next_offset)
    return rows


@makes_many
def new_offsets(
    rows: Mapping[TopicPartition, StoredOffset],
    starting: StartingOffsets,
    view: BrokerView,
    looked: LogLook | None = None,
) -> dict[TopicPartition, NewOffset]:
    """Return the rows to write, because they differ from where their partitions start.

    :param looked: what an earlier look at the logs has shown.
    """
    looked = looked or LogLook()
    new: dict[TopicPartition, NewOffset] = {}
    for tp, start in starting.starts.items():
        row = rows.get(tp)
        # After a restart Kafka's own offset belongs to the old log: it must not count at the next start.
        is_restart = start.reason is Reason.RECREATED_RESTART
        known = None if is_restart else row
        is_decided = start.reason in _PINS
        value = NewOffset(
            start.offset,
            # Keep an id that this broker does not report.
            view.topics[tp.topic].topic_id or (known.topic_id if known else None),
            view.cluster_id or (known.cluster_id if known else None),
            is_decided or (row is not None and row.pinned) or _starts_below_committed(start),
            row is not None and row.contested and not is_decided,
            looked.pair(tp, known, start.offset, start.log),
        )
        if not _is_unchanged(row, value):
            new[tp] = value
    # A row at 0 has lost nothing: if the partition comes back, it is read from its beginning (decision 0004).
    for tp in starting.vanished:
        new[tp] = NewOffset(0, view.topics[tp.topic].topic_id, view.cluster_id, pinned=True)
    return dict(sorted(new.items()))


def _starts_below_committed(start: Start) -> bool:
    """Whether it is an adopted offset, or a rewound row whose records are gone, below Kafka's offset."""
    if start.committed is None or start.offset >= start.committed.next_offset:
        return False
    is_accepted = start.reason is Reason.DATA_LOSS_ACCEPTED
    return start.reason is Reason.CHECKPOINT or (is_accepted and (not start.stored or bool(Stamp.of(start.committed))))


def _is_unchanged(row: StoredOffset | None, new: NewOffset) -> bool:
    # A pin or a contest is written again: its epoch must be above those of all copies that were seen (decision 0018).
    if row is None or new.pinned or new.contested:
        return False
    return new == (row.next_offset, row.topic_id, row.cluster_id, row.pinned, row.contested, row.pair, new.suspect)


@makes_many
def decisions(
    rows: Mapping[TopicPartition, StoredOffset], starting: StartingOffsets, token: Token, owner: str
) -> list[HistoryEvent]:
    """Return an event for each offset that changes, and for each decision that keeps it."""
    events = [
        HistoryEvent(_EVENTS.get(start.reason, "adopt"), tp, _before(start), start.offset, token, owner, _why(start))
        for tp, start in starting.starts.items()
        if _before(start) != start.offset or _EVENTS.get(start.reason) in _DECIDED
    ]
    return events + [
        HistoryEvent(
            "restart", tp, rows[tp].next_offset, 0, token, owner, "vanished from Kafka, and a restart was asked for"
        )
        for tp in starting.vanished
    ]


def decided(starting: StartingOffsets) -> list[TopicPartition]:
    """The partitions whose start is a decision of the policy, which Kafka's offset must not undo; see `_PINS`."""
    return [tp for tp, start in starting.starts.items() if start.reason in _PINS or _starts_below_committed(start)]


def _before(start: Start) -> int | None:
    return None if start.stored is None else start.stored.next_offset


def _why(start: Start) -> str:
    return start.reason.value if start.skipped is None else f"{start.reason.value}; skips {start.skipped}"
