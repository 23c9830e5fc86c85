"""A range that was in the results before, in whole or in part, or that begins too late."""

from __future__ import annotations

import json
import shutil
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
    topic, other = offsetstore_topic(3), offsetstore_topic(1)
    for partition in range(3):
        world.produce(topic, [f"{partition}{letter}" for letter in "abc"], partition=partition)
    world.produce(other, ["other-a", "other-b"])
    claim = world.claim(topic, other)
    world.advance(claim, {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 2, TopicPartition(other, 0): 1})

    world.run(claim, events, Append("events"))

    assert world.database.column(VALUES) == ["1c", "2a", "2b", "2c", "other-b"]
    assert world.stored(topic) == {0: 3, 1: 3, 2: 3}
    assert world.stored(other) == {0: 2}


@pytest.mark.behaviour("TX-5")
def test_partition_1_is_not_taken_for_partition_11(world: World) -> None:
    topic = world.events_topic(partitions=12)
    world.produce(topic, ["one-a", "one-b"], partition=1)
    world.produce(topic, ["eleven-a", "eleven-b"], partition=11)
    claim = world.claim(topic)
    world.advance(claim, {TopicPartition(topic, 11): 1})
    world.run(claim, events, Append("events"))
    assert world.database.column(VALUES) == ["eleven-b", "one-a", "one-b"]


@pytest.mark.behaviour("TX-6")
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


@pytest.mark.behaviour("TX-15")
def test_a_batch_is_planned_again_where_the_stored_offset_moved_while_it_was_computed(world: World) -> None:
    topic = world.events_topic(["a", "b", "c", "d"])
    claim = world.claim(topic)
    seen: list[int] = []

    def transform(batch: DataFrame) -> DataFrame:
        seen.append(batch.count())
        if len(seen) < 3:  # each plan is outdated by the time it is computed, but for the third one
            world.advance(claim, {TopicPartition(topic, 0): len(seen)})
        return events(batch)

    world.run(claim, transform, Append("events"))

    assert seen == [4, 3, 2]
    assert world.database.column(VALUES) == ["c", "d"]
    assert world.stored(topic) == {0: 4}


@pytest.mark.behaviour("TX-5", "TX-6")
def test_a_checkpoint_beats_the_starting_offsets_and_the_store_beats_the_checkpoint(world: World) -> None:
    topic = world.events_topic()
    own = f"{world.checkpoints}/own"
    world.produce(topic, ["a", "b"])
    world.run(world.claim(topic), events, Append("events"), checkpoint=own)
    kept = f"{world.checkpoints}/kept"
    shutil.copytree(own, kept)
    world.produce(topic, ["c", "d"])
    world.run(world.claim(topic), events, Append("events"), checkpoint=own)
    world.produce(topic, ["e"])

    # Behind the store: Spark reads from 2, whatever startingOffsets says, and what is known is cropped.
    query = world.run(world.claim(topic), events, Append("events"), checkpoint=kept)

    assert last_range(query) == ({topic: {"0": 2}}, {topic: {"0": 5}})
    assert world.database.column(VALUES) == ["a", "b", "c", "d", "e"]
    # Ahead of the store: of another group, which has read nothing yet.
    world.produce(topic, ["f"])
    failed = world.run_to_failure(
        world.claim(topic, group=f"{world.group}-2"), events, Append("events"), checkpoint=own
    )
    assert isinstance(failed.error, OffsetGap)
    assert world.database.column(VALUES) == ["a", "b", "c", "d", "e"]


@pytest.mark.behaviour("TX-5")
def test_a_checkpoint_that_knows_where_it_began_and_nothing_else_beats_the_starting_offsets_too(world: World) -> None:
    topic = world.events_topic()
    own = f"{world.checkpoints}/own"
    world.produce(topic, ["a", "b"])
    world.run(world.claim(topic), events, Append("events"), checkpoint=own)
    for log in ("offsets", "commits"):
        shutil.rmtree(f"{own}/{log}")
    assert (Path(own) / "sources" / "0" / "0").exists()
    world.produce(topic, ["c"])

    query = world.run(world.claim(topic), events, Append("events"), checkpoint=own)

    assert last_range(query) == (None, {topic: {"0": 3}})
    assert world.database.column(VALUES) == ["a", "b", "c"]
    assert world.stored(topic) == {0: 3}


def last_range(query: Any) -> tuple[Any, Any]:
    """Where the last batch with records began and ended, as Spark tells it: ``None`` where it began the checkpoint."""
    [source] = [progress for progress in query.recentProgress if progress["numInputRows"]][-1]["sources"]
    return parsed(source["startOffset"]), parsed(source["endOffset"])


def parsed(offset: Any) -> Any:
    return json.loads(offset) if isinstance(offset, str) else offset
