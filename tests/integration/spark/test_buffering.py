"""Micro-batches that a sink keeps in memory; the rest is in `tests.unit.processing.test_buffered`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from sqlalchemy import text

from offsetstore import Append, BatchInfo, Execute, Flush, TransactionalSink, Upsert, Work
from tests.support.transforms import traced
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World, made_unchecked

LATER = Flush(rows=1_000, seconds=600)
"""Nothing in these tests reaches its limits."""


@pytest.fixture
def topic(world: World) -> str:
    """Two partitions with six records each."""
    name = world.events_topic(partitions=2)
    for partition, values in enumerate(["abcdef", "ghijkl"]):
        world.produce(name, list(values), partition=partition)
    return name


def written(world: World) -> list[str]:
    return sorted(world.database.column("SELECT value FROM events"))


def execute(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    rows = [row for batch in batches for row in batch.to_pylist()]
    work.connection.execute(text("INSERT INTO events VALUES (:topic, :partition, :offset, :value)"), rows)


INTO: dict[str, Any] = {
    "upsert": Upsert("events", key=["topic", "partition", "offset"]),
    "execute": Execute(execute),
}


@pytest.mark.behaviour("MARK-4")
def test_batches_are_written_when_their_time_is_up_without_another_batch(world: World, topic: str) -> None:
    claim = world.claim(topic)
    computed: list[float] = []

    def transform(batch: DataFrame) -> DataFrame:
        computed.append(time.monotonic())
        return traced(batch)

    sink = made_unchecked(claim, transform, into=Append("events"), flush=Flush(rows=1_000, seconds=2))
    query = world.start(
        sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints), trigger={"processingTime": "0 seconds"}
    )
    wait_until(lambda: written(world))
    assert time.monotonic() - computed[0] > 2  # kept until then
    assert len(written(world)) == 12
    assert len(computed) == 1
    assert query.isActive
    query.stop()
    assert world.stored(topic) == {0: 6, 1: 6}


@pytest.mark.behaviour("MARK-4")
def test_a_query_that_is_started_again_on_the_same_sink_goes_on_with_what_it_keeps(world: World, topic: str) -> None:
    claim = world.claim(topic)
    sink = TransactionalSink(claim, traced, into=Append("events"), flush=LATER)
    checkpoint = claim.checkpoint(world.checkpoints)
    for more in ("mn", "op", ""):
        assert world.start(sink, world.read(claim), checkpoint=checkpoint).awaitTermination(SECONDS)
        world.produce(topic, list(more))
    assert written(world) == []

    claim.close()

    assert "".join(written(world)) == "abcdefghijklmnop"
    assert world.stored(topic) == {0: 10, 1: 6}


@pytest.mark.behaviour("MARK-4")
def test_several_outputs_and_metadata_are_flushed_together(world: World, topic: str) -> None:
    world.database.execute("CREATE TABLE copies (LIKE events)")
    infos: list[BatchInfo] = []

    def note(info: BatchInfo) -> object:
        infos.append(info)
        return {tp: {"until": range_.until} for tp, range_ in info.ranges.items()}

    def transform(batch: Any) -> Any:
        return {"events": traced(batch), "copies": traced(batch).where("value < 'd'")}

    with world.claim(topic) as claim:
        into = {"events": Append("events"), "copies": Append("copies")}
        world.run(claim, transform, into, flush=LATER, metadata=note, maxOffsetsPerTrigger="4")
        assert infos == []

    assert len(written(world)) == 12
    assert world.database.one("SELECT count(*) FROM copies") == 3
    assert [(info.number, dict(info.rows or {})) for info in infos] == [(2, {"events": 12, "copies": 3})]
    assert set(map(str, world.store.metadata(world.group).values())) == {"{'until': 6}"}
