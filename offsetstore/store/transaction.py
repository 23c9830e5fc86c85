"""The transaction: results and offsets together, or neither.

Inside it the order is fixed: `lock` the partitions (which decides what remains of each range), write with `connection`,
`advance`. Leaving the block commits. If a row has another token, a range begins above the stored offset, or a lock
can't be acquired, the transaction ends with nothing written.

The class begins with that, and with what each step checks. Below is what a transaction may carry beside results: marks,
metadata, dead letters, and records for the outbox.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from offsetstore.errors import (
    AdvanceMismatch,
    ConfigurationError,
    ConnectionLost,
    LockedTwice,
    LockFirst,
    LockInSavepoint,
    LockTimeout,
    NestedTransaction,
    OffsetGap,
    OffsetStoreError,
    PartitionLost,
    ProtocolMisuse,
    SinkError,
    StaleClaim,
    TransactionLost,
    Unadvanced,
    UnexpectedCommit,
)
from offsetstore.offsets import OffsetRange, Token, TopicPartition
from offsetstore.protocol import failpoints
from offsetstore.protocol.database import Advance, Database, HistoryEvent, LockedRow, Savepoints, Session
from offsetstore.protocol.events import CommitResolved
from offsetstore.protocol.forks import expect_own, is_own
from offsetstore.protocol.functions import without_frames
from offsetstore.protocol.letters import (
    ChosenLetter,
    Failed,
    FailedReplay,
    Letter,
    LetterKey,
    NewLetter,
    Payload,
    check_reject,
    rejected,
    writable,
)
from offsetstore.protocol.marking import Marking, Position, base, check_mark, check_marking
from offsetstore.protocol.metadata import KEEP, Keep, Text, dump, format_of, load
from offsetstore.protocol.numbers import as_offset, check_seconds
from offsetstore.protocol.observers import Observers
from offsetstore.protocol.outbox import OutboxRecord, outbox_record
from offsetstore.protocol.replay import Decision, Outcome, decide
from offsetstore.protocol.retries import may_pass
from offsetstore.store.identity import ClaimInfo
from offsetstore.store.sessions import Connected, repeat
from offsetstore.store.takeover import taken_by
from offsetstore.store.term import ForNextAdvance, Term, Terms, settle_passed
from offsetstore.store.unknown_commit import Advanced, settle

_T = TypeVar("_T")

_IN_A_FLEET = (
    "A consumer stores the end of each flush. Keep nothing in memory for a later one, since partitions come and go: "
    "write it to a table of your own, with work.connection."
)


class _Latest(threading.local):
    """The transaction that each thread began last."""

    transaction: Transaction | None = None


_latest = _Latest()


class Transaction:
    """One transaction of one claim; made by `transaction` and `run` of a store or a claim."""

    def __init__(
        self,
        database: Database,
        claim: ClaimInfo,
        *,
        lock_timeout: float,
        commit_timeout: float,
        observers: Observers,
        marking: Marking = "automatic",
    ) -> None:
        check_marking(marking)
        self._database = database
        self._claim = claim
        self._lock_timeout = lock_timeout
        self._commit_timeout = commit_timeout
        self._observers = observers
        self._is_manual = marking == "manual"
        self._id = uuid.uuid4()
        # Unique, so that a look-up of this transaction's fate does not end another one of the same claim.
        self._name = f"{claim.name}:{self._id.hex[:8]}"
        self._pid = os.getpid()
        self._session: Session | None = None
        self._was_used = False
        self._lock_error: BaseException | None = None
        self._partitions: Collection[TopicPartition] = ()
        self._decisions: dict[TopicPartition, Decision] | None = None
        self._rows: dict[TopicPartition, LockedRow] = {}
        self._terms: dict[TopicPartition, Term] = {}
        self._advanced: set[TopicPartition] = set()
        self._used_metadata: dict[TopicPartition, ForNextAdvance] = {}
        self._written_metadata: set[TopicPartition] = set()
        self._batch_mark: tuple[uuid.UUID, int] | None = None
        self._marks: dict[TopicPartition, int] = {}
        self._mark_metadata: dict[TopicPartition, Text] = {}
        self._is_in_sequence = False
        self._is_replay = False
        self._sequences: list[tuple[TopicPartition, int]] = []
        self._settled: Mapping[TopicPartition, OffsetRange] = {}
        self._had_connection = False
        self._makes_rows = False
        self._is_finished = False
        self._is_trial = False

    # -- the block: lock, write, advance, commit

    def __enter__(self) -> Self:
        # Ask the transaction whether it is open: a generator may end it in another thread than it began in.
        if _latest.transaction is not None and _latest.transaction.is_open:
            raise NestedTransaction("a transaction was started inside another one in the same thread")
        if self._was_used:
            raise ProtocolMisuse(
                "a transaction block can be used only once", next_step="Make a new one: store.transaction(claim)."
            )
        self._session = self._database.begin(name=self._name, lock_timeout=self._lock_timeout)
        self._was_used = True
        _latest.transaction = self
        return self

    @property
    def is_open(self) -> bool:
        """Whether its block has begun and not ended, in this process."""
        return self._session is not None and is_own(self._pid)

    def lock(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        *,
        terms: Terms | None = None,
        gone: Collection[tuple[TopicPartition, int]] = (),
        in_sequence: bool = False,
    ) -> dict[TopicPartition, Decision]:
        """Lock the partitions' rows, check that they are this claim's, and decide what remains of each range.

        The rows are always locked in (topic, partition) order, so that two jobs never deadlock. A partition that the
        claim does not know gets a row that starts at its range. ``lock({})`` blocks other claims when there is no range
        to lock.

        :param terms: `Claim.terms` as they were when the records were read. A member of a fleet may have lost a
            partition since then, and taken it again at another offset. By default those of now.
        :param gone: records that Kafka no longer has. Dead letters of the others are superseded: the job reads them
            again.
        :param in_sequence: whether later records of a key with an open dead letter wait, as letters too. Otherwise open
            letters below the ranges' ends are overtaken from now on.
        :return: in order of (topic, partition); write `Decision.remaining` of each, and advance by it.
        :raises StaleClaim: another claim has taken over, or the group was reset or renamed.
        :raises PartitionLost: another member of the fleet has a partition, and the claim no longer has it; or it has
            another term of it.
        :raises OffsetGap: a range begins above its stored offset.
        :raises LockTimeout: see `OffsetStore.transaction`.
        :raises ConfigurationError: a partition of a topic that the claim does not have.
        :raises LockedTwice, LockInSavepoint: it was called a second time, or inside a savepoint.
        """
        session = self._require_session()
        if session.in_savepoint():
            raise LockInSavepoint("tx.lock was called inside a savepoint")
        if self._decisions is not None or self._lock_error is not None:
            raise LockedTwice("tx.lock was called a second time")
        try:
            self._is_in_sequence = in_sequence
            self._decisions = self._lock(session, ranges, terms or {}, gone)
        except LockTimeout as error:
            session.rollback()  # so that this transaction no longer holds these rows
            self._lock_error = self._not_locked(error)
            self._claim.unblock(self._partitions)  # the next attempt then finds them free
            raise self._lock_error from error.__cause__
        except BaseException as error:
            # Kept, so that code that swallows it can't commit half a lock.
            self._lock_error = error
            raise
        return dict(self._decisions)

    def _lock(
        self,
        session: Session,
        ranges: Mapping[TopicPartition, OffsetRange],
        planned: Terms,
        gone: Collection[tuple[TopicPartition, int]],
    ) -> dict[TopicPartition, Decision]:
        self._partitions = sorted(ranges)
        known = self._claim.terms
        unknown = sorted(tp for tp in ranges if tp not in known or not known[tp].has_row)
        for tp in unknown:
            self._check_topic(tp)
        if unknown or not ranges:
            # Lock the group's row before any partition's, or this deadlocks with a claim.
            self._check_token(session.share_group(self._claim.group), None)
            if unknown and self._claim.is_member:
                raise self._lost(unknown)
            self._create(session, {tp: ranges[tp].from_ for tp in unknown})
            self._makes_rows = bool(unknown)
        self._rows = session.lock_partitions(self._claim.group, self._partitions) if ranges else {}
        self._terms = self._locked_terms(session, planned)
        for tp in self._partitions:
            row = self._rows.get(tp)
            self._check_token(row.token if row else None, tp)
        failpoints.reach("after_lock")  # a named point, at which tests and the demo end the process
        decisions = {tp: decide(self._base(tp), ranges[tp]) for tp in self._partitions}
        for tp, decision in decisions.items():
            if decision.outcome is Outcome.GAP:
                raise OffsetGap(
                    f"the range begins above the {'delivered' if self._is_manual else 'stored'} offset: "
                    f"[{decision.stored}, {ranges[tp].from_}) is missing",
                    topic_partition=tp,
                    found=f"range {ranges[tp]}",
                    expected=f"a range from {decision.stored}",
                )
        if not self._is_manual:  # of what is only delivered, the marks tell how much is stored
            self._settle_ahead(session, _remaining(decisions), gone)
        return decisions

    def _base(self, tp: TopicPartition) -> int:
        """The offset on which the partition's range is decided."""
        stored = self._rows[tp].next_offset
        return base(tp, stored, self._terms[tp].position) if self._is_manual else stored

    def _settle_ahead(
        self,
        session: Session,
        ranges: Mapping[TopicPartition, OffsetRange],
        gone: Collection[tuple[TopicPartition, int]] = (),
    ) -> None:
        """Settle what the database knows of the records that this transaction stores."""
        claim, terms = self._claim, self._terms
        settle_passed(
            session, claim.group, terms, ranges, actor=claim.owner, gone=gone, in_sequence=self._is_in_sequence
        )
        self._settled = ranges

    @property
    def connection(self) -> Any:
        """The SQLAlchemy ``Connection`` to write results with; psycopg's is under it.

        It returns to its pool. Anything that your SQL leaves in its session (``SET`` without ``LOCAL``, temporary
        tables, advisory locks) reaches a later transaction, so leave nothing there. After an `Execute` it is closed
        instead.

        :raises LockFirst: before `lock`, because a stale job could write then.
        """
        session, _ = self._require_lock("tx.connection was used before tx.lock")
        if self._is_finished:
            raise ProtocolMisuse("tx.connection was used after tx.finish", next_step="Write before it.")
        self._had_connection = True
        return session.connection

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """What remains to be written of each partition that has any, in order of (topic, partition).

        :raises LockFirst: before `lock`.
        """
        _, decisions = self._require_lock("tx.ranges was used before tx.lock")
        return _remaining(decisions)

    def advance(self, ranges: Mapping[TopicPartition, OffsetRange], *, metadata: object | Keep = KEEP) -> None:
        """Move the stored offsets to the ranges' ends, in one statement, with the results.

        :param ranges: exactly `Decision.remaining` for each partition, as `lock` returned it.
        :param metadata: one value for all partitions of the call; ``None`` clears it. By default, what
            `Claim.store_metadata` was given for a partition, else it is kept. A partition whose range is in the results
            already keeps what it has: that belongs to a later offset.
        :raises AdvanceMismatch: another range, a partition that was not locked, or one that was advanced already.
        :raises MetadataError: see `offsetstore.Metadata`.
        :raises StaleClaim: the rows changed under the lock, which only your own SQL in this transaction can do.
        """
        if self._is_manual:
            raise ProtocolMisuse('tx.advance was called with marking="manual"', next_step="Call tx.mark.")
        session, wanted = self._wanted(ranges)
        new = self._not_stored(wanted)
        given = {} if isinstance(metadata, Keep) else dump(self._claim.formats, new, metadata)
        texts = {**self._stored_texts(new), **given}
        failpoints.reach("before_advance")
        if wanted:
            self._check_moved(session.advance(self._move(wanted, texts)), wanted)

    def finish(
        self, ranges: Mapping[TopicPartition, OffsetRange], metadata: Mapping[TopicPartition, Text] | None = None
    ) -> None:
        """Do `advance` and `check_deferred`, and check that the transaction is whole, in one round trip.

        After it nothing may be written, so it is for code that lets no one else's follow. With manual marking it
        stores the marks instead of the ranges' ends.

        :param metadata: the text of each partition that gets another one, except where `write_metadata` was called.
        :raises AdvanceMismatch, StaleClaim, RowsRefused, UnexpectedCommit: as those two, and the block's end, do.
        """
        session, wanted = self._wanted(ranges)
        if self._is_manual and metadata:
            raise ProtocolMisuse("tx.finish was given metadata with manual marking", next_step="Give it to tx.mark.")
        if self._is_manual:
            self._store_marks(session)
            return
        written, new = self._written_metadata, self._not_stored(wanted)
        given = {tp: text for tp, text in (metadata or {}).items() if tp in new and tp not in written}
        self._move_all(session, wanted, {**self._stored_texts(new), **given})

    def _move_all(
        self, session: Session, wanted: Mapping[TopicPartition, OffsetRange], texts: Mapping[TopicPartition, Text]
    ) -> None:
        failpoints.reach("before_advance")
        moved, is_whole = session.finish(self._move(wanted, texts))
        self._check_moved(moved, wanted)
        self._check_whole(is_whole=is_whole)
        self._is_finished = True

    def _move(self, wanted: Mapping[TopicPartition, OffsetRange], texts: Mapping[TopicPartition, Text]) -> Advance:
        return Advance(self._claim.group, self._claim.token, wanted, texts, self._id)

    def _wanted(
        self, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> tuple[Session, dict[TopicPartition, OffsetRange]]:
        session, decisions = self._require_lock("tx.advance was called before tx.lock")
        for tp, range_ in ranges.items():
            self._check_remaining(decisions, tp, range_)
        return session, {tp: ranges[tp] for tp in sorted(ranges)}

    def _check_remaining(
        self, decisions: Mapping[TopicPartition, Decision], tp: TopicPartition, range_: OffsetRange
    ) -> None:
        decision = decisions.get(tp)
        if decision is None:
            raise AdvanceMismatch(
                "tx.advance names a partition that was not locked",
                topic_partition=tp,
                found=str(range_),
                next_step="Lock it in tx.lock.",
            )
        if tp in self._advanced:
            raise AdvanceMismatch(
                "tx.advance was called twice for one partition",
                topic_partition=tp,
                found=str(range_),
                next_step="Advance it once.",
            )
        if range_ != decision.remaining:
            raise AdvanceMismatch(
                "tx.advance was given a different range than tx.lock returned",
                topic_partition=tp,
                found=str(range_),
                expected=str(decision.remaining),
            )

    def _check_moved(self, moved: int, wanted: Mapping[TopicPartition, OffsetRange]) -> None:
        if moved != len(wanted):
            raise StaleClaim(
                "the stored offsets changed although they were locked",
                found=f"{moved} unchanged rows",
                expected=f"{len(wanted)}",
            )
        self._advanced.update(wanted)

    def _check_whole(self, *, is_whole: bool) -> None:
        if not is_whole:
            raise UnexpectedCommit("a COMMIT or ROLLBACK inside the transaction ended it, or undid its advance")

    def check_deferred(self) -> None:
        """Check deferred constraints now: if COMMIT fails on one, that can't be told from a lost answer.

        Call it when all rows are written and the offsets advanced: a trigger may compare them.

        :raises RowsRefused: the database refuses the rows.
        :raises LockFirst: before `lock`.
        """
        session, _ = self._require_lock("tx.check_deferred was called before tx.lock")
        session.check_deferred()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and not is_own(self._pid) and self._database.translate(error) is error:
            return  # a child's own error or exit, which ends nothing but the child
        session = self._require_session()
        self._session = None
        if _latest.transaction is self:
            _latest.transaction = None
        try:
            if error is None:
                self._check_complete(session)
        except BaseException as problem:
            session.rollback()
            self._raise_ours(problem)
            raise
        if error is not None:
            is_of_session = session.may_have_raised(error)
            session.rollback()
            if is_of_session:
                self._raise_ours(error)
            return
        self._commit(session)
        self._tell_terms()

    def _check_complete(self, session: Session) -> None:
        if self._lock_error is not None:
            raise self._lock_error
        if self._is_trial:
            raise ProtocolMisuse("a transaction in which rows were tried out ends in a commit")
        if self._is_manual and self._decisions and not self._is_finished:
            self._store_marks(session)
        if self._decisions is not None and not self._is_finished:
            self._check_whole(is_whole=session.is_whole())
        for tp, decision in (self._decisions or {}).items():
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
                raise
            before = {tp: self._rows[tp].transaction_id for tp in sorted(self._advanced)}
            advanced = Advanced(
                self._claim.group,
                self._claim.token,
                self._name,
                self._id,
                before,
                tuple(self._partitions),
                wrote=self._had_connection,
                makes_rows=self._makes_rows,
                mark=self._batch_mark,
            )
            self._settle(advanced, error)
            without_frames(error)  # the COMMIT has happened, and nobody else gets the error
        failpoints.reach("after_commit")

    def _settle(self, advanced: Advanced, cause: ConnectionLost) -> None:
        happened: bool | None = None
        try:
            settle(self._database, advanced, timeout=self._commit_timeout, cause=cause, moved=self._let_go)
            happened = True
        except TransactionLost:
            happened = False
            raise
        finally:
            self._observers.on(CommitResolved(group=advanced.group, topic_partition=advanced.first, happened=happened))

    def _tell_terms(self) -> None:
        """Record in the terms what is committed now."""
        for term in self._terms.values():
            term.has_row = True
        for tp, used in self._used_metadata.items():
            self._terms[tp].forget(used)
        for tp, range_ in self._settled.items():
            self._terms[tp].passed(range_, in_sequence=self._is_in_sequence)
        for tp, offset in self._sequences:
            self._terms[tp].note_sequence(offset)
        if self._is_manual:
            for tp, decision in (self._decisions or {}).items():
                stored = self._marks.get(tp, self._rows[tp].next_offset)
                self._terms[tp].position = Position(stored, self._delivered(decision))

    # -- what each step checks: the block, the lock, the claim

    def _require_session(self) -> Session:
        if self._session is None:
            raise LockFirst(
                "the transaction was used outside its with block",
                next_step="Use it inside `with store.transaction(claim) as tx:`.",
            )
        expect_own(self._pid)
        return self._session

    def _require_lock(self, too_early: str) -> tuple[Session, dict[TopicPartition, Decision]]:
        """Return the session and the decisions; raise the error of `lock`, or `LockFirst` if it was not called."""
        session = self._require_session()
        if self._lock_error is not None:
            raise self._lock_error
        if self._decisions is None:
            raise LockFirst(too_early)
        return session, self._decisions

    def _check_token(self, token: Token | None, tp: TopicPartition | None) -> None:
        expected = self._claim.group_token if tp is None else self._claim.token
        if token != expected:
            what = f"group {self._claim.group!r} has been claimed, reset or renamed since; nothing was written"
            by = taken_by(self._require_session(), self._claim.group)
            self._claim.lose(by=by)
            raise StaleClaim(what, topic_partition=tp, found=by, expected=str(expected))

    def _check_topic(self, tp: TopicPartition) -> None:
        """A misspelt topic would get a row, and the start of any other topic was never resolved."""
        if tp.topic not in self._claim.topics:
            raise ConfigurationError(
                "tx.lock names a topic that the claim does not have",
                topic_partition=tp,
                expected=", ".join(self._claim.topics),
                next_step="Claim it: topics=[...].",
            )

    def _create(self, session: Session, offsets: dict[TopicPartition, int]) -> None:
        if not offsets:
            return
        claim = self._claim
        inserted = session.insert_partitions(claim.group, claim.token, offsets)
        reason = "the partition is new to the claim: it starts at its first range"
        session.append_history(
            claim.group,
            [
                HistoryEvent("adopt", tp, None, offset, claim.token, claim.owner, reason)
                for tp, offset in offsets.items()
                if tp in inserted
            ],
        )

    def _locked_terms(self, session: Session, planned: Terms) -> dict[TopicPartition, Term]:
        """The terms with which this transaction begins, and ends, now that nobody else can take the partitions.

        The claim may have given some back since it planned: to take them anew it needs their locks, so what its terms
        say is as fresh as the rows.
        """
        claim, partitions = self._claim, self._partitions
        if not self._claim.is_member:
            terms = claim.new_terms(partitions)
        else:
            if taken := [tp for tp in partitions if (row := self._rows.get(tp)) is None or row.token != claim.token]:
                owner = session.group(claim.group)
                self._check_token(None if owner is None else owner.token, None)
                claim.lose({tp: claim.terms[tp] for tp in taken if tp in claim.terms})
            terms = claim.terms
        if lost := [tp for tp in partitions if tp not in terms or planned.get(tp, terms[tp]) is not terms[tp]]:
            raise self._lost(lost)
        return {tp: terms[tp] for tp in partitions}

    def _lost(self, partitions: Sequence[TopicPartition]) -> PartitionLost:
        return PartitionLost(
            "this member of the fleet does not have the partition; nothing was written",
            topic_partition=partitions[0],
            expected=f"one of its {len(self._claim.terms)} partitions, in the term in which its records were read",
        )

    def _let_go(self, rows: Mapping[TopicPartition, LockedRow], owner: Token) -> None:
        """Give up what this transaction has advanced, if other members of the fleet have it, or have had it, since.

        Then its outcome does not matter to this member: whoever took a partition waited for the end of the transaction,
        and began where that left it. The member's own records of it are of a term that is over.

        :raises PartitionLost: that is so for all of it.
        """
        claim = self._claim
        if not claim.is_member or owner != claim.group_token:
            return
        claim.lose({tp: self._terms[tp] for tp, row in rows.items() if row.token != claim.token})
        kept = claim.terms
        if {*rows} == self._advanced and all(kept.get(tp) is not self._terms[tp] for tp in rows):
            raise PartitionLost(
                "the answer to COMMIT was lost, and other members of the fleet have gone on with the partition since",
                topic_partition=min(rows),
                next_step="Go on with the other partitions: what was not committed is with whoever has this one.",
            )

    # -- errors

    def _raise_ours(self, error: BaseException) -> None:
        """Raise our error for a database error, with details of this transaction; return for other errors."""
        if isinstance(error, BaseExceptionGroup):
            return
        ours = self._database.translate(error)
        if isinstance(ours, ConnectionLost):
            raise TransactionLost(
                "the connection to the database was lost; the transaction was rolled back", found=ours.found
            ) from ours.__cause__
        if isinstance(ours, LockTimeout) and ours is not self._lock_error:
            raise LockTimeout(
                f"could not acquire a lock on the results' tables within {self._lock_timeout:g} s",
                found=ours.found,
                next_step="Find out which session holds the locks (pg_stat_activity).",
            ) from ours.__cause__
        if ours is not error and isinstance(ours, OffsetStoreError):
            raise ours from ours.__cause__

    def _not_locked(self, error: LockTimeout) -> LockTimeout:
        holder = self._database.lock_holder(self._claim.group, self._partitions) if self._partitions else None
        tp = holder[0] if holder else next(iter(self._partitions), None)
        return LockTimeout(
            f"could not acquire the lock within {self._lock_timeout:g} s",
            topic_partition=tp,
            found=holder[1] if holder else error.found,
        )

    # -- manual marking

    def mark(self, tp: TopicPartition, next_offset: int, *, metadata: object | Keep = KEEP) -> None:
        """Store this offset when the block ends; see `offsetstore.protocol.work.Work`.

        :raises LockFirst: before `lock`.
        :raises ProtocolMisuse: marking is automatic, or after `finish`.
        """
        session, decisions = self._require_lock("tx.mark was called before tx.lock")
        if not self._is_manual:
            raise ProtocolMisuse(
                "tx.mark was called with automatic marking",
                next_step=_IN_A_FLEET
                if self._claim.is_member
                else 'Make the transaction or the sink with marking="manual", or call tx.advance.',
            )
        if self._is_finished:
            raise ProtocolMisuse("tx.mark was called after tx.finish", next_step="Mark before it.")
        if tp not in decisions:
            raise AdvanceMismatch(
                "tx.mark names a partition that was not locked",
                topic_partition=tp,
                expected=", ".join(map(str, decisions)) or "no partition: none was locked",
                next_step="Lock it in tx.lock; an empty range at the end of what was delivered will do.",
            )
        earlier = self._marks.get(tp)
        above = self._rows[tp].next_offset if earlier is None else earlier - 1
        next_offset = check_mark(tp, next_offset, above=above, delivered=self._delivered(decisions[tp]))
        if not isinstance(metadata, Keep):
            self._mark_metadata |= dump(self._claim.formats, [tp], metadata)
        else:
            self._mark_metadata.pop(tp, None)  # it was given for an earlier mark
        session.count_mark()
        self._marks[tp] = next_offset

    def _delivered(self, decision: Decision) -> int:
        """Up to where the job was given the partition's records, if the block ends well."""
        return max(decision.stored, decision.range.until)

    def _store_marks(self, session: Session) -> None:
        """Advance to the marks.

        A partition without one is advanced by nothing: if the answer to COMMIT is lost, its row shows the outcome.
        """
        ranges: dict[TopicPartition, OffsetRange] = {}
        for tp, decision in (self._decisions or {}).items():
            if tp in self._marks or decision.outcome is not Outcome.SKIP:
                stored = self._rows[tp].next_offset
                ranges[tp] = OffsetRange(stored, self._marks.get(tp, stored))
        self._settle_ahead(session, ranges)
        self._move_all(session, ranges, {**self._stored_texts(self._marks), **self._mark_metadata})

    # -- metadata

    def metadata(self, tp: TopicPartition, *, cache: bool | None = None) -> object:
        """The partition's metadata, ``None`` if there is none; see `offsetstore.protocol.work.Work`.

        :raises LockFirst: before `lock`.
        :raises MetadataError: the deserializer fails.
        :raises StaleClaim: the row has another token; this transaction has not locked it.
        :raises PartitionLost: this member of a fleet does not have the partition.
        """
        session, _ = self._require_lock("tx.metadata was called before tx.lock")
        claim = self._claim
        is_cached = format_of(claim.formats, tp.topic).cache if cache is None else cache
        term = self._terms.get(tp) or claim.terms.get(tp)
        if term is None and (is_cached or self._claim.is_member) and (error := claim.no_term(tp)) is not None:
            raise error
        if is_cached:
            return load(claim.formats, tp, None if term is None else term.metadata)
        row = session.read_metadata(self._claim.group, tp.topic, tp.partition).get(tp)
        if row is None:
            return None
        if self._claim.is_member and row.token != self._claim.token:
            raise self._lost([tp])  # it is not locked, and its group may still be the fleet's
        self._check_token(row.token, tp)
        return load(claim.formats, tp, row.text)

    def write_metadata(self, tp: TopicPartition, value: object) -> None:
        """Write metadata at the stored offset, or at the one that the transaction advances to; ``None`` clears it.

        An `advance` in this transaction keeps it, unless that is given metadata itself. Where letters are replayed,
        nothing is written: the same function writes batches and letters, and would replace a later offset's note.

        :raises LockFirst: before `lock`.
        :raises AdvanceMismatch: the partition was not locked, or its range is in the results already.
        :raises MetadataError: see `offsetstore.Metadata`.
        :raises ProtocolMisuse: after `finish`.
        """
        session, decisions = self._require_lock("tx.write_metadata was called before tx.lock")
        if self._is_finished:
            raise ProtocolMisuse("tx.write_metadata was called after tx.finish", next_step="Write before it.")
        if tp not in decisions:
            raise AdvanceMismatch(
                "tx.write_metadata names a partition that was not locked",
                topic_partition=tp,
                next_step="Lock it in tx.lock; an empty range will do.",
            )
        if decisions[tp].is_stored:
            raise AdvanceMismatch(
                "tx.write_metadata names a partition whose range is in the results already: its metadata belongs to a "
                "later offset, and would be replaced",
                topic_partition=tp,
                found=f"range {decisions[tp].range}, stored {decisions[tp].stored}",
                expected="a partition of tx.ranges, or one locked with an empty range at the stored offset",
            )
        if self._is_replay:
            return
        self._had_connection = True
        written = session.write_metadata(self._claim.group, self._claim.token, dump(self._claim.formats, [tp], value))
        if written != 1:
            raise StaleClaim("the row changed although it was locked", topic_partition=tp, found="another token")
        self._written_metadata.add(tp)

    def _not_stored(self, wanted: Mapping[TopicPartition, OffsetRange]) -> Collection[TopicPartition]:
        """Those whose metadata may be written: that of a range which was stored before would replace a later one."""
        stored = {tp for tp, one in (self._decisions or {}).items() if one.outcome is Outcome.SKIP and one.is_stored}
        return wanted.keys() - stored if stored else wanted.keys()

    def _stored_texts(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, Text]:
        """What the claim stores for the next advance of these partitions; all of it is used up."""
        stored = {tp: one for tp in wanted if (one := self._terms[tp].next) is not None}
        self._used_metadata |= stored
        return {tp: one.text for tp, one in stored.items() if tp not in self._written_metadata}

    # -- dead letters, and records that are passed over

    def write_letters(self, letters: Sequence[NewLetter]) -> None:
        """Keep these records as dead letters, in this transaction, which passes over them.

        :raises LockFirst: before `lock`.
        :raises AdvanceMismatch: a record that is not in what remains of its partition.
        :raises ProtocolMisuse: after `finish`.
        :raises SinkError: the database refuses them, or a trigger has left one out.
        """
        session, decisions = self._require_lock("tx.write_letters was called before tx.lock")
        if self._is_finished:
            raise ProtocolMisuse("tx.write_letters was called after tx.finish", next_step="Write before it.")
        ranges = _remaining(decisions)
        for letter in letters:
            range_ = ranges.get(letter.topic_partition)
            if range_ is None or not range_.from_ <= letter.offset < range_.until:
                raise AdvanceMismatch(
                    "tx.write_letters names a record that this transaction does not pass",
                    topic_partition=letter.topic_partition,
                    found=f"offset {letter.offset}",
                    expected=str(range_ or "no record of this partition"),
                )
        if not letters:
            return
        self._had_connection = True
        self._sequences += [(one.topic_partition, one.offset) for one in letters if one.sequence is not None]
        written = session.write_letters(self._claim.group, letters)
        if written != len(letters):
            raise SinkError(
                "not all dead letters could be written; nothing was written",
                found=f"{written} letters",
                expected=f"{len(letters)}",
                next_step="Look for a trigger or a rule on the table dead_letters.",
            )

    def dead_letter(
        self,
        tp: TopicPartition,
        offset: int,
        reason: str,
        *,
        code: str | None = None,
        payload: Payload | None = None,
    ) -> None:
        """Keep a record that this transaction passes as a dead letter; see `offsetstore.protocol.work.Work`.

        :raises LockFirst: before `lock`.
        :raises ProtocolMisuse: after `finish`, or with manual marking.
        :raises SinkError: see `write_letters`.
        """
        session, _ = self._require_lock("tx.dead_letter was called before tx.lock")
        if self._is_manual:
            raise ProtocolMisuse(
                "tx.dead_letter was called with manual marking, which may not pass the record",
                topic_partition=tp,
                next_step="Use automatic marking.",
            )
        if session.in_savepoint():
            raise LockInSavepoint(
                "tx.dead_letter was called inside a savepoint, whose rollback would take the letter along",
                topic_partition=tp,
                next_step="Call it after the savepoint.",
            )
        check_reject(tp, reason, code)
        error = rejected(reason, code)
        self.write_letters([NewLetter(tp, as_offset("offset", offset), "rejected", error, 0, None, payload)])

    def lock_letters(self, letters: Sequence[Letter]) -> bool:
        """Lock letters that are to be replayed; return whether all of them are as they were read."""
        session, _ = self._require_lock("tx.lock_letters was called before tx.lock")
        self._is_replay = True
        locked = session.lock_letters(self._claim.group, [letter.key for letter in letters])
        return all(locked.get(one.key) == ChosenLetter.of(one) for one in letters)

    def settle_letters(self, replayed: Sequence[Letter], failed: Mapping[LetterKey, FailedReplay]) -> None:
        """Mark letters that are locked: those whose rows are written, and those that are dead again."""
        session, _ = self._require_lock("tx.settle_letters was called before tx.lock")
        group, owner = self._claim.group, self._claim.owner
        done = session.mark_replayed(group, [letter.key for letter in replayed], actor=owner) if replayed else 0
        back = session.return_letters(group, failed, actor=owner) if failed else 0
        if (done, back) != (len(replayed), len(failed)):
            raise SinkError(
                "not all dead letters could be marked; nothing was written",
                found=f"{done} and {back}",
                expected=f"{len(replayed)} replayed, {len(failed)} dead again",
                next_step="Look for a trigger or a rule on the table dead_letters.",
            )

    def write_failures(self, failures: Mapping[tuple[TopicPartition, int], Failed]) -> None:
        """Write the failed attempts at records that are not stored yet. They are absolute, so it may be repeated."""
        session, _ = self._require_lock("tx.write_failures was called before tx.lock")
        session.write_failures(self._claim.group, failures)
        for tp, offset in failures:
            self._terms[tp].note_failure(offset)

    def note_skipped(self, reasons: Mapping[tuple[TopicPartition, int], str]) -> None:
        """Write to the history that this transaction passes over these records, and keeps nothing of them."""
        session, _ = self._require_lock("tx.note_skipped was called before tx.lock")
        claim = self._claim
        events = [
            HistoryEvent("skip", tp, offset, offset + 1, claim.token, claim.owner, writable(reason))
            for (tp, offset), reason in sorted(reasons.items())
        ]
        session.append_history(claim.group, events)

    def touch(self) -> None:
        """Advance the locked partitions by nothing, so that their rows show that this transaction was committed.

        Like `finish`, it checks deferred constraints, and nothing may be written after it.
        """
        session, decisions = self._require_lock("tx.touch was called before tx.lock")
        self._move_all(session, {tp: decision.remaining for tp, decision in decisions.items()}, {})

    # -- the outbox

    def produce(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]] = (),
    ) -> None:
        """Put a record into the outbox; see `offsetstore.protocol.work.Work`.

        :raises LockFirst: before `lock`.
        :raises RowsRefused: Kafka can't have it: the topic's name, say, or a part that is neither bytes nor text.
        :raises ProtocolMisuse: after `finish`.
        :raises SinkError: a trigger has left it out.
        """
        self._write_outbox([outbox_record(topic, key, value, headers)])

    def produce_all(self, records: Iterable[OutboxRecord]) -> int:
        """Put records into the outbox, in their order; return how many. Raises as `produce`."""
        return self._write_outbox([outbox_record(*one) for one in records])

    def _write_outbox(self, records: Sequence[OutboxRecord]) -> int:
        session, _ = self._require_lock("tx.produce was called before tx.lock")
        if self._is_finished:
            raise ProtocolMisuse("tx.produce was called after tx.finish", next_step="Produce before it.")
        if not records:
            return 0
        self._had_connection = True
        written = session.write_outbox(self._claim.group, records)
        if written != len(records):
            raise SinkError(
                "not all records could be put into the outbox; nothing was written",
                found=f"{written} records",
                expected=f"{len(records)}",
                next_step="Look for a trigger or a rule on the table outbox.",
            )
        return written

    # -- what is done once, and trials

    def mark_batch(self, query_id: uuid.UUID, batch_id: int) -> bool:
        """Record that this transaction holds a stateful query's results of a batch, even if the batch has no ranges.

        :return: ``False`` if the results already hold this batch or a later one of that query: write nothing then.
        :raises LockFirst: before `lock`.
        :raises LockInSavepoint: ``ROLLBACK TO`` would drop the mark and keep the advance.
        """
        session, _ = self._require_lock("tx.mark_batch was called before tx.lock")
        if session.in_savepoint():
            raise LockInSavepoint(
                "tx.mark_batch was called inside a savepoint", next_step="Call it right after tx.lock."
            )
        self._batch_mark = (query_id, batch_id)
        return session.mark_batch(self._claim.group, query_id, batch_id)

    def take_turn(self, name: uuid.UUID, every: float) -> bool:
        """Whether this transaction does what the members of a fleet do in turn, once in ``every`` seconds.

        :param name: what is done.
        :return: ``False`` if another member is doing it, or has done it less than ``every`` seconds ago.
        :raises LockFirst: before `lock`.
        """
        session, _ = self._require_lock("tx.take_turn was called before tx.lock")
        return session.take_turn(self._claim.group, name, every)

    def trials(self) -> Savepoints:
        """Return the savepoints with which rows are tried out; the transaction can't be committed after this.

        :raises LockFirst: before `lock`.
        :raises LockInSavepoint: inside a savepoint.
        """
        session, _ = self._require_lock("tx.trials was called before tx.lock")
        if session.in_savepoint():
            raise LockInSavepoint("tx.trials was called inside a savepoint", next_step="Call it right after tx.lock.")
        self._is_trial = True
        return session


def _remaining(decisions: Mapping[TopicPartition, Decision]) -> dict[TopicPartition, OffsetRange]:
    return {tp: decision.remaining for tp, decision in decisions.items() if decision.outcome is not Outcome.SKIP}


def new_transaction(
    store: Connected, claim: ClaimInfo, *, lock_timeout: float | None = None, marking: Marking = "automatic"
) -> Transaction:
    """Make a transaction; see `OffsetStore.transaction`."""
    if lock_timeout is not None:
        check_seconds("lock_timeout", lock_timeout, or_zero=True)
    claim.require_log()
    return Transaction(
        store.database,
        claim,
        lock_timeout=store.timeouts.lock if lock_timeout is None else lock_timeout,
        commit_timeout=store.timeouts.commit,
        observers=store.observers,
        marking=marking,
    )


def run_in_transaction(
    store: Connected,
    claim: ClaimInfo,
    work: Callable[[Transaction], _T],
    *,
    lock_timeout: float | None = None,
    marking: Marking = "automatic",
    retry_if: Callable[[Exception], bool] = may_pass,
) -> _T:
    """Run ``work(tx)`` with retries; see `OffsetStore.run`."""

    def attempt(_: int) -> _T:
        with new_transaction(store, claim, lock_timeout=lock_timeout, marking=marking) as tx:
            return work(tx)

    return repeat(store, claim.group, attempt, retry_if=retry_if)
