"""Which task has which rows of a micro-batch: looked up in the rows themselves, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from offsetstore import OffsetRange, TopicPartition
from offsetstore.spark.columns import with_coordinates
from offsetstore.spark.plans.scan import Placed, place
from offsetstore.testing.fixtures import NewTopic
from tests.support.world import SECONDS, World


def coordinates(task: int, batches: Iterable[pa.RecordBatch | None]) -> list[tuple[int, int, int]]:
    kafka: list[Any] = [row["_kafka"] for batch in batches if batch is not None for row in batch.to_pylist()]
    return [(task, record["partition"], record["offset"]) for record in kafka]


@pytest.mark.behaviour("SINK-7")
def test_each_task_has_the_rows_of_one_partition_and_all_of_them(world: World, offsetstore_topic: NewTopic) -> None:
    topic = offsetstore_topic(2)
    for partition in range(2):
        world.produce(topic, list("abcd"), partition=partition)
    ranges = {TopicPartition(topic, partition): OffsetRange(0, 4) for partition in range(2)}
    found: list[tuple[Placed, list[Any]]] = []

    def look(batch: DataFrame, _: int) -> None:
        frame = with_coordinates(batch)
        # As Spark does it by itself, and after a shuffle into as many tasks as there are partitions.
        for changed in (frame, frame.repartition(2)):
            placed = place(changed, ranges, list(ranges))
            found.append((placed, [each for part in placed.parts.run(coordinates) for each in part]))

    for name, options in {"plain": {}, "several tasks a partition": {"minPartitions": "7"}}.items():
        reader = world.spark.readStream.format("kafka").options(**world.options(topic, **options))
        stream = reader.option("startingOffsets", "earliest").load().writeStream.foreachBatch(look)
        checkpoint = f"{world.checkpoints}/{name}"
        query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(SECONDS)

    shuffle = "from a ShuffledRowRDD"
    for (placed, rows), moved in zip(
        found, ("not at all", shuffle, "tasks read 2 Kafka partitions", shuffle), strict=True
    ):
        tasks = dict(enumerate(placed.tasks))
        assert sorted(placed.tasks) == sorted(ranges)
        assert all(tasks.get(task) == TopicPartition(topic, partition) for task, partition, _ in rows)
        assert sorted((partition, offset) for _, partition, offset in rows) == [
            (p, offset) for p in range(2) for offset in range(4)
        ]
        assert moved in (placed.moved or "not at all")
