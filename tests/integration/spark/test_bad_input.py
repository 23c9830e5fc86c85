"""A transform or a table that does not fit: an error that says what, and neither a row nor an offset moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, Upsert
from offsetstore.errors import ColumnMismatch, KafkaColumnsMissing, RowsRefused, SinkError
from tests.support.transforms import EVENTS, events
from tests.support.world import World

VALUES = "SELECT value FROM events ORDER BY value"

MISFITS: dict[str, tuple[Callable[[DataFrame], DataFrame], list[str]]] = {
    "a column too many": (lambda rows: rows.withColumn("colour", F.lit("red")), ["colour is not in the table"]),
    "another case": (
        lambda rows: rows.withColumnRenamed("value", "Value"),
        ["Value is not in the table (did you mean value?)"],
    ),
    "another type": (
        lambda rows: rows.withColumn("offset", F.col("offset").cast("string")),
        ["offset has another type", 'col("offset").cast("bigint")'],
    ),
    "a missing one": (lambda rows: rows.drop("partition"), ["partition is missing"]),
    "all of that": (
        lambda rows: rows.drop("partition").withColumn("colour", F.lit(1)).withColumn("topic", F.lit(1)),
        ["colour is not in the table", "topic has another type", "partition is missing"],
    ),
}


@pytest.mark.behaviour("SINK-10")
@pytest.mark.parametrize("misfit", MISFITS)
def test_columns_that_do_not_fit_are_named_before_anything_is_computed_or_written(world: World, misfit: str) -> None:
    world.database.execute(EVENTS)
    world.database.execute("ALTER TABLE events ALTER partition SET NOT NULL")
    topic = world.topic(["a"])
    change, said = MISFITS[misfit]
    computed = world.spark.sparkContext.accumulator(0)

    udf: Any = F.udf
    # Without types, from which Spark would guess another kind of function.
    count = udf(lambda value: computed.add(1) or value, "string")  # pyright: ignore[reportUnknownLambdaType]

    failed = world.run_to_failure(
        world.claim(topic), lambda batch: change(events(batch).withColumn("value", count("value"))), Append("events")
    )

    assert isinstance(failed.error, ColumnMismatch)
    for words in said:
        assert words in str(failed.error)
    assert "ColumnMismatch" in failed.text
    assert computed.value == 0
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("SINK-10")
def test_the_misfit_of_one_output_is_found_before_any_other_is_written(world: World) -> None:
    world.database.execute(EVENTS)
    world.database.execute("CREATE TABLE other (id int)")
    topic = world.topic(["a"])
    failed = world.run_to_failure(
        world.claim(topic),
        lambda batch: {"events": events(batch), "other": batch.select("value")},
        {"events": Append("events"), "other": Append("other")},
    )
    assert isinstance(failed.error, ColumnMismatch)
    assert "value is not in the table" in str(failed.error)
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("SINK-10")
@pytest.mark.parametrize(
    "writer", [Append("nowhere"), Upsert("nowhere.at_all", key=["value"], greatest=["topic", "partition", "offset"])]
)
def test_an_unknown_table_is_named(world: World, writer: Any) -> None:
    topic = world.topic(["a"])
    failed = world.run_to_failure(world.claim(topic), events, writer)
    assert isinstance(failed.error, ColumnMismatch)
    assert "nowhere" in str(failed.error)
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("SINK-12")
@pytest.mark.parametrize("change", ["dropped", "renamed"])
def test_an_upsert_by_offset_is_refused_where_the_transform_has_dropped_what_it_orders_by(
    world: World, change: str
) -> None:
    world.database.execute("CREATE TABLE latest (topic text PRIMARY KEY, value text)")
    topic = world.topic(["a"])

    def transform(batch: DataFrame) -> DataFrame:
        rows = batch.select("topic", F.col("value").cast("string").alias("value"), "_kafka")
        return rows.drop("_kafka") if change == "dropped" else rows.withColumnRenamed("_kafka", "_Kafka")

    failed = world.run_to_failure(world.claim(topic), transform, Upsert("latest", key=["topic"]))

    assert isinstance(failed.error, KafkaColumnsMissing)
    assert "_kafka" in failed.text
    assert world.database.rows("SELECT * FROM latest") == []
    assert world.stored(topic) == {0: 0}


def test_a_refused_value_names_its_column_and_never_itself(world: World) -> None:
    topic = world.events_topic(["fine", "sec\0ret"])
    failed = world.run_to_failure(world.claim(topic), events, Append("events"))
    assert isinstance(failed.error, RowsRefused)
    assert failed.error.column == "value"
    assert "sec" not in str(failed.error)
    assert world.database.column(VALUES) == ["fine"]
    assert world.stored(topic) == {0: 1}


WRONG: dict[str, Callable[[DataFrame], Any]] = {
    "nothing": lambda _batch: None,
    "a list": lambda batch: [batch],
    "rows": lambda batch: batch.collect(),
    "an unknown name": lambda batch: {"event": events(batch)},
    "one name too few": lambda _batch: {},
    "a name with nothing": lambda _batch: {"events": None},
}


@pytest.mark.parametrize("result", WRONG)
def test_a_transform_that_returns_something_else_is_told_what_was_expected(world: World, result: str) -> None:
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    failed = world.run_to_failure(claim, WRONG[result], {"events": Append("events")})
    assert isinstance(failed.error, SinkError)
    assert "transform did not return what the writers expect" in failed.text
    assert world.stored(topic) == {0: 0}
    # The claim is as good as before: the same query runs with a better transform.
    world.run(claim, lambda batch: {"events": events(batch)}, {"events": Append("events")})
    assert world.database.column(VALUES) == ["a"]


def test_a_mapping_where_one_dataframe_is_expected_is_refused(world: World) -> None:
    topic = world.events_topic(["a"])
    failed = world.run_to_failure(world.claim(topic), lambda batch: {"events": events(batch)}, Append("events"))
    assert isinstance(failed.error, SinkError)
    assert "expected one DataFrame" in failed.text


def test_an_error_of_the_transform_is_kept_as_it_was_raised(world: World) -> None:
    topic = world.events_topic(["a"])
    failed = world.run_to_failure(world.claim(topic), lambda batch: batch.select("no_such_column"), Append("events"))
    assert isinstance(failed.error, AnalysisException)
    assert world.stored(topic) == {0: 0}


def of_java(batch: DataFrame) -> DataFrame:
    java: Any = batch.sparkSession
    return java._jvm.java.lang.Integer.parseInt("canary")  # pyright: ignore[reportPrivateUsage]


def of_a_database(batch: DataFrame) -> DataFrame:
    psycopg.connect("host=127.0.0.1 port=1")
    return batch


@pytest.mark.behaviour("SINK-25")
@pytest.mark.parametrize(
    ("transform", "found"), [(of_java, "NumberFormatException"), (of_a_database, "OperationalError")]
)
def test_java_s_and_a_driver_s_own_error_are_told_by_ours(
    world: World, transform: Callable[[DataFrame], DataFrame], found: str
) -> None:
    topic = world.events_topic(["a"])
    failed = world.run_to_failure(world.claim(topic), transform, Append("events"))
    assert isinstance(failed.error, SinkError)
    assert found in str(failed.error)
    assert failed.error.__cause__ is not None
    assert "canary" not in str(failed.error)
    assert world.stored(topic) == {0: 0}


@pytest.mark.parametrize("case_sensitive", ["true", "false"])
def test_names_are_matched_exactly_whatever_spark_thinks_of_cases(world: World, case_sensitive: str) -> None:
    world.database.execute('CREATE TABLE mixed ("Value" text, value int)')
    topic = world.topic(["a", "b"])
    world.spark.conf.set("spark.sql.caseSensitive", case_sensitive)
    try:
        world.run(
            world.claim(topic),
            lambda batch: batch.select(F.col("value").cast("string").alias("Value"), F.lit(1).alias("value"), "_kafka"),
            Append("mixed"),
        )
    finally:
        world.spark.conf.unset("spark.sql.caseSensitive")
    assert world.database.rows('SELECT * FROM mixed ORDER BY "Value"') == [("a", 1), ("b", 1)]
