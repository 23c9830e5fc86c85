"""Dead letters as a DataFrame with the Kafka source's columns, so that they go through the same transform."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from offsetstore.protocol.letters import Letter, Payload
from offsetstore.spark.careful import Careful, OfRecords, computed_carefully
from offsetstore.spark.outputs import Outputs

KAFKA_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""The Kafka source's own; ``headers`` only with ``includeHeaders``."""

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", LongType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(_HEADER)),
    ]
)


def computed_letters(
    outputs: Outputs, spark: SparkSession, letters: Sequence[Letter], columns: Collection[str] | None
) -> AbstractContextManager[Careful]:
    """Compute the outputs of the letters' records, which are numbered in their order.

    :param columns: those of the query's source; ``None`` if there is no query: then the letters tell whether it has
        read headers.
    :raises Halve: the rows are too many for the driver, or can't be computed.
    """
    records = OfRecords([(letter.topic_partition, letter.offset) for letter in letters])
    return computed_carefully(outputs, _frame(spark, letters, columns), records, has_sequences=True)


def _frame(spark: SparkSession, letters: Sequence[Letter], columns: Collection[str] | None) -> DataFrame:
    if columns is None:
        has_headers = any(one.payload is not None and one.payload.headers is not None for one in letters)
        columns = KAFKA_COLUMNS if has_headers else KAFKA_COLUMNS[:-1]
    return kafka_frame(spark, [_row(one, one.payload) for one in letters if one.payload is not None], columns)


def kafka_frame(spark: SparkSession, rows: Sequence[tuple[object, ...]], columns: Collection[str]) -> DataFrame:
    """Make a DataFrame with these of the source's columns."""
    # From an RDD: by its number the sink tells the rows of these records from other data.
    made = spark.createDataFrame(spark.sparkContext.parallelize(rows, 1), _SCHEMA)
    made = made.withColumn("timestamp", F.timestamp_millis("timestamp"))
    return made.select(*(name for name in KAFKA_COLUMNS if name in columns))


def _row(letter: Letter, payload: Payload) -> tuple[object, ...]:
    tp = letter.topic_partition
    return (
        payload.key,
        payload.value,
        tp.topic,
        tp.partition,
        letter.offset,
        payload.timestamp_ms,
        payload.timestamp_type,
        list(payload.headers or ()) or None,  # Spark's source has NULL for a record without headers
    )
