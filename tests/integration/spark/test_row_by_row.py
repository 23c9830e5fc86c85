"""Which transforms ``atomicity="partition"`` takes: those that make each row of one record. Nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore.errors import KafkaColumnsMissing, UnsupportedQuery
from offsetstore.spark.columns import with_coordinates
from offsetstore.spark.plans.lineage import check_row_by_row

RECORDS = "key string, value string, topic string, partition int, offset long, timestamp timestamp"
CODES = "value string, name string"
# By hints, PySpark would guess what kind of function it is.
UNTYPED: Any = eval("lambda value: value.upper()")  # noqa: S307


@pytest.fixture(scope="module")
def batch(offsetstore_spark: SparkSession) -> DataFrame:
    """A micro-batch as a transform gets it: an RDD's rows, with the sink's column."""
    context: Any = offsetstore_spark.sparkContext
    return with_coordinates(offsetstore_spark.createDataFrame(context.parallelize([]), RECORDS))


def codes(batch: DataFrame) -> DataFrame:
    """Other data."""
    return batch.sparkSession.createDataFrame([("a", "Anna")], CODES)


def copy(batch: DataFrame) -> DataFrame:
    """The batch's rows, which Spark no longer knows to be the batch's; nothing stays persisted."""
    return batch.sparkSession.createDataFrame(batch.rdd, batch.schema)


def by_sql(batch: DataFrame, query: str) -> DataFrame:
    """What a query makes of the batch as a view."""
    batch.createOrReplaceTempView("records")
    codes(batch).createOrReplaceTempView("codes")
    session: Any = batch.sparkSession
    return session.sql(query)


def same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


TAKEN: dict[str, Callable[[DataFrame], DataFrame]] = {
    "as it is": lambda b: b,
    "select": lambda b: b.select(F.upper("value").alias("value"), "_kafka"),
    "where": lambda b: b.where("value <> ''").withColumn("n", F.rand()),
    "renamed and back": lambda b: b.withColumnRenamed("_kafka", "k").select("value", F.col("k").alias("_kafka")),
    "explode": lambda b: b.withColumn("part", F.explode(F.split("value", ","))),
    "sorted and spread": lambda b: b.repartition(5).sort("value").coalesce(2).hint("rebalance"),
    "join": lambda b: b.join(codes(b), "value"),
    "join from the other side": lambda b: codes(b).join(b, "value", "right"),
    "joins of several kinds": lambda b: b.join(codes(b), "value", "left").join(codes(b), "value", "leftanti"),
    "cross join": lambda b: b.crossJoin(codes(b).select("name")),
    "sql": lambda b: by_sql(b, "SELECT r.*, name FROM records r JOIN codes USING (value) WHERE offset > 1"),
    "subquery over other data": lambda b: by_sql(b, "SELECT * FROM records WHERE value IN (SELECT value FROM codes)"),
    "other data, grouped": lambda b: b.join(codes(b).groupBy("value").count(), "value"),
    "python, in a column": lambda b: b.withColumn("n", F.udf(UNTYPED, "string")("value")),
}

REFUSED: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "grouped": ("Aggregate", lambda b: b.groupBy("_kafka").count()),
    "distinct": ("Deduplicate|Distinct|Aggregate", lambda b: b.distinct()),
    "without duplicates": ("Deduplicate", lambda b: b.dropDuplicates(["value"])),
    "window": ("Window", lambda b: b.withColumn("n", F.row_number().over(Window.partitionBy("key").orderBy("offset")))),
    "limit": ("Limit", lambda b: b.limit(3)),
    "offset": ("Offset", lambda b: b.offset(3)),
    "sample": ("Sample", lambda b: b.sample(0.5)),
    "self join": ("itself", lambda b: b.join(b.select("key", F.col("value").alias("other")), "key")),
    "union": ("Union", lambda b: b.union(b)),
    "except": ("Except", lambda b: b.exceptAll(b.where("value = ''"))),
    "full join": ("FULL OUTER", lambda b: b.join(codes(b), "value", "full")),
    "left join from the other side": ("LEFT OUTER", lambda b: codes(b).join(b, "value", "left")),
    "subquery": (
        "subquery",
        lambda b: by_sql(b, "SELECT * FROM records WHERE offset = (SELECT 1 FROM records)"),
    ),
    "subquery in other data": (
        "subquery",
        lambda b: b.join(by_sql(b, "SELECT * FROM codes WHERE value IN (SELECT value FROM records)"), "value"),
    ),
    "python, over all rows": ("MapInArrow", lambda b: b.mapInArrow(same, b.schema)),
}

LOST: dict[str, Callable[[DataFrame], DataFrame]] = {
    "dropped": lambda b: b.drop("_kafka"),
    "made anew": lambda b: b.withColumn("_kafka", F.struct("topic", "partition", F.lit(1).alias("offset"))),
    "of other data": lambda b: b.drop("_kafka").crossJoin(codes(b).select(F.struct("value").alias("_kafka"))),
    "of a copy": lambda b: b.drop("_kafka").join(copy(b).select("key", "_kafka"), "key"),
    "nothing of the batch": lambda b: codes(b).withColumn("_kafka", F.lit(1)),
}


@pytest.mark.parametrize("transform", TAKEN.values(), ids=TAKEN.keys())
def test_rows_of_one_record_are_taken(batch: DataFrame, transform: Callable[[DataFrame], DataFrame]) -> None:
    check_row_by_row(batch, transform(batch))


@pytest.mark.behaviour("SINK-7")
@pytest.mark.parametrize(("found", "transform"), REFUSED.values(), ids=REFUSED.keys())
def test_rows_of_several_records_or_of_none_are_refused(
    batch: DataFrame, found: str, transform: Callable[[DataFrame], Any]
) -> None:
    result = transform(batch)
    if "_kafka" not in result.columns:  # what is lost is said first
        result = result.withColumn("_kafka", F.lit(1))
    with pytest.raises(UnsupportedQuery, match=rf'found .*({found}).*atomicity="batch"'):
        check_row_by_row(batch, result)


@pytest.mark.parametrize("transform", LOST.values(), ids=LOST.keys())
def test_coordinates_that_are_not_the_records_own_are_refused(
    batch: DataFrame, transform: Callable[[DataFrame], DataFrame]
) -> None:
    with pytest.raises((KafkaColumnsMissing, UnsupportedQuery), match=r'atomicity="batch"'):
        check_row_by_row(batch, transform(batch))
