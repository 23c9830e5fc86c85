"""Queries with state, whose checkpoint is kept: windows, deduplication, joins of streams.

A row may come from any earlier batch, so nothing can be cropped, and a batch without data may have rows. The mark
(query id, batch id), written in the transaction of the results, tells which batches are in them; the ranges are checked
against it, see `judge`.

The state is in Spark's checkpoint, and changes when a batch is computed, even if its rows are not written. So each
batch, even one that is already in the results, is computed as a whole before the transform can leave some of it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from offsetstore.errors import FunctionFailed, OffsetGap, RowsRefused, UnsupportedQuery
from offsetstore.offsets import TopicPartition, count_offsets, describe
from offsetstore.processing.blame import raise_own, speaks_for_itself
from offsetstore.processing.plan import BatchMetadata, DeliveryPlan, commit_plan
from offsetstore.processing.policies import naming_record
from offsetstore.processing.unit import BatchMark, PlanOutdated, Rows, Stopwatch, Stored, Unit, Written
from offsetstore.protocol.metadata import Text
from offsetstore.protocol.ports import declares
from offsetstore.protocol.replay import Outcome
from offsetstore.spark.checkpoints import judge
from offsetstore.spark.collecting import OnDriver
from offsetstore.spark.columns import with_coordinates
from offsetstore.spark.function_errors import is_of_function
from offsetstore.spark.micro_batch import MicroBatch
from offsetstore.spark.outputs import SparkOutputs
from offsetstore.spark.plans.admission import admit_stateful
from offsetstore.spark.plans.query import RunningQuery
from offsetstore.spark.settings import MANAGER
from offsetstore.store.claim import Claim
from offsetstore.text import logger

_log = logger(__name__)


class Stateful:
    """Writes the batches of one run of a query with a kept checkpoint, each in one transaction.

    :param columns: the names in the batch's DataFrame.
    :raises UnsupportedQuery: the query has other sources than Kafka, may skip records, or would append its whole
        result with each batch; or its checkpoint's file manager may not replace files.
    """

    def __init__(
        self,
        claim: Claim,
        outputs: SparkOutputs,
        metadata: BatchMetadata,
        *,
        query: RunningQuery,
        columns: list[str],
    ) -> None:
        self._claim = claim
        self._metadata = metadata
        self._has_coordinates = admit_stateful(query.execution, columns)
        _check_output_mode(query.execution, outputs)
        _check_file_manager(query.execution)

    def write(self, batch: MicroBatch, stored: Stored) -> Written | None:  # noqa: ARG002 - the Policy's
        """Write one micro-batch, with or without ranges.

        :raises CheckpointAhead, CheckpointBehind: the checkpoint and the database are from different times.
        """
        with naming_record(batch, lambda failed: among(failed, batch)):
            watch, claim = Stopwatch(), self._claim
            plan, query_id = DeliveryPlan.of(claim, batch.ranges), UUID(batch.query.query_id)
            is_stale = any(row.token != claim.token for row in plan.stored.values())  # the transaction will refuse it
            outcome = None if is_stale else self._judge(batch, query_id, plan)
            watch.lap("plan")
            if outcome is not None and any(decision.outcome is not outcome for decision in plan.decisions.values()):
                raise PlanOutdated  # the offsets are not those that were judged
            computed: Mapping[str, Rows] | None = None
            texts: dict[TopicPartition, Text] = {}
            if outcome is Outcome.APPLY:
                computed = rows = self._compute_whole(batch)
                texts = self._metadata.texts(batch.number, batch.ranges, rows)
            elif outcome is Outcome.SKIP:
                _log.info("batch %d is already in the results: it is computed only for its state", batch.number)
                # State changes where a batch is computed, not where it is written (decision 0016).
                batch.frame.count()
                computed = {}
            is_new = outcome is Outcome.APPLY
            unit = Unit(plan.decisions, computed, [BatchMark(query_id, batch.number, is_new)], metadata=texts)
            try:
                written = commit_plan(claim, plan, unit, watch)
            except OffsetGap as gap:
                # The plan has no gap: the stored offsets have moved since.
                raise PlanOutdated from gap
            return written if is_new else None

    def _judge(self, batch: MicroBatch, query_id: UUID, plan: DeliveryPlan) -> Outcome:
        claim = self._claim
        mark = claim.read(lambda session: session.batch_mark(claim.group, query_id))
        at = batch.query.positions()
        stored = {tp: row.next_offset for tp, row in plan.stored.items()}
        if not at.begin.keys() <= stored.keys():
            # Without a broker, a partition gets its row with its first records; until then, use where it began.
            stored = dict.fromkeys(at.begin, 0) | batch.query.initial() | stored
        outcome = judge(batch.number, mark, begin=at.begin, end=at.end, stored=stored)
        is_first = outcome is Outcome.APPLY and batch.number == 0
        if is_first and any(row.transaction_id for row in plan.stored.values()):
            _log.warning(
                "the kept checkpoint of group %r is new: the query continues at the stored offsets, and the state of "
                "an earlier checkpoint (open windows, seen keys) is lost",
                claim.group,
            )
        return outcome

    def _compute_whole(self, batch: MicroBatch) -> dict[str, OnDriver]:
        frame = batch.frame
        frame.persist()
        try:
            # All rows: a transform that needs only some would leave out the state of the others (decision 0016).
            frame.count()
            records = with_coordinates(frame) if self._has_coordinates else frame
            return batch.rows_of(records, count_offsets(batch.ranges))
        finally:
            frame.unpersist()


def among(failed: FunctionFailed, batch: MicroBatch) -> RowsRefused:
    """Name the batch: its rows may be of any earlier one, and computing a part would change the state.

    So there is no trial: only a function's error counts, or one that shows a bad value by itself.

    :raises Exception: Spark's own, for all else: a lost executor, a state file that can't be read.
    """
    if not (is_of_function(failed) or speaks_for_itself(failed)):
        raise_own(failed)
    place = f"the batch is {describe(batch.ranges)}" if batch.ranges else "the batch has no records"
    return failed.among(batch.ranges, place, stored={}, next_step=failed.next_step)


def _check_output_mode(execution: Any, outputs: SparkOutputs) -> None:
    if execution.outputMode().toString() != "Complete":
        return
    appended = sorted(str(writer) for writer in outputs.writers.values() if declares(writer, "appends"))
    if appended:
        raise UnsupportedQuery(
            "the query's output mode is complete: each batch would append the whole result",
            found=", ".join(appended),
            expected="Upsert, by the grouping columns, or an Execute that replaces",
            next_step='Or use the output mode "append", which emits each window once, when it closes.',
        )


def _check_file_manager(execution: Any) -> None:
    """Refuse a manager that may keep an old state file when a batch runs again: it could differ from the results."""
    root = execution.resolvedCheckpointRoot()
    manager = execution.sparkSession().sessionState().newHadoopConf().get(MANAGER)
    if manager and manager.endswith(".FileSystemBasedCheckpointFileManager") and not root.startswith("file:"):
        raise UnsupportedQuery(
            "the checkpoint's file manager may not replace existing files on this file system",
            found=f"{root}, {MANAGER}={manager}",
            expected="the file manager that Spark chooses by default",
            next_step="Unset it before the query starts, or start the query in a session without it.",
        )
