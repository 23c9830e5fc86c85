"""``flush=``: batches are computed and kept in memory, and written together, in one transaction.

A batch that is kept opens no transaction, and Spark takes it for done. Its rows and its ranges wait in the buffer; a
flush locks from the stored offset to the end of what was delivered, writes, and advances. What a crash takes away with
the buffer is read again by the next start, which begins at the stored offset.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from offsetstore.errors import OffsetGap, RowsRefused, SinkError
from offsetstore.offsets import describe
from offsetstore.processing.buffer import Buffer, Flush, Kept, joined
from offsetstore.processing.cycle import Stopwatch, Written, commit_plan
from offsetstore.processing.plan import Plan, PlanOutdated, check_topics
from offsetstore.protocol.events import BufferFlushed
from offsetstore.protocol.marking import Position
from offsetstore.protocol.replay import Outcome, decide
from offsetstore.spark.cropping import crop
from offsetstore.spark.ways.batch import BatchWay, OnDriver

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from offsetstore.processing.batch_metadata import BatchMetadata
    from offsetstore.protocol.work import Work
    from offsetstore.spark.outputs import Outputs
    from offsetstore.spark.staging_area import StagingPolicy
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

    def __init__(
        self, claim: Claim, outputs: Outputs, metadata: BatchMetadata, staging: StagingPolicy, limits: Flush
    ) -> None:
        super().__init__(claim, outputs, metadata, staging)
        self._buffer = Buffer[OnDriver](limits)

    @property
    def is_due(self) -> bool:
        """Whether the buffer has to be flushed now."""
        return self._buffer.is_due

    def _write(self, batch: MicroBatch) -> Written | None:
        """Compute and keep one micro-batch, and flush if that is due.

        A batch that executors have staged is written at once, after the kept ones: staged rows can't wait.
        """
        watch = Stopwatch()
        claim = self._claim
        plan = Plan.of(claim, batch.ranges, self._buffer.ends())
        watch.lap("plan")
        if not plan.is_worth_computing(claim):
            self._check(plan)
            return None
        remaining = plan.remaining()
        computed = self._compute(crop(batch.frame, plan.decisions), remaining)
        rows = {name: output for name, output in computed.items() if isinstance(output, OnDriver)}
        if len(rows) < len(computed):
            self.flush()
            return commit_plan(claim, plan, computed, watch, self._texts(batch.number, remaining, computed))
        check_topics(claim, plan.stored, plan.decisions)
        watch.lap("compute")
        count, size = sum(output.rows for output in rows.values()), sum(output.bytes for output in rows.values())
        kept = Kept(batch.number, remaining, rows, count, size)
        self._buffer.batches.append(kept)
        if self._buffer.is_due and not self._flush_with(kept):
            return super()._write(batch)
        claim.positions |= {
            tp: Position(range_.from_, range_.until) for tp, range_ in joined(self._buffer.batches).items()
        }
        return Written({name: output.rows for name, output in rows.items()}, watch.seconds, is_kept=True)

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
            batches = self._buffer.batches
            is_only = batches == [last]
            batches[:] = [kept for kept in batches if kept is not last]
            if is_only and isinstance(error, RowsRefused):
                return False
            raise
        return True

    def flush(self) -> None:
        """Write all that is kept; nothing happens if that is nothing.

        If rows are refused, the batches are written one by one, up to the one that has them.

        :raises OffsetStoreError: what is still kept could not be written.
        """
        kept = list(self._buffer.batches)
        if not kept:
            return
        try:
            self._commit(kept)
        except RowsRefused as refused:
            if len(kept) == 1:
                refused.while_(f"flushing batch {kept[0].number}: {describe(kept[0].ranges)}")
                raise
            for each in kept:
                try:
                    self._commit([each])
                except RowsRefused as one:
                    one.while_(f"flushing batch {each.number}: {describe(each.ranges)}; those before it are written")
                    raise

    def _commit(self, kept: Sequence[Kept[OnDriver]]) -> None:
        """Write the first of the kept batches in one transaction."""
        claim, watch = self._claim, Stopwatch()
        ranges = joined(kept)
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
        del self._buffer.batches[: len(kept)]
        claim.positions |= {tp: Position(range_.until, range_.until) for tp, range_ in ranges.items()}
        if written is not None:
            numbers = (kept[0].number, kept[-1].number)
            claim.observers.on(
                BufferFlushed(
                    group=claim.group, batches=numbers, ranges=ranges, rows=written.rows, seconds=written.seconds
                )
            )
