"""``atomicity="batch"``: one transaction for the micro-batch, whatever the transform does with its rows.

In this order: read the stored offsets and plan the crop; compute, with no transaction open; begin, lock, and compare
with the plan (if a stored offset has changed, plan again); write, advance, commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore import failpoints
from offsetstore.replay import Outcome
from offsetstore.spark.cropping import crop, with_coordinates
from offsetstore.spark.micro_batch import MicroBatch, Planned, PlanOutdated, check_topics

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from offsetstore.spark.outputs import Outputs
    from offsetstore.store.claims import Claim
    from offsetstore.store.transaction import Transaction


class BatchAtomicity:
    """Collects the outputs to the driver as Arrow, and copies them in."""

    def __init__(self, claim: Claim, outputs: Outputs) -> None:
        self._claim = claim
        self._outputs = outputs

    def write(self, batch: MicroBatch) -> None:
        """Write one micro-batch.

        :raises PlanOutdated: the stored offsets have changed; nothing was written.
        """
        planned = Planned.of(self._claim, batch.ranges)
        tables: dict[str, pa.Table] | None = None
        if planned.is_to_be_computed(self._claim):
            tables = self._compute(with_coordinates(crop(batch.frame, planned.plan)))
            check_topics(self._claim, planned.rows, batch.ranges)
        failpoints.reach("before_lock")

        def work(tx: Transaction) -> None:
            locked = tx.lock(batch.ranges)
            if locked != planned.plan:
                raise PlanOutdated
            remaining = {tp: d.remaining for tp, d in locked.items() if d.outcome is not Outcome.SKIP}
            if not remaining:
                return
            if tables is None:  # what kept us from computing is gone
                raise PlanOutdated
            for name, table in tables.items():
                self._outputs.writers[name].write(tx.connection, table.to_batches())
            tx.advance(remaining)

        self._claim.store.run(self._claim, work)

    def _compute(self, batch: DataFrame) -> dict[str, pa.Table]:
        several = len(self._outputs.writers) > 1
        if several:
            batch.persist()  # each output is an action of its own, and would read Kafka again
        try:
            return {name: frame.toArrow() for name, frame in self._outputs.of(batch).items()}
        finally:
            if several:
                batch.unpersist()
