"""One transaction in memory, behind the `Session` protocol: READ COMMITTED, with what it writes kept until COMMIT."""

# ruff: noqa: D102 - the Protocol that they implement says what the methods do

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID, uuid4

from offsetstore.errors import ConnectionLost
from offsetstore.offsets import EpochPair, Pause, StoredOffset, Suspect, Token, TopicPartition
from offsetstore.protocol.database import (
    Advance,
    GroupRow,
    HistoryEvent,
    ListedGroup,
    LockedRow,
    MetadataRow,
    NewOffset,
)
from offsetstore.protocol.letters import OPEN
from offsetstore.protocol.metadata import Text
from offsetstore.protocol.runs import Ending, JobError, NewRun, RunStatus
from offsetstore.protocol.store_facts import StoreIdentity
from offsetstore.testing.memory.connection import MemoryConnection
from offsetstore.testing.memory.letters import LetterContents, LetterRow
from offsetstore.testing.memory.locks import Mode, RowLocks
from offsetstore.testing.memory.stored_letters import StoredLetterMemory

_NOBODY = Token(0, UUID(int=0))


@dataclass(frozen=True, slots=True)
class Group:
    """One row of ``consumer_groups``."""

    token: Token
    owner: str
    claimed_at: datetime
    pause: Pause | None = None


@dataclass(slots=True)
class Contents:
    """The tables, as committed. ``beats`` holds ``None`` for a heartbeat that was removed.

    Of runs only their ``endings`` are kept, by claim: the rest is for people alone.
    """

    groups: dict[str, Group] = field(default_factory=dict)
    partitions: dict[tuple[str, TopicPartition], StoredOffset] = field(default_factory=dict)
    beats: dict[UUID, datetime | None] = field(default_factory=dict)
    history: list[tuple[str, HistoryEvent]] = field(default_factory=list)
    rows: list[tuple[str, object]] = field(default_factory=list)
    marks: dict[tuple[str, UUID], int] = field(default_factory=dict)
    of_letters: LetterContents = field(default_factory=LetterContents)
    endings: dict[UUID, Ending | None] = field(default_factory=dict)
    identity: tuple[UUID, str | None] | None = None

    def apply(self, changes: Contents) -> None:
        """Take over what a transaction wrote."""
        self.groups |= changes.groups
        self.partitions |= changes.partitions
        self.beats |= changes.beats
        self.history += changes.history
        self.rows += changes.rows
        self.marks |= changes.marks
        self.of_letters.apply(changes.of_letters)
        self.endings |= changes.endings
        self.identity = changes.identity or self.identity


@dataclass(slots=True)
class Changes(Contents):
    """What one transaction has written, in the tables' own shape. ``moved`` counts the partitions it advanced."""

    moved: int = 0

    def copy(self) -> Changes:
        """As it is now, for a savepoint."""
        return Changes(
            dict(self.groups),
            dict(self.partitions),
            dict(self.beats),
            [*self.history],
            [*self.rows],
            dict(self.marks),
            self.of_letters.copy(),
            dict(self.endings),
            self.identity,
            self.moved,
        )


class Shared:
    """What all sessions of one database share; ``changed`` guards it, and notifies those that wait for a lock."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.clock = clock
        self.changed = threading.Condition()
        self.here = f"memory:{uuid4()}"
        self.contents = Contents(identity=(uuid4(), self.here))
        self.locks = RowLocks(self.changed)


class MemorySession(StoredLetterMemory):
    """One transaction; any thread may use it, one at a time, as with a connection."""

    def __init__(self, shared: Shared, name: str, lock_timeout: float | None) -> None:
        self.name = name
        self.lock_timeout = lock_timeout
        self.terminates: tuple[float, str] | None = None
        self.connection = MemoryConnection(self)
        self._shared = shared
        self._locks = shared.locks
        self._changes = Changes()
        self._moved = 0
        StoredLetterMemory.__init__(self, shared.contents.of_letters, lambda: self._changes.of_letters, shared.clock)
        self.was_ended = False
        """Whether user code has tried to end the transaction."""
        self._savepoints = 0
        self._trials: list[Changes] = []
        self._over: str | None = None

    # -- the transaction itself

    def in_savepoint(self) -> bool:
        return self._savepoints > 0

    def may_have_raised(self, error: BaseException) -> bool:  # noqa: ARG002 - there is no other
        return True

    def is_whole(self) -> bool:
        with self._statement():
            return not self.was_ended and self._changes.moved == self._moved

    def count_mark(self) -> None:
        with self._statement():
            self._changes.moved += 1
            self._moved += 1

    def check_deferred(self) -> None:
        """Nothing is deferred: there are no constraints."""

    def begin_trials(self) -> float | None:
        with self._statement():
            self._trials = [self._changes.copy()]
        return None

    def check_and_save(self, number: int) -> None:
        with self._statement():
            self._trials[number:] = [self._changes.copy()]

    def rollback_to(self, number: int) -> None:
        with self._statement():
            self._changes = self._trials[number].copy()

    def commit(self) -> None:
        with self._statement():
            self._shared.contents.apply(self._changes)
            self._end("the transaction was committed")

    def rollback(self) -> None:
        with self._shared.changed:
            self._end("the transaction was rolled back")

    def check_alive(self) -> None:
        if self._over is not None:
            raise ConnectionLost(self._over)

    def die(self) -> None:
        self._end("the connection was ended by another one")

    def _end(self, why: str) -> None:
        self._over = self._over or why
        self._changes = Changes()
        self._locks.release(self)

    @contextmanager
    def _statement(self) -> Generator[Contents]:
        with self._shared.changed:
            self.check_alive()
            yield self._shared.contents

    # -- what user code writes, see MemoryConnection

    def append_rows(self, table: str, rows: Iterable[object]) -> None:
        """Write rows of one of the user's tables."""
        with self._statement():
            self._changes.rows += [(table, row) for row in rows]

    def read_rows(self, table: str) -> list[object]:
        """All rows of one of the user's tables that are committed, or written by us."""
        with self._statement() as committed:
            return [row for name, row in [*committed.rows, *self._changes.rows] if name == table]

    def save(self) -> Changes:
        """Begin a savepoint; return what was written so far."""
        with self._statement():
            self._savepoints += 1
            return self._changes.copy()

    def leave_savepoint(self, before: Changes | None) -> None:
        """End it, and go back to ``before`` if given."""
        with self._statement():
            self._savepoints -= 1
            self._changes = self._changes if before is None else before

    # -- consumer_groups

    def lock_group(self, group: str) -> Token:
        with self._statement():
            self._locks.take(self, ("consumer_groups", group), Mode.UPDATE)
            if self._group(group) is None:
                self._changes.groups[group] = Group(_NOBODY, "", self._shared.clock())
            row = self._group(group)
            assert row is not None
            return row.token

    def share_group(self, group: str) -> Token | None:
        with self._statement():
            if self._group(group) is None:
                return None
            self._locks.take(self, ("consumer_groups", group), Mode.SHARE)
            row = self._group(group)
            return None if row is None else row.token

    def group(self, group: str) -> GroupRow | None:
        with self._statement() as committed:
            row = self._group(group)
            if row is None or row.token.epoch == 0:
                return None
            beat, now = self._beat(row.token.claim_id), self._shared.clock()
            endings = committed.endings | self._changes.endings
            is_over = row.pause is not None and row.pause.until is not None and row.pause.until <= now
            return GroupRow(
                row.token,
                row.owner,
                row.claimed_at,
                None if beat is None else now - beat,
                *((None, row.pause) if is_over else (row.pause, None)),
                endings.get(row.token.claim_id),
            )

    def groups(self) -> list[ListedGroup]:
        with self._statement():
            names = sorted({*self._shared.contents.groups, *self._changes.groups})
        found: list[ListedGroup] = []
        for name in names:
            if (owner := self.group(name)) is not None:
                rows = self.read_partitions(name)
                changed = [row.updated_at for row in rows.values() if row.updated_at is not None]
                since = self._shared.clock() - max(changed) if changed else None
                topics = tuple(sorted({tp.topic for tp in rows}))
                letters = sum(self.count_letters(name, OPEN).values())
                found.append(ListedGroup(name, owner, len(rows), topics, since, letters))
        return found

    def begin_run(self, group: str, token: Token, run: NewRun) -> None:  # noqa: ARG002 - see `Contents`
        with self._statement():
            self._changes.endings[token.claim_id] = None

    def write_run(self, group: str, token: Token, status: RunStatus, ending: Ending | None) -> None:  # noqa: ARG002
        with self._statement() as committed:
            if token.claim_id in committed.endings | self._changes.endings:
                self._changes.endings[token.claim_id] = ending

    def append_errors(self, group: str, token: Token, errors: Sequence[JobError]) -> None:
        """Nobody reads them."""

    def trim_runs(self, group: str, keep: int) -> None:
        """There is nothing to trim."""

    def expect_grants(self) -> None:
        """There are no roles."""

    def identity(self) -> StoreIdentity:
        with self._statement() as committed:
            written = self._changes.identity or committed.identity
            assert written is not None
            return StoreIdentity(*written, self._shared.here)

    def write_group(self, group: str, token: Token, owner: str) -> None:
        with self._statement():
            before = self._group(group)
            if before is not None:
                self._write_beat(before.token.claim_id, None)
            pause = None if before is None else before.pause
            self._changes.groups[group] = Group(token, owner, self._shared.clock(), pause)
            for tp, row in self._rows(group).items():
                self._locks.take(self, _key(group, tp), Mode.UPDATE)
                self._changes.partitions[group, tp] = replace(row, token=token)
            self._write_beat(token.claim_id, self._shared.clock())

    def write_pause(self, group: str, pause: Pause | None) -> None:
        with self._statement():
            row = self._group(group)
            assert row is not None
            self._changes.groups[group] = replace(row, pause=pause)

    def _group(self, group: str) -> Group | None:
        return self._changes.groups.get(group) or self._shared.contents.groups.get(group)

    def _epoch(self, group: str) -> int | None:
        row = self._group(group)
        return None if row is None else row.token.epoch

    # -- kafka_partitions

    def lock_group_partitions(self, group: str) -> dict[TopicPartition, StoredOffset]:
        return self._lock_rows(group, None)

    def lock_partitions(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LockedRow]:
        rows = self._lock_rows(group, partitions)
        return {tp: LockedRow(row.next_offset, row.token, row.transaction_id) for tp, row in rows.items()}

    def _lock_rows(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, StoredOffset]:
        with self._statement():
            # The rows that the statement saw when it began; what they hold, once they are locked.
            asked = [tp for tp in self._rows(group) if partitions is None or tp in partitions]
            for tp in asked:
                self._locks.take(self, _key(group, tp), Mode.UPDATE)
            rows = self._rows(group)
            return {tp: rows[tp] for tp in asked}

    def read_partitions(self, group: str) -> dict[TopicPartition, StoredOffset]:
        with self._statement():
            return self._rows(group)

    def read_group(self, group: str) -> tuple[GroupRow | None, dict[TopicPartition, StoredOffset]]:
        return self.group(group), self.read_partitions(group)

    def insert_partitions(self, group: str, token: Token, offsets: dict[TopicPartition, int]) -> set[TopicPartition]:
        inserted: set[TopicPartition] = set()
        with self._statement():
            for tp, offset in sorted(offsets.items()):
                had = self._locks.has(self, _key(group, tp))
                self._locks.take(self, _key(group, tp), Mode.UPDATE)
                if tp not in self._rows(group):
                    self._changes.partitions[group, tp] = StoredOffset(offset, token, updated_at=self._shared.clock())
                    inserted.add(tp)
                elif not had:
                    # ON CONFLICT DO NOTHING waits for others that insert the same, and locks nothing.
                    self._locks.give_back(self, _key(group, tp))
        return inserted

    def set_partitions(self, group: str, token: Token, offsets: dict[TopicPartition, NewOffset]) -> None:
        with self._statement():
            self._drop_failures(group, offsets)
            for tp, new in sorted(offsets.items()):
                self._locks.take(self, _key(group, tp), Mode.UPDATE)
                now = self._shared.clock()
                row = self._rows(group).get(tp) or StoredOffset(new.next_offset, token, updated_at=now)
                is_same = row.next_offset == new.next_offset
                self._changes.partitions[group, tp] = replace(
                    row,
                    next_offset=new.next_offset,
                    metadata=row.metadata if is_same else None,
                    topic_id=new.topic_id,
                    cluster_id=new.cluster_id,
                    pinned=new.pinned,
                    contested=new.contested,
                    pinned_epoch=token.epoch if new.pinned or new.contested else row.pinned_epoch,
                    pair=new.pair,
                    suspect=new.suspect,
                    updated_at=row.updated_at if is_same else now,
                )

    def advance(self, move: Advance) -> int:
        moved = 0
        with self._statement():
            rows = self._rows(move.group)
            for tp, range_ in sorted(move.ranges.items()):
                row = rows.get(tp)
                if row is None or row.next_offset != range_.from_ or row.token != move.token:
                    continue
                self._locks.take(self, _key(move.group, tp), Mode.UPDATE)
                self._changes.partitions[move.group, tp] = replace(
                    row,
                    next_offset=range_.until,
                    metadata=move.metadata.get(tp, row.metadata),
                    transaction_id=move.transaction_id,
                    updated_at=self._shared.clock() if range_.until != range_.from_ else row.updated_at,
                )
                moved += 1
            self._changes.moved += moved
            self._moved += moved
        return moved

    def finish(self, move: Advance) -> tuple[int, bool]:
        return self.advance(move), self.is_whole()

    def read_metadata(self, group: str, topic: str, partition: int | None) -> dict[TopicPartition, MetadataRow]:
        with self._statement():
            return {
                tp: MetadataRow(row.metadata, row.token)
                for tp, row in sorted(self._rows(group).items())
                if tp.topic == topic and partition in {None, tp.partition}
            }

    def write_metadata(self, group: str, token: Token, metadata: Mapping[TopicPartition, Text]) -> int:
        with self._statement():
            rows = self._rows(group)
            ours = {tp: text for tp, text in metadata.items() if tp in rows and rows[tp].token == token}
            for tp, text in ours.items():
                self._locks.take(self, _key(group, tp), Mode.UPDATE)
                self._changes.partitions[group, tp] = replace(rows[tp], metadata=text)
            return len(ours)

    def unpin(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        with self._statement():
            for tp, row in self._rows(group).items():
                if tp in partitions and row.token == token:
                    self._changes.partitions[group, tp] = replace(row, pinned=False, contested=False)

    def contest(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        with self._statement():
            for tp, row in self._rows(group).items():
                if tp in partitions and row.token == token:
                    self._changes.partitions[group, tp] = replace(row, contested=True, pinned_epoch=token.epoch)

    def write_pairs(self, group: str, token: Token, pairs: Mapping[TopicPartition, EpochPair]) -> int:
        with self._statement():
            rows = self._rows(group)
            free = {tp for tp in pairs if tp in rows and self._locks.is_free(self, _key(group, tp))}
            ours = [tp for tp in sorted(free) if rows[tp].token == token]
            for tp in ours:
                self._locks.take(self, _key(group, tp), Mode.UPDATE)
                self._changes.partitions[group, tp] = replace(rows[tp], pair=pairs[tp])
            return len(ours)

    def write_suspects(self, group: str, token: Token, found: Mapping[TopicPartition, str]) -> set[TopicPartition]:
        with self._statement():
            rows = self._rows(group)
            new = {tp for tp in found if tp in rows and rows[tp].token == token and rows[tp].suspect is None}
            for tp in new:
                suspect = Suspect(found[tp], self._shared.clock())
                self._changes.partitions[group, tp] = replace(rows[tp], suspect=suspect)
            return new

    def _rows(self, group: str) -> dict[TopicPartition, StoredOffset]:
        rows = self._shared.contents.partitions | self._changes.partitions
        return {tp: rows[name, tp] for name, tp in sorted(rows) if name == group}

    def _take_letter(self, row: LetterRow) -> None:
        self._locks.take(self, ("dead_letters", *row), Mode.UPDATE)

    # -- batch_marks

    def batch_mark(self, group: str, query_id: UUID) -> int | None:
        with self._statement():
            return self._marks().get((group, query_id))

    def mark_batch(self, group: str, query_id: UUID, batch_id: int) -> bool:
        with self._statement():
            self._locks.take(self, ("batch_marks", group, query_id), Mode.UPDATE)
            before = self._marks().get((group, query_id))
            is_new = before is None or before < batch_id
            if is_new:
                self._changes.marks[group, query_id] = batch_id
            return is_new

    def _marks(self) -> dict[tuple[str, UUID], int]:
        return self._shared.contents.marks | self._changes.marks

    # -- offset_history and heartbeats

    def append_history(self, group: str, events: Sequence[HistoryEvent]) -> None:
        with self._statement():
            self._changes.history += [(group, replace(event, at=self._shared.clock())) for event in events]

    def history(
        self,
        group: str,
        *,
        since: datetime | None = None,
        events: Collection[str] = (),
        topic_partition: TopicPartition | None = None,
        limit: int | None = None,
        before: int | None = None,
    ) -> list[HistoryEvent]:
        with self._statement() as committed:
            written = enumerate([*committed.history, *self._changes.history], 1)
        lines = [replace(line, id=number) for number, (name, line) in written if name == group]
        if before is not None:
            lines = [line for line in lines if line.id < before]
        if since is not None:
            lines = [line for line in lines if line.at is not None and line.at >= since]
        lines = [line for line in lines if not events or line.event in events]
        lines = [line for line in lines if topic_partition in {None, line.topic_partition}]
        return lines if limit is None else lines[-limit:]

    def replaced_since(self, group: str, epoch: int) -> bool:
        return any(line.event in {"rename", "delete"} and line.token.epoch > epoch for line in self.history(group))

    def deleted_epoch(self, group: str) -> int:
        return max((line.token.epoch for line in self.history(group, events=["delete"])), default=0)

    def beat(self, claim_id: UUID) -> bool:
        with self._statement():
            if self._beat(claim_id) is None:
                return False
            self._locks.take(self, ("heartbeats", claim_id), Mode.UPDATE)
            # Checked again: a new claim may have removed it while we waited.
            if self._beat(claim_id) is None:
                return False
            self._changes.beats[claim_id] = self._shared.clock()
            return True

    def end_beat(self, claim_id: UUID) -> None:
        with self._statement():
            self._write_beat(claim_id, None)

    def now(self) -> datetime:
        with self._statement():
            return self._shared.clock()

    def _beat(self, claim_id: UUID) -> datetime | None:
        if claim_id in self._changes.beats:
            return self._changes.beats[claim_id]
        return self._shared.contents.beats.get(claim_id)

    def _write_beat(self, claim_id: UUID, at: datetime | None) -> None:
        self._locks.take(self, ("heartbeats", claim_id), Mode.UPDATE)
        self._changes.beats[claim_id] = at


def _key(group: str, tp: TopicPartition) -> tuple[object, ...]:
    return ("kafka_partitions", group, tp)
