"""The transaction: results and offsets together, or neither.

Inside it the order is fixed: `lock` the partitions (which decides what remains of each range), write with `connection`,
`advance`; the engine calls `finish` or `touch` in its place. Leaving the block commits. If a row has another claim's
token, a range begins above the stored offset, or a lock can't be acquired, nothing is written.

That is the core. What else a transaction may write is in parts: `Marks`, `Notes` (metadata) and `Letters`, each made
when it is first used, and `put_into_outbox`. Each asks `Locks` whether it may write.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from offsetstore.errors import (
    ConnectionLost,
    LockedTwice,
    LockTimeout,
    NestedTransaction,
    OffsetStoreError,
    ProtocolMisuse,
    StaleClaim,
    TransactionLost,
    Unadvanced,
    UnexpectedCommit,
)
from offsetstore.offsets import Ranges, TopicPartition
from offsetstore.protocol.arguments import check_seconds
from offsetstore.protocol.database import Advance, Savepoints, Session
from offsetstore.protocol.events import CommitResolved
from offsetstore.protocol.letters import Payload
from offsetstore.protocol.marking import Marking, check_marking
from offsetstore.protocol.metadata import KEEP, Keep, Text
from offsetstore.protocol.outbox import OutboxRecord, outbox_record, outbox_records
from offsetstore.protocol.replay import Decision, Outcome
from offsetstore.runtime import failpoints
from offsetstore.runtime.functions import without_frames
from offsetstore.runtime.process import is_own
from offsetstore.store.carried import Letters, put_into_outbox
from offsetstore.store.identity import ClaimInfo
from offsetstore.store.locking import Locks
from offsetstore.store.marks import Marks
from offsetstore.store.notes import Notes
from offsetstore.store.sessions import Connected
from offsetstore.store.term import Terms
from offsetstore.store.unknown_commit import Advanced, resolve_commit

_ENDED: Final = "a COMMIT or ROLLBACK inside the transaction ended it, or undid its advance"


_P = TypeVar("_P", Letters, Marks, Notes)


class _Latest(threading.local):
    """The transaction that each thread began last; another one inside it is refused."""

    transaction: Transaction | None = None


_latest = _Latest()


class Transaction:
    """One transaction of one claim; made by `transaction` and `run` of a store or a claim."""

    def __init__(
        self, store: Connected, claim: ClaimInfo, *, lock_timeout: float | None = None, marking: Marking = "automatic"
    ) -> None:
        check_marking(marking)
        if lock_timeout is not None:
            check_seconds("lock_timeout", lock_timeout, or_zero=True)
        claim.require_log()  # raises LogTruncated if the log is known to have lost records
        self._store = store
        self._database = store.database
        self._claim = claim
        self._lock_timeout = store.timeouts.lock if lock_timeout is None else lock_timeout
        # Written to each row that it advances, so that the rows show whether a lost COMMIT took effect (decision 0005).
        self._id = uuid.uuid4()
        # Names its session, and no other of the claim: a look-up of its outcome may terminate sessions of this name.
        self._name = f"{claim.name}:{self._id.hex[:8]}"
        self._pid = os.getpid()
        self._was_used = False
        self._is_trial = False
        self._advanced: set[TopicPartition] = set()
        self._locks = Locks(claim, is_manual=marking == "manual")
        self._parts: dict[type[Any], Any] = {}

    # -- the block begins

    def __enter__(self) -> Self:
        # `_latest` may hold one that has ended: a generator may end it in another thread than the one it began in.
        if _latest.transaction is not None and _latest.transaction.is_open:
            raise NestedTransaction("a transaction was started inside another one in the same thread")
        if self._was_used:
            raise ProtocolMisuse(
                "a transaction block can be used only once", next_step="Make a new one: store.transaction(claim)."
            )
        self._locks.session = self._database.begin(name=self._name, lock_timeout=self._lock_timeout)
        self._was_used = True
        _latest.transaction = self
        return self

    @property
    def is_open(self) -> bool:
        """Whether its block has begun and not ended, in this process."""
        return self._locks.session is not None and is_own(self._pid)

    # -- lock

    def lock(
        self,
        ranges: Ranges,
        *,
        terms: Terms | None = None,
        gone: Collection[tuple[TopicPartition, int]] = (),
        in_sequence: bool = False,
    ) -> dict[TopicPartition, Decision]:
        """Lock the partitions' rows, check that they are this claim's, and decide what remains of each range.

        The rows are always locked in (topic, partition) order, so that two jobs never deadlock. A partition that the
        claim does not know gets a row that starts at its range. ``lock({})`` blocks other claims when there is no range
        to lock.

        :param terms: `Claim.terms` as they were when the records were read; by default as they are now. A member of a
            fleet may have lost a partition since then, and taken it again at another offset.
        :param gone: records that Kafka no longer has: their letters stay open. The other open letters in the ranges are
            superseded, since the job reads their records again.
        :param in_sequence: whether later records of a key with an open letter wait, as letters too. If not, such
            letters below the ranges' ends are marked as overtaken: a replay could replace what is written now.
        :return: in order of (topic, partition); write `Decision.remaining` of each, and advance by it.
        :raises StaleClaim: another claim has taken over, or the group was reset or renamed.
        :raises PartitionLost: another member of the fleet has a partition, or the claim has another term of it.
        :raises OffsetGap: a range begins above its stored offset.
        :raises LockTimeout: see `OffsetStore.transaction`.
        :raises ConfigurationError: a partition of a topic that the claim does not have.
        :raises LockedTwice, LockInSavepoint: it was called a second time, or inside a savepoint.
        """
        locks = self._locks
        session = locks.outside_savepoint("tx.lock")
        if locks.is_locked or locks.error is not None:
            raise LockedTwice("tx.lock was called a second time")
        locks.is_in_sequence = in_sequence
        try:
            locks.lock(session, ranges, terms or {})
            if not locks.is_manual:  # else the ranges are only delivered: the marks tell how much is stored
                locks.settle_passed(session, locks.remaining, gone)
        except LockTimeout as error:
            session.rollback()  # so that this transaction no longer holds these rows
            locks.error = locks.timed_out(self._database, self._lock_timeout, error)
            self._claim.unblock(locks.partitions)  # ends a frozen fleet member's assignment, if one holds them
            raise locks.error from error.__cause__
        except BaseException as error:
            locks.error = error
            raise
        return dict(locks.decisions)

    # -- write

    @property
    def connection(self) -> Any:
        """The SQLAlchemy ``Connection`` to write results with; psycopg's is under it.

        It returns to its pool. Anything that your SQL leaves in its session (``SET`` without ``LOCAL``, temporary
        tables, advisory locks) reaches a later transaction, so leave nothing there. After an `Execute` it is closed
        instead.

        :raises LockFirst: before `lock`, because a stale job could write then.
        """
        session = self._locks.writing("tx.connection")
        self._locks.has_written = True
        return session.connection

    @property
    def ranges(self) -> Ranges:
        """What remains to be written of each partition that has any, in order of (topic, partition).

        :raises LockFirst: before `lock`.
        """
        self._locks.locked("tx.ranges")
        return self._locks.remaining

    def _part(self, kind: type[_P]) -> _P:
        # Made when it is first asked for. Threads that share the transaction must get the same one.
        return self._parts.get(kind) or self._parts.setdefault(kind, kind(self._locks))

    @property
    def marks(self) -> Marks:
        """The offsets, batches and turns that it marks."""
        return self._part(Marks)

    @property
    def letters(self) -> Letters:
        """The dead letters that it writes and replays."""
        return self._part(Letters)

    def mark(self, tp: TopicPartition, next_offset: int, *, metadata: object | Keep = KEEP) -> None:
        """Store this offset when the block ends: see `Work.mark`."""
        self.marks.mark(tp, next_offset, metadata=metadata)

    def metadata(self, tp: TopicPartition, *, cache: bool | None = None) -> object:
        """The partition's metadata: see `Work.metadata`."""
        return self._part(Notes).read(tp, cache=cache)

    def write_metadata(self, tp: TopicPartition, value: object) -> None:
        """Write metadata; an `advance` in this transaction keeps it: see `Work.write_metadata`."""
        self._part(Notes).write(tp, value)

    def dead_letter(
        self, tp: TopicPartition, offset: int, reason: str, *, code: str | None = None, payload: Payload | None = None
    ) -> None:
        """Keep a record that this transaction passes as a dead letter: see `Work.dead_letter`."""
        self.letters.dead_letter(tp, offset, reason, code, payload)

    def produce(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] = (),
    ) -> None:
        """Put a record into the outbox: see `Work.produce`."""
        put_into_outbox(self._locks, [outbox_record(topic, key, value, headers)])

    def produce_all(self, records: Iterable[OutboxRecord]) -> int:
        """Put records into the outbox: see `Work.produce_all`."""
        return put_into_outbox(self._locks, outbox_records(records))

    # -- advance

    def advance(self, ranges: Ranges, *, metadata: object | Keep = KEEP) -> None:
        """Move the stored offsets to the ranges' ends, in one statement, with the results.

        :param ranges: exactly `Decision.remaining` for each partition, as `lock` returned it.
        :param metadata: one value for all partitions of the call; ``None`` clears it. By default, what
            `Claim.store_metadata` was given for a partition, else it is kept. A partition whose range is stored
            already keeps its metadata, which belong to a later offset.
        :raises AdvanceMismatch: another range, or a partition that was not locked or was advanced already.
        :raises MetadataError: see `offsetstore.Metadata`.
        :raises StaleClaim: the rows changed under the lock, which only your own SQL in this transaction can do.
        """
        if self._locks.is_manual:
            raise ProtocolMisuse('tx.advance was called with marking="manual"', next_step="Call tx.mark.")
        session = self._locks.locked("tx.advance")
        wanted = self._locks.wanted(ranges, self._advanced)
        self._move(session, wanted, self._part(Notes).at_advance(wanted, metadata))

    def finish(self, ranges: Ranges, metadata: Mapping[TopicPartition, Text] | None = None) -> None:
        """Do `advance` and `check_deferred`, and check that no COMMIT or ROLLBACK ran inside, in one round trip.

        Nothing may be written after it, so call it only where no other code follows. With manual marking it stores the
        marks instead of the ranges' ends.

        :param metadata: the new text of each partition that gets one, except where `write_metadata` was called.
        :raises AdvanceMismatch, StaleClaim, RowsRefused: see `advance` and `check_deferred`.
        :raises UnexpectedCommit: a COMMIT or ROLLBACK in the block has ended the transaction, or undone its advance.
        """
        locks, session = self._locks, self._locks.locked("tx.finish")
        wanted = locks.wanted(ranges, self._advanced)
        if not locks.is_manual:
            # Most jobs keep no metadata, and need no `Notes`.
            is_plain = not metadata and all(term.next is None for term in locks.terms.values())
            texts = {} if is_plain else self._part(Notes).at_finish(wanted, metadata or {})
            self._move(session, wanted, texts, is_last=True)
        elif metadata:
            raise ProtocolMisuse("tx.finish was given metadata with manual marking", next_step="Give it to tx.mark.")
        else:
            self._store_marks(session)

    def touch(self) -> None:
        """As `finish`, if nothing remains of any range: the rows don't move, but show whether this was committed."""
        session = self._locks.locked("tx.touch")
        ranges = {tp: decision.remaining for tp, decision in self._locks.decisions.items()}
        self._move(session, ranges, {}, is_last=True)

    def check_deferred(self) -> None:
        """Check deferred constraints now: at COMMIT, a refusal could be mistaken for a lost answer (decision 0020).

        Call it when all rows are written and the offsets advanced: a trigger may compare them.

        :raises RowsRefused: the database refuses the rows.
        :raises LockFirst: before `lock`.
        """
        self._locks.locked("tx.check_deferred").check_deferred()

    def trials(self) -> Savepoints:
        """Return the savepoints with which rows are tried out; the transaction can't be committed after this.

        :raises LockFirst: before `lock`.
        :raises LockInSavepoint: inside a savepoint.
        """
        session = self._locks.locked("tx.trials")
        self._locks.outside_savepoint("tx.trials", "Call it right after tx.lock.")
        self._is_trial = True
        return session

    def _store_marks(self, session: Session) -> None:
        ranges = self.marks.ranges()
        self._locks.settle_passed(session, ranges)
        self._move(session, ranges, self._part(Notes).texts(self.marks.offsets, self.marks.texts), is_last=True)

    def _move(
        self, session: Session, ranges: Ranges, texts: Mapping[TopicPartition, Text], *, is_last: bool = False
    ) -> None:
        """Move the rows to the ranges' ends.

        :param is_last: COMMIT is next, so deferred constraints are checked, too, and that the transaction is whole.
        """
        failpoints.reach("before_advance")
        advance = Advance(self._claim.group, self._claim.token, ranges, texts, self._id)
        if is_last:
            moved, is_whole = session.finish(advance)
        else:  # whether it is whole is asked at the end of the block
            moved, is_whole = session.advance(advance) if ranges else 0, True
        if moved != len(ranges):
            raise StaleClaim(
                "the stored offsets changed although they were locked",
                found=f"{moved} unchanged rows",
                expected=f"{len(ranges)}",
            )
        self._advanced.update(ranges)
        if not is_whole:
            raise UnexpectedCommit(_ENDED)
        if is_last:
            self._locks.is_finished = True

    # -- the block ends: commit, or nothing

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not is_own(self._pid) and self._database.translate(error) is error:
            return  # in a forked child, its own error or exit ends that child only; `opened` refuses the rest
        session = self._locks.opened()
        self._locks.session = None
        if _latest.transaction is self:
            _latest.transaction = None
        try:
            if error is None:
                self._complete(session)
        except BaseException as problem:
            session.rollback()
            self._raise_ours(problem)
            raise
        if error is not None:
            # Asked while the session is open. User code may have other connections, whose errors stay as they are.
            is_of_session = session.may_have_raised(error)
            session.rollback()
            if is_of_session:
                self._raise_ours(error)
            return
        self._commit(session)
        self._tell_terms()

    def _complete(self, session: Session) -> None:
        locks = self._locks
        if locks.error is not None:
            raise locks.error
        if self._is_trial:
            raise ProtocolMisuse("a transaction in which rows were tried out ends in a commit")
        if locks.is_manual and locks.decisions and not locks.is_finished:
            self._store_marks(session)
        # A COMMIT in the user's SQL, or a ROLLBACK TO, can't be refused: it is noticed here (decision 0007).
        if locks.is_locked and not locks.is_finished and not session.is_whole():
            raise UnexpectedCommit(_ENDED)
        for tp, decision in locks.decisions.items():
            if decision.outcome is not Outcome.SKIP and tp not in self._advanced:
                raise Unadvanced(f"the transaction ends without advancing {decision.remaining}", topic_partition=tp)

    def _commit(self, session: Session) -> None:
        try:
            failpoints.reach("before_commit")
            session.commit()
        except BaseException as error:
            session.rollback()
            if not isinstance(error, ConnectionLost):
                self._raise_ours(error)
                raise  # after Ctrl-C it may have been committed all the same: the next lock shows it
            self._resolve_commit(error)
            without_frames(error)  # it is dropped, since the COMMIT has happened: let go of the records in its frames
        failpoints.reach("after_commit")

    def _resolve_commit(self, cause: ConnectionLost) -> None:
        """Find out whether a COMMIT whose answer was lost has happened; return if it has."""
        locks, claim = self._locks, self._claim
        advanced = Advanced(
            claim.group,
            claim.token,
            self._name,
            self._id,
            before={tp: locks.rows[tp].transaction_id for tp in sorted(self._advanced)},
            locked=tuple(locks.partitions),
            wrote=locks.has_written,
            makes_rows=locks.makes_rows,
            mark=self.marks.batch,
        )
        moved = partial(locks.let_go, self._advanced)  # gives up what other members have taken since
        happened: bool | None = None
        try:
            resolve_commit(self._database, advanced, timeout=self._store.timeouts.commit, cause=cause, moved=moved)
            happened = True
        except TransactionLost:
            happened = False
            raise
        finally:
            self._store.observers.on(
                CommitResolved(group=advanced.group, topic_partition=advanced.first, happened=happened)
            )

    def _tell_terms(self) -> None:
        """Record in the claim's terms what is committed now."""
        terms = self._locks.terms
        for term in terms.values():
            term.has_row = True
        for tp, used in self._part(Notes).used.items() if Notes in self._parts else ():
            terms[tp].forget(used)
        for tp, range_ in self._locks.settled.items():
            terms[tp].passed(range_, in_sequence=self._locks.is_in_sequence)
        for tp, offset in self.letters.sequences if Letters in self._parts else ():
            terms[tp].note_sequence(offset)
        if self._locks.is_manual:
            for tp, position in self.marks.positions().items():
                terms[tp].position = position

    # -- errors

    def _raise_ours(self, error: BaseException) -> None:
        """Raise our error for a database error, with details of this transaction; return for other errors."""
        if isinstance(error, BaseExceptionGroup):
            return  # ours in place of it would hide the other errors
        ours = self._database.translate(error)
        if isinstance(ours, ConnectionLost):
            raise TransactionLost(
                "the connection to the database was lost; the transaction was rolled back", found=ours.found
            ) from ours.__cause__
        if isinstance(ours, LockTimeout) and ours is not self._locks.error:
            raise LockTimeout(
                f"could not acquire a lock on the results' tables within {self._lock_timeout:g} s",
                found=ours.found,
                next_step="Find out which session holds the locks (pg_stat_activity).",
            ) from ours.__cause__
        if ours is not error and isinstance(ours, OffsetStoreError):
            raise ours from ours.__cause__
