"""How a delivery is written: whole, up to a function's marks, or kept in memory for a later flush.

A policy reads the stored offsets and plans, computes with no transaction open, and has `commit` do a `Unit` of work. If
a stored offset has changed meanwhile, nothing is written, and the delivery is planned again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from offsetstore.errors import CommitUnknown, FunctionFailed, OffsetGap, RowsRefused, SinkError
from offsetstore.offsets import OffsetRange, TopicPartition, describe
from offsetstore.processing.between import Flush
from offsetstore.processing.blame import name_uncomputable, raise_own, refusal_of, unreadable, write_in_halves
from offsetstore.processing.delivery import Delivery, KeptRows
from offsetstore.processing.letters import Recovery
from offsetstore.processing.plan import BatchMetadata, DeliveryPlan, check_topics, commit_plan, create_rows
from offsetstore.processing.unit import (
    Coordinates,
    Once,
    PlanOutdated,
    Ranges,
    Stopwatch,
    Stored,
    TransactionEnd,
    Unit,
    Written,
    commit,
    only_locks,
)
from offsetstore.protocol.events import FlushEnded
from offsetstore.protocol.marking import Position
from offsetstore.protocol.replay import Outcome, decide
from offsetstore.runtime.functions import without_frames
from offsetstore.store.claim import Claim
from offsetstore.store.term import delivered, unmarked

_log = logging.getLogger(__name__)


class Policy(Protocol):
    """A way to write deliveries."""

    def write(self, delivery: Delivery, stored: Stored) -> Written | None:
        """Plan and write a delivery; return ``None`` if all of it was in the results already.

        :param stored: gets what is committed, where that takes several transactions.
        :raises PlanOutdated: the delivery must be planned again.
        :raises GroupPaused: the delivery must be planned again when the group is resumed.
        """
        ...


class Whole:
    """Writes each delivery in one transaction; a refused one in halves, up to the record that can't be written.

    :param recovery: makes dead letters of such records instead.
    :param at_once: write a refused delivery in transactions of partitions with up to this many offsets together; with 0
        each partition has its own.
    """

    def __init__(
        self, claim: Claim, metadata: BatchMetadata, recovery: Recovery | None = None, *, at_once: float = math.inf
    ) -> None:
        self._claim = claim
        self._metadata = metadata
        self._recovery = recovery
        self._at_once = at_once

    def write(self, delivery: Delivery, stored: Stored) -> Written | None:
        if self._recovery is not None and self._recovery.is_careful(delivery.ranges):
            return self.write_carefully(delivery, stored)
        watch, plan = Stopwatch(), DeliveryPlan.of(self._claim, delivery.ranges, delivery.terms)
        watch.lap("plan")
        try:
            written = self._compute_and_commit(delivery, plan, watch)
        except Exception as error:
            if self._recovery is not None and may_be_of_records(delivery, error):
                without_frames(error)
                return self.write_carefully(delivery, stored)
            if refusal_of(error, delivery) is None:
                raise
            self.write_in_halves(error, delivery, plan, stored, watch)
            return stored.written(watch.seconds)
        if not stored.ranges:
            return written
        if written is not None:
            stored.add(plan.remaining(), written.rows)
        return stored.written(watch.seconds)

    def write_carefully(self, delivery: Delivery, stored: Stored) -> Written | None:
        """Write what remains; records that can't be written become dead letters. Only with a `Recovery`."""
        assert self._recovery is not None

        def name(failed: FunctionFailed) -> RowsRefused:
            remaining = DeliveryPlan.of(self._claim, delivery.ranges, delivery.terms).remaining()
            # No halves: they would store records that have to wait behind a letter of their key (decision 0048).
            return unreadable(failed, delivery, remaining, self._claim) or raise_own(failed)

        with naming_record(delivery, name):
            return self._recovery.write(delivery, stored)

    def write_in_halves(
        self, error: Exception, delivery: Delivery, plan: DeliveryPlan, stored: Stored, watch: Stopwatch
    ) -> None:
        """Write what remains of a plan, up to the first record that is refused alone; see `blame.write_in_halves`.

        :param error: why what remains could not be written or computed as a whole; a record may have caused it.
        :raises GroupPaused, PlanOutdated: between two parts.
        """
        # Without a row, a partition whose first record is refused could not be reset past it.
        create_rows(self._claim, plan)
        remaining, refused = plan.remaining(), refusal_of(error, delivery)
        assert refused is not None
        if isinstance(refused, FunctionFailed) and refused is not error:
            found = unreadable(refused, delivery, remaining, self._claim)
            if found is not None:
                raise found from error
        without_frames(error)

        def write(part: Ranges) -> int:
            # Read again for each part, a transaction of its own: the group may be paused or claimed (decision 0067).
            now = DeliveryPlan.of(self._claim, part, delivery.terms)
            if now.is_worth_computing(self._claim) and now.remaining() != part:
                raise PlanOutdated
            written = self._compute_and_commit(delivery, now, watch)
            if written is None:
                raise PlanOutdated
            stored.add(part, written.rows)
            return sum(written.rows.values())

        def attempt(rest: Ranges, part: Ranges, without: Collection[Coordinates]) -> int:
            rows = delivery.rows(part, without)
            unit = Unit(plan.at(rest).decisions, rows, ending=TransactionEnd.ROLL_BACK, terms=plan.terms)
            tried = commit(self._claim, unit)
            return sum(tried.rows.values()) if tried is not None else 0

        write_in_halves(refused, remaining, delivery, self._claim, write=write, attempt=attempt, at_once=self._at_once)

    def _compute_and_commit(self, delivery: Delivery, plan: DeliveryPlan, watch: Stopwatch) -> Written | None:
        if not plan.is_worth_computing(self._claim):
            return commit_plan(self._claim, plan, Unit(plan.decisions, None, terms=plan.terms), watch)
        remaining = plan.remaining()
        rows = delivery.rows(remaining)
        texts = self._metadata.texts(delivery.number, remaining, rows)
        return commit_plan(self._claim, plan, Unit(plan.decisions, rows, metadata=texts, terms=plan.terms), watch)


@contextmanager
def naming_record(delivery: Delivery, name: Callable[[FunctionFailed], RowsRefused]) -> Generator[None]:
    """Turn an error of the source that a record may have caused into ours, which names the record."""
    try:
        yield
    except Exception as error:
        if (failed := delivery.failed(error)) is None:
            raise
        raise name(failed) from error


def may_be_of_records(delivery: Delivery, error: Exception) -> bool:
    """Whether only a look at single records can tell if one of them caused the error."""
    if isinstance(error, RowsRefused):
        return True
    if (failed := delivery.failed(error)) is None:
        return False
    _log.warning("looking for the records that can't be computed: %s", failed.what)
    return True


class _InMemory:
    """What a job has in memory beyond what is stored, in the sink or in the user's function.

    After an error that may have made the two disagree, nothing more is written.
    """

    def __init__(self) -> None:
        self._broken_by: str | None = None

    def broke(self, error: BaseException) -> None:
        self._broken_by = type(error).__name__

    def require_whole(self) -> None:
        """Refuse to go on after such an error.

        :raises SinkError: there was one.
        """
        if self._broken_by is not None:
            raise SinkError(
                "an earlier batch of this sink failed; what is kept in memory may differ from what is stored",
                found=self._broken_by,
                next_step="Start the job again with a new claim: it reads from the stored offsets.",
            )


class Marked:
    """Lets a function write each delivery, once, and mark what is done: the function can't know of a rollback.

    A refused record is not searched for, since the search would give the function records again and again.
    """

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._memory = _InMemory()

    def write(self, delivery: Delivery, stored: Stored) -> Written | None:  # noqa: ARG002 - the Policy's
        self._memory.require_whole()
        claim, watch = self._claim, Stopwatch()
        with naming_record(delivery, lambda failed: name_uncomputable(failed, delivery, claim)):
            plan = DeliveryPlan.of(claim, delivery.ranges, delivery.terms, delivered)
            watch.lap("plan")
            rows = None
            if plan.is_worth_computing(claim):
                rows = {name: Once(output) for name, output in delivery.rows(plan.remaining()).items()}
        # Rows of earlier deliveries may wait in the function's memory: their partitions can be marked too.
        waiting = only_locks({tp: range_.until for tp, range_ in unmarked(plan.terms).items()})
        unit = Unit({**waiting, **plan.decisions}, rows, ending=TransactionEnd.MARK, terms=plan.terms)
        try:
            return commit_plan(claim, plan, unit, watch)
        except BaseException as error:
            # The function may have kept or dropped rows, and they were rolled back (decision 0034).
            if unit.is_spent:
                self._memory.broke(error)
            raise


@dataclass(frozen=True, slots=True)
class _Kept:
    """A kept batch: its number, the rest of its ranges, and the rows of each output; ``bytes`` is their size."""

    number: int
    ranges: Mapping[TopicPartition, OffsetRange]
    outputs: Mapping[str, KeptRows]
    rows: int
    bytes: int
    since: float = field(default_factory=time.monotonic)


class _Buffer:
    """The kept batches, in order. Whoever uses it holds the lock of `Runner`."""

    def __init__(self, limits: Flush) -> None:
        self._limits = limits
        self.batches: tuple[_Kept, ...] = ()
        self.ranges: dict[TopicPartition, OffsetRange] = {}
        self._rows = self._bytes = 0

    def append(self, kept: _Kept) -> None:
        """Keep another batch. Each of its ranges begins where the last one of its partition ends."""
        self.batches = (*self.batches, kept)
        for tp, range_ in kept.ranges.items():
            self.ranges[tp] = OffsetRange(self.ranges[tp].from_ if tp in self.ranges else range_.from_, range_.until)
        self._rows += kept.rows
        self._bytes += kept.bytes

    def remove(self, gone: Collection[_Kept]) -> None:
        """Forget these batches: the first ones, which are written, or the last one, which is delivered again."""
        left = [kept for kept in self.batches if not any(kept is batch for batch in gone)]
        self.batches, self.ranges, self._rows, self._bytes = (), {}, 0, 0
        for kept in left:
            self.append(kept)

    @property
    def is_due(self) -> bool:
        if not self.batches:
            return False
        is_full = self._rows >= self._limits.rows or self._bytes >= self._limits.bytes
        return is_full or time.monotonic() - self.batches[0].since >= self._limits.seconds


class Buffered:
    """Keeps the rows of deliveries, and writes them together when a limit is reached. The runner's lock guards it.

    To keep a delivery opens no transaction, and its source considers it done. A flush locks from the stored offset to
    the end of what was delivered, writes, and advances. What is lost in a crash is read again by the next start, which
    begins at the stored offset.
    """

    def __init__(self, claim: Claim, metadata: BatchMetadata, limits: Flush) -> None:
        self._claim = claim
        self._metadata = metadata
        self._memory = _InMemory()
        self._alone = Whole(claim, metadata)
        self._buffer = _Buffer(limits)
        self._has_failed = False

    @property
    def has_any(self) -> bool:
        return bool(self._buffer.batches)

    @property
    def is_due(self) -> bool:
        return self._buffer.is_due or (self._has_failed and self.has_any)

    def write(self, delivery: Delivery, stored: Stored) -> Written | None:
        """Compute and keep a delivery; flush if that is due."""
        self._memory.require_whole()
        watch, claim = Stopwatch(), self._claim
        kept_until = {tp: range_.until for tp, range_ in self._buffer.ranges.items()}
        plan = DeliveryPlan.of(claim, delivery.ranges, delivery.terms, lambda _: kept_until)
        watch.lap("plan")
        if not plan.is_worth_computing(claim):
            self._check(plan)
            return None
        remaining = plan.remaining()
        if stored.ranges:  # it was refused, and is written in parts
            return self._write_alone(delivery, stored, remaining)
        # Without a row and a broker, nothing would show after a crash where these records begin (decision 0034).
        create_rows(claim, plan)
        try:
            rows = delivery.rows(remaining)
        except Exception as error:
            if not isinstance(error, RowsRefused) and delivery.failed(error) is None:
                raise
            without_frames(error)
            # The command that passes over a record begins at the stored offset, which must be at that record.
            self.flush()
            return self._write_alone(delivery, stored, remaining)
        check_topics(claim, plan.stored, plan.decisions)
        watch.lap("compute")
        count, size = sum(output.rows for output in rows.values()), sum(output.bytes for output in rows.values())
        # The transform, or another thread, may have closed the claim: nothing would flush this delivery any more.
        claim.require_open()
        kept = _Kept(delivery.number, remaining, rows, count, size)
        self._buffer.append(kept)
        if self.is_due and not self._flush_with(kept):
            return self._write_alone(delivery, stored, remaining)
        self._tell_delivered()
        return Written({name: output.rows for name, output in rows.items()}, watch.seconds, is_kept=True)

    def _write_alone(self, delivery: Delivery, stored: Stored, remaining: Ranges) -> Written | None:
        """Write a failed delivery by itself, which finds its bad record; all before it is stored by now."""
        written = self._alone.write(delivery, stored)
        self._claim.note_positions({tp: Position(range_.until, range_.until) for tp, range_ in remaining.items()})
        return written

    def _tell_delivered(self) -> None:
        ranges = self._buffer.ranges.items()
        self._claim.note_positions({tp: Position(range_.from_, range_.until) for tp, range_ in ranges})

    def _check(self, plan: DeliveryPlan) -> None:
        """Raise the error of a plan that is not worth computing; return if all of it was delivered already."""
        commit(self._claim, Unit())  # raises StaleClaim
        for tp, decision in plan.decisions.items():
            if decision.outcome is Outcome.GAP:
                raise OffsetGap(
                    "the range begins above what was delivered, and what is in between would be missing",
                    topic_partition=tp,
                    found=f"range {decision.range}",
                    expected=f"a range from {decision.stored}",
                )

    def _flush_with(self, last: _Kept) -> bool:
        """Flush; if that fails, forget the ``last`` delivery, which its source then hands over again.

        :return: ``False`` if only the last delivery was refused, and the others are written: it can be searched.
        """
        try:
            self.flush()
        except BaseException as error:
            is_only = self._buffer.batches == (last,)
            self._buffer.remove([last])
            if is_only and isinstance(error, RowsRefused):
                without_frames(error)
                return False
            raise
        return True

    def flush(self) -> None:
        """Write all that is kept, if anything is.

        If rows are refused, the deliveries are written one by one, up to the one with the refused rows.

        :raises OffsetStoreError: what is still kept could not be written.
        """
        self._memory.require_whole()
        kept = self._buffer.batches
        if not kept:
            return
        self._has_failed = True
        try:
            self._commit(kept)
        except RowsRefused as refused:
            if len(kept) == 1:
                raise _among(refused, kept[0]) from None
            for batch in kept:
                try:
                    self._commit([batch])
                except RowsRefused as refusal:
                    raise _among(refusal, batch) from None
        self._has_failed = False

    def forget(self) -> None:
        """Drop all that is kept: the next claim reads it again."""
        self._buffer.remove(self._buffer.batches)

    def _commit(self, kept: Sequence[_Kept]) -> None:
        """Write these deliveries, the first of the kept ones, in one transaction."""
        claim = self._claim
        ranges = self._buffer.ranges if len(kept) > 1 else kept[0].ranges
        rows = {
            name: first.joined([batch.outputs[name] for batch in kept[1:]]) for name, first in kept[0].outputs.items()
        }
        texts = self._metadata.texts(kept[-1].number, ranges, rows)
        plan = DeliveryPlan({}, {tp: decide(range_.from_, range_) for tp, range_ in ranges.items()}, claim.terms)
        try:
            written = commit_plan(claim, plan, Unit(plan.decisions, rows, metadata=texts), Stopwatch())
        except PlanOutdated:
            raise SinkError(
                "the stored offsets are not where the kept batches begin: something else has moved them",
                next_step="Start the job again: it reads from the stored offsets.",
            ) from None
        # Nobody knows whether what is kept is stored: to write it again might write it twice.
        except CommitUnknown as unknown:
            self._memory.broke(unknown)
            raise
        self._buffer.remove(kept)
        claim.note_positions({tp: Position(range_.until, range_.until) for tp, range_ in ranges.items()})
        self._tell_delivered()
        if written is not None:
            numbers = (kept[0].number, kept[-1].number)
            claim.observers.on(
                FlushEnded(
                    group=claim.group, batches=numbers, ranges=ranges, rows=written.rows, seconds=written.seconds
                )
            )


def _among(refused: RowsRefused, kept: _Kept) -> RowsRefused:
    return refused.among(
        kept.ranges,
        f"a batch that was kept, {kept.number}: {describe(kept.ranges)}",
        stored={},
        next_step="Start the job once without flush=: it finds the record. Correct or filter such rows.",
    )
