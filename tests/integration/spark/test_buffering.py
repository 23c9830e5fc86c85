"""Micro-batches that a sink keeps in memory; the rest is in `tests.unit.processing.test_buffered`."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame

from offsetstore import Append, BatchInfo, Flush
from tests.support.transforms import traced
from tests.support.world import SECONDS, World, made_unchecked


@pytest.fixture
def topic(world: World) -> str:
    """Two partitions with six records each."""
    name = world.events_topic(partitions=2)
    for partition, values in enumerate(["abcdef", "ghijkl"]):
        world.produce(name, list(values), partition=partition)
    return name


def written(world: World) -> list[str]:
    return sorted(world.database.column("SELECT value FROM events"))


@pytest.mark.behaviour("MARK-4")
def test_several_outputs_and_metadata_of_two_queries_on_one_sink_are_flushed_together(world: World, topic: str) -> None:
    world.database.execute("CREATE TABLE copies (LIKE events)")
    infos: list[BatchInfo] = []

    def note(info: BatchInfo) -> object:
        infos.append(info)
        return {tp: {"until": range_.until} for tp, range_ in info.ranges.items()}

    def transform(batch: DataFrame) -> dict[str, DataFrame]:
        return {"events": traced(batch), "copies": traced(batch).where("value < 'd'")}

    with world.claim(topic) as claim:
        into = {"events": Append("events"), "copies": Append("copies")}
        later = Flush(rows=1_000, seconds=600)  # nothing here reaches its limits
        sink = made_unchecked(claim, transform, into=into, flush=later, metadata=note)
        for more in ("mn", ""):
            stream = world.read(claim, maxOffsetsPerTrigger="8")
            query = world.start(sink, stream, checkpoint=claim.checkpoint(world.checkpoints))
            assert query.awaitTermination(SECONDS)
            world.produce(topic, list(more))
        assert (infos, written(world)) == ([], [])

    assert "".join(written(world)) == "abcdefghijklmn"
    assert world.database.one("SELECT count(*) FROM copies") == 3
    assert [(info.number, dict(info.rows or {})) for info in infos] == [(2, {"events": 14, "copies": 3})]
    assert {str(value) for value in world.store.metadata(world.group).values()} == {"{'until': 8}", "{'until': 6}"}
    assert world.stored(topic) == {0: 8, 1: 6}
