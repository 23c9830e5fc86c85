"""Large batches that the driver collects: in a file, and up to the limit that Spark sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from offsetstore import Append, Execute
from offsetstore.protocol.ports import Work
from offsetstore.spark import collecting
from tests.support.blocks import lose_blocks
from tests.support.transforms import events, traced
from tests.support.world import World

pytestmark = pytest.mark.usefixtures("nothing_persisted")

SIZE = 5_000


@pytest.fixture
def _limit(world: World) -> Iterator[None]:
    """One partition's records are below it, and those of all are not."""
    context: Any = world.spark.sparkContext
    conf = context._jsc.sc().conf()  # read anew for each job
    conf.set("spark.driver.maxResultSize", "12k")
    yield
    conf.remove("spark.driver.maxResultSize")


@pytest.fixture
def topic(world: World) -> str:
    """Four partitions with a large record each."""
    name = world.events_topic(partitions=4)
    for number, letter in enumerate("abcd"):
        world.produce(name, [letter * SIZE], partition=number)
    return name


@pytest.mark.behaviour("SINK-8")
@pytest.mark.usefixtures("_limit")
def test_what_spark_refuses_to_collect_at_once_is_collected_partition_by_partition(
    world: World, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "IN_MEMORY", 0)
    seen: list[str] = []

    def write(_work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        seen.extend(row["value"][0] for batch in batches for row in batch.to_pylist())

    def transform(batch: DataFrame) -> dict[str, DataFrame]:
        return {"table": events(batch), "function": events(batch)}

    world.run(world.claim(topic), transform, {"table": Append("events"), "function": Execute(write)})

    assert world.database.column("SELECT value FROM events ORDER BY value") == [letter * SIZE for letter in "abcd"]
    assert sorted(seen) == [*"abcd"]
    assert world.stored(topic) == dict.fromkeys(range(4), 1)
    context: Any = world.spark.sparkContext
    assert list(context._jsc.getPersistentRDDs()) == []


@pytest.mark.behaviour("SINK-13")
@pytest.mark.usefixtures("_limit")
def test_rows_that_an_executor_loses_before_they_are_fetched_are_not_computed_again(
    world: World, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a shuffle, they could be other rows: some twice, others never."""
    world.produce(topic, ["d" * SIZE] * 3, partition=3)  # more than the limit in one partition
    calls: list[str] = []

    class Losing(collecting.CollectedRows):
        def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
            super().__init__(schema, self.losing(batches))

        def losing(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                if "lost" not in calls and lose_blocks(world.spark, number=3):  # nothing is kept at the first try
                    calls.append("lost")

    def transform(batch: DataFrame) -> DataFrame:
        calls.append("computed")
        return events(batch)

    monkeypatch.setattr(collecting, "CollectedRows", Losing)
    world.run(world.claim(topic), transform, Append("events"))

    assert calls == ["computed", "lost", "computed"]
    assert world.database.column("SELECT left(value, 1) FROM events ORDER BY 1") == [*"abcdddd"]


@pytest.mark.usefixtures("_limit")
def test_what_spark_refuses_to_collect_is_written_by_tasks_if_they_write_the_large_batches(
    world: World, topic: str
) -> None:
    world.run(world.claim(topic), traced, Append("events"), atomicity="partition", task_threshold=100)

    assert world.database.column("SELECT left(value, 1) FROM events ORDER BY value") == [*"abcd"]
    assert world.database.one("SELECT count(DISTINCT xmin::text) FROM events") == 4
    assert world.stored(topic) == dict.fromkeys(range(4), 1)
