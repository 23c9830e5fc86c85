"""Ranges that were in the results before, begin too late or have holes; and whatever Spark does with its partitions."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, Execute, TopicPartition, Upsert
from offsetstore.errors import OffsetGap
from offsetstore.protocol.ports import Work
from offsetstore.spark.outputs import SparkTransform
from offsetstore.spark.settings import Atomicity
from offsetstore.testing.fixtures import NewTopic
from tests.support.transactions import TransactionalProducer
from tests.support.transforms import EVENTS, events, traced
from tests.support.world import World, counts

VALUES = "SELECT value FROM events ORDER BY value"


def uncommit(checkpoint: str, batch_id: int) -> None:
    """Take a batch out of Spark's commit log, as a crash between the sink and that log leaves it."""
    (Path(checkpoint) / "commits" / f"{batch_id}").unlink()
    (Path(checkpoint) / "commits" / f".{batch_id}.crc").unlink(missing_ok=True)


@pytest.mark.behaviour("TX-4")
def test_a_batch_that_spark_repeats_after_a_crash_is_skipped_without_asking_anybody(world: World) -> None:
    topic = world.events_topic(["a", "b"], partitions=2)
    claim = world.claim(topic)
    world.run(claim, events, Append("events"))
    uncommit(claim.checkpoint(world.checkpoints), 0)
    asked: list[str] = []

    def transform(batch: DataFrame) -> DataFrame:
        asked.append("transform")
        return events(batch)

    query = world.run(claim, transform, Execute(lambda _work, _batches: asked.append("writer")))

    assert counts(query) == []  # not even Kafka was read
    assert asked == []
    assert world.database.column(VALUES) == ["a", "b"]
    assert world.stored(topic) == {0: 2, 1: 0}


@pytest.mark.behaviour("TX-5")
def test_each_partition_of_a_batch_is_cropped_at_its_own_stored_offset(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    topic, other = offsetstore_topic(12), offsetstore_topic(1)
    for partition in (0, 1, 11):
        world.produce(topic, [f"{partition}{letter}" for letter in "abc"], partition=partition)
    world.produce(other, ["other-a", "other-b"])
    claim = world.claim(topic, other)
    world.advance(claim, {TopicPartition(topic, 0): 3, TopicPartition(topic, 11): 2, TopicPartition(other, 0): 1})

    world.run(claim, events, Append("events"))

    assert world.database.column(VALUES) == ["11c", "1a", "1b", "1c", "other-b"]
    assert world.stored(topic) == dict.fromkeys(range(12), 0) | {0: 3, 1: 3, 11: 3}
    assert world.stored(other) == {0: 2}


@pytest.mark.behaviour("TX-6", "START-30")
def test_a_range_above_the_stored_offset_ends_the_query_with_nothing_written(world: World) -> None:
    topic = world.events_topic(["a", "b", "c"], ["d"])
    claim = world.claim(topic)
    ahead = json.dumps({topic: {"0": 2, "1": 0}})
    stream = world.spark.readStream.format("kafka").options(**world.options(topic, startingOffsets=ahead)).load()
    asked: list[DataFrame] = []

    def transform(batch: DataFrame) -> DataFrame:
        asked.append(batch)
        return events(batch)

    failed = world.run_to_failure(claim, transform, Append("events"), stream=stream)

    assert isinstance(failed.error, OffsetGap)
    assert failed.error.topic_partition == TopicPartition(topic, 0)
    assert "[0, 2) is missing" in str(failed.error)
    assert "OffsetGap" in failed.text
    assert asked == []  # it could be seen before anything was computed
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0, 1: 0}


@pytest.mark.behaviour("TX-7", "SINK-4")
def test_aborted_transactions_and_their_markers_are_passed_to_the_ranges_end(world: World) -> None:
    topic = world.events_topic(partitions=2)
    producer = TransactionalProducer(world.kafka.bootstrap_servers, topic)
    producer.commit(["a", "b"])  # 0, 1, and a marker at 2
    producer.abort(["x", "y"])  # 3, 4, and a marker at 5
    producer.commit(["c"])  # 6, 7
    producer.abort(["z"])  # 8, 9: the log ends with records that nobody may read

    written: list[int] = []

    class Recording(Append):
        def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
            written.append(super().write(work, batches))
            return written[-1]

    committed: dict[str, Any] = {"kafka.isolation.level": "read_committed"}
    claim = world.store.claim(world.group, world.broker(topic, **committed))
    query = world.run(claim, events, Recording("events"), maxOffsetsPerTrigger="4", **committed)

    assert counts(query) == [2, 1]
    assert written == [2, 1, 0], "the last range has no record"
    assert world.database.rows('SELECT "offset", value FROM events ORDER BY 1') == [(0, "a"), (1, "b"), (6, "c")]
    assert world.stored(topic) == {0: 10, 1: 0}


LEDGER = 'SELECT partition, "offset", count(*) FROM events GROUP BY 1, 2 ORDER BY 1, 2'


def joined(batch: DataFrame) -> DataFrame:
    """Each record with its partition's name, from a static table, after a shuffle."""
    names = batch.sparkSession.range(2).selectExpr("CAST(id AS int) AS partition", "'p' || id AS name").hint("merge")
    return traced(batch).join(names, "partition").withColumn("value", F.concat("name", "value")).drop("name")


class FailsOnce:
    """A transform that fails in its second batch, and works from then on."""

    def __init__(self, transform: SparkTransform) -> None:
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
    "shuffled join": (joined, {}),
}


@pytest.mark.behaviour("SINK-7")
@pytest.mark.parametrize(
    ("atomicity", "first", "second", "moves"),
    [
        ("batch", "repartition", "maxRecordsPerPartition", 0),
        ("partition", "minPartitions", "shuffled join", 2),
    ],
)
def test_no_record_is_lost_or_doubled(  # noqa: PLR0917 - a row of the table
    world: World, caplog: pytest.LogCaptureFixture, atomicity: Atomicity, first: str, second: str, moves: int
) -> None:
    """``moves``: of how many of the two jobs the tasks are no longer Kafka's partitions."""
    topic = world.events_topic(*[[str(number) for number in range(10)]] * 2)
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
def test_sums_over_a_batch_are_exact_in_batch_atomicity(world: World) -> None:
    world.database.execute("CREATE TABLE sums (value text PRIMARY KEY, n bigint)")
    topic = world.topic(*[["a", "b", "c", "d", "e"] * 2] * 2)
    job, into = FailsOnce(grouped), Upsert("sums", key=["value"], add=["n"])

    world.run_to_failure(world.claim(topic), job, into, maxOffsetsPerTrigger="14")
    world.run(world.claim(topic), job, into, maxOffsetsPerTrigger="14")

    assert world.database.rows("SELECT * FROM sums ORDER BY value") == [(value, 4) for value in "abcde"]
    assert world.stored(topic) == {0: 10, 1: 10}
