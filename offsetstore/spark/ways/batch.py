"""``atomicity="batch"``: one transaction for the micro-batch, with any transform.

In this order: read the stored offsets and plan the crop; compute, with no transaction open; begin, lock, and compare
with the plan (if a stored offset has changed, plan again); write, advance, commit. The computed rows wait as Arrow
on the driver, in memory or in a file; those of a very large batch, in staging tables that executors fill.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from offsetstore.errors import FunctionFailed, RowsRefused, SinkError
from offsetstore.offsets import TopicPartition, count_offsets
from offsetstore.processing.batch_metadata import BatchInfo, BatchMetadata
from offsetstore.processing.isolate import (
    AcceptedThen,
    Proof,
    Verdict,
    conclude,
    is_of_values,
    isolate,
    schema_of,
)
from offsetstore.processing.plan import Plan, commit_plan, create_rows
from offsetstore.processing.recovery import CarefulPart, Recovery
from offsetstore.processing.unit import (
    Ending,
    Once,
    PlanOutdated,
    Ranges,
    Record,
    Stopwatch,
    Unit,
    Written,
    commit,
    of_output,
    only_locks,
)
from offsetstore.protocol import failpoints
from offsetstore.protocol.marking import Marking
from offsetstore.protocol.metadata import Text
from offsetstore.protocol.work import Work
from offsetstore.spark.careful import OfRanges, computed_carefully
from offsetstore.spark.collecting import OnDriver, on_driver
from offsetstore.spark.cropping import crop, with_coordinates, within
from offsetstore.spark.function_errors import function_failed, is_out_of_range, is_over_limit, may_be_of_records
from offsetstore.spark.outputs import Outputs
from offsetstore.spark.plans.lineage import is_deterministic, is_row_by_row
from offsetstore.spark.plans.sharing import computed_once
from offsetstore.spark.staging_area import StagingArea, StagingPolicy
from offsetstore.spark.ways.micro_batch import MicroBatch
from offsetstore.store.claim import Claim
from offsetstore.writers.staging import Staged, StagedRowsLost
from offsetstore.writers.staging_schema import StagingWriter, can_stage

_UNREADABLE: Final = (
    "Spark's source can't read a record: its timestamp is out of range. Start with maxOffsetsPerTrigger=1: then what "
    "comes before the record is stored, and the error names it, with the command that skips it."
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InStaging:
    """Rows that executors have staged."""

    writer: StagingWriter
    staged: Staged

    @property
    def rows(self) -> int:
        """Their number."""
        return self.staged.rows

    def write(self, work: Work) -> int:
        """Move the rows; return their number."""
        return self.writer.move(work.connection, self.staged) if self.staged.rows else 0


class Counted(Protocol):
    """Rows of one output."""

    @property
    def rows(self) -> int:
        """Their number."""
        ...


_Rows: TypeAlias = OnDriver | InStaging


class BatchWay:
    """Computes the outputs, and writes them in one transaction."""

    def __init__(
        self,
        claim: Claim,
        outputs: Outputs,
        metadata: BatchMetadata,
        staging: StagingPolicy | None = None,
        *,
        marking: Marking = "automatic",
        recovery: Recovery | None = None,
        by_partition: bool = False,
    ) -> None:
        self._claim = claim
        self._outputs = outputs
        self._metadata = metadata
        self._policy = staging or StagingPolicy()
        self._marking: Marking = marking
        self._recovery = recovery
        self._by_partition = by_partition
        """Whether what comes before a record that can't be computed is stored in a transaction for each partition."""
        self._area = StagingArea(claim)
        self._has_begun = False
        self._broken_by: str | None = None

    def write(self, batch: MicroBatch) -> Written | None:
        """Write one micro-batch; return ``None`` if all of it was in the results already.

        :raises PlanOutdated: the stored offsets have changed, or staged rows were lost; nothing was written.
        """
        if not self._has_begun:
            self._has_begun = True
            self._area.drop_abandoned()
        try:
            with self._naming_record(batch):
                return self._write(batch)
        except StagedRowsLost as lost:
            raise PlanOutdated(str(lost)) from lost
        finally:
            self._area.drop_made()

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
            tried = commit(self._claim, Unit(plan.decisions, computed, ending=Ending.ROLL_BACK))
            return sum(tried.rows.values()) if tried is not None else 0

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
            return self._commit_computed(plan, None, {}, watch)
        remaining = plan.remaining()
        computed = self._compute(frame, remaining)
        texts = self._texts(number, remaining, computed)
        return self._commit_computed(plan, computed, texts, watch)

    def _commit_computed(
        self, plan: Plan, computed: Mapping[str, _Rows] | None, texts: Mapping[TopicPartition, Text], watch: Stopwatch
    ) -> Written | None:
        if self._marking == "automatic":
            return commit_plan(self._claim, plan, Unit(plan.decisions, computed, metadata=texts), watch)
        # The function may keep rows of its own, and can't know of a rollback. Rows of earlier batches may wait there:
        # their partitions can be marked too.
        rows = None if computed is None else {name: Once(output) for name, output in computed.items()}
        waiting = only_locks({tp: range_.until for tp, range_ in self._claim.unmarked().items()})
        unit = Unit({**waiting, **plan.decisions}, rows, ending=Ending.MARK)
        try:
            return commit_plan(self._claim, plan, unit, watch)
        except BaseException as error:
            if unit.is_spent:
                self._broken_by = type(error).__name__
            raise

    def _texts(self, number: int, ranges: Ranges, computed: Mapping[str, Counted]) -> dict[TopicPartition, Text]:
        """The metadata that the batch takes along."""
        rows = {name: output.rows for name, output in computed.items()}
        return self._metadata.texts(BatchInfo(number, ranges, rows))

    def _compute(self, frame: DataFrame, ranges: Ranges) -> dict[str, _Rows]:
        """Compute all outputs from the records of the ranges."""
        offsets = count_offsets(ranges)
        try:
            return self._compute_outputs(frame, offsets, is_large=self._policy.wants(offsets))
        except Exception as error:
            could_stage = self._policy.mode == "auto" and any(map(can_stage, self._outputs.writers.values()))
            if not (could_stage and is_over_limit(error)):
                raise
        _log.info("the rows of a batch exceed spark.driver.maxResultSize: executors stage them")
        return self._compute_outputs(frame, offsets, is_large=True)

    def _compute_outputs(self, frame: DataFrame, offsets: int, *, is_large: bool) -> dict[str, _Rows]:
        given = self._given(frame)
        writers = self._outputs.writers
        staging = {name: writer for name, writer in writers.items() if is_large and can_stage(writer)}
        # A large batch is kept off the heap.
        level = StorageLevel.DISK_ONLY if staging else StorageLevel.MEMORY_AND_DISK_DESER
        with computed_once(given, level) if len(writers) > 1 else nullcontext(dict) as share:
            frames = share(self._outputs.transform(given))
            # Collect first: that may fail, and creates no table.
            collected = {
                name: on_driver(writers[name], frames[name], offsets) for name in frames if name not in staging
            }
            staged = {name: self._staged(name, writer, frames[name]) for name, writer in staging.items()}
        if staged:
            failpoints.reach("staged")
        computed = {**collected, **staged}
        return {name: computed[name] for name in writers}

    def _given(self, frame: DataFrame) -> DataFrame:
        """What the transform gets."""
        return with_coordinates(frame)

    def _staged(self, name: str, writer: StagingWriter, frame: DataFrame) -> InStaging:
        with of_output(name):
            return InStaging(writer, self._area.stage(writer, frame))


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
