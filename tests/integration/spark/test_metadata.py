"""Metadata that a job stores with its offsets, on each way from Spark to the database."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from sqlalchemy import Column, MetaData, Table, insert, text

from offsetstore import (
    Append,
    BatchInfo,
    Execute,
    OffsetRange,
    TopicPartition,
    Transaction,
    TransactionalSink,
    Work,
)
from offsetstore.errors import RowsRefused, StaleClaim
from tests.integration.spark.conftest import execute_block, run_sink
from tests.support.transforms import traced
from tests.support.world import World

WAYS: dict[str, dict[str, Any]] = {
    "batch": {},
    "tasks": {"atomicity": "partition"},
}


@pytest.fixture
def topic(world: World) -> str:
    """Three partitions, of which the last one has only records that a job drops."""
    name = world.events_topic(partitions=3)
    for partition, values in enumerate(["abcd", "efgh", "xxxx"]):
        world.produce(name, list(values), partition=partition)
    return name


def kept(batch: DataFrame) -> DataFrame:
    return traced(batch.where("value <> 'x'"))


def values(world: World, topic: str) -> dict[int, object]:
    found = world.store.find_metadata(world.group, topic)
    return {tp.partition: value for tp, value in found.items()}


@pytest.mark.behaviour("META-1", "META-5")
@pytest.mark.parametrize("way", WAYS)
def test_each_advance_takes_its_metadata_along_also_that_before_a_refused_record(
    world: World, topic: str, way: str
) -> None:
    seen: list[BatchInfo] = []

    def note(info: BatchInfo) -> object:
        seen.append(info)
        return {tp: {"until": range_.until} for tp, range_ in info.ranges.items()}

    claim = world.claim(topic)
    claim.store_metadata(None, "what the function says wins over it")
    world.run(claim, kept, Append("events"), metadata=note, maxOffsetsPerTrigger="6", **WAYS[way])

    assert world.stored(topic) == {0: 4, 1: 4, 2: 4}
    assert values(world, topic) == {number: {"until": 4} for number in range(3)}
    assert [info.number for info in seen] == [0, 1]
    assert {str(info.rows) for info in seen} == {"None" if way == "tasks" else "{'': 4}"}
    assert [term.next for term in claim.terms.values()] == [None] * 3

    world.database.execute("ALTER TABLE events ADD CHECK (value <> 'bad')")
    world.produce(topic, ["i", "bad"])
    failed = world.run_to_failure(world.claim(topic), kept, Append("events"), metadata=note, **WAYS[way])
    assert isinstance(failed.error, RowsRefused)
    assert (world.stored(topic)[0], values(world, topic)[0]) == (5, {"until": 5})


def count(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """Keep the number of the rows so far in the metadata."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    work.connection.execute(text("INSERT INTO events VALUES (:topic, :partition, :offset, :value)"), rows)
    for tp in work.ranges:
        before: Any = work.metadata(tp, cache=False) or 0
        work.write_metadata(tp, before + sum(row["partition"] == tp.partition for row in rows))


@pytest.mark.behaviour("META-3", "META-4")
def test_an_execute_reads_and_writes_metadata(world: World, topic: str) -> None:
    world.run(world.claim(topic), kept, Execute(count), maxOffsetsPerTrigger="6", **WAYS["tasks"])

    assert {partition: values(world, topic)[partition] for partition in (0, 1)} == {0: 4, 1: 4}


@pytest.mark.behaviour("META-1", "META-2", "META-4", "META-5", "META-9")
def test_what_the_page_says_is_so(world: World) -> None:
    """Its blocks, in order, on a topic and a group of this test."""
    topic = world.events_topic()
    p0 = TopicPartition(topic, 0)
    columns: list[Any] = [Column(name) for name in ("topic", "partition", "offset", "value")]
    names: dict[str, Any] = {
        "store": world.store,
        "claim": world.claim(topic),
        "kafka": world.options(topic),
        "parse": traced,
        "payments": Table("events", MetaData(), *columns),
        "insert": insert,
    }
    replaced = {
        'Append("payments")': 'Append("events")',
        '"payments"': repr(topic),
        '"billing"': repr(world.group),
    }

    def found() -> object:
        return world.store.find_metadata(world.group, topic, 0)

    def write(sink: TransactionalSink) -> None:
        world.produce(topic, ["a", "b"])
        run_sink(world, sink)

    def run(number: int) -> None:
        names.update(execute_block("metadata.md", number, replaced, **names))

    run(0)
    run(1)
    write(names["sink"])
    assert found() == {"batch": 0, "rows": {"": 2}}
    run(2)
    assert names["before"] == names["now"] == found()
    run(3)
    run(4)

    def noted(batch: DataFrame) -> DataFrame:
        return traced(batch).withColumn("value", names["last_note"]("topic", "partition"))

    write(TransactionalSink(names["claim"], noted, into=Append("events")))
    assert world.database.one("SELECT count(*) FROM events WHERE value LIKE '%batch%'") == 2

    names["claim"] = world.claim(topic)
    world.store.run(names["claim"], lambda tx: clear(tx, p0, 4))
    run(5)
    write(names["sink"])
    assert found() == 2
    run(6)
    assert found() == {"checked": True}
    world.store.run(names["claim"], lambda tx: clear(tx, p0, 6))
    run(7)
    assert names["claim"].metadata(p0) is None

    claims = [world.claim(topic)]
    traces: list[str] = []
    for _ in range(2):
        names["claim"] = claims[-1]
        run(8)
        write(names["sink"])
        traces.append(str(found()))
        claims.append(world.claim(topic))  # takes over: the one before is not closed
    assert traces[0] != traces[1]
    assert re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-01", traces[0])
    assert traces[0].split("-")[1] == traces[1].split("-")[1]
    with pytest.raises(StaleClaim):
        claims[0].metadata(p0, cache=False)
    assert world.database.column('SELECT "offset" FROM events ORDER BY 1') == list(range(10))


def clear(tx: Transaction, tp: TopicPartition, offset: int) -> None:
    tx.lock({tp: OffsetRange(offset, offset)})
    tx.write_metadata(tp, None)
