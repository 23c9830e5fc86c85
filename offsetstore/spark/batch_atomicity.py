"""``atomicity="batch"``: one transaction for the micro-batch, whatever the transform does with its rows.

In this order: read the stored offsets and plan the crop; compute, with no transaction open; begin, lock, and compare
with the plan (if a stored offset has changed, plan again); write, advance, commit. What is computed waits as Arrow on
the driver; that of a large batch in staging tables, which executors fill.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyspark import StorageLevel

from offsetstore import failpoints
from offsetstore.errors import RowsRefused
from offsetstore.spark.cropping import crop, with_coordinates, within
from offsetstore.spark.micro_batch import MicroBatch, Planned, PlanOutdated, check_topics
from offsetstore.spark.poison import find_poison, try_out
from offsetstore.spark.staging import StagingArea, StagingPolicy
from offsetstore.writers.refusals import check_deferred
from offsetstore.writers.staging import Staged, StagedRowsLost
from offsetstore.writers.staging_area import can_stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from sqlalchemy import Connection

    from offsetstore.ports import Writer
    from offsetstore.spark.outputs import Outputs
    from offsetstore.spark.poison import Ranges
    from offsetstore.store.claims import Claim
    from offsetstore.store.transaction import Transaction
    from offsetstore.writers.staging_area import StagingWriter


class Computed(Protocol):
    """One output's rows, which can be written again after a rollback."""

    def write(self, connection: Connection) -> int:
        """Write them; return how many."""
        ...


@dataclass(frozen=True, slots=True)
class OnDriver:
    """Rows that were collected."""

    writer: Writer
    table: pa.Table

    def write(self, connection: Connection) -> int:
        """Copy them in."""
        return self.writer.write(connection, self.table.to_batches())


@dataclass(frozen=True, slots=True)
class InStaging:
    """Rows that executors have staged."""

    writer: StagingWriter
    staged: Staged

    def write(self, connection: Connection) -> int:
        """Move them."""
        return self.writer.move(connection, self.staged) if self.staged.rows else 0


class BatchAtomicity:
    """Computes the outputs, and writes them in one transaction."""

    def __init__(self, claim: Claim, outputs: Outputs, staging: StagingPolicy | None = None) -> None:
        self._claim = claim
        self._outputs = outputs
        self._policy = staging or StagingPolicy()
        self._area = StagingArea(claim)
        self._has_begun = False

    def write(self, batch: MicroBatch) -> None:
        """Write one micro-batch.

        :raises PlanOutdated: the stored offsets have changed, or staged rows are lost; nothing was written.
        """
        if not self._has_begun:
            self._has_begun = True
            self._area.drop_abandoned()
        try:
            self._write(batch)
        except StagedRowsLost as lost:
            raise PlanOutdated(str(lost)) from lost
        finally:
            self._area.drop_made()

    def _write(self, batch: MicroBatch) -> None:
        planned = Planned.of(self._claim, batch.ranges)
        try:
            self._write_as(batch, planned)
        except RowsRefused as refused:
            raise find_poison(refused, planned.remaining(), lambda part: self._try(batch, planned, part)) from None

    def _try(self, batch: MicroBatch, planned: Planned, part: Ranges) -> None:
        """Write these records alone, and take it back."""
        computed = self._compute(with_coordinates(within(batch.frame, part)), _offsets(part))
        try_out(self._claim, planned.plan, lambda connection: [output.write(connection) for output in computed])

    def _write_as(self, batch: MicroBatch, planned: Planned) -> None:
        computed: list[Computed] | None = None
        if planned.is_to_be_computed(self._claim):
            computed = self._compute(with_coordinates(crop(batch.frame, planned.plan)), _offsets(planned.remaining()))
            check_topics(self._claim, planned.rows, batch.ranges)
        failpoints.reach("before_lock")

        def work(tx: Transaction) -> None:
            locked = tx.lock(batch.ranges)
            if locked != planned.plan:
                raise PlanOutdated
            remaining = planned.remaining()
            if not remaining:
                return
            if computed is None:  # what kept us from computing is gone
                raise PlanOutdated
            write_and_advance(computed, tx, remaining)

        self._claim.store.run(self._claim, work)

    def _compute(self, batch: DataFrame, offsets: int) -> list[Computed]:
        writers = self._outputs.writers
        staging = {name: w for name, w in writers.items() if self._policy.wants(offsets) and can_stage(w)}
        several = len(writers) > 1
        if several:
            # Each output is an action of its own, and would read Kafka again. A large batch is kept off the heap.
            batch.persist(StorageLevel.DISK_ONLY) if staging else batch.persist()
        try:
            frames = self._outputs.of(batch)
            # What is collected first: it can fail by itself, and costs no table.
            collected = {
                name: OnDriver(writers[name], frames[name].toArrow()) for name in frames if name not in staging
            }
            staged = {
                name: InStaging(writer, self._area.stage(writer, frames[name])) for name, writer in staging.items()
            }
        finally:
            if several:
                batch.unpersist()
        if staged:
            failpoints.reach("staged")
        return [{**collected, **staged}[name] for name in writers]


def write_and_advance(computed: Sequence[Computed], tx: Transaction, remaining: Ranges) -> None:
    """Write all outputs and advance; what a deferred constraint refuses, is refused here, and not by the COMMIT."""
    for output in computed:
        output.write(tx.connection)
    tx.advance(remaining)
    check_deferred(tx.connection)


def _offsets(remaining: Ranges) -> int:
    """How many offsets are still to be written: at least as many as records."""
    return sum(range_.until - range_.from_ for range_ in remaining.values())
