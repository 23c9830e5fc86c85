"""A job whose group is paused waits before its next batch, on each way from Spark to the database."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from offsetstore import Append, OffsetStore, TransactionalSink
from offsetstore.protocol.events import BatchEnded, BatchStarted, PauseChanged
from offsetstore.testing.fixtures import NewTopic
from tests.support.recorder import Recorder
from tests.support.transforms import EVENTS, traced
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World

VALUES = "SELECT value FROM events ORDER BY value"
WAYS: dict[str, dict[str, Any]] = {
    "batch": {},
    "partition": {"atomicity": "partition", "task_threshold": 0},
    "stateful": {},
}
REASON = "ticket 17"


@dataclass
class Job:
    """A job that runs until it is stopped, and what it has told its observers."""

    world: World
    topic: str
    told: Recorder
    way: str

    def __post_init__(self) -> None:
        self.claim = self.world.claim(self.topic)

    @property
    def checkpoint(self) -> str:
        return self.claim.checkpoint(self.world.checkpoints, keep=self.way == "stateful")

    def start(self) -> tuple[StreamingQuery, TransactionalSink]:
        sink = TransactionalSink(self.claim, traced, into=Append("events"), **WAYS[self.way])
        stream = self.world.read(self.claim, **{"kafka.metadata.max.age.ms": "100"})
        every = {"processingTime": "100 milliseconds"}
        return self.world.start(sink, stream, checkpoint=self.checkpoint, trigger=every), sink

    def wait_until_it_waits(self) -> PauseChanged:
        """Wait until it stands before a batch, and see that it holds no lock."""
        [paused] = wait_until(lambda: self.told.of(PauseChanged), timeout=SECONDS)
        for table in ("consumer_groups", "kafka_partitions"):
            self.world.database.execute(f"SELECT 1 FROM {table} FOR UPDATE NOWAIT")
        return paused

    def wait_until_written(self, offset: int) -> None:
        """Wait for the end of the batch that ends there: a task's offset is stored before that."""
        ends = {offset}
        wait_until(
            lambda: (
                ends & {one.until for batch in self.told.of(BatchEnded, "written") for one in batch.ranges.values()}
            ),
            timeout=SECONDS,
        )
        assert self.world.stored(self.topic) == {0: offset}

    @property
    def values(self) -> list[str]:
        return self.world.database.column(VALUES)


@pytest.fixture
def told(world: World) -> Recorder:
    world.store.close()
    recorder = Recorder()
    world.store = OffsetStore.connect(world.database.url, observers=[recorder])
    return recorder


@pytest.fixture
def job(world: World, offsetstore_topic: NewTopic, told: Recorder, request: pytest.FixtureRequest) -> Job:
    world.database.execute(EVENTS)
    return Job(world, offsetstore_topic(1), told, request.param)


@pytest.mark.behaviour("OPS-2")
@pytest.mark.parametrize("job", ["partition"], indirect=True)
def test_a_paused_job_writes_nothing_and_holds_no_lock_until_it_is_resumed(job: Job) -> None:
    world = job.world
    world.produce(job.topic, ["a"])
    query, sink = job.start()
    job.wait_until_written(1)
    pause = world.store.pause(world.group, reason=REASON).after
    assert pause is not None
    began = time.monotonic()
    world.produce(job.topic, ["b"])

    assert job.wait_until_it_waits() == PauseChanged(group=world.group, pause=pause)
    time.sleep(2.5)  # it looks again, more than once
    assert (job.values, world.stored(job.topic)) == (["a"], {0: 1})
    owner = world.store.owner(world.group)
    assert owner is not None
    assert (owner.is_live, owner.token) == (True, job.claim.token)

    world.store.resume(world.group, reason="done")
    job.wait_until_written(2)
    passed = time.monotonic() - began
    query.stop()
    assert sink.error is None
    assert job.values == ["a", "b"]
    assert [one.pause is None for one in job.told.of(PauseChanged)] == [False, True]
    last = job.told.of(BatchEnded, "written")[-1]
    assert sum(last.seconds.values()) < passed - 2.5  # the wait belongs to no phase


@pytest.mark.behaviour("OPS-2", "OPS-15", "SINK-11")
@pytest.mark.parametrize("job", ["batch", "stateful"], indirect=True)
def test_a_query_that_is_stopped_while_it_waits_ends_soon_and_leaves_its_batch_to_the_next_start(job: Job) -> None:
    world = job.world
    world.produce(job.topic, ["a", "b"])
    world.store.pause(world.group, reason=REASON)
    query, sink = job.start()
    job.wait_until_it_waits()

    before = time.monotonic()
    query.stop()
    assert time.monotonic() - before < 60
    assert query.awaitTermination(1)
    assert query.exception() is None
    assert (sink.error, job.told.of(BatchEnded, "failed")) == (None, [])
    assert [(one.batch, one.ranges) for one in job.told.of(BatchEnded, "interrupted")] == [
        (one.batch, one.ranges) for one in job.told.of(BatchStarted)
    ]
    assert not (Path(job.checkpoint) / "commits" / "0").exists()
    assert (Path(job.checkpoint) / "offsets" / "0").exists()
    assert (job.values, world.stored(job.topic)) == ([], {0: 0})

    world.store.resume(world.group, reason="done")
    query, sink = job.start()  # on the same checkpoint
    job.wait_until_written(2)
    query.stop()
    assert sink.error is None
    assert job.values == ["a", "b"]
