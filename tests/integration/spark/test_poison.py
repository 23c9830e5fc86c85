"""A record that the table can't hold: the error names it, all before it is written, and it can be passed over."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, OffsetRange, TopicPartition, TransactionalSink, Upsert
from offsetstore.cli.commands import cli
from offsetstore.errors import RowsRefused
from offsetstore.spark import partition
from offsetstore.spark.settings import Atomicity
from tests.support.transforms import EVENTS, traced
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World

VALUES = "SELECT value FROM events ORDER BY value"

# What is violated, and by what; the values that the table has are single letters.
CONSTRAINTS = {
    "checked": "ADD CONSTRAINT rule CHECK (length(value) = 1) NOT VALID",
    "deferred": "ADD CONSTRAINT rule UNIQUE (value) DEFERRABLE INITIALLY DEFERRED",
}


@pytest.mark.behaviour("TX-17", "OPS-22")
@pytest.mark.parametrize(("constraint", "atomicity"), [("deferred", "batch"), ("checked", "partition")])
def test_the_command_in_the_error_passes_over_the_named_record_alone(
    world: World, constraint: str, atomicity: Atomicity
) -> None:
    world.database.execute(EVENTS)
    world.database.execute("INSERT INTO events (value) VALUES ('toxic')")
    world.database.execute(f"ALTER TABLE events {CONSTRAINTS[constraint]}")
    topic = world.topic(["a", "b"], ["c", "d", "toxic", "e"])

    claim = world.claim(topic)
    failed = world.run_to_failure(claim, traced, Append("events"), atomicity=atomicity)

    assert isinstance(failed.error, RowsRefused)
    record = TopicPartition(topic, 1)
    assert (failed.error.topic_partition, failed.error.offsets) == (record, OffsetRange(2, 3))
    assert f"{topic}-1@2" in failed.text
    assert failed.error.constraint == "rule"
    assert "toxic" not in failed.text
    assert failed.error.stored[record] == OffsetRange(0, 2)
    assert world.stored(topic) == {0: 2, 1: 2}
    assert world.database.column(VALUES) == ["a", "b", "c", "d", "toxic"]
    # The failure waits only some seconds until it is recorded.
    [error] = wait_until(lambda: world.store.errors(world.group, sources=["batch"]))
    [run] = world.store.runs(world.group)
    assert (run.state, run.status.counters["rows"], run.status.counters["offsets"]) == ("failed", 4, 4)
    assert (error.error_class, error.topic_partition) == ("RowsRefused", record)

    claim.close()
    done = run_recipe(world, failed.error)
    assert done.exit_code == 0, done.output
    world.run(world.claim(topic), traced, Append("events"), atomicity=atomicity)
    assert world.database.column(VALUES) == ["a", "b", "c", "d", "e", "toxic"]
    assert world.stored(topic) == {0: 2, 1: 4}


def run_recipe(world: World, error: RowsRefused) -> Any:
    """Run the command that the error gives, as it stands there."""
    _, _, command = error.next_step.partition("offsetstore ")
    return CliRunner(env={"OFFSETSTORE_URL": world.database.url}).invoke(cli, shlex.split(command))


@pytest.mark.behaviour("TX-17")
def test_the_first_record_of_a_partition_can_be_passed_over_without_a_broker(world: World) -> None:
    """No claim makes a row for the partition then: the refused batch has to."""
    topic = world.events_topic(["toxic\0", "a"])

    def run(*, fails: bool) -> Any:
        claim = world.store.claim(world.group, topics=[topic])
        sink = TransactionalSink(claim, traced, into=Append("events"))
        options = world.options(topic, startingOffsets="earliest")
        stream = world.spark.readStream.format("kafka").options(**options).load()
        query = world.start(sink, stream, checkpoint=f"{world.checkpoints}/of its own")
        if fails:
            return claim, world.failure(query, sink).error
        assert query.awaitTermination(SECONDS)
        return claim, sink.error

    claim, error = run(fails=True)
    assert error.offsets == OffsetRange(0, 1)
    claim.close()
    done = run_recipe(world, error)
    assert done.exit_code == 0, done.output
    _, error = run(fails=False)
    assert error is None
    assert world.database.column(VALUES) == ["a"]


@pytest.mark.behaviour("TX-17")
def test_where_several_outputs_are_written_the_records_before_are_in_all_of_them(world: World) -> None:
    """Also in those whose rows are made of many records, without coordinates."""
    world.database.execute(EVENTS)
    world.database.execute("CREATE TABLE counts (value text PRIMARY KEY, records bigint)")
    world.database.execute(f"ALTER TABLE events {CONSTRAINTS['checked']}")
    topic = world.topic(["a", "b", "toxic", "c", "toxic", "a"])

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
