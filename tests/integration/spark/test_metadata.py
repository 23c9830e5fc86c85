"""Metadata that a job stores with its offsets, on each way from Spark to the database."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from sqlalchemy import Column, MetaData, Table, insert, text

import offsetstore
from offsetstore import (
    KEEP,
    Append,
    BatchInfo,
    Claim,
    DeadLetters,
    Execute,
    OffsetRange,
    OffsetStore,
    TopicPartition,
    Transaction,
    TransactionalSink,
    Work,
)
from offsetstore.errors import MetadataError, RowsRefused, StaleClaim
from offsetstore.spark import metadata_finder
from tests.support.transforms import traced
from tests.support.world import SECONDS, World

WAYS: dict[str, dict[str, Any]] = {
    "batch": {},
    "tasks": {"atomicity": "partition"},
    "driver": {"atomicity": "partition", "task_threshold": 100},
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


def until(info: BatchInfo) -> object:
    return {tp: {"until": range_.until} for tp, range_ in info.ranges.items()}


def a_note(_: BatchInfo) -> object:
    return "a note"


def values(world: World, topic: str) -> dict[int, object]:
    found = world.store.find_metadata(world.group, topic)
    return {tp.partition: value for tp, value in found.items()}


@pytest.mark.behaviour("META-1")
@pytest.mark.parametrize("way", WAYS)
def test_each_advance_takes_its_metadata_along(world: World, topic: str, way: str) -> None:
    seen: list[BatchInfo] = []

    def note(info: BatchInfo) -> object:
        seen.append(info)
        return until(info)

    world.run(world.claim(topic), kept, Append("events"), metadata=note, maxOffsetsPerTrigger="6", **WAYS[way])

    assert world.stored(topic) == {0: 4, 1: 4, 2: 4}
    assert values(world, topic) == {number: {"until": 4} for number in range(3)}
    assert [info.number for info in seen] == [0, 1]
    assert {str(info.rows) for info in seen} == {"None" if way == "tasks" else "{'': 4}"}


@pytest.mark.behaviour("META-6")
def test_an_advance_that_only_writes_dead_letters_takes_its_metadata_along(world: World, topic: str) -> None:
    def rejected(batch: DataFrame) -> DataFrame:
        return traced(batch).withColumn("_reject", F.lit("of no use"))

    world.run(
        world.claim(topic), rejected, Append("events"), metadata=until, dead_letters=DeadLetters(), **WAYS["tasks"]
    )

    assert world.database.one("SELECT count(*) FROM events") == 0
    assert world.database.one("SELECT count(*) FROM dead_letters") == 12
    assert values(world, topic) == {number: {"until": 4} for number in range(3)}


@pytest.mark.behaviour("META-4")
def test_metadata_is_kept_for_all_or_for_the_partitions_that_are_left_out(world: World, topic: str) -> None:
    first = TopicPartition(topic, 0)
    returned: list[object] = ["for all", KEEP, {first: "for one"}, {first: KEEP}]

    def next_one(_: BatchInfo) -> object:
        return returned.pop(0)

    world.run(
        world.claim(topic),
        kept,
        Append("events"),
        metadata=next_one,
        maxOffsetsPerTrigger="3",
        **WAYS["tasks"],
    )
    assert returned == []
    assert values(world, topic) == {0: "for one", 1: "for all", 2: "for all"}


@pytest.mark.behaviour("META-5")
def test_what_a_claim_stores_goes_with_the_next_batch_alone(world: World, topic: str) -> None:
    claim = world.claim(topic)
    claim.store_metadata(None, "stored")
    world.run(claim, kept, Append("events"), maxOffsetsPerTrigger="6", **WAYS["tasks"])

    assert values(world, topic) == dict.fromkeys(range(3), "stored")
    assert [term.next for term in claim.terms.values()] == [None] * 3


@pytest.mark.behaviour("META-8")
@pytest.mark.parametrize("way", ["batch", "tasks"])
def test_a_function_that_fails_or_names_another_partition_ends_the_query_with_nothing_written(
    world: World, topic: str, way: str
) -> None:
    claim = world.claim(topic)

    def fail(_: BatchInfo) -> object:
        raise ZeroDivisionError

    failed = world.run_to_failure(claim, kept, Append("events"), metadata=fail, **WAYS[way])
    assert isinstance(failed.error, ZeroDivisionError)

    def elsewhere(_: BatchInfo) -> object:
        return {TopicPartition(topic, 7): "elsewhere"}

    failed = world.run_to_failure(world.claim(topic), kept, Append("events"), metadata=elsewhere, **WAYS[way])
    assert isinstance(failed.error, MetadataError)
    assert world.database.one("SELECT count(*) FROM events") == 0
    assert world.stored(topic) == {0: 0, 1: 0, 2: 0}


@pytest.mark.behaviour("META-1")
@pytest.mark.parametrize("way", ["batch", "tasks"])
def test_before_a_refused_record_the_metadata_are_those_of_what_was_stored(world: World, topic: str, way: str) -> None:
    world.database.execute("ALTER TABLE events ADD CHECK (value <> 'c')")
    failed = world.run_to_failure(world.claim(topic), kept, Append("events"), metadata=until, **WAYS[way])

    assert isinstance(failed.error, RowsRefused)
    stored = {partition: offset for partition, offset in world.stored(topic).items() if offset}
    assert stored[0] == 2
    assert {partition: values(world, topic)[partition] for partition in stored} == {
        partition: {"until": offset} for partition, offset in stored.items()
    }


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


@pytest.mark.behaviour("META-9")
def test_a_transform_finds_metadata_on_executors(world: World, topic: str) -> None:
    world.run(world.claim(topic), kept, Append("events"), metadata=a_note)
    world.database.execute("TRUNCATE events")
    for partition in range(2):
        world.produce(topic, ["more", "and more"], partition=partition)
    with OffsetStore.connect(world.database.url, credentials=lambda: "a password") as store:
        claim = store.claim(world.group, world.broker(topic), mirror_every=None)
        find = metadata_finder(claim)

        def look(name: Any, partition: Any) -> str:
            context: Any = TaskContext.get()
            assert context.getLocalProperty("offsetstore.password") is not None
            return str(find(name, partition))

        def noted(batch: DataFrame) -> DataFrame:
            udf: Any = F.udf
            # Without types, from which Spark would guess another kind of function.
            note = udf(lambda name, number: look(name, number), "string")  # noqa: PLW0108 # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
            return traced(batch).withColumn("value", note("topic", "partition"))

        world.run(claim, noted, Append("events"), **WAYS["batch"])

    assert world.database.column("SELECT value FROM events") == ["a note"] * 4


def blocks() -> list[str]:
    page = (Path(__file__).parents[3] / "docs" / "metadata.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


@pytest.mark.behaviour("META-1", "META-2", "META-4", "META-5")
def test_what_the_page_says_is_so(world: World) -> None:
    """Its blocks, in order, on a topic and a group of this test."""
    topic = world.events_topic()
    p0, kafka = TopicPartition(topic, 0), world.options(topic)
    columns: list[Any] = [Column(name) for name in ("topic", "partition", "offset", "value")]
    names: dict[str, Any] = {
        **vars(offsetstore),
        **{name: getattr(offsetstore, name) for name in ("Append", "Broker", "Execute", "TransactionalSink")},
        "store": world.store,
        "claim": world.claim(topic),
        "kafka": kafka,
        "parse": traced,
        "payments": Table("events", MetaData(), *columns),
        "insert": insert,
    }

    def found() -> object:
        return world.store.find_metadata(world.group, topic, 0)

    def write(sink: TransactionalSink, claim: Claim) -> None:
        world.produce(topic, ["a", "b"])
        query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints))
        assert query.awaitTermination(SECONDS)

    def run(number: int) -> None:
        block = blocks()[number].replace('"payments", 0', f'"{topic}", 0').replace('"billing"', repr(world.group))
        exec(block.replace('Append("payments")', 'Append("events")').replace('"payments"', repr(topic)), names)  # noqa: S102

    assert len(blocks()) == 9
    run(0)
    run(1)
    write(names["sink"], names["claim"])
    assert found() == {"batch": 0, "rows": {"": 2}}
    run(2)
    assert names["before"] == names["now"] == found()
    run(3)
    run(4)

    def noted(batch: DataFrame) -> DataFrame:
        return traced(batch).withColumn("value", names["last_note"]("topic", "partition"))

    write(TransactionalSink(names["claim"], noted, into=Append("events")), names["claim"])
    assert world.database.one("SELECT count(*) FROM events WHERE value LIKE '%batch%'") == 2

    names["claim"] = world.claim(topic)
    world.store.run(names["claim"], lambda tx: clear(tx, p0, 4))
    run(5)
    write(names["sink"], names["claim"])
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
        write(names["sink"], names["claim"])
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
