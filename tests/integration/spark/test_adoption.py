"""A job that runs today with plain Spark, at least once, goes on exactly once: from its own checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from offsetstore import Append, StartPolicy, TopicPartition
from offsetstore.errors import ConfigurationError, UncertainBatch
from offsetstore.spark.checkpoints import HadoopFiles
from offsetstore.store.adoption import LocalFiles, read
from offsetstore.testing.fixtures import NewTopic
from tests.support.transforms import EVENTS, events
from tests.support.windows import rows, windows
from tests.support.world import World

VALUES = "SELECT value FROM events ORDER BY value"


class Crash(Exception):
    """The end of the old job."""


class OldJob:
    """What people write without us: its results in one transaction, its offsets in Spark's checkpoint.

    It ends in the batch ``crash_in``, after it has written.
    """

    def __init__(self, world: World, url: str, checkpoint: Path, *topics: str) -> None:
        self.world, self.url, self.checkpoint, self.topics = world, url, checkpoint, topics
        self.crash_in: int | None = None

    def write(self, batch: DataFrame, batch_id: int) -> None:
        rows: list[Any] = [tuple(row) for row in events(batch).collect()]
        with psycopg.connect(self.url) as connection:
            connection.cursor().executemany("INSERT INTO events VALUES (%s, %s, %s, %s)", rows)
        if batch_id == self.crash_in:
            raise Crash

    def run(self) -> None:
        options = self.world.options(*self.topics, startingOffsets="earliest", maxOffsetsPerTrigger="4")
        stream = self.world.spark.readStream.format("kafka").options(**options).load()
        writer = stream.writeStream.foreachBatch(self.write).option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)


@pytest.mark.behaviour("START-20")
def test_a_job_that_was_stopped_goes_on_where_it_was(
    world: World, offsetstore_topic: NewTopic, offsetstore_database: str, tmp_path: Path
) -> None:
    world.database.execute(EVENTS)
    one, two = offsetstore_topic(2), offsetstore_topic(1)
    old = OldJob(world, offsetstore_database, tmp_path / "old job", one, two)
    world.produce(one, ["a", "b", "c"])
    world.produce(two, ["d"])
    old.run()
    world.produce(one, ["e"], partition=1)
    old.run()
    world.produce(one, ["f"])
    world.produce(two, ["g"])

    claim = world.claim(one, two, adopt_checkpoint=str(old.checkpoint))
    assert json.loads(claim.starting_offsets) == {one: {"0": 3, "1": 1}, two: {"0": 1}}
    world.run(claim, events, Append("events"))

    assert world.database.column(VALUES) == ["a", "b", "c", "d", "e", "f", "g"]
    adopted = [event for event in world.store.history(world.group) if event.event == "adopt"]
    assert [event.to_offset for event in adopted if event.topic_partition == TopicPartition(one, 0)] == [3]
    assert all(event.reason.endswith(f"{old.checkpoint}, batch 1") for event in adopted)
    # The same line of code from now on: the store has the offsets.
    claim = world.claim(one, two, adopt_checkpoint=str(old.checkpoint))
    assert json.loads(claim.starting_offsets) == {one: {"0": 4, "1": 1}, two: {"0": 2}}
    assert [event.event for event in world.store.history(world.group)].count("adopt") == len(adopted)


@pytest.mark.behaviour("START-20")
@pytest.mark.parametrize("version", ["1", "2"])
def test_both_forms_of_a_checkpoints_offsets_are_read_also_by_sparks_own_file_systems(
    world: World, offsetstore_database: str, tmp_path: Path, version: str
) -> None:
    setting = "spark.sql.streaming.offsetLog.formatVersion"
    topic = world.events_topic(["a", "b"])
    old = OldJob(world, offsetstore_database, tmp_path / "old", topic)
    world.spark.conf.set(setting, version)
    try:
        old.run()
    finally:
        world.spark.conf.unset(setting)
    assert (old.checkpoint / "offsets" / "0").read_text().startswith(f"v{version}\n")
    location = f"file://{old.checkpoint}"
    files = HadoopFiles(world.spark, location)

    assert read(files) == read(LocalFiles(location))
    assert files.names("nothing") == []
    with pytest.raises(ConfigurationError, match="offsets/7 of the checkpoint can't be read"):
        files.read("offsets/7")
    claim = world.claim(topic, adopt_checkpoint=files)
    assert json.loads(claim.starting_offsets) == {topic: {"0": 2}}


@pytest.mark.behaviour("START-20")
def test_the_batch_in_which_it_crashed_is_named_and_somebody_decides(
    world: World, offsetstore_database: str, tmp_path: Path
) -> None:
    topic = world.events_topic()
    old = OldJob(world, offsetstore_database, tmp_path / "old", topic)
    old.crash_in = 1
    world.produce(topic, ["a", "b", "c", "d", "e", "f"])
    with pytest.raises(StreamingQueryException):
        old.run()
    world.produce(topic, ["g"])

    with pytest.raises(UncertainBatch) as caught:
        world.claim(topic, adopt_checkpoint=str(old.checkpoint))
    assert caught.value.topic_partition == TopicPartition(topic, 0)
    assert "[4, 6)" in str(caught.value)

    policy = StartPolicy(on_uncertain="skip")
    world.run(world.claim(topic, adopt_checkpoint=str(old.checkpoint), policy=policy), events, Append("events"))

    assert world.database.column(VALUES) == ["a", "b", "c", "d", "e", "f", "g"]
    skipped = [event for event in world.store.history(world.group) if event.event == "skip"]
    assert [(event.from_offset, event.to_offset) for event in skipped] == [(4, 6)]


@pytest.mark.behaviour("START-20", "SINK-6")
def test_its_state_comes_along_where_its_checkpoint_is_copied(
    world: World, offsetstore_topic: NewTopic, offsetstore_database: str, tmp_path: Path
) -> None:
    world.database.execute("CREATE TABLE windows (second int, records bigint)")
    topic = offsetstore_topic(1)
    written: list[Any] = []
    stream = world.spark.readStream.format("kafka").options(**world.options(topic, startingOffsets="earliest")).load()
    world.produce(topic, ["1", "2", "11"])
    writer = windows(stream).writeStream.foreachBatch(lambda batch, _: written.extend(rows(batch).collect()))
    old = writer.option("checkpointLocation", str(tmp_path / "old")).trigger(availableNow=True).start()
    assert old.awaitTermination(120)
    assert [tuple(row) for row in written] == [(0, 2)]
    world.produce(topic, ["12", "21"])

    claim = world.claim(topic, adopt_checkpoint=str(tmp_path / "old"))
    kept = claim.checkpoint(world.checkpoints, keep=True)
    shutil.copytree(tmp_path / "old", kept)
    world.run(claim, rows, Append("windows"), stream=windows(world.read(claim)), checkpoint=kept)

    assert world.database.rows("SELECT * FROM windows") == [(10, 2)]
