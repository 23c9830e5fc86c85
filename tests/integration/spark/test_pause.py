"""A job whose group is paused waits before its next batch; the rest is in `tests.unit.processing.test_pause`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from offsetstore import Append, OffsetStore, TransactionalSink
from offsetstore.protocol.events import BatchEnded, BatchStarted, PauseChanged
from tests.support.recorder import Recorder
from tests.support.transforms import traced
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World

VALUES = "SELECT value FROM events ORDER BY value"
WAYS: dict[str, dict[str, Any]] = {
    "partition": {"atomicity": "partition", "task_threshold": 0},
    "stateful": {},
}


@pytest.mark.behaviour("OPS-2", "OPS-15", "SINK-11")
@pytest.mark.parametrize("way", WAYS)
def test_a_paused_job_holds_no_lock_ends_soon_if_it_is_stopped_and_goes_on_when_it_is_resumed(
    world: World, way: str
) -> None:
    told = Recorder()
    world.store.close()
    world.store = OffsetStore.connect(world.database.url, observers=[told])
    topic = world.events_topic(["a", "b"])
    claim = world.claim(topic)
    checkpoint = claim.checkpoint(world.checkpoints, keep=way == "stateful")
    pause = world.store.pause(world.group, reason="ticket 17").after

    def start() -> tuple[StreamingQuery, TransactionalSink]:
        sink = TransactionalSink(claim, traced, into=Append("events"), **WAYS[way])
        stream = world.read(claim, **{"kafka.metadata.max.age.ms": "100"})
        return world.start(sink, stream, checkpoint=checkpoint, trigger={"processingTime": "100 milliseconds"}), sink

    query, sink = start()
    [paused] = wait_until(lambda: told.of(PauseChanged), timeout=SECONDS)
    assert paused == PauseChanged(group=world.group, pause=pause)
    for table in ("consumer_groups", "kafka_partitions"):
        world.database.execute(f"SELECT 1 FROM {table} FOR UPDATE NOWAIT")
    owner = world.store.owner(world.group)
    assert owner is not None
    assert (owner.is_live, owner.token) == (True, claim.token)

    query.stop()
    assert query.awaitTermination(1)
    assert (query.exception(), sink.error, told.of(BatchEnded, "failed")) == (None, None, [])
    assert [(one.batch, one.ranges) for one in told.of(BatchEnded, "interrupted")] == [
        (one.batch, one.ranges) for one in told.of(BatchStarted)
    ]
    assert not (Path(checkpoint) / "commits" / "0").exists()
    assert (Path(checkpoint) / "offsets" / "0").exists()
    assert (world.database.column(VALUES), world.stored(topic)) == ([], {0: 0})

    query, sink = start()  # on the same checkpoint
    wait_until(lambda: len(told.of(BatchStarted)) == 2, timeout=SECONDS)
    world.store.resume(world.group, reason="done")
    wait_until(lambda: told.of(BatchEnded, "written"), timeout=SECONDS)
    query.stop()
    assert sink.error is None
    assert (world.database.column(VALUES), world.stored(topic)) == (["a", "b"], {0: 2})
    assert told.of(PauseChanged)[-1].pause is None
