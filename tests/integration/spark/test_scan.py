"""Which task has which rows of a micro-batch: looked up in the rows themselves, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from offsetstore import OffsetRange, TopicPartition
from offsetstore.spark.kafka_columns import with_coordinates
from offsetstore.spark.plans.scan import Placed, place
from offsetstore.testing.fixtures import NewTopic
from tests.support.world import SECONDS, World


def coordinates(task: int, batches: Iterable[pa.RecordBatch | None]) -> list[tuple[int, int, int]]:
    kafka: list[Any] = [row["_kafka"] for batch in batches if batch is not None for row in batch.to_pylist()]
    return [(task, record["partition"], record["offset"]) for record in kafka]


def as_it_is(frame: DataFrame) -> DataFrame:
    return frame


def shuffled(frame: DataFrame) -> DataFrame:
    """Into as many tasks as there are partitions, so that counting them would prove it."""
    return frame.repartition(2)


@pytest.mark.behaviour("SINK-7")
@pytest.mark.parametrize(
    ("options", "change", "moved"),
    [
        pytest.param({}, as_it_is, "not at all", id="as Spark does it by itself"),
        pytest.param({"minPartitions": "7"}, as_it_is, "tasks read 2 Kafka partitions", id="several tasks a partition"),
        pytest.param({}, shuffled, "from a ShuffledRowRDD", id="a shuffle"),
    ],
)
def test_each_task_has_the_rows_of_one_partition_and_all_of_them(
    world: World,
    offsetstore_topic: NewTopic,
    options: dict[str, str],
    change: Callable[[DataFrame], DataFrame],
    moved: str,
) -> None:
    topic = offsetstore_topic(2)
    for partition in range(2):
        world.produce(topic, list("abcd"), partition=partition)
    ranges = {TopicPartition(topic, partition): OffsetRange(0, 4) for partition in range(2)}
    found: list[tuple[Placed, list[Any]]] = []

    def look(batch: DataFrame, _: int) -> None:
        placed = place(change(with_coordinates(batch)), ranges, list(ranges))
        found.append((placed, [each for part in placed.parts.run(coordinates) for each in part]))

    reader = world.spark.readStream.format("kafka").options(**world.options(topic, **options))
    stream = reader.option("startingOffsets", "earliest").load().writeStream.foreachBatch(look)
    query = stream.option("checkpointLocation", world.checkpoints).trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS)

    [(placed, rows)] = found
    tasks = dict(enumerate(placed.tasks))
    assert sorted(placed.tasks) == sorted(ranges)
    assert all(tasks.get(task) == TopicPartition(topic, partition) for task, partition, _ in rows)
    assert sorted((partition, offset) for _, partition, offset in rows) == [
        (p, offset) for p in range(2) for offset in range(4)
    ]
    assert moved in (placed.moved or "not at all")
