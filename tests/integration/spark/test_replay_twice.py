"""`replay_twice` with the transforms of Spark's jobs, good ones and those that the manual warns of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from offsetstore import Record
from offsetstore.errors import ConfigurationError
from offsetstore.testing import replay_twice

RECORDS = [
    Record("payments", number % 2, number // 2, b"ana", f"{number}.50".encode(), (("tenant", b"t"),), 1_000 * number)
    for number in range(12)
]


def parsed(batch: DataFrame) -> DataFrame:
    return batch.selectExpr("CAST(key AS STRING) AS payer", "CAST(CAST(value AS STRING) AS DECIMAL(12, 2)) AS amount")


def exploded(batch: DataFrame) -> dict[str, DataFrame]:
    rows = batch.select("_kafka", "timestamp", "headers", F.explode(F.split(F.col("value").cast("string"), r"\.")))
    return {"parts": rows, "others": parsed(batch)}


@pytest.mark.parametrize("transform", [parsed, exploded])
def test_a_transform_that_only_goes_by_the_record_passes(
    transform: Callable[[DataFrame], Any], offsetstore_spark: SparkSession
) -> None:
    replay_twice(transform, RECORDS, spark=offsetstore_spark, crops=2)


def test_a_part_without_headers_has_their_column_as_in_the_query(offsetstore_spark: SparkSession) -> None:
    records = [RECORDS[0], Record("payments", 0, 1, b"ana", b"1.50")]  # headers in one part only
    replay_twice(lambda batch: batch.select("_kafka", F.size("headers")), records, spark=offsetstore_spark, crops=1)
    with pytest.raises(ConfigurationError, match="the transform returned no rows"):
        replay_twice(lambda _: None, records, spark=offsetstore_spark)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (F.current_timestamp, "current_timestamp"),
        (lambda: F.expr("uuid()"), "uuid"),
        (F.rand, "rand"),
        (F.monotonically_increasing_id, "monotonically_increasing_id"),
    ],
    ids=["now", "uuid", "rand", "id"],
)
def test_a_column_that_differs_from_run_to_run_is_named_with_its_cause(
    make: Callable[[], Any], cause: str, offsetstore_spark: SparkSession
) -> None:
    with pytest.raises(AssertionError, match=r"record payments-\d at offset \d") as caught:
        replay_twice(lambda batch: batch.select("_kafka", make().alias("made")), RECORDS, spark=offsetstore_spark)
    assert "column made: " in str(caught.value)
    assert cause in str(caught.value).partition("usual cause: ")[2]


def test_rows_made_from_several_records_and_a_join_with_a_moving_table_are_found(
    offsetstore_spark: SparkSession,
) -> None:
    def summed(batch: DataFrame) -> DataFrame:
        return batch.groupBy("key").agg(F.min("_kafka").alias("_kafka"), F.count("*").alias("payments"))

    with pytest.raises(AssertionError, match="usual cause: "):
        replay_twice(summed, RECORDS, spark=offsetstore_spark)

    rates = iter(range(100))

    def joined(batch: DataFrame) -> DataFrame:
        rate = offsetstore_spark.range(1).select(F.lit(f"rate {next(rates)}").alias("rate"))  # a table that changes
        return batch.select("_kafka").crossJoin(rate)

    with pytest.raises(AssertionError, match="a join with a table that changes") as caught:
        replay_twice(joined, RECORDS, spark=offsetstore_spark)
    assert "column rate: 'rate 0', then 'rate 1'" in str(caught.value)
