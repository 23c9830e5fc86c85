"""``flush=``: batches are computed and kept in memory, and written together, in one transaction.

A batch that is kept opens no transaction, and Spark takes it for done. Its rows and its ranges wait in the buffer; a
flush locks from the stored offset to the end of what was delivered, writes, and advances. What a crash takes away with
the buffer is read again by the next start, which begins at the stored offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from offsetstore.errors import CommitUnknown, OffsetGap, RowsRefused, SinkError
from offsetstore.offsets import describe
from offsetstore.processing.batch_metadata import BatchMetadata
from offsetstore.processing.buffer import Buffer, Flush, Kept
from offsetstore.processing.cycle import Stopwatch, Written, commit_plan
from offsetstore.processing.plan import Plan, PlanOutdated, Ranges, check_topics, create_rows
from offsetstore.protocol.events import FlushEnded
from offsetstore.protocol.marking import Position
from offsetstore.protocol.replay import Outcome, decide
from offsetstore.protocol.work import Work
from offsetstore.spark.collecting import OnDriver
from offsetstore.spark.cropping import crop
from offsetstore.spark.outputs import Outputs
from offsetstore.spark.ways.batch import BatchWay
from offsetstore.spark.ways.micro_batch import MicroBatch
from offsetstore.store.claim import Claim


@dataclass(frozen=True, slots=True)
class _Joined:
    """One output's rows of several batches, in order."""

    parts: Sequence[OnDriver]

    @property
    def rows(self) -> int:
        """Their number."""
        return sum(part.rows for part in self.parts)

    def write(self, work: Work) -> int:
        """Write the rows, those with the same columns at once; return their number."""
        batches = (batch for part in self.parts for batch in part.batches if batch.num_rows)
        writer = self.parts[0].writer
        return sum(writer.write(work, alike) for _, alike in groupby(batches, key=_schema))


def _schema(batch: pa.RecordBatch) -> pa.Schema:
    return batch.schema


class BufferedWay(BatchWay):
    """Keeps the rows of batches, and writes them when a limit of ``limits`` is reached. The sink's lock guards it."""

    def __init__(self, claim: Claim, outputs: Outputs, metadata: BatchMetadata, limits: Flush) -> None:
        super().__init__(claim, outputs, metadata)
        self._buffer = Buffer[OnDriver](limits)
        self._has_failed = False

    @property
    def has_any(self) -> bool:
        """Whether any batch is kept."""
        return bool(self._buffer.batches)

    @property
    def is_due(self) -> bool:
        """Whether the buffer has to be flushed now: a limit is reached, or an earlier flush has failed."""
        return self._buffer.is_due or (self._has_failed and self.has_any)

    @property
    def _stores_parts(self) -> bool:
        return False

    def _write(self, batch: MicroBatch) -> Written | None:
        """Compute and keep one micro-batch, and flush if that is due."""
        self._require_whole()
        watch, claim = Stopwatch(), self._claim
        delivered = {tp: range_.until for tp, range_ in self._buffer.ranges.items()}
        plan = Plan.of(claim, batch.ranges, delivered)
        watch.lap("plan")
        if not plan.is_worth_computing(claim):
            self._check(plan)
            return None
        remaining = plan.remaining()
        create_rows(claim, plan)  # without a row, and a broker, nothing would show that these records are missing
        rows = self._compute(crop(batch.frame, plan.decisions), remaining)
        check_topics(claim, plan.stored, plan.decisions)
        watch.lap("compute")
        count, size = sum(output.rows for output in rows.values()), sum(output.bytes for output in rows.values())
        claim.require_open()  # the transform, or another thread, may have closed it
        kept = Kept(batch.number, remaining, rows, count, size)
        self._buffer.append(kept)
        if self.is_due and not self._flush_with(kept):
            return self._write_alone(batch, remaining)
        self._tell_delivered()
        return Written({name: output.rows for name, output in rows.items()}, watch.seconds, is_kept=True)

    def _write_alone(self, batch: MicroBatch, remaining: Ranges) -> Written | None:
        """Write what is kept, and then the batch, as one without a buffer."""
        self.flush()
        written = super()._write(batch)
        self._claim.positions |= {tp: Position(range_.until, range_.until) for tp, range_ in remaining.items()}
        return written

    def _tell_delivered(self) -> None:
        ranges = self._buffer.ranges.items()
        self._claim.positions |= {tp: Position(range_.from_, range_.until) for tp, range_ in ranges}

    def _check(self, plan: Plan) -> None:
        """Raise the error of a plan that is not worth computing; return if all of it was delivered already."""
        self._claim.run(lambda tx: tx.lock({}))  # a stale claim
        for tp, decision in plan.decisions.items():
            if decision.outcome is Outcome.GAP:
                raise OffsetGap(
                    "the range begins above what was delivered, and what is in between would be missing",
                    topic_partition=tp,
                    found=f"range {decision.range}",
                    expected=f"a range from {decision.stored}",
                )

    def _flush_with(self, last: Kept[OnDriver]) -> bool:
        """Flush; if that fails, forget the ``last`` batch, which Spark then delivers again.

        :return: ``False`` if only the last one is refused, and the others are written: it can be searched.
        """
        try:
            self.flush()
        except BaseException as error:
            is_only = self._buffer.batches == (last,)
            self._buffer.remove([last])
            if is_only and isinstance(error, RowsRefused):
                return False
            raise
        return True

    def flush(self) -> None:
        """Write all that is kept; nothing happens if that is nothing.

        If rows are refused, the batches are written one by one, up to the one that has them.

        :raises OffsetStoreError: what is still kept could not be written.
        """
        self._require_whole()
        kept = self._buffer.batches
        if not kept:
            return
        self._has_failed = True
        self._flush(kept)
        self._has_failed = False

    def _flush(self, kept: Sequence[Kept[OnDriver]]) -> None:
        try:
            self._commit(kept)
        except RowsRefused as refused:
            if len(kept) == 1:
                raise _among(refused, kept[0]) from None
            for each in kept:
                try:
                    self._commit([each])
                except RowsRefused as one:
                    raise _among(one, each) from None

    def forget(self) -> None:
        """Drop what is kept: another claim reads it again."""
        self._buffer.remove(self._buffer.batches)

    def _commit(self, kept: Sequence[Kept[OnDriver]]) -> None:
        """Write the first of the kept batches in one transaction."""
        claim, watch = self._claim, Stopwatch()
        ranges = self._buffer.ranges if len(kept) > 1 else kept[0].ranges
        rows = {name: _Joined([each.outputs[name] for each in kept]) for name in self._outputs.writers}
        texts = self._texts(kept[-1].number, ranges, rows)
        plan = Plan({}, {tp: decide(range_.from_, range_) for tp, range_ in ranges.items()})
        try:
            written = commit_plan(claim, plan, rows, watch, texts)
        except PlanOutdated:
            raise SinkError(
                "the stored offsets are not where the kept batches begin: something else has moved them",
                next_step="Start the job again: it reads from the stored offsets.",
            ) from None
        except CommitUnknown as unknown:
            self._broken_by = type(unknown).__name__
            raise
        self._buffer.remove(kept)
        claim.positions |= {tp: Position(range_.until, range_.until) for tp, range_ in ranges.items()}
        self._tell_delivered()
        if written is not None:
            numbers = (kept[0].number, kept[-1].number)
            claim.observers.on(
                FlushEnded(
                    group=claim.group, batches=numbers, ranges=ranges, rows=written.rows, seconds=written.seconds
                )
            )


def _among(refused: RowsRefused, kept: Kept[OnDriver]) -> RowsRefused:
    return refused.among(
        kept.ranges,
        f"a batch that was kept, {kept.number}: {describe(kept.ranges)}",
        stored={},
        next_step="Start the job once without flush=: it finds the record. Correct or filter such rows.",
    )
