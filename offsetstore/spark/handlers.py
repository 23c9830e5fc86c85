"""A `Handler` as the transform: Spark's tasks call it, and what has become of each record is kept for the whole batch.

The records get two more columns: the rows that the handler has returned, and why it has failed. A batch is computed
with them once, and kept on the executors' disks until its COMMIT: no handler is called again to crop it, to leave
records out, to plan it again, or to write it in another way. Spark keeps a part only when all of it is computed, so a
task that writes has all its rows before it begins a transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate, chain, repeat
from numbers import Integral
from typing import Any, Final, cast

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import ParseException, PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, StructType

from offsetstore.errors import ConfigurationError
from offsetstore.offsets import TopicPartition
from offsetstore.processing.handling import (
    RESULT,
    Handler,
    HandlerError,
    Handling,
    NoRows,
    Outcome,
    Record,
    Row,
    rows_of,
)
from offsetstore.processing.unit import UNNAMED, Ranges
from offsetstore.protocol.letters import writable
from offsetstore.spark.kafka_columns import KAFKA_COLUMNS, within
from offsetstore.spark.plans.scan import is_in_order
from offsetstore.spark.rejects import COLUMN as REJECT
from offsetstore.writers.arrow.batches import KAFKA

ROWS: Final = "_offsetstore_rows"
FAILED: Final = "_offsetstore_failed"
_ONLY: Final = "rows"
_FAILED: Final = pa.schema(
    [("error_class", pa.string()), ("text", pa.string()), ("traceback", pa.string()), ("attempts", pa.int32())]
)
_ENOUGH: Final = 256
"""Outcomes to wait for at a time."""
_BATCHES: Final = 4
"""Record batches of a task that are being handled at once: the first one may wait for a slow record."""
_arrow: Any = pa  # its stubs know too little of some kinds of arrays
_UNFIT: Final = (pa.ArrowException, NoRows, OverflowError, TypeError, ValueError)
"""What says that a row does not fit the schema."""


@dataclass(frozen=True, slots=True)
class TopicIds:
    """Kafka's ids of the topics, for `Record.id`.

    :param of_records: of single records, by topic, partition and offset, where these are of an earlier topic's log.
    """

    of_topics: Mapping[str, str]
    of_records: Mapping[tuple[str, int, int], str] = field(default_factory=dict[tuple[str, int, int], str])

    def of(self, topic: str, partition: int, offset: int) -> str:
        """The id of the topic that the record is of, ``""`` if it is not known."""
        found = self.of_records.get((topic, partition, offset)) if self.of_records else None
        return self.of_topics.get(topic, "") if found is None else found


class HandlerTransform:
    """The transform that a handler is.

    ``topic_ids`` has Kafka's ids of the topics, for `Record.id`.
    """

    def __init__(self, handler: Handler) -> None:
        self.topic_ids: Mapping[str, str] = {}
        self._handler = handler
        self._parsed: dict[str, pa.Schema] | None = None

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
        schemas = self._schemas()
        rows, failed = StructType(), _spark_type(_FAILED)
        for name, schema in schemas.items():
            rows = rows.add(name or _ONLY, ArrayType(_spark_type(schema)))
        made = StructType([*records.schema.fields]).add(ROWS, rows).add(FAILED, failed)
        return records.mapInArrow(HandlerCalls(self._handler, topic_ids or TopicIds(self.topic_ids), schemas), made)

    def __call__(self, batch: DataFrame) -> DataFrame | dict[str, DataFrame]:
        """The rows of records that have these columns; a record that has failed has one row, with the error."""
        made: dict[str, DataFrame] = {}
        for name in self._schemas():
            rows, failed = F.col(ROWS)[name or _ONLY], F.col(FAILED)
            with_any = batch.where(failed.isNotNull() | (F.size(rows) > 0))
            each = with_any.select(KAFKA, failed.alias(REJECT), F.explode_outer(rows).alias(_ONLY))
            made[name] = each.select(KAFKA, f"{_ONLY}.*", REJECT)
        return made.get(UNNAMED, made)

    def _schemas(self) -> dict[str, pa.Schema]:
        """The schema of each output; only with a session can Spark's DDL be parsed."""
        if self._parsed is None:
            given: object = self._handler.schema
            outputs = cast("Mapping[str, object]", given) if isinstance(given, Mapping) else {UNNAMED: given}
            self._parsed = {name: _parsed(one) for name, one in outputs.items()}
        return self._parsed


def _parsed(schema: object) -> pa.Schema:
    """The schema in Arrow, as Spark has it.

    :raises ConfigurationError: it is none, or has a column with a name of ours.
    """
    if not isinstance(schema, (str, pa.Schema)):
        raise ConfigurationError(
            "a handler's schema is of another kind",
            found=type(schema).__name__,
            expected='a pyarrow schema, a text like "id long, score double", or a mapping of outputs to these',
        )
    try:
        kind = StructType.fromDDL(schema) if isinstance(schema, str) else _spark_type(schema)
        made: pa.Schema = cast("Any", to_arrow_schema)(kind)
    except (ParseException, PySparkTypeError) as error:
        raise ConfigurationError(
            "a handler's schema can't be read",
            found=f"{schema!r}: {str(error).strip().splitlines()[0]}",
            expected='Spark\'s DDL, like "id long, score double"',
        ) from None
    if ours := [name for name in made.names if name == KAFKA or name.startswith("_offsetstore") or name == "_reject"]:
        raise ConfigurationError(
            "a column of a handler's schema has a name that the sink uses itself",
            found=", ".join(ours),
            next_step="Give it another name. To reject a record, raise an error.",
        )
    return made


def _spark_type(schema: pa.Schema) -> StructType:
    return cast("Any", from_arrow_schema)(schema)


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
        """The records of some ranges, except some."""
        if self._kept is None or not _covers(self._kept[0], part):  # a reset has come between
            self.close()
            cropped = self._frame if part == self._ranges else within(self._frame, part)
            handled = self._transform.handled(cropped, self._ranges)
            self._kept = dict(part), handled.persist(StorageLevel.DISK_ONLY)
        ranges, frame = self._kept
        return frame if part == ranges and not without else within(frame, part, without)

    def close(self) -> None:
        """Forget them."""
        if self._kept is not None:
            self._kept[1].unpersist()
            self._kept = None


def _covers(ranges: Ranges, part: Ranges) -> bool:
    return all(
        tp in ranges and ranges[tp].from_ <= range_.from_ and range_.until <= ranges[tp].until
        for tp, range_ in part.items()
    )


@dataclass(frozen=True, slots=True)
class HandlerCalls:
    """What a task does for ``mapInArrow``: calls the handler for each record, and adds the outcomes to the batches."""

    handler: Handler
    topic_ids: TopicIds
    schemas: Mapping[str, pa.Schema]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches in order, each when all its records are finished."""
        ahead = max(_ENOUGH, 2 * self.handler.concurrency)
        with closing(Handling(self.handler, enough=_ENOUGH)) as handling:
            waiting, at = deque[_Batch](), dict[int, tuple[_Batch, int]]()
            for batch in batches:
                begun = _Batch(batch, records_of(batch, self.topic_ids))
                waiting.append(begun)
                at.update((id(record), (begun, number)) for number, record in enumerate(begun.records))
                handling.feed(begun.records)
                while handling.outstanding > ahead or len(waiting) > _BATCHES:
                    yield from self._finished(handling, waiting, at)
            while waiting:
                yield from self._finished(handling, waiting, at)

    def _finished(
        self, handling: Handling, waiting: deque[_Batch], at: dict[int, tuple[_Batch, int]]
    ) -> Iterator[pa.RecordBatch]:
        for outcome in handling.finished():
            batch, number = at.pop(id(outcome.record))
            batch.outcomes[number] = outcome
            batch.missing -= 1
        while waiting and not waiting[0].missing:
            yield waiting.popleft().with_outcomes(self.schemas)


class _Batch:
    """A record batch of which records are being handled."""

    def __init__(self, batch: pa.RecordBatch, records: Sequence[Record]) -> None:
        self._batch = batch
        self.records = records
        self.outcomes: list[Any] = [None] * len(records)
        self.missing = len(records)

    def with_outcomes(self, schemas: Mapping[str, pa.Schema]) -> pa.RecordBatch:
        """The batch with the two columns."""
        rows, outcomes = arrow_rows(self.outcomes, schemas)
        failed = [
            None
            if (error := one.error) is None
            else {
                "error_class": writable(error.error_class),
                "text": writable(error.text),
                "traceback": error.traceback and writable(error.traceback),
                "attempts": one.attempts,
            }
            for one in outcomes
        ]
        batch: Any = self._batch
        columns = [*batch.columns, rows, pa.array(failed, pa.struct([*_FAILED]))]
        return _arrow.RecordBatch.from_arrays(columns, [*self._batch.schema.names, ROWS, FAILED])


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
            tuple((one["key"], one["value"]) for one in found or ()),
            time,
            topic_ids.of(topic, partition, offset),
        )
        for topic, partition, offset, key, value, found, time in zip(
            *(columns[name].to_pylist() for name in names), headers, times.to_pylist(), strict=False
        )
    ]


def arrow_rows(
    outcomes: Sequence[Outcome], schemas: Mapping[str, pa.Schema]
) -> tuple[pa.StructArray, Sequence[Outcome]]:
    """The rows of each outcome, as lists in a column of structs with a field for each output.

    :return: the outcomes too: a record whose rows don't fit the schema has failed.
    """
    try:
        return _as_lists([one.rows for one in outcomes], schemas), outcomes
    except _UNFIT:
        pass
    fitting: list[Outcome] = []
    for one in outcomes:
        try:
            _as_lists([one.rows], schemas)
        except _UNFIT as error:
            fitting.append(replace(one, rows=(), error=HandlerError(RESULT, str(error))))
        else:
            fitting.append(one)
    return _as_lists([one.rows for one in fitting], schemas), fitting


def _as_lists(rows: Sequence[Sequence[Row]], schemas: Mapping[str, pa.Schema]) -> pa.StructArray:
    """:raises Exception: one of `_UNFIT`."""
    columns: list[Any] = []
    for name, schema in schemas.items():
        of_output = rows if name == UNNAMED else [_of_output(one, name, schemas) for one in rows]
        values = [_values(row, schema.names) for one in of_output for row in one]
        ends = accumulate((len(one) for one in of_output), initial=0)
        by_column: Iterable[Sequence[Any]] = zip(*values, strict=True) if values else repeat(())
        arrays = [_as_column(field, column) for field, column in zip(cast("Any", schema), by_column, strict=False)]
        structs = _arrow.StructArray.from_arrays(arrays, fields=[*schema])
        columns.append(_arrow.ListArray.from_arrays(pa.array([*ends], pa.int32()), structs))
    return _arrow.StructArray.from_arrays(columns, [name or _ONLY for name in schemas])


def _as_column(field: Any, values: Sequence[Any]) -> Any:
    _check_exact(values, field.type)
    column = _arrow.array(values, field.type)
    if column.null_count and not field.nullable:
        raise ValueError(f"the column {field.name} is NULL, and its schema does not allow that")
    return column


def _check_exact(values: Iterable[Any], kind: Any) -> None:
    """Refuse what Arrow would cut off without a word: the fraction of a number, the time of a day."""
    types: Any = pa.types
    if types.is_integer(kind):
        wrong = [one for one in values if type(one) is not int and one is not None and not _is_whole(one)]
    elif types.is_date(kind):
        wrong = [one for one in values if isinstance(one, datetime)]
    else:
        wrong = []
        if types.is_list(kind):
            _check_exact(chain.from_iterable(one for one in values if one is not None), kind.value_type)
        elif types.is_map(kind):
            pairs = [pair for one in values for pair in _pairs(one)]
            _check_exact((key for key, _ in pairs), kind.key_type)
            _check_exact((value for _, value in pairs), kind.item_type)
        elif types.is_struct(kind):
            structs: list[Mapping[str, Any]] = [one for one in values if isinstance(one, Mapping)]
            for field in kind:
                _check_exact((one.get(field.name) for one in structs), field.type)
    if wrong:
        raise TypeError(f"a value of type {type(wrong[0]).__name__}; expected {kind}")


def _is_whole(value: object) -> bool:
    """Whether it is an integer of NumPy's, say; a bool is a number to Python alone."""
    return not isinstance(value, bool) and isinstance(value, Integral)


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    if value is None:
        return ()
    return cast("Mapping[Any, Any]", value).items() if isinstance(value, Mapping) else value


def _of_output(rows: Sequence[Row], name: str, schemas: Mapping[str, pa.Schema]) -> Sequence[Row]:
    """The rows of one of several outputs: a handler returns a mapping of their names to rows then."""
    found: list[Row] = []
    for one in rows:
        if not isinstance(one, Mapping):
            raise TypeError(f"the handler returned {type(one).__name__}; expected a mapping of outputs to their rows")
        if unknown := one.keys() - schemas.keys():
            raise ValueError(f"there is no output {', '.join(map(repr, sorted(unknown)))}")
        found += rows_of(one.get(name))
    return found


def _values(row: Row, names: Sequence[str]) -> Sequence[object]:
    if isinstance(row, tuple):
        if len(row) != len(names):
            raise ValueError(f"the row has {len(row)} values; expected {len(names)}: {', '.join(names)}")
        return row
    values = [row.get(name) for name in names]
    if unknown := row.keys() - {*names}:
        raise ValueError(f"the schema has no column {', '.join(map(repr, sorted(unknown)))}")
    return values
