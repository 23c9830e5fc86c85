"""What an operator decides about a group: move its offsets, pause it, correct its metadata; `names` has its names.

The history records each with its reason. A reset or a rename fences a running job as a claim does: its open transaction
is waited for, and its token is then stale. Rows that were set are pinned, so that the decision takes precedence over
what Kafka still has. The other decisions leave the token, and the job, as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias, get_args
from uuid import uuid4

from offsetstore.errors import (
    ConfigurationError,
    GroupBusy,
    GroupRenamed,
    OffsetMoved,
    OffsetOutOfRange,
    UnknownGroup,
    WrongCluster,
)
from offsetstore.offsets import (
    MAX_OFFSET,
    MAX_PARTITION,
    BrokerView,
    OffsetRange,
    Pause,
    StoredOffset,
    Suspect,
    Token,
    TopicPartition,
    Watermarks,
)
from offsetstore.operations.plans import digest_of, expect_plan, held_by
from offsetstore.protocol.database import Database, GroupRow, HistoryEvent, NewOffset, Session, deleted, renamed
from offsetstore.protocol.log_evidence import LogLook
from offsetstore.protocol.metadata import Formats, format_of
from offsetstore.protocol.numbers import as_offset, check_seconds
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.protocol.texts import MOST_ACTOR, MOST_REASON, check_text
from offsetstore.store.identity import this_process
from offsetstore.store.sessions import deciding, end_pause, fencing, read
from offsetstore.text import LAST_TIME

AGAIN: Final = "Check the group's history; if it does not show this change, repeat it."
CHOOSE: Final = "Name an offset that the log holds, or reset to the earliest or the latest."
SHIFT: Final = "Shift by less, or reset to the earliest."
STOP_IT: Final = 'Stop it first, or fence it with takeover="fence".'
NAME_BROKERS: Final = "Pass broker=Broker(...)."
"""Next steps of a reset; the command line has words of its own for these four."""


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """A target of a reset: this many offsets forwards, or backwards if negative."""

    offsets: int

    def __post_init__(self) -> None:
        """Check the number.

        :raises ConfigurationError: it is not whole.
        """
        object.__setattr__(self, "offsets", as_offset("ShiftBy.offsets", self.offsets, least=None))


ResetTarget: TypeAlias = Literal["earliest", "latest"] | int | datetime | ShiftBy
"""Where to move partitions: either end of the log, an offset, the first record at or after a time, or by a number."""

Partitions: TypeAlias = Mapping[str, Collection[int] | None] | Literal["all"] | None
"""What a reset moves: partitions by topic, ``None`` for all that have a stored offset; or those of all topics."""

Decided: TypeAlias = Literal["fence", "refuse"]

_NAMED: Final = 8  # partitions that an error names


@dataclass(frozen=True, slots=True)
class Move:
    """What a reset does to one partition. ``log`` is what Kafka holds, ``None`` if it was not asked.

    ``suspect`` is evidence that the log lost records below ``from_offset``: the reset accepts that, wherever it goes.
    """

    topic_partition: TopicPartition
    from_offset: int
    to_offset: int
    log: Watermarks | None
    suspect: Suspect | None = None

    @property
    def shift(self) -> int:
        """How many offsets it moves by, negative for backwards."""
        return self.to_offset - self.from_offset


@dataclass(frozen=True, slots=True)
class Reset:
    """What a reset did; for a dry run, what it would have done to the offsets stored at that moment.

    ``owner`` is the last claim before it, and ``history`` the lines added to the history, none for a dry run.
    ``replayed_letters`` is how many dead letters among the records that are read again were replayed: their rows are in
    the results, and would be written twice. ``digest`` is for ``if_plan``.
    """

    group: str
    moves: tuple[Move, ...]
    owner: GroupRow | None
    digest: str
    history: tuple[HistoryEvent, ...] = ()
    replayed_letters: int = 0

    @property
    def executed(self) -> bool:
        """Whether it was done."""
        return bool(self.history)

    @property
    def met_live_owner(self) -> bool:
        """Whether a job was live: with ``takeover="refuse"``, only a dry run gets that far."""
        return self.owner is not None and self.owner.is_live

    @property
    def read_again(self) -> int:
        """How many offsets the next start reads again: their results are stored twice, unless they are removed."""
        return sum(max(0, -move.shift) for move in self.moves)

    @property
    def passed_over(self) -> int:
        """How many offsets the next start passes over."""
        return sum(max(0, move.shift) for move in self.moves)

    @property
    def losses(self) -> dict[TopicPartition, Suspect]:
        """The evidence of loss that the reset clears, so that starts are no longer refused because of it."""
        return {move.topic_partition: move.suspect for move in self.moves if move.suspect is not None}

    @property
    def fenced(self) -> GroupRow | None:
        """The job that can no longer write, live or silent; ``None`` if the last one had left, and for a dry run."""
        return self.owner if self.executed and self.owner is not None and self.owner.alive_for is not None else None


@dataclass(frozen=True, slots=True)
class ResetRequest:
    """The arguments of a reset; see `OffsetStore.reset`."""

    group: str
    target: Mapping[TopicPartition, int] | ResetTarget
    partitions: Partitions
    reason: str
    actor: str | None
    takeover: Decided
    takeover_timeout: float
    from_offset: int | None = None
    if_plan: str | None = None

    def __post_init__(self) -> None:
        """Refuse invalid arguments, before the database or Kafka is asked.

        :raises ConfigurationError: naming the argument.
        """
        expect_group(self.group)
        expect_decision(self.reason, self.actor)
        expect_timeout(self.takeover_timeout)
        expect_takeover(self.takeover)
        if self.from_offset is not None:
            object.__setattr__(self, "from_offset", as_offset("from_offset", self.from_offset, most=MAX_OFFSET))
        if isinstance(self.target, Mapping):
            object.__setattr__(self, "target", _offsets(self.target))
            if self.partitions is not None:
                raise ConfigurationError(
                    "a reset names its partitions twice: with their offsets, and in partitions=",
                    next_step="Leave out partitions=.",
                )
            return
        if not self.partitions:
            raise ConfigurationError(
                "a reset names no partitions", expected='partitions={"payments": None}, {"payments": [0, 2]}, or "all"'
            )
        if isinstance(self.partitions, str) and self.partitions != "all":
            raise ConfigurationError(
                'the partitions of a reset must be "all", or numbers by topic', found=repr(self.partitions)
            )
        if isinstance(self.target, str) and self.target not in {"earliest", "latest"}:
            raise ConfigurationError("unknown reset target", found=repr(self.target), expected='"earliest" or "latest"')
        if isinstance(self.target, datetime) and self.target.tzinfo is None:
            raise ConfigurationError(
                "the target of a reset is a time without a zone",
                found=self.target.isoformat(),
                expected="a datetime with tzinfo, such as UTC",
            )
        if not isinstance(self.target, (str, datetime, ShiftBy)):
            target = as_offset("the offset to reset to", self.target, most=MAX_OFFSET)
            object.__setattr__(self, "target", target)

    @property
    def needs_broker(self) -> bool:
        """Whether only Kafka knows where the target is."""
        return isinstance(self.target, (str, datetime))

    def view(self, broker: BrokerOffsets | None, kafka_group: str | None, topics: Collection[str]) -> BrokerView | None:
        """Ask Kafka, ``None`` without a broker."""
        if broker is None:
            return None
        timestamp_ms = int(self.target.timestamp() * 1000) if isinstance(self.target, datetime) else None
        return broker.view(kafka_group or self.group, topics, timestamp_ms=timestamp_ms)

    def chosen(self, rows: Mapping[TopicPartition, StoredOffset]) -> list[TopicPartition]:
        """Return the partitions to move, in order.

        :raises UnknownGroup: the store has no offsets of the group.
        :raises ConfigurationError: it has none for a partition that was named.
        """
        if not rows:
            raise UnknownGroup(f"the store has no offsets of group {self.group!r}")
        if isinstance(self.target, Mapping):
            _expect_rows(self.group, rows, self.target)
            return sorted(self.target)
        if isinstance(self.partitions, str):
            return sorted(rows)
        chosen: set[TopicPartition] = set()
        for topic, numbers in (self.partitions or {}).items():
            there = {tp for tp in rows if tp.topic == topic}
            if not topic or not all(0 <= number <= MAX_PARTITION for number in numbers or ()):
                raise ConfigurationError(
                    "not partitions of a topic",
                    found=f"{topic!r}, {sorted(numbers or ())}",
                    expected="a name, and numbers from 0 to 2**31 - 1",
                )
            asked = there if numbers is None else {TopicPartition(topic, number) for number in numbers}
            if not there:
                raise _unknown_topic(self.group, rows, topic)
            if asked - there:
                raise _unknown_partition(self.group, rows, min(asked - there))
            chosen |= asked
        return sorted(chosen)

    def plan(
        self,
        rows: Mapping[TopicPartition, StoredOffset],
        view: BrokerView | None,
        seen: Mapping[TopicPartition, StoredOffset],
    ) -> tuple[Move, ...]:
        """Decide where each partition goes from what is stored in ``rows``.

        :param seen: what was stored before Kafka was asked. If a job has advanced since, it has read those records, so
            the log ends no earlier than there.
        :raises OffsetOutOfRange, WrongCluster, ConfigurationError: as `OffsetStore.reset`.
        """
        return tuple(self._move(tp, rows[tp], view, seen.get(tp)) for tp in self.chosen(rows))

    def look(self, session: Session, moves: tuple[Move, ...], owner: GroupRow | None) -> Reset:
        """Complete the plan of these moves."""
        replayed = _replayed(session, self.group, moves)
        held = held_by(owner, {one.topic_partition: one.from_offset for one in moves})
        is_live = owner is not None and owner.is_live
        # Whether it goes back is told beside: a job that advances, or a log that is cut off, can turn it round.
        to = [(self._place(one, is_live=is_live), one.shift < 0) for one in moves]
        losses = [one.suspect for one in moves]
        digest = digest_of("reset", self.group, held, to, replayed, losses)
        return Reset(self.group, moves, owner, digest, (), replayed)

    def _place(self, move: Move, *, is_live: bool) -> int | str:
        """Where an offset goes, in words where the number changes by itself: with the log, or a live job's offset."""
        if self.target == "latest":
            return "latest"
        if isinstance(self.target, datetime) and move.log is not None and move.to_offset == move.log.end:
            return "end"  # no record is that young
        return f"{move.shift:+d}" if is_live and isinstance(self.target, ShiftBy) else move.to_offset

    def expect(self, plan: Reset) -> None:
        """Refuse what was not asked for.

        :raises PlanChanged: it is not the plan that was shown.
        :raises GroupBusy: a job is live, and is not to be fenced.
        """
        expect_plan(plan, self.if_plan)
        refuse_live(self.group, self.takeover, plan.owner)

    def _move(self, tp: TopicPartition, row: StoredOffset, view: BrokerView | None, seen: StoredOffset | None) -> Move:
        if self.from_offset is not None and row.next_offset != self.from_offset:
            raise OffsetMoved(
                "the stored offset does not match from_offset; nothing was written",
                topic_partition=tp,
                found=row.next_offset,
                expected=self.from_offset,
            )
        log = None if view is None else _log_of(tp, row, view)
        if log is not None and (seen is None or seen.next_offset < row.next_offset):
            log = Watermarks(log.beginning, max(log.end, row.next_offset))
        new = self._offset(tp, row.next_offset, log, view)
        if not 0 <= new <= MAX_OFFSET:
            what = "the shift goes below offset 0" if new < 0 else "the shift goes above the largest offset"
            raise OffsetOutOfRange(what, topic_partition=tp, found=new, expected="0 to 2**63 - 1", next_step=SHIFT)
        if log is not None and not log.beginning <= new <= log.end:
            what = f"the log does not hold offset {new}"
            held = f"from {log.beginning} to {log.end}"
            raise OffsetOutOfRange(what, topic_partition=tp, expected=held, next_step=CHOOSE)
        return Move(tp, row.next_offset, new, log, row.suspect)

    def _offset(self, tp: TopicPartition, stored: int, log: Watermarks | None, view: BrokerView | None) -> int:
        match self.target:
            case int():
                return self.target
            case ShiftBy():
                return stored + self.target.offsets
            case Mapping():
                return self.target[tp]
            case _:
                assert log is not None
                assert view is not None
        if isinstance(self.target, datetime):
            at = (view.timestamps or {})[tp]
            # The end, where no record is that young: the log has grown since, if a job has read on.
            return log.end if at == view.topics[tp.topic].partitions[tp.partition].end else at
        return log.beginning if self.target == "earliest" else log.end


def reset(
    database: Database,
    request: ResetRequest,
    *,
    broker: BrokerOffsets | None,
    kafka_group: str | None,
    dry_run: bool,
) -> Reset:
    """Set stored offsets; see `OffsetStore.reset`.

    Kafka is asked before anything is locked. The decision is made under the locks: they show what a job has stored by
    then and whether one is live, since no claim can be made while the group's row is locked.
    """
    if broker is None and request.needs_broker:
        raise ConfigurationError("only Kafka knows the log's ends and times", next_step=NAME_BROKERS)
    group = request.group
    seen, owner = read(database, lambda session: (session.read_partitions(group), session.group(group)))
    view = request.view(broker, kafka_group, sorted({tp.topic for tp in request.chosen(seen)}))
    # A plan that is wrong already is refused here, before a job's transaction is waited for or ended.
    moves = request.plan(seen, view, seen)
    planned = read(database, lambda session: request.look(session, moves, owner))
    if dry_run:
        return expect_plan(planned, request.if_plan)
    request.expect(planned)
    with fencing(database, group, request.takeover_timeout, name="admin", again=AGAIN) as session:
        before = session.lock_group(group)
        owner = session.group(group)
        # Here too: a job that has claimed the group since is not the one whose transaction may be ended.
        request.expect(request.look(session, request.plan(session.read_partitions(group), view, seen), owner))
        rows = session.lock_group_partitions(group)
        done = request.look(session, request.plan(rows, view, seen), owner)
        request.expect(done)
        moves = done.moves
        token, who = Token(before.epoch + 1, uuid4()), request.actor or this_process()
        write_token(session, group, token, who)
        # With from_offset= it is a repair, and decides nothing about other applications.
        keep = request.from_offset is not None
        new = {
            move.topic_partition: decided_offset(rows[move.topic_partition], move, keep_contested=keep)
            for move in moves
        }
        session.set_partitions(group, token, new)
        events = tuple(
            HistoryEvent("reset", one.topic_partition, one.from_offset, one.to_offset, token, who, request.reason)
            for one in moves
        )
        session.append_history(group, events)
    return replace(done, history=events)


def _replayed(session: Session, group: str, moves: Iterable[Move]) -> int:
    again = {one.topic_partition: OffsetRange(one.to_offset, one.from_offset) for one in moves if one.shift < 0}
    return session.count_replayed(group, again) if again else 0


def refuse_live(group: str, takeover: Decided, owner: GroupRow | None) -> None:
    """Refuse to fence a job that is live, if that is not wanted.

    :raises GroupBusy: one is.
    """
    if takeover == "refuse" and owner is not None and owner.is_live:
        raise GroupBusy(
            f"a job of group {group!r} is live; nothing was written", found=owner.in_words(), next_step=STOP_IT
        )


def _log_of(tp: TopicPartition, row: StoredOffset, view: BrokerView) -> Watermarks:
    if row.cluster_id and view.cluster_id and row.cluster_id != view.cluster_id:
        raise WrongCluster(
            "the stored offset belongs to another Kafka cluster",
            topic_partition=tp,
            found=view.cluster_id,
            expected=row.cluster_id,
        )
    topic = view.topics.get(tp.topic)
    if topic is None:
        raise ConfigurationError(
            "a job has stored an offset of another topic since Kafka was asked; nothing was written",
            topic_partition=tp,
            next_step="Repeat the reset.",
        )
    log = topic.partitions.get(tp.partition)
    if log is None:
        raise ConfigurationError(
            "Kafka does not have this partition", topic_partition=tp, next_step="Name only partitions that it has."
        )
    return log


@dataclass(frozen=True, slots=True)
class Decision:
    """Who decides something about a group, and why; ``lock_timeout`` as for `Timeouts`."""

    group: str
    reason: str
    actor: str | None
    lock_timeout: float

    def __post_init__(self) -> None:
        """Refuse invalid arguments, before the database is asked.

        :raises ConfigurationError: naming the argument.
        """
        expect_group(self.group)
        expect_decision(self.reason, self.actor)

    def event(
        self, name: str, token: Token, reason: str, tp: TopicPartition | None = None, offset: int | None = None
    ) -> HistoryEvent:
        """The line of the history."""
        return HistoryEvent(name, tp, offset, offset, token, self.who, reason)

    @property
    def who(self) -> str:
        """The actor, by default this process."""
        return self.actor or this_process()

    def begin(self, database: Database) -> AbstractContextManager[Session]:
        """Begin its transaction."""
        return deciding(database, self.group, name="admin", lock_timeout=self.lock_timeout, again=AGAIN)


@dataclass(frozen=True, slots=True)
class PauseDecided:
    """What a pause or a resume did; for a dry run, what it would do now.

    :param before: the pause that is replaced or ended; ``None`` if the group was not paused.
    :param after: the new pause; ``None`` if the group is resumed.
    :param digest: for ``if_plan``.
    :param history: the line that was added; ``None`` for a dry run, and if there was nothing to resume.
    """

    group: str
    before: Pause | None
    after: Pause | None
    digest: str
    history: HistoryEvent | None = None

    @property
    def executed(self) -> bool:
        """Whether anything was written."""
        return self.history is not None


def pause(
    database: Database, by: Decision, until: datetime | None, *, dry_run: bool, if_plan: str | None
) -> PauseDecided:
    """Pause the group; see `OffsetStore.pause`."""
    if until is not None and until.tzinfo is None:
        raise ConfigurationError(
            "the end of a pause is a time without a zone",
            found=until.isoformat(),
            expected="a datetime with tzinfo, such as UTC",
        )

    def look(session: Session, owner: GroupRow) -> PauseDecided:
        now = session.now()
        if until is not None and until > LAST_TIME:
            raise ConfigurationError(
                "the end of a pause is too far away",
                found=until.isoformat(),
                expected=f"a time until {LAST_TIME.isoformat()}",
                next_step="Name no end, and resume the group yourself.",
            )
        if until is not None and until <= now:
            raise ConfigurationError(
                "the end of a pause has passed; the group is not paused by it",
                found=until.isoformat(),
                expected=f"a time after {now.isoformat(timespec='seconds')}, by the database's clock",
                next_step="Name a later time; or none, and resume the group yourself.",
            )
        digest = digest_of("pause", by.group, _identity(owner.pause), until)
        return PauseDecided(by.group, owner.pause, Pause(now, until, by.reason), digest)

    reason = by.reason if until is None else f"until {until.isoformat()}: {by.reason}"
    if dry_run:
        return expect_plan(read(database, lambda session: look(session, known(session, by.group))), if_plan)
    with by.begin(database) as session:
        owner = _lock_known(session, by.group)
        done = look(session, owner)
        expect_plan(done, if_plan)
        end_pause(session, by.group, owner, by.who)
        session.write_pause(by.group, done.after)
        event = by.event("pause", owner.token, reason)
        session.append_history(by.group, [event])
    return replace(done, history=event)


def resume(database: Database, by: Decision, *, dry_run: bool, if_plan: str | None) -> PauseDecided:
    """End the group's pause; see `OffsetStore.resume`."""

    def look(owner: GroupRow) -> PauseDecided:
        digest = digest_of("resume", by.group, _identity(owner.pause))
        return PauseDecided(by.group, owner.pause, None, digest)

    if dry_run:
        return expect_plan(read(database, lambda session: look(known(session, by.group))), if_plan)
    with by.begin(database) as session:
        owner = _lock_known(session, by.group)
        done = look(owner)
        expect_plan(done, if_plan)
        if done.before is None:
            return done
        session.write_pause(by.group, None)
        event = by.event("resume", owner.token, by.reason)
        session.append_history(by.group, [event])
    return replace(done, history=event)


def _identity(pause: Pause | None) -> object:
    """When it was made tells one pause from another with the same end and reason."""
    return None if pause is None else [pause.at, pause.until]


def write_metadata(database: Database, decision: Decision, tp: TopicPartition, value: object, formats: Formats) -> int:
    """Rewrite a partition's metadata; see `OffsetStore.write_metadata`."""
    group = decision.group
    text = format_of(formats, tp.topic).dump(value)
    with decision.begin(database) as session:
        session.share_group(group)  # before any partition's row: no claim can be made meanwhile
        row = session.lock_partitions(group, [tp]).get(tp)
        if row is None:
            rows = session.read_partitions(group)
            if not rows:
                raise UnknownGroup(f"the store has no offsets of group {group!r}")
            raise _unknown_partition(group, rows, tp)
        session.write_metadata(group, row.token, {tp: text})
        event = decision.event("metadata", row.token, decision.reason, tp, row.next_offset)
        session.append_history(group, [event])
    return row.next_offset


def _lock_known(session: Session, group: str) -> GroupRow:
    session.lock_group(group)
    return known(session, group)


def known(session: Session, group: str) -> GroupRow:
    """Read the group's row.

    :raises UnknownGroup: it was never claimed, or not since it was deleted.
    :raises GroupRenamed: it has another name now.
    """
    owner = session.group(group)
    if owner is None:
        raise UnknownGroup(f"the store has no group {group!r}")
    if not session.read_partitions(group):
        history = session.history(group)
        if (last := renamed(history)) is not None:
            what = f"the group {group!r} was renamed"
            raise GroupRenamed(what, found=last.reason, expected="its new name", next_step="Use that name.")
        if (last := deleted(history)) is not None:
            what = f"the group {group!r} was deleted, and no job has claimed it since"
            raise UnknownGroup(what, found=last.reason, next_step="Correct the name, or start its job.")
    return owner


def pinned(row: StoredOffset, offset: int, *, keep_contested: bool) -> NewOffset:
    """A decision's offset, which counts more than what Kafka has."""
    return NewOffset(offset, row.topic_id, row.cluster_id, pinned=True, contested=keep_contested and row.contested)


def decided_offset(row: StoredOffset, move: Move, *, keep_contested: bool) -> NewOffset:
    """The offset of a reset, which accepts the evidence that its plan shows: a truncation that nobody has seen is none.

    So the pair stays, unless there was evidence: what it says of its offset holds of each smaller one. If Kafka was
    asked, the pair is of the new offset, unless the leader has changed since the row's: that is for a claim to check.
    """
    new = pinned(row, move.to_offset, keep_contested=keep_contested)
    pair = row.pair if row.suspect is None else None
    if pair is not None:
        pair = pair._replace(offset=min(pair.offset, move.to_offset))
    if move.log is not None:
        pair = LogLook().pair(move.topic_partition, replace(row, pair=pair), move.to_offset, move.log)
    return replace(new, pair=pair)


def same_offset(row: StoredOffset, *, keep_contested: bool) -> NewOffset:
    """The row's own offset under another name, with what is known of the log below it."""
    new = pinned(row, row.next_offset, keep_contested=keep_contested)
    return replace(new, pair=row.pair, suspect=row.suspect)


def write_token(session: Session, group: str, token: Token, who: str) -> None:
    """Fence the group's owner. No job runs with the new token, so it has no heartbeat."""
    session.write_group(group, token, who)
    session.end_beat(token.claim_id)


def expect_group(group: str) -> None:
    """Refuse what is no name."""
    check_text("group", group)
    if not group:
        raise ConfigurationError("not a consumer group", found=repr(group), expected="a name")


def expect_decision(reason: str, actor: str | None) -> None:
    """Refuse a decision without a reason, and what the history can't record.

    :raises InvalidText, ConfigurationError: naming the argument.
    """
    check_text("reason", reason, most=MOST_REASON)
    if actor is not None:
        check_text("actor", actor, most=MOST_ACTOR)
    if not reason.strip():
        raise ConfigurationError(
            "a decision needs a reason, which the history records", found=repr(reason), expected="a sentence"
        )


def expect_takeover(takeover: str) -> None:
    """Refuse another word than those two."""
    if takeover not in get_args(Decided):
        raise ConfigurationError('takeover must be "fence" or "refuse"', found=repr(takeover))


def expect_timeout(takeover_timeout: float) -> None:
    """Refuse what is no time to wait."""
    check_seconds("takeover_timeout", takeover_timeout, or_zero=True)


def _offsets(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    if not offsets:
        raise ConfigurationError("a reset names no partitions", expected="an offset for each partition to reset")
    return {tp: as_offset(f"the offset of {tp}", offset, most=MAX_OFFSET) for tp, offset in offsets.items()}


def _expect_rows(
    group: str, rows: Mapping[TopicPartition, StoredOffset], offsets: Mapping[TopicPartition, int]
) -> None:
    """Refuse partitions without a row: a misspelt topic would silently get one."""
    unknown = sorted(offsets.keys() - rows.keys())
    if unknown:
        raise _unknown_partition(group, rows, unknown[0])


def _unknown_partition(group: str, rows: Iterable[TopicPartition], tp: TopicPartition) -> ConfigurationError:
    of_topic = sorted(one for one in rows if one.topic == tp.topic)
    if not of_topic:
        return _unknown_topic(group, rows, tp.topic)
    more = f" and {len(of_topic) - _NAMED} more" if len(of_topic) > _NAMED else ""
    return ConfigurationError(
        f"the store has no offset of this partition for group {group!r}",
        topic_partition=tp,
        expected=", ".join(map(str, of_topic[:_NAMED])) + more,
        next_step="Correct the partition; it gets its row from a claim.",
    )


def _unknown_topic(group: str, rows: Iterable[TopicPartition], topic: str) -> ConfigurationError:
    topics = sorted({tp.topic for tp in rows})
    near = get_close_matches(topic, topics)
    return ConfigurationError(
        f"the store has no offsets of topic {topic!r} for group {group!r}",
        expected=", ".join(topics),
        next_step=(f"Did you mean {', '.join(near)}? " if near else "") + "Correct the topic; a claim makes its rows.",
    )
