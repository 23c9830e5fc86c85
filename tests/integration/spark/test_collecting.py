"""Large batches that the driver collects: in a file, and up to the limit that Spark sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from offsetstore import Append, Execute
from offsetstore.protocol.work import Work
from offsetstore.spark import collecting
from offsetstore.spark.staging_area import StagingArea
from offsetstore.testing.fixtures import NewTopic
from tests.support.transforms import EVENTS, events, traced
from tests.support.world import World


@pytest.fixture
def _all_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "SMALL", 0)
    monkeypatch.setattr(collecting, "IN_MEMORY", 0)


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was staged."""
    found: list[Any] = []
    stage: Any = StagingArea.stage

    def watched(area: StagingArea, *arguments: Any) -> Any:
        found.append(stage(area, *arguments))
        return found[-1]

    monkeypatch.setattr(StagingArea, "stage", watched)
    return found


@pytest.fixture
def _kilobyte_limit(world: World) -> Iterator[None]:
    context: Any = world.spark.sparkContext
    conf = context._jsc.sc().conf()  # read anew for each job
    conf.set("spark.driver.maxResultSize", "1k")
    yield
    conf.remove("spark.driver.maxResultSize")


@pytest.mark.usefixtures("_all_in_a_file")
def test_a_failure_of_the_job_is_the_same_as_for_a_small_batch(world: World, offsetstore_topic: NewTopic) -> None:
    world.database.execute(EVENTS)
    topic = offsetstore_topic(1)
    world.produce(topic, ["a"])

    def transform(batch: DataFrame) -> DataFrame:
        return events(batch).where("assert_true(value = 'b', 'no b') IS NULL")

    failed = world.run_to_failure(world.claim(topic), transform, Append("events"))

    assert "no b" in failed.text
    assert world.stored(topic) == {0: 0}


@pytest.mark.usefixtures("_kilobyte_limit")
@pytest.mark.parametrize("small", [0, 1000])
def test_what_spark_refuses_to_collect_is_staged(
    world: World, offsetstore_topic: NewTopic, staged: list[Any], monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(collecting, "SMALL", small)
    world.database.execute(EVENTS)
    topic = offsetstore_topic(2)
    values = [f"{number}" * 1000 for number in range(4)]
    for number, value in enumerate(values):
        world.produce(topic, [value], partition=number % 2)

    world.run(world.claim(topic), events, Append("events"))

    assert world.database.column("SELECT value FROM events ORDER BY value") == values
    assert world.stored(topic) == {0: 2, 1: 2}
    assert [one.rows for one in staged] == [4]


@pytest.mark.usefixtures("_kilobyte_limit")
def test_what_spark_refuses_to_collect_is_written_by_tasks_if_they_write_the_large_batches(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    topic = offsetstore_topic(2)
    for number in range(2):
        world.produce(topic, [f"{number}" * 2000], partition=number)

    world.run(world.claim(topic), traced, Append("events"), atomicity="partition", task_threshold=100)

    assert world.database.column("SELECT left(value, 1) FROM events ORDER BY value") == ["0", "1"]
    assert world.database.one("SELECT count(DISTINCT xmin::text) FROM events") == 2
    assert world.stored(topic) == {0: 1, 1: 1}


@pytest.mark.usefixtures("_kilobyte_limit")
def test_without_a_writer_that_can_be_staged_the_limit_ends_the_query(
    world: World, offsetstore_topic: NewTopic, staged: list[Any]
) -> None:
    world.database.execute(EVENTS)
    topic = offsetstore_topic(1)
    world.produce(topic, ["a" * 5000])

    def write(_work: Work, _batches: Iterable[pa.RecordBatch]) -> None:
        pytest.fail("there are no rows to write")

    failed = world.run_to_failure(world.claim(topic), events, Execute(write))

    assert "spark.driver.maxResultSize" in failed.text
    assert world.stored(topic) == {0: 0}
    assert staged == []
