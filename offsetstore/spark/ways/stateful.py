"""The way of a query whose checkpoint is kept, so that its state is: windows, deduplication, joins of streams.

A row may come of any earlier batch, so nothing can be cropped, and a batch without data may have rows. What counts is
the mark, (query id, batch id), written in the transaction of the results; the ranges are held against it, see
`continuity`.

The state lives in Spark's checkpoint and moves where the batch is computed, whatever becomes of the rows. So each batch
is computed as a whole, also one that is in the results already, before the transform may leave some of it out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from offsetstore.errors import OffsetGap, UnsupportedQuery
from offsetstore.processing.cycle import write_and_advance
from offsetstore.processing.plan import PlanOutdated, check_topics
from offsetstore.protocol import failpoints
from offsetstore.protocol.replay import Outcome
from offsetstore.spark.cropping import with_coordinates
from offsetstore.spark.plans.admission import admit_stateful
from offsetstore.spark.ways.batch import BatchWay
from offsetstore.spark.ways.continuity import judge
from offsetstore.writers.append import Append

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetstore.offsets import StoredOffset, TopicPartition
    from offsetstore.processing.cycle import Computed
    from offsetstore.spark.large_batches import StagingPolicy
    from offsetstore.spark.micro_batch import MicroBatch
    from offsetstore.spark.outputs import Outputs
    from offsetstore.spark.plans.query import RunningQuery
    from offsetstore.store.claim import Claim
    from offsetstore.store.transaction import Transaction

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Planned:
    """What was read without a lock, and what follows; ``None`` for a stale claim, which the transaction will refuse."""

    rows: dict[TopicPartition, StoredOffset]
    outcome: Outcome | None


class StatefulWay(BatchWay):
    """Writes the batches of one run of a query with a kept checkpoint, each in one transaction.

    :param columns: the names in the batch's DataFrame.
    :raises UnsupportedQuery: not of Kafka sources alone, one that may skip records, or one that would append its whole
        result with each batch.
    """

    def __init__(
        self, claim: Claim, outputs: Outputs, staging: StagingPolicy, query: RunningQuery, columns: list[str]
    ) -> None:
        super().__init__(claim, outputs, staging)
        self._has_coordinates = admit_stateful(query.execution, columns)
        _check_output_mode(query.execution, outputs)

    def _write(self, batch: MicroBatch) -> None:
        """Write one micro-batch, with ranges or without.

        :raises CheckpointAhead, CheckpointBehind: the checkpoint and the database are of different times.
        """
        query_id = UUID(batch.query.query_id)
        planned = self._plan(batch, query_id)
        computed: Mapping[str, Computed] = {}
        if planned.outcome is Outcome.APPLY:
            computed = self._compute_whole(batch)
        elif planned.outcome is Outcome.SKIP:
            _log.info("batch %d is in the results: it is computed for its state alone", batch.number)
            batch.frame.count()
        if planned.outcome is not None and batch.ranges:
            check_topics(self._claim, planned.rows, batch.ranges)
        failpoints.reach("before_lock")

        def work(tx: Transaction) -> None:
            try:
                locked = tx.lock(batch.ranges)
            except OffsetGap as gap:
                raise PlanOutdated from gap
            if any(decision.outcome is not planned.outcome for decision in locked.values()):
                raise PlanOutdated
            is_new = tx.mark_batch(query_id, batch.number)
            if is_new is not (planned.outcome is Outcome.APPLY):
                raise PlanOutdated
            if not is_new:
                return
            write_and_advance(computed, tx, {tp: decision.remaining for tp, decision in locked.items()})

        self._claim.run(work)

    def _plan(self, batch: MicroBatch, query_id: UUID) -> _Planned:
        claim = self._claim
        rows = claim.offsets()
        if any(row.token != claim.token for row in rows.values()):
            return _Planned(rows, None)
        mark = claim.read(lambda session: session.batch_mark(claim.group, query_id))
        at = batch.query.positions()
        stored = {tp: row.next_offset for tp, row in rows.items()}
        if not at.begin.keys() <= stored.keys():
            # Without a broker a partition gets its row with its first records: until then it stands where it began.
            stored = dict.fromkeys(at.begin, 0) | batch.query.initial() | stored
        outcome = judge(batch.number, mark, begin=at.begin, end=at.end, stored=stored)
        if outcome is Outcome.APPLY and batch.number == 0 and any(row.transaction_id for row in rows.values()):
            _log.warning(
                "the kept checkpoint of group %r is a new one: the query goes on at the stored offsets, and what an "
                "earlier one had in its state (open windows, seen keys) is lost",
                claim.group,
            )
        return _Planned(rows, outcome)

    def _compute_whole(self, batch: MicroBatch) -> dict[str, Computed]:
        frame = batch.frame
        frame.persist()
        try:
            frame.count()  # all of it: a transform that needs less would leave the rest of the state behind
            with_kafka = with_coordinates(frame) if self._has_coordinates else frame
            return self._compute(with_kafka, sum(range_.until - range_.from_ for range_ in batch.ranges.values()))
        finally:
            frame.unpersist()


def _check_output_mode(execution: Any, outputs: Outputs) -> None:
    if execution.outputMode().toString() != "Complete":
        return
    appended = sorted(str(writer) for writer in outputs.writers.values() if isinstance(writer, Append))
    if appended:
        raise UnsupportedQuery(
            "the query's output mode is complete: each batch holds the whole result, and would be appended",
            found=", ".join(appended),
            expected="Upsert, by the grouping columns, or an Execute that replaces",
            next_step='Or take the output mode "append", which gives each window once, when it is over.',
        )
