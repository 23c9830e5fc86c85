"""A transform, a table or a record that does not fit: the error says which, and what was fine is written."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, OffsetRange, TopicPartition, Upsert
from offsetstore.cli.commands import cli
from offsetstore.errors import ColumnMismatch, RowsRefused, SinkError
from offsetstore.spark import partition
from offsetstore.spark.columns import KAFKA_COLUMNS, kafka_frame
from offsetstore.spark.outputs import SparkOutputs
from offsetstore.testing import InMemoryOffsetStore
from tests.support.transforms import events, traced
from tests.support.waiting import wait_until
from tests.support.world import World

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
                SparkOutputs(claim, wrong, {"events": Append("events")}).transform(batch)
        with pytest.raises(SinkError, match="expected one DataFrame"):
            SparkOutputs(claim, lambda batch: {"events": events(batch)}, Append("events")).transform(batch)


@pytest.mark.behaviour("SINK-10", "SINK-25")
def test_what_does_not_fit_and_java_s_errors_are_told_by_ours_and_a_better_transform_goes_on(world: World) -> None:
    """The columns of one output, before another one is computed or written."""
    topic = world.events_topic(["a"])
    world.database.execute("CREATE TABLE other (LIKE events)")
    world.database.execute("ALTER TABLE other ALTER partition SET NOT NULL")
    claim = world.claim(topic)
    computed = world.spark.sparkContext.accumulator(0)
    udf: Any = F.udf
    # Without types, from which Spark would guess another kind of function.
    count = udf(lambda value: computed.add(1) or value, "string")  # pyright: ignore[reportUnknownLambdaType]

    def transform(batch: DataFrame) -> dict[str, DataFrame]:
        rows = events(batch).withColumn("value", count("value"))
        changed = rows.drop("partition").withColumn("topic", F.lit(1)).withColumnRenamed("value", "Value")
        return {"events": rows, "other": changed.withColumn("colour", F.lit(1))}

    failed = world.run_to_failure(claim, transform, {"events": Append("events"), "other": Append("other")})
    assert isinstance(failed.error, ColumnMismatch)
    for words in (
        "colour is not in the table",
        "Value is not in the table (did you mean 'value'?)",
        "topic has another type",
        "partition is missing",
    ):
        assert words in str(failed.error)
    assert "ColumnMismatch" in failed.text
    assert computed.value == 0

    def of_java(batch: DataFrame) -> DataFrame:
        java: Any = batch.sparkSession
        return java._jvm.java.lang.Integer.parseInt("canary")

    failed = world.run_to_failure(claim, of_java, Append("events"))
    assert isinstance(failed.error, SinkError)
    assert "NumberFormatException" in str(failed.error)
    assert failed.error.__cause__ is not None
    assert "canary" not in str(failed.error)
    assert world.database.one("SELECT count(*) FROM events") == 0
    assert world.stored(topic) == {0: 0}

    # The claim is as good as before. Names are matched exactly, whatever Spark thinks of cases.
    world.database.execute('CREATE TABLE mixed ("Value" text, value int)')
    better = "CAST(value AS string) AS Value", "1 AS value", "_kafka"
    world.run(claim, lambda batch: batch.selectExpr(*better), Append("mixed"))
    assert world.database.rows("SELECT * FROM mixed") == [("a", 1)]


VALUES = "SELECT value FROM events ORDER BY value"
SHORT = "ALTER TABLE events ADD CONSTRAINT rule CHECK (length(value) = 1)"


@pytest.mark.behaviour("TX-17", "OPS-22")
def test_the_command_in_the_error_passes_over_the_named_record_alone(world: World) -> None:
    topic = world.events_topic(["a", "b"], ["c", "d", "toxic", "e"])
    world.database.execute(SHORT)
    claim = world.claim(topic)
    failed = world.run_to_failure(claim, traced, Append("events"), atomicity="partition")

    assert isinstance(failed.error, RowsRefused)
    record = TopicPartition(topic, 1)
    assert (failed.error.topic_partition, failed.error.offsets) == (record, OffsetRange(2, 3))
    assert f"{topic}-1@2" in failed.text
    assert failed.error.constraint == "rule"
    assert "toxic" not in failed.text
    assert failed.error.stored[record] == OffsetRange(0, 2)
    assert world.stored(topic) == {0: 2, 1: 2}
    assert world.database.column(VALUES) == ["a", "b", "c", "d"]
    # The failure waits only some seconds until it is recorded.
    [error] = wait_until(lambda: world.store.errors(world.group, sources=["batch"]))
    [run] = world.store.runs(world.group)
    assert (run.state, run.status.counters["rows"], run.status.counters["offsets"]) == ("failed", 4, 4)
    assert (error.error_class, error.topic_partition) == ("RowsRefused", record)

    claim.close()
    _, _, command = failed.error.next_step.partition("offsetstore ")  # as it stands there
    done = CliRunner(env={"OFFSETSTORE_URL": world.database.url}).invoke(cli, shlex.split(command))
    assert done.exit_code == 0, done.output
    world.run(world.claim(topic), traced, Append("events"), atomicity="partition")
    assert world.database.column(VALUES) == ["a", "b", "c", "d", "e"]
    assert world.stored(topic) == {0: 2, 1: 4}


@pytest.mark.behaviour("TX-17")
def test_where_several_outputs_are_written_the_records_before_are_in_all_of_them(world: World) -> None:
    """Also in those whose rows are made of many records, without coordinates."""
    topic = world.events_topic(["a", "b", "toxic", "c", "toxic", "a"])
    world.database.execute("CREATE TABLE counts (value text PRIMARY KEY, records bigint)")
    world.database.execute(SHORT)

    def transform(batch: DataFrame) -> dict[str, DataFrame]:
        grouped = batch.groupBy(F.col("value").cast("string").alias("value"))
        return {"counts": grouped.agg(F.count("*").alias("records")), "events": traced(batch)}

    into = {"counts": Upsert("counts", key=["value"], add=["records"]), "events": Append("events")}
    failed = world.run_to_failure(world.claim(topic), transform, into)

    assert isinstance(failed.error, RowsRefused)
    assert (failed.error.output, failed.error.offsets) == ("events", OffsetRange(2, 3))
    assert world.stored(topic) == {0: 2}
    assert world.database.column(VALUES) == ["a", "b"]
    assert world.database.rows("SELECT * FROM counts ORDER BY value") == [("a", 1), ("b", 1)]


def test_a_partition_of_too_many_records_is_not_collected_on_the_driver(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition, "LARGE", 3)
    topic = world.events_topic(["a", "b", "c", "toxic\0"])

    failed = world.run_to_failure(world.claim(topic), traced, Append("events"), atomicity="partition")

    assert isinstance(failed.error, RowsRefused)
    assert (failed.error.topic_partition, failed.error.offsets) == (TopicPartition(topic, 0), OffsetRange(0, 4))
    assert f"one of the records {topic}-0 [0, 4)" in failed.text
