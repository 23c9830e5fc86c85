"""A record that the table can't hold: the error names it, nothing of it is written, and a correction lets it pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, OffsetRange, TopicPartition, Upsert
from offsetstore.errors import RowsRefused, StaleClaim
from offsetstore.spark import partition_atomicity
from tests.support.transforms import EVENTS, traced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetstore.spark.sink import Atomicity
    from offsetstore.testing.fixtures import NewTopic
    from tests.support.world import World

VALUES = "SELECT value FROM events ORDER BY value"

# What is violated, and by what; the values that the table has are single letters.
CONSTRAINTS = {
    "checked": "ADD CONSTRAINT rule CHECK (length(value) = 1) NOT VALID",
    "deferred": "ADD CONSTRAINT rule UNIQUE (value) DEFERRABLE INITIALLY DEFERRED",
}


@pytest.mark.parametrize("atomicity", ["batch", "partition"])
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_the_record_that_violates_a_constraint_is_named(
    world: World, offsetstore_topic: NewTopic, constraint: str, atomicity: Atomicity
) -> None:
    world.database.execute(EVENTS)
    world.database.execute("INSERT INTO events (value) VALUES ('toxic')")
    world.database.execute(f"ALTER TABLE events {CONSTRAINTS[constraint]}")
    topic = offsetstore_topic(2)
    world.produce(topic, ["a", "b"])
    world.produce(topic, ["c", "d", "toxic", "e"], partition=1)

    failed = world.run_to_failure(world.claim(topic), traced, Append("events"), atomicity=atomicity)

    assert isinstance(failed.error, RowsRefused)
    assert (failed.error.topic_partition, failed.error.offsets) == (TopicPartition(topic, 1), OffsetRange(2, 3))
    assert f"{topic}-1@2" in failed.text
    assert failed.error.constraint == "rule"
    assert "toxic" not in failed.text
    assert world.stored(topic)[1] == 0
    assert "c" not in world.database.column(VALUES)

    world.database.execute("ALTER TABLE events DROP CONSTRAINT rule")
    world.run(world.claim(topic), traced, Append("events"), atomicity=atomicity)
    assert world.database.column(VALUES) == ["a", "b", "c", "d", "e", "toxic", "toxic"]


def test_a_partition_of_too_many_records_is_not_collected_on_the_driver(
    world: World, offsetstore_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_atomicity, "THRESHOLD", 3)
    world.database.execute(EVENTS)
    topic = offsetstore_topic(1)
    world.produce(topic, ["a", "b", "c", "toxic\0"])

    failed = world.run_to_failure(world.claim(topic), traced, Append("events"), atomicity="partition")

    assert isinstance(failed.error, RowsRefused)
    assert (failed.error.topic_partition, failed.error.offsets) == (TopicPartition(topic, 0), OffsetRange(0, 4))
    assert f"one of the records {topic}-0 [0, 4)" in failed.text


@pytest.mark.parametrize("atomicity", ["batch", "partition"])
def test_a_job_that_is_taken_over_while_it_searches_is_stale(
    world: World, offsetstore_topic: NewTopic, atomicity: Atomicity
) -> None:
    world.database.execute(EVENTS)
    topic = offsetstore_topic(1)
    world.produce(topic, ["a", "b", "c", "toxic\0"])
    asked: list[DataFrame] = []

    def transform(batch: DataFrame) -> DataFrame:
        asked.append(batch)
        if len(asked) == 2:  # the first part of the search
            world.claim(topic)
        return traced(batch)

    failed = world.run_to_failure(world.claim(topic), transform, Append("events"), atomicity=atomicity)

    assert isinstance(failed.error, StaleClaim)
    assert len(asked) == 2
    assert world.database.column(VALUES) == []


def counted(batch: DataFrame) -> DataFrame:
    """Rows of many records each, without coordinates."""
    return batch.groupBy(F.col("value").cast("string").alias("value")).agg(F.count("*").alias("records"))


def test_a_record_is_found_behind_an_aggregation(world: World, offsetstore_topic: NewTopic) -> None:
    world.database.execute("CREATE TABLE counts (value varchar(3) PRIMARY KEY, records bigint)")
    topic = offsetstore_topic(2)
    world.produce(topic, ["a", "b", "a"])
    world.produce(topic, ["a", "much too long", "b"], partition=1)

    failed = world.run_to_failure(world.claim(topic), counted, Upsert("counts", key=["value"], add=["records"]))

    assert isinstance(failed.error, RowsRefused)
    assert failed.error.column == "value"
    assert failed.error.found == f"string; the record {topic}-1@1 is the first with which the batch is refused"
    assert world.database.rows("SELECT * FROM counts") == []
