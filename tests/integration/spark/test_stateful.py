"""A query that keeps records for later batches, with the checkpoint that keeps them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from offsetstore import Append, TopicPartition, Upsert
from offsetstore.errors import CheckpointAhead, RowsRefused, UnsupportedQuery
from offsetstore.protocol.ports import Writer
from offsetstore.runtime import failpoints
from offsetstore.spark.sink import SparkTransform
from offsetstore.testing.fixtures import NewTopic
from tests.support.windows import WINDOWS, rows, windows
from tests.support.world import World, made_unchecked

COUNTS = "SELECT second, records FROM windows ORDER BY second, records"


@dataclass
class Job:
    """A job with a kept checkpoint, one micro-batch a record unless told otherwise, run after run."""

    world: World
    topic: str
    transform: SparkTransform = rows
    into: Writer = field(default_factory=lambda: Append("windows"))
    mode: str = "append"

    def run(self, *, fails: bool = False) -> Any:
        """Read all there is; return the query, or how it failed."""
        claim = self.world.claim(self.topic)
        sink = made_unchecked(claim, self.transform, into=self.into)
        stream = windows(self.world.read(claim, maxOffsetsPerTrigger="3"))
        writer = stream.writeStream.foreachBatch(sink).outputMode(self.mode).trigger(availableNow=True)
        query = writer.option("checkpointLocation", claim.checkpoint(self.world.checkpoints, keep=True)).start()
        if fails:
            return self.world.failure(query, sink)
        assert query.awaitTermination(120)
        assert sink.error is None
        return query

    @property
    def directory(self) -> Path:
        [group] = Path(self.world.checkpoints).iterdir()
        return group / "kept"


@pytest.fixture
def job(world: World, offsetstore_topic: NewTopic) -> Iterator[Job]:
    setting = "spark.sql.shuffle.partitions"
    before = world.spark.conf.get(setting)
    world.spark.conf.set(setting, "1")  # one store of state a batch
    world.database.execute(WINDOWS)
    yield Job(world, offsetstore_topic(1))
    assert before is not None
    world.spark.conf.set(setting, before)


@pytest.mark.behaviour("SINK-6", "START-15")
def test_a_window_comes_out_once_wherever_the_job_breaks(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches 0 to 2 have data; batch 3 has none, and two windows are over in it."""
    world = job.world
    world.produce(job.topic, [str(second) for second in (1, 2, 3, 11, 12, 1, 21, 35)])
    breaks = [
        ("after_commit:2", 1),  # batch 1 is written
        ("before_commit:3", 3),  # batch 1 is skipped, batch 2 written; in batch 3, which has no ranges
        ("after_commit:1", 3),  # batch 3 again, now written
    ]
    for point, batch in breaks:
        monkeypatch.setenv(failpoints.VARIABLE, f"{point}:raise")
        failpoints._reached.clear()  # it counts within the process
        failed = job.run(fails=True)
        assert "FailpointReached" in failed.text
        assert (job.directory / "offsets" / str(batch)).exists()
        assert not (job.directory / "commits" / str(batch)).exists()
    monkeypatch.delenv(failpoints.VARIABLE)

    query = job.run()
    assert [progress["numInputRows"] for progress in query.recentProgress] == [0]  # batch 3, which is skipped
    assert world.database.rows(COUNTS) == [(0, 4), (10, 2), (20, 1)]
    assert world.stored(job.topic) == {0: 8}
    # The window that was open all the time has kept its record.
    world.produce(job.topic, ["36", "61"])
    job.run()
    assert world.database.rows(COUNTS) == [(0, 4), (10, 2), (20, 1), (30, 2)]


@pytest.mark.behaviour("SINK-6")
def test_a_row_that_is_refused_stores_nothing_of_the_batch_and_no_reset_is_offered(job: Job) -> None:
    """It may be made of records of earlier batches: no offset would be the right one to go on at.

    A transform that looks at nothing has lost no state before that.
    """
    world = job.world
    world.database.execute("ALTER TABLE windows ADD CONSTRAINT few CHECK (records < 3)")
    asked: list[list[str]] = []

    def nothing(batch: DataFrame) -> DataFrame:
        asked.append(batch.columns)
        return rows(batch).where("false")

    job.transform = nothing
    world.produce(job.topic, ["1", "2"])
    job.run()
    assert asked[0] == ["window", "records"]  # Kafka's columns are gone, and that is fine
    job.transform = rows
    world.produce(job.topic, [str(second) for second in (11, 3, 12, 21, 35)])

    failed = job.run(fails=True)

    assert isinstance(failed.error, RowsRefused)
    assert (failed.error.offsets, failed.error.stored) == (None, {})
    assert "offsetstore reset" not in str(failed.error)
    assert world.stored(job.topic) == {0: 5}  # the window came with the next batch
    assert world.database.rows(COUNTS) == []
    world.database.execute("ALTER TABLE windows DROP CONSTRAINT few")
    job.run()
    assert world.database.rows(COUNTS) == [(0, 3), (10, 2), (20, 1)]


@pytest.mark.behaviour("SINK-6")
def test_the_whole_result_of_each_batch_is_taken_by_an_upsert_and_not_by_an_append(job: Job) -> None:
    world = job.world
    world.database.execute("CREATE TABLE totals (second int PRIMARY KEY, records bigint)")
    job.mode = "complete"
    world.produce(job.topic, ["1", "2", "11"])
    failed = job.run(fails=True)
    assert isinstance(failed.error, UnsupportedQuery)
    assert "output mode is complete" in failed.text
    assert world.stored(job.topic) == {0: 0}

    job.into = Upsert("totals", key=["second"], version="records")
    world.produce(job.topic, ["3", "12"])
    job.run()
    assert world.database.rows("SELECT * FROM totals ORDER BY second") == [(0, 3), (10, 2)]


@pytest.mark.behaviour("START-15", "START-21")
def test_a_database_that_is_older_than_the_checkpoint_or_was_reset_stops_the_job(job: Job) -> None:
    """Which cases there are, is in `tests.unit.spark.test_continuity`."""
    world = job.world
    world.produce(job.topic, ["1", "2", "11"])
    job.run()
    assert world.database.rows(COUNTS) == [(0, 2)]
    world.produce(job.topic, ["12", "21"])
    job.run()  # the last batch has no data: the window is over in it
    assert world.database.rows(COUNTS) == [(0, 2), (10, 2)]
    world.produce(job.topic, ["14"])

    # Restored to a moment at which that batch was not there; the offsets are the same.
    world.database.execute("UPDATE batch_marks SET batch_id = batch_id - 1")
    failed = job.run(fails=True)
    assert isinstance(failed.error, CheckpointAhead)
    assert "in the database" in failed.text
    world.database.execute("UPDATE batch_marks SET batch_id = batch_id + 1")

    world.store.reset(world.group, {TopicPartition(job.topic, 0): 4}, reason="a test")
    failed = job.run(fails=True)
    assert isinstance(failed.error, CheckpointAhead)
    assert failed.error.topic_partition == TopicPartition(job.topic, 0)
    assert world.stored(job.topic) == {0: 4}

    # Moved away: it goes on at the stored offset, with an empty state, and says so.
    shutil.rmtree(job.directory)
    world.produce(job.topic, ["31"])
    job.run()
    assert world.database.rows(COUNTS) == [(0, 2), (10, 1), (10, 2), (20, 1)]
