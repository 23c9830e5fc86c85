"""The columns of Kafka's source: parts of a batch, each row's coordinates, and letters as the source's records."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.letters import Headers, Letter
from offsetstore.writers.arrow.batches import KAFKA

KAFKA_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The Kafka source's own; ``headers`` only with ``includeHeaders``."""

_SCHEMA: Final = (  # quoted: a session may reserve some of the words
    "`key` binary, `value` binary, `topic` string, `partition` int, `offset` bigint, `timestamp` bigint, "
    "`timestampType` int, `headers` array<struct<`key`: string, `value`: binary>>"
)


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
