"""A `Handler` as the transform: Spark's tasks call it, and its outcomes are kept for the whole batch.

The records get two more columns: the rows that the handler has returned, and why it has failed. A batch is computed
with them once, and kept on the executors' disks until its COMMIT: no handler is called again to crop it, to leave
records out, to plan it again, or to write it in another way. Spark keeps a part only when all of it is computed, so a
task that writes has all its rows before it begins a transaction.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from pickle import PicklingError
from typing import Any, Final, cast

import pyarrow as pa
from pyspark import Accumulator, AccumulatorParam, StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import ArrayType, StructType

from offsetstore.errors import ConfigurationError, UnsupportedQuery
from offsetstore.offsets import TopicPartition
from offsetstore.processing.handled_rows import ONLY, arrow_rows, as_failed, as_lists, columns_of, schemas_of
from offsetstore.processing.handling import (
    CallOutcome,
    Figures,
    Handler,
    HandlerError,
    Handling,
    Record,
    described,
    outage_of_call,
)
from offsetstore.processing.unit import UNNAMED, Ranges
from offsetstore.protocol.starting import spark_boolean
from offsetstore.spark.columns import KAFKA_COLUMNS, headers_of, within
from offsetstore.spark.columns import REJECT_COLUMN as REJECT
from offsetstore.spark.plans.scan import is_in_order
from offsetstore.spark.schemas import spark_columns
from offsetstore.text import documentation
from offsetstore.writers.arrow.batches import KAFKA

ROWS: Final = "_offsetstore_rows"
FAILED: Final = "_offsetstore_failed"
_CASE: Final = "spark.sql.caseSensitive"
_FAILED: Final = pa.schema(
    [
        ("error_class", pa.string()),
        ("text", pa.string()),
        ("traceback", pa.string()),
        ("attempts", pa.int32()),
        ("shown", pa.string()),
        ("is_outage", pa.bool_()),
    ]
)
_ENOUGH: Final = 256
"""Outcomes to wait for at a time."""
_BATCHES: Final = 4
"""Record batches of a task that are being handled at once: the first one may wait for a slow record."""
_log = logging.getLogger(__name__)
_arrow: Any = pa  # its stubs know too little of some kinds of arrays


@dataclass(frozen=True, slots=True)
class TopicIds:
    """Kafka's ids of the topics, for `Record.id`.

    :param of_records: of single records, by topic, partition and offset, where these are of an earlier topic's log.
    """

    of_topics: Mapping[str, str]
    of_records: Mapping[tuple[str, int, int], str] = field(default_factory=dict[tuple[str, int, int], str])

    def of(self, topic: str, partition: int, offset: int) -> str:
        """The id of the record's topic; ``""`` if it is not known."""
        topic_id = self.of_records.get((topic, partition, offset)) if self.of_records else None
        return self.of_topics.get(topic, "") if topic_id is None else topic_id


class _Sum(AccumulatorParam[Figures]):
    """How Spark adds up the figures of tasks."""

    def zero(self, value: Figures) -> Figures:  # noqa: ARG002 - Spark passes it
        return Figures()

    def addInPlace(self, value1: Figures, value2: Figures) -> Figures:  # noqa: N802 - Spark's name
        return value1 + value2


class HandlerTransform:
    """The transform that a handler is.

    ``topic_ids`` has Kafka's ids of the topics, for `Record.id`.

    :param propagate: the names of the headers that follow a record.
    """

    def __init__(self, handler: Handler, propagate: Collection[str] = ()) -> None:
        self.topic_ids: Mapping[str, str] = {}
        self._handler = handler
        self._propagate = propagate
        self._schemas = schemas_of(handler)
        self._columns = {name: spark_columns(columns_of(schema)) for name, schema in self._schemas.items()}
        self._figures: Accumulator[Figures] | None = None

    def figures(self) -> Figures:
        """Take the figures of the tasks that have ended since the last time."""
        if self._figures is None:
            return Figures()
        figures, self._figures.value = self._figures.value, Figures()
        return figures

    def handled(
        self, batch: DataFrame, ranges: Ranges | None = None, *, topic_ids: TopicIds | None = None
    ) -> DataFrame:
        """Add the columns with what the handler makes of the records; nothing is computed yet.

        :param ranges: all that the batch reads, if it is the query's: its tasks may have the records in order.
        :param topic_ids: by default those of the query's topics.
        """
        if ROWS in batch.columns:
            return batch
        records = batch.select(*(name for name in KAFKA_COLUMNS if name in batch.columns))
        if self._handler.ordering != "none" and (ranges is None or not is_in_order(records, ranges)):
            place = ("topic", "partition")
            records = records.repartition(max(1, len(ranges or ())), *place).sortWithinPartitions(*place, "offset")
        rows, failed = StructType(), spark_columns(_FAILED)
        for name, columns in self._columns.items():
            rows = rows.add(name or ONLY, ArrayType(columns))
        made = StructType([*records.schema.fields]).add(ROWS, rows).add(FAILED, failed)
        if self._figures is None:
            check_case(self._schemas, batch.sparkSession)
            self._figures = batch.sparkSession.sparkContext.accumulator(Figures(), _Sum())
        calls = HandlerCalls(
            self._handler, topic_ids or TopicIds(self.topic_ids), self._schemas, self._figures, self._propagate
        )
        try:
            return records.mapInArrow(calls, made)
        except PicklingError as error:
            raise ConfigurationError(
                "a handler's function can't be pickled, to be sent to Spark's executors",
                found=str(error).strip().splitlines()[-1],
                expected="a function that neither holds a client or a lock nor uses one at the top of the job's file",
                next_step="Make it in a module of its own, at the first call: see "
                f"{documentation('handlers-clients')}.",
            ) from None

    def __call__(self, batch: DataFrame) -> DataFrame | dict[str, DataFrame]:
        """Return the handler's rows, and one row with the error for each record that has failed."""
        made: dict[str, DataFrame] = {}
        for name in self._schemas:
            rows, failed = F.col(ROWS)[name or ONLY], F.col(FAILED)
            with_any = batch.where(failed.isNotNull() | (F.size(rows) > 0))
            # Outer, since a record that has failed has no rows.
            exploded = with_any.select(KAFKA, failed.alias(REJECT), F.explode_outer(rows).alias(ONLY))
            made[name] = exploded.select(KAFKA, f"{ONLY}.*", REJECT)
        return made.get(UNNAMED, made)


def check_case(schemas: Mapping[str, pa.Schema], spark: SparkSession) -> None:
    """Refuse columns that Spark takes for one.

    :raises ConfigurationError: their names differ in case alone.
    """
    for schema in schemas.values():
        counts = Counter(name.lower() for name in schema.names)
        same = [name for name in schema.names if counts[name.lower()] > 1]
        if same and not spark_boolean(_CASE, str(spark.conf.get(_CASE, "false"))):
            raise ConfigurationError(
                "columns of a handler's schema have names that differ only in case, which Spark takes for one",
                found=", ".join(same),
                next_step=f"Give them other names, or set {_CASE}=true.",
            )


class Handled:
    """The records of a batch with their outcomes, computed when they are first asked for, and kept until it is closed.

    :param frame: the batch.
    :param ranges: all that it reads.
    """

    def __init__(self, transform: HandlerTransform, frame: DataFrame, ranges: Ranges) -> None:
        self._transform = transform
        self._frame = frame
        self._ranges = ranges
        self._kept: tuple[Ranges, DataFrame] | None = None

    def part(self, part: Ranges, without: Collection[tuple[TopicPartition, int]] = ()) -> DataFrame:
        if self._kept is None or not _covers(self._kept[0], part):  # a reset has come between
            self.close()
            # Cropped first: the handler is not called for records that are in the results.
            cropped = self._frame if part == self._ranges else within(self._frame, part)
            handled = self._transform.handled(cropped, self._ranges)
            self._kept = dict(part), handled.persist(StorageLevel.DISK_ONLY)
        ranges, frame = self._kept
        return frame if part == ranges and not without else within(frame, part, without)

    def close(self) -> None:
        """Remove the records from the executors."""
        if self._kept is None:
            return
        kept, self._kept = self._kept[1], None
        try:
            kept.unpersist()
        except Exception as error:  # noqa: BLE001 - Java is gone, say: the batch's own error tells more
            _log.warning("what a handler has made could not be removed from the executors: %s", type(error).__name__)


def _covers(ranges: Ranges, part: Ranges) -> bool:
    return all(
        tp in ranges and ranges[tp].from_ <= range_.from_ and range_.until <= ranges[tp].until
        for tp, range_ in part.items()
    )


@dataclass(frozen=True, slots=True)
class HandlerCalls:
    """What a task does for ``mapInArrow``: calls the handler for each record, and adds the outcomes to the batches.

    :param figures: gets the task's at its end.
    """

    handler: Handler
    topic_ids: TopicIds
    schemas: Mapping[str, pa.Schema]
    figures: Accumulator[Figures] | None = None
    propagate: Collection[str] = ()

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches in order, each when all its records are finished.

        An outage is handed on as a failure of its own kind, at each record: some of them may be read alone.
        """
        waiting, at, incoming = deque[_Batch](), dict[int, tuple[_Batch, int]](), iter(batches)
        with closing(Handling(self.handler, enough=_ENOUGH, propagate=self.propagate)) as handling:
            try:
                for batch in incoming:
                    begun = _Batch(batch, records_of(batch, self.topic_ids))
                    waiting.append(begun)
                    at.update((id(record), (begun, number)) for number, record in enumerate(begun.records))
                    handling.feed(begun.records)
                    while len(waiting) >= _BATCHES or (handling.outstanding and not handling.has_room):
                        yield from self._finished(handling, waiting, at)
                while waiting:
                    yield from self._finished(handling, waiting, at)
            except _Ended as ended:
                handling.close()  # before anything else is called
                # Not raised: Spark would repeat the task, with all its calls (decision 0086). And all input is read:
                # Spark takes a worker that leaves some for a broken one.
                for batch in chain([unfinished.batch for unfinished in waiting], incoming):
                    yield _with_outage(batch, ended.error, self.schemas)
            finally:
                if self.figures is not None:
                    self.figures.add(handling.figures)

    def _finished(
        self, handling: Handling, waiting: deque[_Batch], at: dict[int, tuple[_Batch, int]]
    ) -> Iterator[pa.RecordBatch]:
        """Yield what is finished.

        :raises _Ended: no more records can be handled.
        """
        try:
            outcomes = handling.finished()
        except Exception as error:
            raise _Ended(replace(described(error), error_class=outage_of_call(error))) from error
        for outcome in outcomes:
            batch, number = at.pop(id(outcome.record))
            batch.outcomes[number] = outcome
            batch.missing -= 1
        while waiting and not waiting[0].missing:
            done = waiting.popleft()
            yield from _with_outcomes(done.batch, done.outcomes, self.schemas)


class _Ended(Exception):
    """A service is down, or calls hang."""

    def __init__(self, error: HandlerError) -> None:
        super().__init__(error.error_class)
        self.error = error


class _Batch:
    """A record batch whose records are being handled."""

    def __init__(self, batch: pa.RecordBatch, records: Sequence[Record]) -> None:
        self.batch = batch
        self.records = records
        self.outcomes: list[Any] = [None] * len(records)
        self.missing = len(records)


def _with_outcomes(
    batch: pa.RecordBatch, outcomes: Sequence[CallOutcome], schemas: Mapping[str, pa.Schema]
) -> Iterator[pa.RecordBatch]:
    """The batch with the two columns; in parts, if Arrow can't hold its rows in one."""
    try:
        rows, checked = arrow_rows(outcomes, schemas)
    except Exception:
        if len(outcomes) <= 1:
            raise
        half = len(outcomes) // 2
        yield from _with_outcomes(batch.slice(0, half), outcomes[:half], schemas)
        yield from _with_outcomes(batch.slice(half), outcomes[half:], schemas)
        return
    failed = [None if outcome.error is None else as_failed(outcome.error, outcome.attempts) for outcome in checked]
    yield _joined(batch, rows, failed)


def _with_outage(batch: pa.RecordBatch, error: HandlerError, schemas: Mapping[str, pa.Schema]) -> pa.RecordBatch:
    """The batch with an outage at each of its records, in full at the first one."""
    first = as_failed(error, is_outage=True)
    others = repeat({**first, "traceback": None}, max(0, batch.num_rows - 1))
    return _joined(batch, as_lists([()] * batch.num_rows, schemas), [first, *others][: batch.num_rows])


def _joined(batch: Any, rows: pa.StructArray, failed: Sequence[Mapping[str, Any] | None]) -> pa.RecordBatch:
    kind: Any = pa.struct([*cast("Any", _FAILED)])
    columns: list[Any] = [*batch.columns, rows, pa.array(failed, kind)]
    return _arrow.RecordBatch.from_arrays(columns, [*batch.schema.names, ROWS, FAILED])


def records_of(batch: pa.RecordBatch, topic_ids: TopicIds) -> list[Record]:
    """The records of a batch with the columns of Kafka's source."""
    columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
    times = columns["timestamp"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    headers: Iterable[Any] = columns["headers"].to_pylist() if "headers" in columns else repeat(None)
    names = ("topic", "partition", "offset", "key", "value")
    return [
        Record(
            topic,
            partition,
            offset,
            key,
            value,
            headers_of(pairs),
            time,
            topic_ids.of(topic, partition, offset),
        )
        # Not strict: without the column, `headers` has no end.
        for topic, partition, offset, key, value, pairs, time in zip(
            *(columns[name].to_pylist() for name in names), headers, times.to_pylist(), strict=False
        )
    ]


def is_speculative(spark: SparkSession) -> bool:
    """Whether Spark runs slow tasks twice. It reads the setting when its context starts, never from a session."""
    return spark_boolean("spark.speculation", spark.sparkContext.getConf().get("spark.speculation", "false"))


def refuse_speculation(spark: SparkSession) -> None:
    """Refuse a session that runs slow tasks twice.

    :raises UnsupportedQuery: it does.
    """
    if is_speculative(spark):
        raise UnsupportedQuery(
            "a task that waits for a service is slow, and Spark would run it twice at once, with all its calls",
            found="spark.speculation=true",
            expected="spark.speculation=false, with a Handler",
        )
