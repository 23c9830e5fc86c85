"""The foreachBatch sink: a micro-batch's results and its offsets, in one database transaction.

Per batch, in this order: read the stored offsets and plan the crop; compute, with no transaction open; begin, lock,
and compare with the plan (if a stored offset has changed, plan again); write, advance, commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.utils import is_remote

from offsetstore import failpoints
from offsetstore.errors import ConfigurationError, SinkError, StoreUnavailable, TopicRecreated, UnsupportedQuery
from offsetstore.replay import Decision, Outcome, decide
from offsetstore.spark.admission import admit
from offsetstore.spark.checkpoints import prune
from offsetstore.spark.cropping import KAFKA, crop, with_coordinates
from offsetstore.spark.query import RunningQuery
from offsetstore.store.failures import is_connection_lost

if TYPE_CHECKING:
    import pyarrow as pa

    from offsetstore.offsets import OffsetRange, StoredOffset, TopicPartition
    from offsetstore.ports import Writer
    from offsetstore.store.claims import Claim
    from offsetstore.store.transaction import Transaction

Transform: TypeAlias = Callable[[DataFrame], "DataFrame | Mapping[str, DataFrame]"]
Plan: TypeAlias = "dict[TopicPartition, Decision]"

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_MAX_PLANS: Final = 5
_UNNAMED: Final = ""
_KEPT_CHECKPOINTS: Final = 3


class _PlanOutdated(Exception):
    """Rolls the transaction back, so that the batch is planned again."""


class TransactionalSink:
    """The callable for ``writeStream.foreachBatch``, on what ``load()`` returned; everything else is for ``transform``.

    :param claim: the group's claim; one sink, one query.
    :param transform: gets the Kafka source's DataFrame with the struct column ``_kafka`` (topic, partition, offset,
        timestamp), cropped to the records that are still to be written, and returns what is to be written: one
        DataFrame, or a mapping of names to DataFrames. It may run more than once for a batch, and must not write
        anything itself.
    :param into: the writer, or a mapping of the same names to writers.
    :raises ConfigurationError: no writer, or no function.
    :raises UnsupportedQuery: under Spark Connect, where the function would run in another process than the claim.

    ``error`` holds the typed error that ended the query; Spark's ``StreamingQueryException`` only has its text.
    """

    def __init__(self, claim: Claim, transform: Transform, *, into: Writer | Mapping[str, Writer]) -> None:
        if is_remote():
            raise _connect_refused()
        if isinstance(into, Mapping) and not into:
            what = "the sink has no writer"
            raise ConfigurationError(what, expected='into=Append("table"), or a mapping of names to writers')
        for writer in into.values() if isinstance(into, Mapping) else [into]:
            if not callable(getattr(writer, "write", None)):
                what = "into= is no writer"
                raise ConfigurationError(
                    what, found=repr(writer), expected='Append("table"), Upsert(...) or Execute(...)'
                )
        if not callable(transform):
            what = "transform is no function"
            raise ConfigurationError(what, found=repr(transform), expected="a function of a DataFrame")
        self.error: BaseException | None = None
        self._claim = claim
        self._transform = transform
        self._writers: Mapping[str, Writer] = into if isinstance(into, Mapping) else {_UNNAMED: into}
        self._has_written = False
        self._admitted: str | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; Spark calls it.

        :raises OffsetStoreError: nothing of the batch was written; but for `CommitUnknown`, where that is the question,
            and `CommittedBehindOurBack`, where an `Execute` did it.
        """
        self.error = None
        try:
            self._process(batch, batch_id)
        except BaseException as error:
            self.error = error
            # Spark's own account of it is a hundred lines long.
            _log.error("batch %d failed: %s: %s", batch_id, type(error).__name__, error)
            raise
        failpoints.reach("after_sink")

    def __reduce__(self) -> NoReturn:
        """Only Spark Connect would pickle the sink, to run it elsewhere.

        :raises UnsupportedQuery: always.
        """
        raise _connect_refused()

    def _process(self, batch: DataFrame, batch_id: int) -> None:
        if is_remote():
            raise _connect_refused()
        query = RunningQuery.of(batch)
        if query.run_id != self._admitted:
            admit(query.execution, batch.columns)
            self._admitted = query.run_id
        ranges = query.ranges()
        self._check_claimed(ranges)
        self._claim.bind(query.query_id)
        if not ranges:
            return
        for _ in range(_MAX_PLANS):
            try:
                self._write(batch, ranges)
            except _PlanOutdated:
                continue
            break
        else:
            what = f"the stored offsets changed under {_MAX_PLANS} plans of batch {batch_id}"
            raise SinkError(what, next_step="See who else writes for this group (the history tells).")
        if not self._has_written:
            self._has_written = True
            self._prune(batch)

    def _write(self, batch: DataFrame, ranges: dict[TopicPartition, OffsetRange]) -> None:
        store = self._claim.store
        rows = self._patiently(lambda: store.offsets(self._claim.group))
        plan = _plan(rows, ranges)
        # A stale claim, a gap, or nothing left: no need to compute. The transaction has the last word on each.
        to_write = all(tp not in rows or rows[tp].token == self._claim.token for tp in plan) and not any(
            d.outcome is Outcome.GAP for d in plan.values()
        )
        outputs: dict[str, pa.Table] | None = None
        if to_write and any(d.outcome is not Outcome.SKIP for d in plan.values()):
            outputs = self._compute(with_coordinates(crop(batch, plan)))
            self._check_topics(rows, ranges)
        failpoints.reach("before_lock")

        def work(tx: Transaction) -> None:
            locked = tx.lock(ranges)
            if locked != plan:
                raise _PlanOutdated
            remaining = {tp: d.remaining for tp, d in locked.items() if d.outcome is not Outcome.SKIP}
            if not remaining:
                return
            if outputs is None:  # what kept us from computing is gone
                raise _PlanOutdated
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
        frames: Mapping[Any, Any] = result if isinstance(result, Mapping) else {_UNNAMED: result}
        if frames.keys() != self._writers.keys() or not all(isinstance(f, DataFrame) for f in frames.values()):
            what = "transform returned something else than the writers expect"
            raise SinkError(
                what,
                found=_described(frames),
                expected=_described(self._writers) if _UNNAMED not in self._writers else "one DataFrame",
                next_step="Return a DataFrame, or a mapping with the names that into= has.",
            )
        return self._patiently(lambda: self._check_tables(frames))

    def _check_tables(self, frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
        session = self._claim.store.database.begin(name=self._claim.name)
        try:
            return {name: self._fitted(name, frame, session.connection) for name, frame in frames.items()}
        finally:
            session.rollback()

    def _fitted(self, name: str, frame: DataFrame, connection: Any) -> DataFrame:
        """Check the frame against the table before anything is computed, and drop what the writer does not need."""
        writer = self._writers[name]
        schema = _arrow_schema(frame)
        writer.check(connection, schema)
        return frame if writer.uses_offset(schema) else frame.drop(KAFKA)

    def _patiently(self, ask: Callable[[], _T]) -> _T:
        """Ask the database again where it is away for a moment, as `OffsetStore.run` does for the transaction."""
        retries = self._claim.store.retries
        attempt = 1
        while True:
            try:
                return ask()
            except Exception as error:
                lost = isinstance(error, StoreUnavailable) or is_connection_lost(error)
                if attempt >= retries.attempts or not lost:
                    raise
            time.sleep(retries.wait(attempt))
            attempt += 1

    def _check_claimed(self, ranges: Collection[TopicPartition]) -> None:
        unclaimed = sorted({tp.topic for tp in ranges} - set(self._claim.topics))
        if unclaimed:
            what = "the query reads topics that its claim does not have"
            raise UnsupportedQuery(
                what,
                found=", ".join(unclaimed),
                expected=", ".join(self._claim.topics),
                next_step="Claim with the options that the reader gets: Broker.from_spark(options), or topics=[...].",
            )

    def _check_topics(self, rows: Mapping[TopicPartition, StoredOffset], ranges: Mapping[TopicPartition, Any]) -> None:
        """A topic that was recreated in mid run has other records under the same offsets.

        Asked after computing, when everything was read, and before BEGIN, so that no lock waits for Kafka.
        """
        if self._claim.broker is None:
            return
        # A partition that was created in mid run has no id in its row; the others of its topic have.
        topics = {tp.topic for tp in ranges}
        known = {tp.topic: row.topic_id for tp, row in rows.items() if tp.topic in topics and row.topic_id}
        for topic, found in self._claim.broker.topic_ids(sorted(known)).items():
            if found and known[topic] != found:
                what = f"topic {topic!r} was deleted and created again while the query ran; nothing was written"
                raise TopicRecreated(what, found=f"topic id {found}", expected=f"topic id {known[topic]}")

    def _prune(self, batch: DataFrame) -> None:
        if self._claim.checkpoint_base is not None:
            prune(
                batch.sparkSession, self._claim.checkpoint_base, epoch=self._claim.token.epoch, retain=_KEPT_CHECKPOINTS
            )


def _plan(rows: Mapping[TopicPartition, StoredOffset], ranges: Mapping[TopicPartition, OffsetRange]) -> Plan:
    # A partition without a row gets one that starts at its range.
    return {tp: decide(rows[tp].next_offset if tp in rows else range_.from_, range_) for tp, range_ in ranges.items()}


def _arrow_schema(frame: DataFrame) -> pa.Schema:
    convert: Any = to_arrow_schema
    try:
        return convert(frame.schema, timezone="UTC")
    except TypeError:  # Spark 4.0 and 4.1 mean UTC without being told
        return convert(frame.schema)


def _described(values: Mapping[Any, Any]) -> str:
    return ", ".join(
        f"{name!r}: {type(value).__name__}" if name != _UNNAMED else type(value).__name__
        for name, value in values.items()
    )


def _connect_refused() -> UnsupportedQuery:
    what = "the sink was used under Spark Connect"
    return UnsupportedQuery(
        what,
        expected="a classic session: the sink holds a claim, which belongs to the driver's own process",
        next_step="Run the job with spark-submit, or with SparkSession.builder.master(...).",
    )
