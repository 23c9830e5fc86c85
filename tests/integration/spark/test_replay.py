"""A range that was in the results before, in whole or in part, or that begins too late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from offsetstore import Append, Execute, TopicPartition
from offsetstore.errors import OffsetGap
from offsetstore.testing.fixtures import NewTopic
from tests.support.transforms import EVENTS, events
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
    stream = world.read(claim).sparkSession.readStream.format("kafka").options(**world.options(topic))
    asked: list[DataFrame] = []

    def transform(batch: DataFrame) -> DataFrame:
        asked.append(batch)
        return events(batch)

    failed = world.run_to_failure(
        claim, transform, Append("events"), stream=stream.option("startingOffsets", ahead).load()
    )

    assert isinstance(failed.error, OffsetGap)
    assert failed.error.topic_partition == TopicPartition(topic, 0)
    assert "[0, 2) is missing" in str(failed.error)
    assert "OffsetGap" in failed.text
    assert asked == []  # it could be seen before anything was computed
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0, 1: 0}


@pytest.mark.behaviour("TX-5")
def test_a_checkpoint_beats_the_starting_offsets_and_the_store_crops_what_it_repeats(world: World) -> None:
    topic = world.events_topic()
    own = f"{world.checkpoints}/own"
    world.produce(topic, ["a", "b"])
    world.run(world.claim(topic), events, Append("events"), checkpoint=own)
    world.produce(topic, ["c", "d", "e"])
    claim = world.claim(topic)
    world.advance(claim, {TopicPartition(topic, 0): 4})

    # Behind the store: Spark reads from 2, whatever startingOffsets says, and what is known is cropped.
    query = world.run(world.claim(topic), events, Append("events"), checkpoint=own)

    assert last_range(query) == [{topic: {"0": 2}}, {topic: {"0": 5}}]
    assert world.database.column(VALUES) == ["a", "b", "e"]
    assert world.stored(topic) == {0: 5}


def last_range(query: Any) -> list[Any]:
    """Where the last batch with records began and ended, as Spark tells it."""
    [source] = [progress for progress in query.recentProgress if progress["numInputRows"]][-1]["sources"]
    ends = (source["startOffset"], source["endOffset"])
    return [json.loads(at) if isinstance(at, str) else at for at in ends]
