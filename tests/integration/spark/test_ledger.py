"""Whatever a query does with Spark's partitions, each record lands once: shown by a ledger, over several batches.

In between the job fails once and is started anew, with what was produced since.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, Upsert
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


SHAPES: dict[str, tuple[Callable[[DataFrame], DataFrame], dict[str, Any]]] = {
    "maxRecordsPerPartition": (traced, {"maxRecordsPerPartition": "3"}),
    "minPartitions": (traced, {"minPartitions": "7"}),
    "repartition": (lambda batch: traced(batch.repartition(5)), {}),
    "shuffled join": (lambda batch: joined(batch, "merge"), {}),
    "broadcast join": (lambda batch: joined(batch, "broadcast"), {}),
}


@pytest.mark.behaviour("SINK-7")
@pytest.mark.parametrize(
    ("atomicity", "first", "second", "moves"),
    [
        ("batch", "shuffled join", "maxRecordsPerPartition", 0),
        ("partition", "minPartitions", "shuffled join", 2),
        ("partition", "broadcast join", "repartition", 1),
    ],
)
def test_no_record_is_lost_or_doubled(  # noqa: PLR0917 - a row of the table
    world: World, caplog: pytest.LogCaptureFixture, atomicity: Atomicity, first: str, second: str, moves: int
) -> None:
    """``moves``: of how many of the two jobs the tasks are no longer Kafka's partitions."""
    topic = world.events_topic(partitions=2)
    for partition in range(2):
        world.produce(topic, [str(number) for number in range(10)], partition=partition)
    settings: dict[str, Any] = {"atomicity": atomicity, "maxOffsetsPerTrigger": "14"}
    with caplog.at_level(logging.WARNING, "offsetstore.spark.partition"):
        transform, options = SHAPES[first]
        failed = world.run_to_failure(world.claim(topic), FailsOnce(transform), Append("events"), **settings, **options)
        assert isinstance(failed.error, InterruptedError)
        assert 0 < len(world.database.rows(LEDGER)) < 20
        world.produce(topic, ["a", "b", "c", "d"])
        transform, options = SHAPES[second]
        world.run(world.claim(topic), transform, Append("events"), **settings, **options)

    expected = [(partition, offset, 1) for partition in range(2) for offset in range(14 - 4 * partition)]
    assert world.database.rows(LEDGER) == expected
    assert world.stored(topic) == {0: 14, 1: 10}
    told = [message for message in caplog.messages if "repartitioned by Kafka's topics and partitions" in message]
    assert len(told) == moves  # once a sink


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
