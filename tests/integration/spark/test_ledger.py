"""Whatever a query does with Spark's partitions, each record lands once: shown by a ledger, over several batches.

In between the job fails once and is started anew, with what was produced since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, Upsert
from offsetstore.errors import UnsupportedQuery
from offsetstore.spark.outputs import Transform
from offsetstore.spark.settings import Atomicity
from offsetstore.testing.fixtures import NewTopic
from tests.support.transforms import traced
from tests.support.world import World

LEDGER = 'SELECT partition, "offset", count(*) FROM events GROUP BY 1, 2 ORDER BY 1, 2'


def joined(batch: DataFrame, how: str) -> DataFrame:
    """Each record with its partition's name, from a static table."""
    names = batch.sparkSession.range(2).selectExpr("CAST(id AS int) AS partition", "'p' || id AS name").hint(how)
    return traced(batch).join(names, "partition").withColumn("value", F.concat("name", "value")).drop("name")


@dataclass(frozen=True)
class Shape:
    """What a job does with Spark's partitions; ``straight``: its tasks are still Kafka's."""

    transform: Callable[[DataFrame], DataFrame]
    options: dict[str, str] = field(default_factory=dict[str, str])
    straight: bool = False


SHAPES = {
    "minPartitions": Shape(traced, {"minPartitions": "7"}),
    "maxRecordsPerPartition": Shape(traced, {"maxRecordsPerPartition": "3"}),
    "repartition": Shape(lambda batch: traced(batch.repartition(5))),
    "shuffled join": Shape(lambda batch: joined(batch, "merge")),
    "broadcast join": Shape(lambda batch: joined(batch, "broadcast"), straight=True),
}


class FailsOnce:
    """A transform that fails in its second batch, and works from then on."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform
        self._batches = 0

    def __call__(self, batch: DataFrame) -> Any:
        self._batches += 1
        if self._batches == 2:
            raise InterruptedError("the power went out")
        return self._transform(batch)


@pytest.mark.behaviour("SINK-7")
@pytest.mark.parametrize(
    ("name", "atomicity"),
    [("minPartitions", "batch"), ("shuffled join", "batch"), *((name, "partition") for name in SHAPES)],
)
def test_no_record_is_lost_or_doubled(
    world: World,
    caplog: pytest.LogCaptureFixture,
    name: str,
    atomicity: Atomicity,
) -> None:
    shape = SHAPES[name]
    topic = world.events_topic(partitions=2)
    values = [str(number) for number in range(10)]
    for partition in range(2):
        world.produce(topic, values, partition=partition)
    job = FailsOnce(shape.transform)
    settings: dict[str, Any] = {"atomicity": atomicity, "maxOffsetsPerTrigger": "14", **shape.options}
    with caplog.at_level(logging.WARNING, "offsetstore.spark.partition"):
        failed = world.run_to_failure(world.claim(topic), job, Append("events"), **settings)
        assert isinstance(failed.error, InterruptedError)
        assert 0 < len(world.database.rows(LEDGER)) < 20
        world.produce(topic, values[:4])
        world.run(world.claim(topic), job, Append("events"), **settings)

    expected = [(partition, offset, 1) for partition in range(2) for offset in range(14 - 4 * partition)]
    assert world.database.rows(LEDGER) == expected
    assert world.stored(topic) == {0: 14, 1: 10}
    told = [message for message in caplog.messages if "repartitioned by Kafka's topics and partitions" in message]
    assert len(told) == (2 if atomicity == "partition" and not shape.straight else 0)  # once a sink


def grouped(batch: DataFrame) -> DataFrame:
    """How often each value comes, over all partitions."""
    return batch.groupBy(F.col("value").cast("string").alias("value")).agg(F.count("*").alias("n"))


@pytest.mark.behaviour("SINK-5", "SINK-7")
def test_sums_over_a_batch_are_exact_in_batch_atomicity(world: World, offsetstore_topic: NewTopic) -> None:
    world.database.execute("CREATE TABLE sums (value text PRIMARY KEY, n bigint)")
    topic = offsetstore_topic(2)
    for partition in range(2):
        world.produce(topic, ["a", "b", "c", "d", "e"] * 2, partition=partition)
    job, into = FailsOnce(grouped), Upsert("sums", key=["value"], add=["n"])

    world.run_to_failure(world.claim(topic), job, into, maxOffsetsPerTrigger="14")
    world.run(world.claim(topic), job, into, maxOffsetsPerTrigger="14")

    assert world.database.rows("SELECT * FROM sums ORDER BY value") == [(value, 4) for value in "abcde"]
    assert world.stored(topic) == {0: 10, 1: 10}


@pytest.mark.behaviour("SINK-7")
def test_sums_over_a_batch_are_refused_in_partition_atomicity(world: World) -> None:
    world.database.execute("CREATE TABLE sums (value text PRIMARY KEY, n bigint)")
    topic = world.topic(["a", "b"], partitions=2)

    def transform(batch: DataFrame) -> DataFrame:
        return grouped(batch).join(batch.select("_kafka", F.col("value").cast("string").alias("value")), "value")

    into = Upsert("sums", key=["value"], add=["n"])
    failed = world.run_to_failure(world.claim(topic), transform, into, atomicity="partition")

    assert isinstance(failed.error, UnsupportedQuery)
    assert 'atomicity="batch"' in failed.text
    assert world.database.column("SELECT n FROM sums") == []
    assert world.stored(topic) == {0: 0, 1: 0}
