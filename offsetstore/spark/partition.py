"""``atomicity="partition"``: each Kafka partition's rows and its offset in a transaction of their own, in parallel.

In this order: read the stored offsets and plan the crop; call transform, and check that each row is made from one
record; give each Spark task one Kafka partition, and let the tasks write (see `task`); advance the partitions that had
no rows. A failure leaves finished partitions as they are: a new plan, for this batch or for the next job's first one,
finds them stored and skips them.

The driver writes a small batch, all its partitions in one transaction: see docs/decisions/0030-small-batches.md.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import DataFrame

from offsetstore.errors import ConfigurationError, OffsetStoreError, RowsRefused, StaleClaim
from offsetstore.offsets import TopicPartition, count_offsets, describe
from offsetstore.processing.blame import refusal_of
from offsetstore.processing.handling import HandlerFailed
from offsetstore.processing.letters import PART, Recovery
from offsetstore.processing.plan import BatchMetadata, DeliveryPlan, check_topics, create_rows
from offsetstore.processing.policies import Whole, may_be_of_records
from offsetstore.processing.unit import (
    UNNAMED,
    PlanOutdated,
    Stopwatch,
    Stored,
    Unit,
    Written,
    commit,
)
from offsetstore.protocol.arguments import check_whole
from offsetstore.protocol.metadata import Text
from offsetstore.runtime import failpoints
from offsetstore.runtime.functions import without_frames
from offsetstore.spark.collecting import LARGE
from offsetstore.spark.columns import with_checked_coordinates
from offsetstore.spark.executors.connect import ExecutorStore, sending_password
from offsetstore.spark.executors.preflight import check_once
from offsetstore.spark.executors.task import TaskEnding, TaskResult, Tasks
from offsetstore.spark.function_errors import is_over_limit
from offsetstore.spark.handlers import is_speculative
from offsetstore.spark.micro_batch import MicroBatch
from offsetstore.spark.outputs import SparkOutputs
from offsetstore.spark.plans.lineage import check_row_by_row
from offsetstore.spark.plans.scan import place
from offsetstore.store.claim import Claim
from offsetstore.store.identity import TaskClaim
from offsetstore.writers import Append, Upsert

TASK_THRESHOLD: Final = 10_000
"""In offsets: the driver writes a batch of up to this size, since starting tasks would take longer (decision 0030)."""

_log = logging.getLogger(__name__)
_pickler: Any = cloudpickle


class PerPartition:
    """Lets Spark's tasks write, and advances the partitions that had no rows.

    :param threshold: the driver writes a batch with at most this many offsets, tasks write a larger one. Only tasks
        call an `Execute`, or a writer's own ``write``.
    :raises ConfigurationError: several outputs, a writer that can't be sent to executors, a store to which they can't
        connect, or a threshold below 0.
    """

    def __init__(
        self,
        claim: Claim,
        outputs: SparkOutputs,
        metadata: BatchMetadata,
        threshold: int = TASK_THRESHOLD,
        recovery: Recovery | None = None,
    ) -> None:
        check_whole("task_threshold", threshold, "offsets")
        if len(outputs.writers) > 1:
            raise ConfigurationError(
                'atomicity="partition" allows only one output',
                found=", ".join(map(repr, outputs.writers)),
                next_step='Use atomicity="batch", or one Execute that writes into all tables.',
            )
        [self._writer] = outputs.writers.values()
        _check_pickles(self._writer, "a writer that can be pickled, with all that its function uses")
        _check_pickles(claim.formats, "metadata=Metadata(...) of functions that can be pickled")
        self._store = ExecutorStore.of(claim)
        self._claim = claim
        self._outputs = outputs
        self._metadata = metadata
        is_table = type(self._writer) in {Append, Upsert}  # others may rely on one partition a call
        self._whole = Whole(claim, metadata, recovery, at_once=PART if is_table else 0)
        self._recovery = recovery
        self._threshold = threshold if is_table else 0
        self._was_checked = False
        self._has_warned = False
        self._retryable: Exception | None = None

    def write(self, batch: MicroBatch, stored: Stored) -> Written | None:
        """Write one micro-batch; return ``None`` if all of it was in the results already.

        :raises PlanOutdated: some of the stored offsets have changed; nothing was written for the old ones.
        """
        if self._recovery is not None and self._recovery.is_careful(batch.ranges):
            return self._whole.write_carefully(batch, stored)
        if count_offsets(batch.ranges) <= self._threshold:
            # A job that tasks would refuse must not run for weeks, until its first large batch (decision 0030).
            if not self._was_checked:
                self._rows(batch.frame)
                check_once(batch.frame.sparkSession)
                self._was_checked = True
            try:
                return self._whole.write(batch, stored)
            except Exception as error:
                if not is_over_limit(error):
                    raise
                without_frames(error)
            _log.info("the rows of a small batch exceed spark.driver.maxResultSize: tasks write them")
        return self._claim.repeat(
            lambda attempt: self._attempt(batch, stored, attempt),
            retry_if=lambda error: error is self._retryable,  # others were retried where they occurred
        )

    def _attempt(self, batch: MicroBatch, stored: Stored, number: int) -> Written | None:
        """Write what is not stored yet."""
        watch = Stopwatch()
        plan = DeliveryPlan.of(self._claim, batch.ranges)
        if not plan.is_worth_computing(self._claim):
            commit(self._claim, Unit(plan.decisions, None))
            return stored.written(watch.seconds)
        # Where each partition has a row, no task needs a share lock on the group's row.
        create_rows(self._claim, plan)
        watch.lap("plan")
        remaining = plan.remaining()
        texts = self._metadata.texts(batch.number, remaining, None)
        try:
            results = self._run(batch, stored, plan, number, texts)
        except Exception as error:
            if self._recovery is not None and may_be_of_records(batch, error):
                without_frames(error)
                return self._whole.write_carefully(batch, stored)
            if batch.failed(error) is None or not self._recurs(batch):
                raise
            return self._write_in_halves(error, batch, stored, watch)
        watch.lap("tasks")
        done = {result.topic_partition for result in results if result.is_stored}
        try:
            self._retryable = _raise_failed(results)
        except (RowsRefused, HandlerFailed) as error:
            if self._recovery is not None:
                without_frames(error)
                return _with_seconds(self._whole.write_carefully(batch, stored), watch.seconds)
            self._write_refused(error, batch, plan, stored, watch)
            return self._attempt(batch, stored, number)  # all of that is accepted now, but others may be left
        if self._retryable is not None:
            raise self._retryable
        if any(result.ending is TaskEnding.OUTDATED for result in results):
            raise PlanOutdated
        if left := {tp: range_ for tp, range_ in remaining.items() if tp not in done}:  # they had no rows
            commit(self._claim, Unit({tp: plan.decisions[tp] for tp in left}, metadata=texts))
            stored.add(left, {})
        watch.lap("tasks")
        return stored.written(watch.seconds)

    def _recurs(self, batch: MicroBatch) -> bool:
        """Whether the rows can't be computed even without the writer.

        If they can, the writer may have killed its worker, and would kill the driver.
        """
        try:
            batch.rows(DeliveryPlan.of(self._claim, batch.ranges).remaining())
        except Exception as error:
            if refusal_of(error, batch) is None:
                raise
            without_frames(error)
            return True
        return False

    def _write_in_halves(self, error: Exception, batch: MicroBatch, stored: Stored, watch: Stopwatch) -> Written | None:
        """On the driver, write what tasks have not written, up to the record that can't be computed."""
        self._whole.write_in_halves(error, batch, DeliveryPlan.of(self._claim, batch.ranges), stored, watch)
        return stored.written(watch.seconds)

    def _write_refused(
        self,
        refused: RowsRefused | HandlerFailed,
        batch: MicroBatch,
        plan: DeliveryPlan,
        stored: Stored,
        watch: Stopwatch,
    ) -> None:
        """Write what was refused, on the driver, up to the refused record: all of it, or the partition of a task."""
        if isinstance(refused, HandlerFailed):
            self._write_in_halves(refused, batch, stored, watch)
            return
        tp = refused.topic_partition
        if tp is None or tp not in plan.decisions:
            raise refused
        ranges = {tp: plan.decisions[tp].remaining}
        if count_offsets(ranges) > LARGE:  # the rows of a part are collected on the driver
            where = f"first refused at one of the records {describe(ranges)}, too many to look for it"
            raise refused.among(ranges, where, stored={}, next_step=refused.next_step)
        self._whole.write_in_halves(refused, batch, plan.at(ranges), stored, watch)

    def _run(
        self,
        batch: MicroBatch,
        stored: Stored,
        plan: DeliveryPlan,
        attempt: int,
        texts: Mapping[TopicPartition, Text],
    ) -> Sequence[TaskResult]:
        frame = self._rows(batch.part(plan.remaining()))
        keeps_kafka = self._outputs.uses_kafka(UNNAMED)
        if not keeps_kafka:
            frame = with_checked_coordinates(frame, {tp.topic for tp in batch.ranges})
        session = batch.frame.sparkSession
        check_once(session)
        placed = place(frame, batch.ranges, list(plan.remaining()))
        if placed.moved is not None and not self._has_warned:
            self._has_warned = True
            _log.warning("each batch is repartitioned by Kafka's topics and partitions: %s", placed.moved)
        claim = TaskClaim.of(self._claim, plan.decisions)
        # A speculative copy that times out ends the original, which may only be slow: so each attempt waits twice as
        # long as the last (decision 0017).
        lock_timeout = self._claim.timeouts.lock * (2 ** (attempt - 1) if is_speculative(session) else 1)
        tasks = Tasks(
            self._store,
            claim,
            self._writer,
            [plan.decisions[tp] for tp in placed.tasks],
            placed.tasks,
            failpoints.setting(),
            lock_timeout,
            keeps_kafka,
            texts,
        )
        # Tasks write while they read: a topic that is recreated meanwhile shows one batch late (decision 0017).
        check_topics(self._claim, plan.stored, batch.ranges)
        failpoints.reach("before_lock")
        try:
            with sending_password(session, self._claim):
                results = placed.parts.run(tasks)  # one of each task, or it raises
        except Exception as error:
            if self._recovery is not None or batch.failed(error) is not None:
                self._note_stored_before(claim, plan, stored)
            raise
        done = {result.topic_partition: result.rows for result in results if result.is_stored}
        self._note_stored(claim, plan, stored, done)
        return sorted(results, key=lambda result: result.topic_partition)

    def _note_stored(
        self, claim: TaskClaim, plan: DeliveryPlan, stored: Stored, done: Mapping[TopicPartition, int]
    ) -> None:
        """Update the claim as the tasks that stored these partitions updated their copies of it.

        :param done: their rows.
        """
        terms, remaining = self._claim.new_terms(done), plan.remaining()
        ranges = {tp: remaining[tp] for tp in done if tp in remaining}
        for tp in done:
            terms[tp].forget(claim.terms[tp].next)
        for tp, range_ in ranges.items():
            terms[tp].passed(range_)
        stored.add(ranges, {UNNAMED: sum(done.values())})

    def _note_stored_before(self, claim: TaskClaim, plan: DeliveryPlan, stored: Stored) -> None:
        """Record what tasks have stored before the others were ended: the batch goes on. Their rows are not known."""
        rows, remaining = self._claim.offsets(), plan.remaining()
        done = [tp for tp, range_ in remaining.items() if tp in rows and rows[tp].next_offset >= range_.until]
        self._note_stored(claim, plan, stored, dict.fromkeys(done, 0))

    def _rows(self, records: DataFrame) -> DataFrame:
        given = self._outputs.given(records)
        [frame] = self._outputs.transform(given, keep_kafka=True).values()
        check_row_by_row(given, frame)
        return frame


def _with_seconds(later: Written | None, seconds: Mapping[str, float]) -> Written | None:
    """Add the tasks' time to the driver's."""
    if later is None:
        return None
    phases = {**seconds, **later.seconds}
    return Written(later.rows, {phase: seconds.get(phase, 0.0) + later.seconds.get(phase, 0.0) for phase in phases})


def _raise_failed(results: Sequence[TaskResult]) -> Exception | None:
    """Raise the error of a failed task, if there is one; else return an error that a retry may solve.

    All tasks have ended by then, so nothing is still being written.
    """
    errors = [result.why() for result in results if result.ending is TaskEnding.FAILED]
    if errors:
        # If the claim is stale, no other error matters.
        first = next((error for error in errors if isinstance(error, StaleClaim)), errors[0])
        for error in errors:
            if error is not first:
                text = f": {error}" if isinstance(error, OffsetStoreError) else ""  # others may contain values of rows
                _log.error("another partition's task failed too: %s%s", type(error).__name__, text)
        raise first
    return next((result.why() for result in results if result.ending is TaskEnding.AGAIN), None)


def _check_pickles(used: object, expected: str) -> None:
    try:
        pickle.loads(_pickler.dumps(used))  # noqa: S301 - our own; some pickle, but can't be loaded
    except Exception as error:
        raise ConfigurationError(
            f"{used!r} can't be sent to Spark's executors",
            found=f"{type(error).__name__}: {error}",
            expected=f'{expected} (atomicity="partition")',
            next_step="Create connections and clients inside the function.",
        ) from error
