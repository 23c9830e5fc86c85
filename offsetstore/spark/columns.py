"""The columns beside a transform's own: those of Kafka's source, the coordinates ``_kafka``, and ``_reject``.

By ``_reject`` a transform rejects a record: its text is the reason, NULL for a good row. Or it is a struct of a
``code``, which lists show, and a ``reason``; a good row has NULL, or NULL in both. A handler's failure is a struct of
another kind in the same column: a `Handler` is a transform that rejects, too.

While a batch is computed ``_reject`` has a name of its own, which no table has. The ordinary ways to write only look
whether any row is rejected; if so, nothing is written, and the batch is computed again carefully.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import StringType, StructType

from offsetstore.errors import HandlerStuck, Outage, RowsRefused
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.processing.handling import HandlerFailed, service_unavailable
from offsetstore.processing.outputs import REJECT_FIELDS, check_reject_column
from offsetstore.protocol.letters import REJECT, Headers, Letter
from offsetstore.spark.plans import execution
from offsetstore.writers.arrow.batches import KAFKA

KAFKA_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The Kafka source's own; ``headers`` only with ``includeHeaders``."""

_SCHEMA: Final = (  # quoted: a session may reserve some of the words
    "`key` binary, `value` binary, `topic` string, `partition` int, `offset` bigint, `timestamp` bigint, "
    "`timestampType` int, `headers` array<struct<`key`: string, `value`: binary>>"
)

REJECT_COLUMN: Final = "_offsetstore_reject"
_compute: Any = pc


def within(
    batch: DataFrame,
    ranges: Mapping[TopicPartition, OffsetRange],
    without: Iterable[tuple[TopicPartition, int]] = (),
) -> DataFrame:
    """Keep only the records of the ranges, except those at the offsets in ``without``."""
    topic, partition, offset = F.col("topic"), F.col("partition"), F.col("offset")
    begin = by_partition({tp: range_.from_ for tp, range_ in ranges.items()}, topic, partition)
    end = by_partition({tp: range_.until for tp, range_ in ranges.items()}, topic, partition)
    # A record of another partition is left out: its bounds are NULL, and so is a comparison with them.
    kept = batch.where((offset >= begin) & (offset < end))
    for tp, at in without:
        kept = kept.where(~((topic == tp.topic) & (partition == tp.partition) & (offset == at)))
    return kept


def by_partition(numbers: Mapping[TopicPartition, int], topic: Column, partition: Column) -> Column:
    """The number of a row's partition; NULL if it has none."""
    return looked_up(
        {f"{tp.partition}-{tp.topic}": number for tp, number in numbers.items()}, F.concat_ws("-", partition, topic)
    )


def looked_up(numbers: Mapping[str, int], key: Column) -> Column:
    """The number of a key; NULL if it has none."""
    return F.create_map(*(F.lit(part) for pair in numbers.items() for part in pair))[key].cast("long")


def with_coordinates(batch: DataFrame, names: Collection[str] = ()) -> DataFrame:
    """Add `KAFKA`, which a transform may keep for writers that order by offset.

    :param names: of the headers to add to `KAFKA`, if the batch has headers.
    """
    fields = [F.col(name) for name in ("topic", "partition", "offset", "timestamp")]
    if names and "headers" in batch.columns:
        fields.append(F.filter("headers", lambda header: header["key"].isin(*names)).alias("headers"))
    return batch.withColumn(KAFKA, F.struct(*fields))


def with_checked_coordinates(frame: DataFrame, topics: Collection[str]) -> DataFrame:
    """Keep only the fields of `KAFKA` that a task checks: sending each to the Python worker takes time.

    :param topics: the batch's; with only one, the topic is left out.
    """
    names = ("topic", "partition", "offset") if len(topics) > 1 else ("partition", "offset")
    return frame.withColumn(KAFKA, F.struct(*(F.col(KAFKA)[name].alias(name) for name in names)))


def letters_frame(spark: SparkSession, letters: Sequence[Letter], columns: Collection[str] | None) -> DataFrame:
    """Make a DataFrame of the letters' records, so that they go through the same transform.

    :param columns: of the query's source; ``None`` without a query: then the letters show whether headers were read.
    """
    if columns is None:
        has_headers = any(letter.payload is not None and letter.payload.headers is not None for letter in letters)
        columns = KAFKA_COLUMNS if has_headers else KAFKA_COLUMNS[:-1]
    rows = [
        (
            payload.key,
            payload.value,
            letter.topic_partition.topic,
            letter.topic_partition.partition,
            letter.offset,
            payload.timestamp_ms,
            payload.timestamp_type,
            list(payload.headers or ()) or None,  # Spark's source has NULL for a record without headers
        )
        for letter in letters
        if (payload := letter.payload) is not None
    ]
    return kafka_frame(spark, rows, columns)


def headers_of(found: Sequence[Any] | None) -> Headers:
    """A record's headers, from the source's column, which is NULL for a record without any."""
    return tuple((header["key"], None if header["value"] is None else bytes(header["value"])) for header in found or ())


def kafka_frame(spark: SparkSession, rows: Sequence[tuple[object, ...]], columns: Collection[str]) -> DataFrame:
    """Make a DataFrame of records, with some of the source's columns."""
    # From an RDD, whose id tells the rows of these records from other data.
    made = spark.createDataFrame(spark.sparkContext.parallelize(rows, 1), _SCHEMA)
    made = made.withColumn("timestamp", F.timestamp_millis("timestamp"))
    return made.select(*(name for name in KAFKA_COLUMNS if name in columns))


def rename_reject(frame: DataFrame) -> DataFrame:
    """Give the column the name that it has while the batch is computed.

    :raises ColumnMismatch: it is neither of strings nor of structs of a code and a reason.
    """
    if REJECT not in frame.columns:
        return frame
    kind = frame.schema[REJECT].dataType
    fields = {field.name: field.dataType for field in kind.fields} if isinstance(kind, StructType) else {}
    check_reject_column(kind, fields, lambda field_type: isinstance(field_type, StringType), kind.simpleString())
    return frame.withColumnRenamed(REJECT, REJECT_COLUMN)


def count_accepted(frame: DataFrame) -> int:
    """Compute all columns of a frame, and count the rows that are not rejected."""
    if REJECT_COLUMN not in frame.columns:
        # The frame's own count() would leave out columns.
        return execution(frame).toRdd().count()
    reject = F.col(REJECT_COLUMN)
    kind = frame.schema[REJECT_COLUMN].dataType
    has_code = isinstance(kind, StructType) and sorted(kind.names) == [*REJECT_FIELDS]
    reasons = [reject[name] for name in REJECT_FIELDS] if has_code else [reject]
    # Observed, and not filtered: a filter would leave out what fails for rejected rows.
    observed = execution(frame.observe(REJECT_COLUMN, F.count_if(F.coalesce(*reasons).isNull())))
    observed.toRdd().count()
    return observed.observedMetrics().apply(REJECT_COLUMN).getLong(0)


def without_reject(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.names.index(REJECT_COLUMN)) if REJECT_COLUMN in schema.names else schema


def none_rejected(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without the column.

    :raises RowsRefused: a row is rejected.
    :raises HandlerFailed: a handler has failed.
    """
    if REJECT_COLUMN not in batch.schema.names:
        return batch
    untyped: Any = batch
    column = untyped.column(REJECT_COLUMN)
    rejected = are_rejected(column)
    if _compute.any(rejected).as_py():
        if not _is_failure(column.type):
            raise RowsRefused("transform has rejected a record", column=REJECT)
        raise_outage(column.filter(rejected))
        first = _compute.filter(column, rejected)[0].as_py()
        del first["is_outage"]
        raise HandlerFailed.of(**first)
    return batch.drop_columns([REJECT_COLUMN])


def are_rejected(column: Any) -> Any:
    """A mask of the rejected rows."""
    if not pa.types.is_struct(column.type) or _is_failure(column.type):
        return _compute.is_valid(column)
    code, reason = (_compute.is_valid(_compute.struct_field(column, name)) for name in REJECT_FIELDS)
    return _compute.or_(code, reason)


def raise_outage(failed: Any) -> None:
    """Raise a handler's outage, if there is one among these failures.

    :raises HandlerStuck: no call of a handler returns any more.
    :raises SinkError: a service is down.
    """
    if not _is_failure(failed.type):
        return
    outages = failed.filter(_compute.struct_field(failed, "is_outage"))
    if not len(outages):
        return
    outage = outages[0].as_py()
    if outage["error_class"] == HandlerStuck.__name__:
        raise HandlerStuck("calls of the handler hang", found=outage["text"])
    error = service_unavailable(outage["error_class"])
    raise error from Outage(outage["traceback"] or outage["text"])


def _is_failure(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and kind.get_field_index("error_class") >= 0
