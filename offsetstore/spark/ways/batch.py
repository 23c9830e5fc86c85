"""``atomicity="batch"``: one transaction for the micro-batch, with any transform.

In this order: read the stored offsets and plan the crop; compute, with no transaction open; begin, lock, and compare
with the plan (if a stored offset has changed, plan again); write, advance, commit. The computed rows wait as Arrow
on the driver, in memory or in a file.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from offsetstore.errors import FunctionFailed, RowsRefused, SinkError
from offsetstore.offsets import TopicPartition, count_offsets
from offsetstore.processing.batch_metadata import BatchInfo, BatchMetadata
from offsetstore.processing.cycle import Stopwatch, Written, commit_plan, write_all
from offsetstore.processing.isolate import (
    AcceptedThen,
    Proof,
    Record,
    Verdict,
    conclude,
    is_of_values,
    isolate,
    schema_of,
    try_out,
)
from offsetstore.processing.plan import Plan, Ranges, create_rows
from offsetstore.processing.recovery import CarefulPart, Recovery
from offsetstore.protocol.marking import Marking
from offsetstore.protocol.metadata import Text
from offsetstore.protocol.retries import may_pass
from offsetstore.protocol.work import Work
from offsetstore.spark.careful import OfRanges, computed_carefully
from offsetstore.spark.collecting import LARGE, OnDriver, on_driver
from offsetstore.spark.cropping import crop, with_coordinates, within
from offsetstore.spark.function_errors import function_failed, is_out_of_range, may_be_of_records
from offsetstore.spark.outputs import Outputs
from offsetstore.spark.plans.lineage import is_deterministic, is_row_by_row
from offsetstore.spark.plans.sharing import computed_once
from offsetstore.spark.ways.micro_batch import MicroBatch
from offsetstore.store.claim import Claim

_UNREADABLE: Final = (
    "Spark's source can't read a record: its timestamp is out of range. Start with maxOffsetsPerTrigger=1: then what "
    "comes before the record is stored, and the error names it, with the command that skips it."
)


class Counted(Protocol):
    """Rows of one output."""

    @property
    def rows(self) -> int:
        """Their number."""
        ...


@dataclass(frozen=True, slots=True)
class _Noted:
    """Rows whose writer notes that it was called."""

    rows: OnDriver
    calls: list[str]

    def write(self, work: Work) -> int:
        """Write the rows; return their number."""
        self.calls.append("called")
        return self.rows.write(work)


class BatchWay:
    """Computes the outputs, and writes them in one transaction."""

    def __init__(
        self,
        claim: Claim,
        outputs: Outputs,
        metadata: BatchMetadata,
        *,
        marking: Marking = "automatic",
        recovery: Recovery | None = None,
        by_partition: bool = False,
    ) -> None:
        self._claim = claim
        self._outputs = outputs
        self._metadata = metadata
        self._marking: Marking = marking
        self._recovery = recovery
        self._by_partition = by_partition
        """Whether what comes before a record that can't be computed is stored in a transaction for each partition."""
        self._broken_by: str | None = None

    def write(self, batch: MicroBatch) -> Written | None:
        """Write one micro-batch; return ``None`` if all of it was in the results already.

        :raises PlanOutdated: the stored offsets have changed, or executors have lost rows; nothing was written.
        """
        with self._naming_record(batch):
            return self._write(batch)

    def _write(self, batch: MicroBatch) -> Written | None:
        self._require_whole()
        if self._recovery is not None and self._recovery.is_careful(batch.ranges):
            return self._write_carefully(batch)
        watch = Stopwatch()
        plan = Plan.of(self._claim, batch.ranges, self._claim.delivered if self._marking == "manual" else None)
        watch.lap("plan")
        try:
            return self._compute_and_commit(plan, crop(batch.frame, plan.decisions), batch.number, watch)
        except Exception as error:
            if self._recovery is not None and may_be_of_records(error):
                return self._write_carefully(batch)
            if isinstance(error, RowsRefused):
                raise self._isolate(error, batch, plan) from None
            raise

    def write_carefully(self, batch: MicroBatch) -> Written | None:
        """Write what remains of the batch; records that can't be written become dead letters.

        Only with a `Recovery`.
        """
        with self._naming_record(batch):
            return self._write_carefully(batch)

    def _write_carefully(self, batch: MicroBatch) -> Written | None:
        assert self._recovery is not None
        outputs, has_sequences = self._outputs, self._recovery.has_sequences

        seconds = self._recovery.seconds

        def compute(
            ranges: Ranges, *, suspects: Mapping[Record, FunctionFailed | None]
        ) -> AbstractContextManager[CarefulPart]:
            return computed_carefully(
                outputs,
                within(batch.frame, ranges),
                OfRanges(ranges),
                has_sequences=has_sequences,
                suspects=suspects,
                seconds=seconds,
                check=lambda: batch.sleep(self._claim, 0),
            )

        sleep = partial(batch.sleep, self._claim)
        return self._recovery.write(batch.number, batch.ranges, compute, sleep, batch.stored)

    @contextmanager
    def _naming_record(self, batch: MicroBatch) -> Generator[None]:
        """Turn an error of Spark's that a record can cause into ours, which names it."""
        try:
            yield
        except Exception as error:
            if (failed := function_failed(error)) is None:
                raise
            raise self.name_record(failed, batch) from error

    def _require_whole(self) -> None:
        """Refuse to go on after an error that the memory of the sink, or of the user's function, may not agree with.

        :raises SinkError: there was one.
        """
        if self._broken_by is not None:
            raise SinkError(
                "an earlier batch of this sink failed; what is kept in memory may differ from what is stored",
                found=self._broken_by,
                next_step="Start the job again with a new claim: it reads from the stored offsets.",
            )

    def _isolate(self, refused: RowsRefused, batch: MicroBatch, plan: Plan) -> RowsRefused:
        """Find the refused record, and store those before it.

        Not with manual marking: the search would deliver records again and again, in other batches.
        """
        if self._marking == "manual":
            return refused
        create_rows(self._claim, plan)

        def attempt(part: Ranges, without: Collection[Record]) -> int:
            computed = self._compute(within(batch.frame, part, without), part)
            return try_out(self._claim, plan.decisions, lambda work: sum(write_all(computed, work).values()))

        def store(part: Ranges) -> None:
            self._store(batch, plan, part)

        remaining = plan.remaining()
        verdict = isolate(refused, remaining, attempt, proof=lambda found: self._proof(found, batch))
        return conclude(verdict, remaining, store, group=self._claim.group, schema=schema_of(self._claim))

    def name_record(self, failed: FunctionFailed, batch: MicroBatch) -> RowsRefused:
        """Find the first record with which the batch can't be computed, and store those before it.

        Parts of the batch are only computed. What waits in memory, or was delivered, is not stored.

        :raises Exception: Spark's own, if it does not recur, or Spark can't read the batch for a reason that is in no
            record. With dead letters also if the batch can be read: recovery has found each bad record then, and it
            alone knows which good ones have to wait.
        """
        claim, ranges, frame = self._claim, batch.ranges, batch.frame
        plan = Plan.of(claim, ranges) if self._stores_parts else None
        if plan is not None:
            ranges = plan.remaining()
            create_rows(claim, plan)
        if not _can_read(frame):
            batch.sleep(claim, 0)  # a query that is being stopped interrupts Spark
            error = failed.among(ranges, "Spark can't read it", stored={}, next_step=_UNREADABLE)
            [record, *others] = [(tp, range_.from_) for tp, range_ in ranges.items()] or [None]
            is_one = not others and count_offsets(ranges) == 1
            verdict = Verdict(error, {}, ranges, record if is_one else None)
            return conclude(verdict, ranges, lambda _: None, group=claim.group, schema=schema_of(claim))

        if self._recovery is not None:
            raise failed.__cause__ or failed from None

        def store(part: Ranges) -> None:
            if plan is not None:
                self._store(batch, plan, part)

        attempt = partial(self._count_rows, batch)
        try:
            verdict = isolate(failed, ranges, attempt, proof=lambda _: self._proof_of_failure(batch))
        except AcceptedThen:  # a worker that died, say: Spark's own error tells more
            raise failed.__cause__ or failed from None
        batch.sleep(claim, 0)  # a query that is being stopped interrupts Spark
        if plan is None:
            verdict = replace(verdict, accepted={})
        return conclude(
            verdict, ranges, store, group=claim.group, schema=schema_of(claim), by_partition=self._by_partition
        )

    def _store(self, batch: MicroBatch, plan: Plan, part: Ranges) -> None:
        """Store the first of the remaining records."""
        frame = within(batch.frame, part)
        written = self._compute_and_commit(plan.up_to(part), frame, batch.number, Stopwatch())
        if written is not None:
            batch.stored.add(part, written.rows)

    def _count_rows(self, batch: MicroBatch, part: Ranges, without: Collection[Record]) -> int:
        """Compute a part, and forget its rows."""
        batch.sleep(self._claim, 0)
        try:
            return sum(output.rows for output in self._compute(within(batch.frame, part, without), part).values())
        except Exception as error:
            if (again := function_failed(error)) is None:
                raise
            raise again from error

    @property
    def _stores_parts(self) -> bool:
        """Whether a part of a batch can be stored on its own."""
        return self._marking == "automatic"

    def _proof_of_failure(self, batch: MicroBatch) -> Proof:
        given = self._given(batch.frame)
        frames = self._outputs.transform(given).values()
        return Proof.ROW if all(is_row_by_row(given, frame) for frame in frames) else Proof.BATCH

    def _proof(self, refused: RowsRefused, batch: MicroBatch) -> Proof:
        given = with_coordinates(batch.frame)
        frames = self._outputs.transform(given)
        if not all(map(is_deterministic, frames.values())):
            return Proof.NONE
        if refused.output is None or not is_of_values(refused, self._outputs.writers[refused.output]):
            return Proof.BATCH
        return Proof.ROW if is_row_by_row(given, frames[refused.output]) else Proof.BATCH

    def _compute_and_commit(self, plan: Plan, frame: DataFrame, number: int, watch: Stopwatch) -> Written | None:
        """Write and advance what remains of the plan; ``frame`` has exactly those records."""
        if not plan.is_worth_computing(self._claim):
            return commit_plan(self._claim, plan, None, watch, marking=self._marking)
        remaining = plan.remaining()
        computed = self._compute(frame, remaining)
        texts = self._texts(number, remaining, computed)
        if self._marking == "automatic":
            return commit_plan(self._claim, plan, computed, watch, texts)
        return self._commit_marks(plan, computed, watch)

    def _commit_marks(self, plan: Plan, computed: Mapping[str, OnDriver], watch: Stopwatch) -> Written | None:
        """Let the function write and mark, once: it may keep rows of its own, and can't know of a rollback."""
        calls: list[str] = []
        called = {name: _Noted(output, calls) for name, output in computed.items()}
        try:
            return commit_plan(
                self._claim,
                plan,
                called,
                watch,
                marking="manual",
                retry_if=lambda error: not calls and may_pass(error),
            )
        except BaseException as error:
            if calls:
                self._broken_by = type(error).__name__
            raise

    def _texts(self, number: int, ranges: Ranges, computed: Mapping[str, Counted]) -> dict[TopicPartition, Text]:
        """The metadata that the batch takes along."""
        rows = {name: output.rows for name, output in computed.items()}
        return self._metadata.texts(BatchInfo(number, ranges, rows))

    def _compute(self, frame: DataFrame, ranges: Ranges) -> dict[str, OnDriver]:
        """Compute all outputs from the records of the ranges."""
        offsets, writers = count_offsets(ranges), self._outputs.writers
        given = self._given(frame)
        level = StorageLevel.DISK_ONLY if offsets > LARGE else StorageLevel.MEMORY_AND_DISK_DESER
        with computed_once(given, level) if len(writers) > 1 else nullcontext(dict) as share:
            frames = share(self._outputs.transform(given))
            return {
                name: on_driver(writer, frames[name], offsets, or_by_partition=not self._by_partition)
                for name, writer in writers.items()
            }

    def _given(self, frame: DataFrame) -> DataFrame:
        """What the transform gets."""
        return with_coordinates(frame)


def _can_read(frame: DataFrame) -> bool:
    """Whether Spark can read the batch itself, without a transform.

    :raises Exception: Spark's own: it can't, for a reason that is in no record.
    """
    java: Any = frame
    try:
        java._jdf.queryExecution().toRdd().count()  # noqa: SLF001 - count() would leave out columns
    except Exception as error:
        if not is_out_of_range(error):
            raise
        return False
    return True
