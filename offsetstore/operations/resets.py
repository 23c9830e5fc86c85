"""Resets, which move a group's stored offsets.

The rows are pinned, so that the decision takes precedence over the copies that Kafka still has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal, Self, TypeAlias
from uuid import uuid4

from offsetstore.errors import (
    ConfigurationError,
    NextStep,
    OffsetMoved,
    OffsetOutOfRange,
    TopicRecreated,
    WrongCluster,
)
from offsetstore.offsets import (
    MAX_OFFSET,
    MAX_PARTITION,
    BrokerView,
    OffsetRange,
    StoredOffset,
    Suspect,
    Token,
    TopicPartition,
    Watermarks,
)
from offsetstore.operations.operation import (
    By,
    Fencing,
    History,
    OwnedPlan,
    digest_of,
    held_by,
    unknown_group,
    write_token,
)
from offsetstore.operations.stored_letters import count_replayed
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol.arguments import as_offset
from offsetstore.protocol.database import Database, GroupRow, NewOffset, Session
from offsetstore.protocol.log_evidence import LogLook
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.protocol.starting import similar_names
from offsetstore.store.sessions import read, read_offsets
from offsetstore.text import did_you_mean


@dataclass(frozen=True, slots=True)
class ShiftBy:
    """A target of a reset: this many offsets forwards, or backwards if negative."""

    offsets: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", as_offset("ShiftBy.offsets", self.offsets, least=None))


ResetTarget: TypeAlias = Literal["earliest", "latest"] | int | datetime | ShiftBy
"""Where to move partitions: either end of the log, an offset, the first record at or after a time, or by a number."""

Partitions: TypeAlias = Mapping[str, Collection[int] | None] | Literal["all"] | None
"""What a reset moves: partitions by topic (``None``: all that have a stored offset), or ``"all"`` of all topics."""

_NAMED: Final = 8  # partitions that an error names


@dataclass(frozen=True, slots=True)
class Move:
    """What a reset does to one partition. ``row`` is the stored row; ``log`` is ``None`` if Kafka was not asked."""

    topic_partition: TopicPartition
    row: StoredOffset
    to_offset: int
    log: Watermarks | None

    @property
    def from_offset(self) -> int:
        return self.row.next_offset

    @property
    def suspect(self) -> Suspect | None:
        """Evidence that the log lost records below the stored offset. Any reset accepts the loss, wherever it goes."""
        return self.row.suspect

    @property
    def shift(self) -> int:
        return self.to_offset - self.from_offset


@dataclass(frozen=True, slots=True)
class Reset(OwnedPlan):
    """What a reset did; for a dry run, what it would have done to the offsets stored at that moment.

    ``replayed_letters`` is how many dead letters among the records that are read again were replayed: their rows are in
    the results, and would be written twice.
    """

    group: str
    moves: tuple[Move, ...]
    replayed_letters: int = 0

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


@dataclass(frozen=True, kw_only=True)
class ResetOffsets(Fencing[Reset]):
    """Set stored offsets; see `OffsetStore.reset` for the arguments.

    Kafka is asked before anything is locked. The decision is made under the locks, which show what a job has stored by
    then, and whether a job is live (decision 0026).
    """

    target: Mapping[TopicPartition, int] | ResetTarget
    partitions: Partitions = None
    from_offset: int | None = None
    broker: BrokerOffsets | None = None
    kafka_group: str | None = None
    view: BrokerView | None = None
    seen: Mapping[TopicPartition, StoredOffset] = field(default_factory=dict[TopicPartition, StoredOffset])
    """What was stored before Kafka was asked. If a job has advanced since, it has read those records, so the log ends
    no earlier than there."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
        if self.broker is None and isinstance(self.target, (str, datetime)):
            raise ConfigurationError("only Kafka knows the log's ends and times", next_step=NextStep.NAME_BROKERS)

    def asked(self, database: Database) -> Self:
        if self.broker is None:
            return self
        if not (seen := read_offsets(database, self.group)):
            raise read(database, lambda session: unknown_group(session, self.group, "offsets of group"))
        topics = sorted({tp.topic for tp in self._chosen(seen)})
        timestamp_ms = int(self.target.timestamp() * 1000) if isinstance(self.target, datetime) else None
        view = self.broker.view(self.kafka_group or self.group, topics, timestamp_ms=timestamp_ms)
        return replace(self, view=view, seen=seen)

    def plan(self, session: Session) -> Reset:
        """Decide from the stored offsets where each partition goes.

        :raises OffsetOutOfRange, WrongCluster, ConfigurationError, UnknownGroup: as `OffsetStore.reset`.
        """
        owner, rows = self.met or session.group(self.group), session.read_partitions(self.group)
        if not rows:
            raise unknown_group(session, self.group, "offsets of group")
        moves = tuple(self._move(tp, rows[tp]) for tp in self._chosen(rows))
        again = {
            move.topic_partition: OffsetRange(move.to_offset, move.from_offset) for move in moves if move.shift < 0
        }
        replayed = count_replayed(session, self.group, again) if again and isinstance(session, PostgresSession) else 0
        held = held_by(owner, {move.topic_partition: move.from_offset for move in moves})
        is_live = owner is not None and owner.is_live
        # The direction is compared, too: a job that advances, or a log that is cut off, could turn a reset round.
        to = [(self._place(move, is_live=is_live), move.shift < 0) for move in moves]
        losses = [move.suspect for move in moves]
        digest = digest_of("reset", self.group, held, to, replayed, losses)
        return Reset(self.group, moves, replayed, owner=owner, digest=digest)

    def write(self, session: Session, plan: Reset, by: By) -> History:
        token = Token(session.lock_group(self.group).epoch + 1, uuid4())
        write_token(session, self.group, token, by.who)
        # With from_offset= it is a repair, and decides nothing about other applications.
        keep = self.from_offset is not None
        new = {move.topic_partition: _decided_offset(move, keep_contested=keep) for move in plan.moves}
        session.set_partitions(self.group, token, new)
        lines = [
            by.event("reset", token, of=move.topic_partition, offsets=(move.from_offset, move.to_offset))
            for move in plan.moves
        ]
        return {self.group: lines}

    def _chosen(self, rows: Mapping[TopicPartition, StoredOffset]) -> list[TopicPartition]:
        """Return the partitions to move, in order.

        :raises ConfigurationError: the store has no offset of a partition that was named.
        """
        if isinstance(self.target, Mapping):
            # A misspelt topic would silently get a row.
            if unknown := sorted(self.target.keys() - rows.keys()):
                raise unknown_partition(self.group, rows, unknown[0])
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
                raise unknown_partition(self.group, rows, min(asked - there))
            chosen |= asked
        return sorted(chosen)

    def _place(self, move: Move, *, is_live: bool) -> int | str:
        """Return where an offset goes, in words if the number changes by itself: with the log, or while a job runs."""
        if self.target == "latest":
            return "latest"
        # No record is as young as the target: the offset is the log's end, which grows.
        if isinstance(self.target, datetime) and move.log is not None and move.to_offset == move.log.end:
            return "end"
        return f"{move.shift:+d}" if is_live and isinstance(self.target, ShiftBy) else move.to_offset

    def _move(self, tp: TopicPartition, row: StoredOffset) -> Move:
        view, seen = self.view, self.seen.get(tp)
        if self.from_offset is not None and row.next_offset != self.from_offset:
            raise OffsetMoved(
                "the stored offset does not match from_offset; nothing was written",
                topic_partition=tp,
                found=row.next_offset,
                expected=self.from_offset,
            )
        log = None if view is None else _log_of(tp, row, view)
        # A job has read on since Kafka was asked, so the log reaches at least to its offset (decision 0026).
        if log is not None and (seen is None or seen.next_offset < row.next_offset):
            log = Watermarks(log.beginning, max(log.end, row.next_offset))
        new = self._offset(tp, row.next_offset, log)
        if not 0 <= new <= MAX_OFFSET:
            what = "the shift goes below offset 0" if new < 0 else "the shift goes above the largest offset"
            raise OffsetOutOfRange(
                what, topic_partition=tp, found=new, expected="0 to 2**63 - 1", next_step=NextStep.SHIFT_LESS
            )
        if log is not None and not log.beginning <= new <= log.end:
            what = f"the log does not hold offset {new}"
            held = f"from {log.beginning} to {log.end}"
            raise OffsetOutOfRange(what, topic_partition=tp, expected=held, next_step=NextStep.NAME_OFFSET)
        return Move(tp, row, new, log)

    def _offset(self, tp: TopicPartition, stored: int, log: Watermarks | None) -> int:
        match self.target:
            case int():
                return self.target
            case ShiftBy():
                return stored + self.target.offsets
            case Mapping():
                return self.target[tp]
            case _:
                assert log is not None
                assert self.view is not None
        if isinstance(self.target, datetime):
            at = (self.view.timestamps or {})[tp]
            # If no record is that young, Kafka gave its end: the log has grown since, if a job has read on.
            return log.end if at == self.view.topics[tp.topic].partitions[tp.partition].end else at
        return log.beginning if self.target == "earliest" else log.end


def _log_of(tp: TopicPartition, row: StoredOffset, view: BrokerView) -> Watermarks:
    if row.is_of_another_cluster(view.cluster_id):
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
    if row.is_of_another_topic(topic.topic_id):
        raise TopicRecreated(
            f"the topic was deleted and created again since offset {row.next_offset} was stored, so an offset of the "
            "new log would not count; nothing was written",
            topic_partition=tp,
            found=f"topic id {topic.topic_id}",
            expected=f"topic id {row.topic_id}",
            next_step='Start once with StartPolicy(on_recreated="restart"), which begins where the new log does. '
            "To begin elsewhere, pause the group, start the job with it, stop it, reset, and resume.",
        )
    log = topic.partitions.get(tp.partition)
    if log is None:
        raise ConfigurationError(
            "Kafka does not have this partition", topic_partition=tp, next_step="Name only partitions that it has."
        )
    return log


def pinned(row: StoredOffset, offset: int, *, keep_contested: bool) -> NewOffset:
    """Return a row for a decision's offset, which takes precedence over Kafka's copy."""
    return NewOffset(offset, row.topic_id, row.cluster_id, pinned=True, contested=keep_contested and row.contested)


def _decided_offset(move: Move, *, keep_contested: bool) -> NewOffset:
    """Return the row of a reset, which accepts the evidence of loss that its plan shows."""
    row = move.row
    new = pinned(row, move.to_offset, keep_contested=keep_contested)
    # Without evidence the pair stays, which would tell a truncation: nobody has been shown one (decision 0051).
    pair = row.pair if row.suspect is None else None
    # What a pair says of its offset is true of each smaller one.
    if pair is not None:
        pair = pair._replace(offset=min(pair.offset, move.to_offset))
    # If Kafka was asked, the pair becomes that of the new offset, unless the leader has changed: a claim checks that.
    if move.log is not None:
        pair = LogLook().pair(move.topic_partition, replace(row, pair=pair), move.to_offset, move.log)
    return new._replace(pair=pair)


def _offsets(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    if not offsets:
        raise ConfigurationError("a reset names no partitions", expected="an offset for each partition to reset")
    return {tp: as_offset(f"the offset of {tp}", offset, most=MAX_OFFSET) for tp, offset in offsets.items()}


def unknown_partition(group: str, rows: Iterable[TopicPartition], tp: TopicPartition) -> ConfigurationError:
    of_topic = sorted(partition for partition in rows if partition.topic == tp.topic)
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
    return ConfigurationError(
        f"the store has no offsets of topic {topic!r} for group {group!r}",
        expected=", ".join(topics),
        next_step=did_you_mean(similar_names(topic, topics)) + "Correct the topic; a claim makes its rows.",
    )
