"""A transform or a table that does not fit: an error that says what, and neither a row nor an offset moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append
from offsetstore.errors import ColumnMismatch, SinkError
from offsetstore.spark.kafka_columns import KAFKA_COLUMNS, kafka_frame
from offsetstore.spark.outputs import Outputs
from offsetstore.testing import InMemoryOffsetStore
from tests.support.transforms import EVENTS, events
from tests.support.world import World

VALUES = "SELECT value FROM events ORDER BY value"


@pytest.mark.behaviour("SINK-10")
def test_columns_that_do_not_fit_are_named_before_anything_is_computed_or_written(world: World) -> None:
    """Those of one output, before another one is written."""
    world.database.execute(EVENTS)
    world.database.execute("CREATE TABLE other (LIKE events)")
    world.database.execute("ALTER TABLE other ALTER partition SET NOT NULL")
    topic = world.topic(["a"])
    computed = world.spark.sparkContext.accumulator(0)
    udf: Any = F.udf
    # Without types, from which Spark would guess another kind of function.
    count = udf(lambda value: computed.add(1) or value, "string")  # pyright: ignore[reportUnknownLambdaType]

    def transform(batch: DataFrame) -> dict[str, DataFrame]:
        rows = events(batch).withColumn("value", count("value"))
        changed = rows.drop("partition").withColumn("topic", F.lit(1)).withColumnRenamed("value", "Value")
        return {"events": rows, "other": changed.withColumn("colour", F.lit(1))}

    failed = world.run_to_failure(world.claim(topic), transform, {"events": Append("events"), "other": Append("other")})

    assert isinstance(failed.error, ColumnMismatch)
    for words in (
        "colour is not in the table",
        "Value is not in the table (did you mean value?)",
        "topic has another type",
        "partition is missing",
    ):
        assert words in str(failed.error)
    assert "ColumnMismatch" in failed.text
    assert computed.value == 0
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


WRONG: dict[str, Callable[[DataFrame], Any]] = {
    "nothing": lambda _batch: None,
    "a list": lambda batch: [batch],
    "rows": lambda batch: batch.collect(),
    "an unknown name": lambda batch: {"event": events(batch)},
    "one name too few": lambda _batch: {},
    "a name with nothing": lambda _batch: {"events": None},
}


def test_a_transform_that_returns_something_else_is_told_what_was_expected(offsetstore_spark: SparkSession) -> None:
    batch = kafka_frame(offsetstore_spark, [], KAFKA_COLUMNS)
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        for wrong in WRONG.values():
            with pytest.raises(SinkError, match="transform did not return what the writers expect"):
                Outputs(claim, wrong, {"events": Append("events")}).transform(batch)
        with pytest.raises(SinkError, match="expected one DataFrame"):
            Outputs(claim, lambda batch: {"events": events(batch)}, Append("events")).transform(batch)


@pytest.mark.behaviour("SINK-25")
def test_an_error_of_the_transform_is_kept_as_it_was_raised_and_java_s_is_told_by_ours(world: World) -> None:
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    failed = world.run_to_failure(claim, lambda batch: batch.select("no_such_column"), Append("events"))
    assert isinstance(failed.error, AnalysisException)

    def of_java(batch: DataFrame) -> DataFrame:
        java: Any = batch.sparkSession
        return java._jvm.java.lang.Integer.parseInt("canary")  # pyright: ignore[reportPrivateUsage]

    failed = world.run_to_failure(claim, of_java, Append("events"))
    assert isinstance(failed.error, SinkError)
    assert "NumberFormatException" in str(failed.error)
    assert failed.error.__cause__ is not None
    assert "canary" not in str(failed.error)
    assert world.stored(topic) == {0: 0}
    # The claim is as good as before: the same query runs with a better transform. Names are matched exactly, whatever
    # Spark thinks of cases.
    world.database.execute('CREATE TABLE mixed ("Value" text, value int)')
    world.run(
        claim,
        lambda batch: batch.select(F.col("value").cast("string").alias("Value"), F.lit(1).alias("value"), "_kafka"),
        Append("mixed"),
    )
    assert world.database.rows("SELECT * FROM mixed") == [("a", 1)]
