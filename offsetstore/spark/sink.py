"""The foreachBatch sink: a micro-batch's results and its offsets, in one database transaction.

Per batch, in this order: read the stored offsets and plan the crop; compute, with no transaction open; begin, lock,
and compare with the plan (if a stored offset has changed, plan again); write, advance, commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.utils import is_remote

from offsetstore import failpoints
from offsetstore.errors import ConfigurationError, SinkError, TopicRecreated, UnsupportedQuery
from offsetstore.replay import Decision, Outcome, decide
from offsetstore.spark.checkpoints import prune
from offsetstore.spark.cropping import KAFKA, crop, with_coordinates
from offsetstore.spark.query import micro_batch

if TYPE_CHECKING:
    from offsetstore.ports import Writer
    import pyarrow as pa

    from offsetstore.offsets import OffsetRange, StoredOffset, TopicPartition
    from offsetstore.spark.query import MicroBatch
    from offsetstore.store.claims import Claim
    from offsetstore.store.transaction import Transaction

Transform: TypeAlias = Callable[[DataFrame], "DataFrame | Mapping[str, DataFrame]"]
Plan: TypeAlias = "dict[TopicPartition, Decision]"

_PLANS: Final = 5
_ONLY: Final = ""
_RETAIN: Final = 3


class _PlanOutdated(Exception):
    """Rolls the transaction back, so that the batch is planned again."""


class TransactionalSink:
    """The callable for ``writeStream.foreachBatch``.

    :param claim: the group's claim; one sink, one query.
    :param transform: gets the Kafka source's DataFrame with the struct column ``_kafka`` (topic, partition, offset,
        timestamp), cropped to the records that are still to be written, and returns what is to be written: one DataFrame,
        or a mapping of names to DataFrames. It may run more than once for a batch, and must not write anything itself.
    :param into: the writer, or a mapping of the same names to writers.
    :raises ConfigurationError: no writer.
    :raises UnsupportedQuery: under Spark Connect, where the function would run in another process than the claim.

    ``error`` holds the typed error that ended the query; Spark's ``StreamingQueryException`` only has its text.
    """

    def __init__(self, claim: Claim, transform: Transform, *, into: Writer | Mapping[str, Writer]) -> None:
        if is_remote():
            raise _connect_refused()
        if isinstance(into, Mapping) and not into:
            what = "the sink has no writer"
            raise ConfigurationError(what, expected='into=Append("table"), or a mapping of names to writers')
        self.error: BaseException | None = None
        self._claim = claim
        self._transform = transform
        self._writers: Mapping[str, Writer] = into if isinstance(into, Mapping) else {_ONLY: into}
        self._has_written = False

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; Spark calls it.

        :raises OffsetStoreError: nothing of the batch was written; but for `CommitUnknown`, where that is the question.
        """
        try:
            self._process(batch, batch_id)
        except BaseException as error:
            self.error = error
            raise
        failpoints.reach("after_sink")

    def __reduce__(self) -> NoReturn:
        """Only Spark Connect would pickle the sink, to run it elsewhere.

        :raises UnsupportedQuery: always.
        """
        raise _connect_refused()

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        if not isinstance(batch, DataFrame) or is_remote():
            raise _connect_refused()
        found = micro_batch(batch, batch_id)
        self._claim.bind(found.query_id)
        if not found.ranges:
            return
        for _ in range(_PLANS):
            try:
                self._write(batch, found)
            except _PlanOutdated:
                continue
            break
        else:
            what = f"the stored offsets changed under {_PLANS} plans of batch {batch_id}"
            raise SinkError(what, next_step="See who else writes for this group (the history tells).")
        if not self._has_written:
            self._has_written = True
            self._prune(batch)

    def _write(self, batch: DataFrame, found: MicroBatch) -> None:
        store = self._claim.store
        rows = store.offsets(self._claim.group)
        plan = _plan(rows, found.ranges)
        # A stale claim, a gap, or nothing left: no need to compute. The transaction has the last word on each.
        to_write = all(tp not in rows or rows[tp].token == self._claim.token for tp in plan) and not any(
            d.outcome is Outcome.GAP for d in plan.values()
        )
        outputs: dict[str, pa.Table] = {}
        if to_write and any(d.outcome is not Outcome.SKIP for d in plan.values()):
            outputs = self._compute(with_coordinates(crop(batch, plan)))
            self._check_topics(rows, found.ranges)
        failpoints.reach("before_lock")

        def work(tx: Transaction) -> None:
            locked = tx.lock(found.ranges)
            if locked != plan:
                raise _PlanOutdated
            remaining = {tp: d.remaining for tp, d in locked.items() if d.outcome is not Outcome.SKIP}
            if not remaining:
                return
            for name, table in outputs.items():
                self._writers[name].write(tx.connection, table.to_batches())
            tx.advance(remaining)

        store.run(self._claim, work)

    def _compute(self, batch: DataFrame) -> dict[str, pa.Table]:
        several = len(self._writers) > 1
        if several:
            batch.persist()  # each output is an action of its own, and would read Kafka again
        try:
            frames = self._checked(self._transform(batch))
            return {name: frame.toArrow() for name, frame in frames.items()}
        finally:
            if several:
                batch.unpersist()

    def _checked(self, result: DataFrame | Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        frames: Mapping[Any, Any] = result if isinstance(result, Mapping) else {_ONLY: result}
        if frames.keys() != self._writers.keys() or not all(isinstance(f, DataFrame) for f in frames.values()):
            what = "transform returned something else than the writers expect"
            raise SinkError(
                what,
                found=_described(frames),
                expected=_described(self._writers) if _ONLY not in self._writers else "one DataFrame",
                next_step="Return a DataFrame, or a mapping with the names that into= has.",
            )
        session = self._claim.store.database.begin(name=self._claim.name)
        try:
            return {name: self._fitted(name, frame, session.connection) for name, frame in frames.items()}
        finally:
            session.rollback()

    def _fitted(self, name: str, frame: DataFrame, connection: Any) -> DataFrame:
        """Check the frame against the table before anything is computed, and drop what the writer does not need."""
        writer = self._writers[name]
        schema = to_arrow_schema(frame.schema)
        writer.check(connection, schema)
        return frame if writer.needs_offset(schema) else frame.drop(KAFKA)

    def _check_topics(self, rows: Mapping[TopicPartition, StoredOffset], ranges: Mapping[TopicPartition, Any]) -> None:
        """A topic that was recreated in mid run has other records under the same offsets.

        Asked after computing, when everything was read, and before BEGIN, so that no lock waits for Kafka.
        """
        if self._claim.broker is None:
            return
        known = {tp.topic: rows[tp].topic_id for tp in ranges if tp in rows}
        for topic, found in self._claim.broker.topic_ids(sorted(known)).items():
            if known[topic] and found and known[topic] != found:
                what = f"topic {topic!r} was deleted and created again while the query ran; nothing was written"
                raise TopicRecreated(what, found=f"topic id {found}", expected=f"topic id {known[topic]}")

    def _prune(self, batch: DataFrame) -> None:
        if self._claim.checkpoint_base is not None:
            prune(batch.sparkSession, self._claim.checkpoint_base, epoch=self._claim.token.epoch, retain=_RETAIN)


def _plan(rows: Mapping[TopicPartition, StoredOffset], ranges: Mapping[TopicPartition, OffsetRange]) -> Plan:
    # A partition without a row gets one that starts at its range.
    return {tp: decide(rows[tp].next_offset if tp in rows else range_.from_, range_) for tp, range_ in ranges.items()}


def _described(values: Mapping[Any, Any]) -> str:
    return ", ".join(
        f"{name!r}: {type(value).__name__}" if name != _ONLY else type(value).__name__ for name, value in values.items()
    )


def _connect_refused() -> UnsupportedQuery:
    what = "the sink was used under Spark Connect"
    return UnsupportedQuery(
        what,
        expected="a classic session: the sink holds a claim, which belongs to the driver's own process",
        next_step="Run the job with spark-submit, or with SparkSession.builder.master(...).",
    )
