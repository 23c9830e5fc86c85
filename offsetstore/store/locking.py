"""The locks of a transaction, and the guard of all that is done under them.

A transaction may write to its claim's partitions, and to no others. So `Locks.lock` compares the token of each row with
the claim's, and decides what remains of each range; `Locks.writing` is what every part of a transaction asks first.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from offsetstore.errors import (
    AdvanceMismatch,
    ConfigurationError,
    LockFirst,
    LockInSavepoint,
    LockTimeout,
    OffsetGap,
    PartitionLost,
    ProtocolMisuse,
    StaleClaim,
)
from offsetstore.offsets import OffsetRange, Ranges, Token, TopicPartition
from offsetstore.protocol.database import Database, HistoryEvent, LockedRow, Session
from offsetstore.protocol.marking import base
from offsetstore.protocol.replay import Decision, Outcome, decide
from offsetstore.runtime import failpoints
from offsetstore.runtime.process import expect_own
from offsetstore.store.identity import ClaimInfo, taken_by
from offsetstore.store.term import NO_OFFSET, Terms


class Locks:
    """What a transaction has locked: the rows, the decision on each range, and the claim's terms.

    ``error`` is what the lock has raised: kept, so that code that swallows it can't commit half a lock. ``makes_rows``
    tells whether it may have inserted rows, ``is_in_sequence`` whether later records of open letters' keys wait,
    ``is_replay`` whether letters are replayed, and ``has_written`` whether something may have been written that no
    partition's row shows. ``settled`` are the ranges of `settle_passed`.
    """

    def __init__(self, claim: ClaimInfo, *, is_manual: bool) -> None:
        self.claim = claim
        self.is_manual = is_manual
        self.session: Session | None = None
        self.partitions: Sequence[TopicPartition] = ()
        self.rows: Mapping[TopicPartition, LockedRow] = {}
        self.terms: Terms = {}
        self.decisions: Mapping[TopicPartition, Decision] = {}
        self.settled: Ranges = {}
        self.is_locked = False
        self.error: BaseException | None = None
        self.makes_rows = False
        self.is_in_sequence = False
        self.is_replay = False
        self.has_written = False
        self.is_finished = False
        self._pid = os.getpid()

    @property
    def remaining(self) -> dict[TopicPartition, OffsetRange]:
        """What remains of each partition that has any, in order of (topic, partition)."""
        return {
            tp: decision.remaining for tp, decision in self.decisions.items() if decision.outcome is not Outcome.SKIP
        }

    # -- the guard

    def opened(self) -> Session:
        """The session, inside the transaction's block."""
        if self.session is None:
            raise LockFirst(
                "the transaction was used outside its with block",
                next_step="Use it inside `with store.transaction(claim) as tx:`.",
            )
        expect_own(self._pid)
        return self.session

    def locked(self, call: str) -> Session:
        """The session, after `lock`.

        :param call: what was used, for the error.
        :raises LockFirst: nothing is locked. If `lock` has raised, its error is raised again.
        """
        session = self.opened()
        if self.error is not None:
            raise self.error
        if not self.is_locked:
            raise LockFirst(f"{call} was used before tx.lock")
        return session

    def writing(self, call: str) -> Session:
        """The session, after `lock` and before the transaction's `finish`.

        :raises LockFirst: see `locked`.
        :raises ProtocolMisuse: it is finished.
        """
        session = self.locked(call)
        if self.is_finished:
            raise ProtocolMisuse(f"{call} was used after tx.finish", next_step="Use it before tx.finish.")
        return session

    def outside_savepoint(self, call: str, next_step: str | None = None) -> Session:
        """The session, where no savepoint is open: its rollback would undo the call.

        :raises LockInSavepoint: one is open.
        """
        session = self.opened()
        if session.in_savepoint():
            raise LockInSavepoint(f"{call} was used inside a savepoint", next_step=next_step)
        return session

    # -- the lock

    def lock(self, session: Session, ranges: Ranges, planned: Terms) -> None:
        """Lock the rows, and decide; see `Transaction.lock`, which tells the errors."""
        claim, known = self.claim, self.claim.terms
        self.partitions = sorted(ranges)  # always in this order, so that two jobs never deadlock
        unknown = sorted(tp for tp in ranges if tp not in known or not known[tp].has_row)
        if unknown or not ranges:
            self._create(session, {tp: ranges[tp].from_ for tp in unknown})
        self.rows = session.lock_partitions(claim.group, self.partitions) if ranges else {}
        # From here on nobody else can take the partitions. The claim may have given some back since it planned. To take
        # them anew it needs their locks, so what its terms say is as fresh as the rows (decision 0090).
        if claim.is_member:
            self._lose_taken(session)
        terms = claim.new_terms(unknown) if unknown else claim.terms
        if lost := [tp for tp in self.partitions if tp not in terms or planned.get(tp, terms[tp]) is not terms[tp]]:
            raise self.lost(lost)
        self.terms = {tp: terms[tp] for tp in self.partitions}
        for tp in self.partitions:
            row = self.rows.get(tp)
            self.check_token(row.token if row else None, tp)
        failpoints.reach("after_lock")  # a named point, at which tests and the demo end the process
        offsets = {tp: self.rows[tp].next_offset for tp in self.partitions}
        if self.is_manual:
            offsets = {tp: base(tp, offset, self.terms[tp].position) for tp, offset in offsets.items()}
        decisions = {tp: decide(offset, ranges[tp]) for tp, offset in offsets.items()}
        for tp, decision in decisions.items():
            if decision.outcome is Outcome.GAP:
                raise OffsetGap(
                    f"the range begins above the {'delivered' if self.is_manual else 'stored'} offset: "
                    f"[{decision.stored}, {ranges[tp].from_}) is missing",
                    topic_partition=tp,
                    found=f"range {ranges[tp]}",
                    expected=f"a range from {decision.stored}",
                )
        self.decisions, self.is_locked = decisions, True

    def timed_out(self, database: Database, timeout: float, error: LockTimeout) -> LockTimeout:
        """The error of a lock that took longer than ``timeout`` seconds: who holds it."""
        holder = database.lock_holder(self.claim.group, self.partitions) if self.partitions else None
        return LockTimeout(
            f"could not acquire the lock within {timeout:g} s",
            topic_partition=holder[0] if holder else next(iter(self.partitions), None),
            found=holder[1] if holder else error.found,
        )

    def _create(self, session: Session, offsets: dict[TopicPartition, int]) -> None:
        """Hold off other claims, and insert a row of each partition that is new to this one."""
        claim = self.claim
        for tp in offsets:
            # A misspelt topic would get a row, and the start of any other topic was never resolved (decision 0012).
            if tp.topic not in claim.topics:
                raise ConfigurationError(
                    "tx.lock names a topic that the claim does not have",
                    topic_partition=tp,
                    expected=", ".join(claim.topics),
                    next_step="Claim it: topics=[...].",
                )
        # The group's row comes before any partition's, as in a claim, or the two would deadlock.
        self.check_token(session.share_group(claim.group), None)
        if not offsets:
            return
        if claim.is_member:
            raise self.lost([*offsets])
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
        self.makes_rows = True

    def _lose_taken(self, session: Session) -> None:
        """Give up the partitions that other members of the fleet have taken."""
        claim, rows = self.claim, self.rows
        if taken := [tp for tp in self.partitions if (row := rows.get(tp)) is None or row.token != claim.token]:
            owner = session.group(claim.group)
            self.check_token(None if owner is None else owner.token, None)
            claim.lose({tp: claim.terms[tp] for tp in taken if tp in claim.terms})

    # -- whose the rows are

    def check_token(self, token: Token | None, tp: TopicPartition | None) -> None:
        """Refuse a row that is not the claim's; without a partition, the group's row.

        :raises StaleClaim: another claim has taken over, or the group was reset or renamed.
        """
        expected = self.claim.group_token if tp is None else self.claim.token
        if token != expected:
            what = f"group {self.claim.group!r} has been claimed, reset or renamed since; nothing was written"
            by = taken_by(self.opened(), self.claim.group)
            self.claim.lose(by=by)
            raise StaleClaim(what, topic_partition=tp, found=by, expected=str(expected))

    def lost(self, partitions: Sequence[TopicPartition]) -> PartitionLost:
        """The error of a member of a fleet that does not have these partitions."""
        return PartitionLost(
            "this member of the fleet does not have the partition; nothing was written",
            topic_partition=partitions[0],
            expected=f"one of its {len(self.claim.terms)} partitions, in the term in which its records were read",
        )

    def let_go(
        self, advanced: Collection[TopicPartition], rows: Mapping[TopicPartition, LockedRow], owner: Token
    ) -> None:
        """Give up the advanced partitions that other members of the fleet have, or have had, since COMMIT was sent.

        :param rows: the advanced partitions' rows, as they are now.
        :raises PartitionLost: all of them were given up.
        """
        # The outcome no longer matters to this member: whoever took a partition waited for the end of the transaction,
        # and began where that left it. The member's own records of it are of a term that is over (decision 0090).
        claim = self.claim
        if not claim.is_member or owner != claim.group_token:
            return
        claim.lose({tp: self.terms[tp] for tp, row in rows.items() if row.token != claim.token})
        kept = claim.terms
        if {*rows} == {*advanced} and all(kept.get(tp) is not self.terms[tp] for tp in rows):
            raise PartitionLost(
                "the answer to COMMIT was lost, and other members of the fleet have gone on with the partition since",
                topic_partition=min(rows),
                next_step="Go on with the other partitions: what was not committed is with whoever has this one.",
            )

    # -- what may be advanced

    def wanted(self, ranges: Ranges, advanced: Collection[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """The ranges to advance by, in order.

        :param advanced: partitions that were advanced already.
        :raises AdvanceMismatch: a range is not what `lock` has decided, or was advanced already.
        """
        for tp, range_ in ranges.items():
            decision = self.decisions.get(tp)
            if decision is None:
                raise AdvanceMismatch(
                    "tx.advance names a partition that was not locked",
                    topic_partition=tp,
                    found=str(range_),
                    next_step="Lock it in tx.lock.",
                )
            if tp in advanced:
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
        return {tp: ranges[tp] for tp in sorted(ranges)}

    # -- what the ranges pass

    def settle_passed(
        self, session: Session, ranges: Ranges, gone: Collection[tuple[TopicPartition, int]] = ()
    ) -> None:
        """Supersede the letters in the ranges, except those of records that are gone.

        Delete the attempts below the ranges' ends, and mark letters below them as overtaken, unless later records of
        their keys wait.
        """
        claim, terms = self.claim, self.terms
        letters = {tp: range_ for tp, range_ in ranges.items() if terms[tp].letter >= range_.from_}
        below = {tp: range_ for tp, range_ in ranges.items() if terms[tp].sequence != NO_OFFSET and range_}
        if self.is_in_sequence:
            below = {}
        if letters or below:
            session.pass_letters(claim.group, letters, below, actor=claim.owner, gone=gone)
        if failures := {tp: range_ for tp, range_ in ranges.items() if terms[tp].failure >= range_.from_}:
            session.pass_failures(claim.group, failures)
        self.settled = ranges
