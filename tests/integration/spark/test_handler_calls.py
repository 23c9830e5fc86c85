"""How often a handler is called: once for each record, whatever becomes of the outcomes that Spark keeps."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from offsetstore import Append, DeadLetters, Handler, Record, Retries, TopicPartition
from offsetstore.errors import Outage, SinkError
from offsetstore.protocol import failpoints
from tests.support.world import World

SCHEMA = "topic string, partition int, `offset` long, value string"
FAST = Retries(attempts=3, shortest=0.001, longest=0.001)


def logged(log: Path, record: Record) -> None:
    """Append the record's id, in one write: calls of all tasks do."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{record.id}\n".encode())
    os.close(file)


def called(log: Path) -> Counter[str]:
    """How often each record was called for, by its place in the log."""
    return Counter("/".join(id_.split("/")[2:]) for id_ in log.read_text().splitlines())


def row(record: Record) -> tuple[Any, ...]:
    return (record.topic, record.partition, record.offset, (record.value or b"").decode())


@pytest.mark.behaviour("HAND-2", "HAND-5", "HAND-7")
def test_one_record_of_20_000_that_fails_twice_makes_20_002_calls(world: World, tmp_path: Path) -> None:
    partitions, each, log = 2, 10_000, tmp_path / "calls"
    topic = world.events_topic(partitions=partitions)
    for partition in range(partitions):
        records = [(f"key {number % 1_000}", str(number)) for number in range(each)]
        world.produce_keyed(topic, records, partition=partition)
    claim, failures = world.claim(topic), list[Record]()
    # As the row of a partition begins that is added while the job runs.
    world.database.execute("UPDATE kafka_partitions SET topic_id = NULL WHERE partition = 1")

    async def handle(record: Record) -> tuple[Any, ...]:
        logged(log, record)
        if (record.partition, record.offset) == (1, 2_345) and len(failures) < 2:
            failures.append(record)
            raise ValueError("not yet")
        return row(record)

    world.run(claim, Handler(handle, SCHEMA, retries=FAST), Append("events"))

    calls = called(log)
    assert calls.total() == 20_002
    assert {place: count for place, count in calls.items() if count > 1} == {"1/2345": 3}
    assert len(calls) == 20_000
    assert len({line.rsplit("/", 2)[0] for line in log.read_text().splitlines()}) == 1, "all have the topic's id"
    assert world.database.rows('SELECT count(*), count(DISTINCT (partition, "offset")) FROM events') == [
        (20_000, 20_000)
    ]
    assert world.stored(topic) == dict.fromkeys(range(partitions), each)


@pytest.mark.behaviour("HAND-7", "HAND-9")
def test_outcomes_that_are_lost_while_a_bad_record_is_searched_for_are_made_once_more_and_none_is_mixed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler fails for a record, and would not when it is called again."""
    log, second = tmp_path / "calls", tmp_path / "second"
    topic = world.events_topic(["a", "toxic", "fickle", "b"])
    world.database.execute("ALTER TABLE events ADD CONSTRAINT rule CHECK (value <> 'toxic')")
    reach, lost = failpoints.reach, list[str]()

    def handle(record: Record) -> tuple[Any, ...]:
        logged(log, record)
        if record.value == b"fickle" and not second.exists():
            raise ValueError("not the first time")
        return row(record)

    def losing(point: str) -> None:
        if point == "in_discovery" and not lost:
            lost.append(point)
            second.touch()
            world.spark.catalog.clearCache()
        reach(point)

    monkeypatch.setattr(failpoints, "reach", losing)
    letters = DeadLetters(max_retries=0)
    handler = Handler(handle, SCHEMA, retries=FAST)
    world.run(world.claim(topic), handler, Append("events"), dead_letters=letters, atomicity="partition")

    assert lost
    assert world.database.column('SELECT value FROM events ORDER BY "offset"') == ["a", "b"]
    assert world.database.rows("SELECT record_offset, cause FROM dead_letters ORDER BY 1") == [
        (1, "refused"),
        (2, "raised"),
    ]
    assert called(log) == Counter({"0/0": 2, "0/1": 2, "0/2": 4, "0/3": 2})


@pytest.mark.behaviour("HAND-2", "HAND-7")
def test_an_outage_is_met_also_by_a_plan_that_begins_beyond_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task has computed its part, and then its lock says that the stored offset has moved."""
    topic = world.events_topic(["a", "b", "down", "c", "d", "e"])
    claim, reach, moved = world.claim(topic), failpoints.reach, list[str]()

    def handle(record: Record) -> tuple[Any, ...]:
        if record.value == b"down":
            time.sleep(0.5)  # the first two are finished by then
            raise Outage("the service is down")
        return row(record)

    def moving(point: str) -> None:
        if point == "before_lock" and not moved:
            moved.append(point)
            world.advance(claim, {TopicPartition(topic, 0): 3})
        reach(point)

    monkeypatch.setattr(failpoints, "reach", moving)
    with small_batches(world):
        handler = Handler(handle, SCHEMA, retries=FAST)
        failure = world.run_to_failure(claim, handler, Append("events"), atomicity="partition")

    assert moved
    assert isinstance(failure.error, SinkError), failure
    assert failure.error.found == f"Outage, in a call for {topic}-0 at offset 2"
    assert world.stored(topic) == {0: 3}
    assert world.database.column("SELECT value FROM events") == []


@pytest.mark.behaviour("HAND-7")
def test_a_worker_that_dies_is_no_records_fault_and_nothing_is_called_to_find_one(world: World, tmp_path: Path) -> None:
    topic, log = world.events_topic(["a", "b", "crash", "c", "d"]), tmp_path / "calls"

    def handle(record: Record) -> tuple[Any, ...]:
        logged(log, record)
        if record.value == b"crash":
            end = time.monotonic() + 60
            while called(log).total() < 5 and time.monotonic() < end:  # all the others are called at once, too
                time.sleep(0.01)
            os._exit(1)
        return row(record)

    letters = DeadLetters()
    failure = world.run_to_failure(world.claim(topic), Handler(handle, SCHEMA), Append("events"), dead_letters=letters)

    assert type(failure.error) is SinkError
    assert "no record" not in str(failure.error)
    assert called(log) == Counter({f"0/{offset}": 1 for offset in range(5)})
    assert world.stored(topic) == {0: 0}


@contextmanager
def small_batches(world: World) -> Generator[None]:
    """Have Spark hand over two records at a time."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = world.spark.conf.get(name)
    world.spark.conf.set(name, "2")
    try:
        yield
    finally:
        world.spark.conf.set(name, before or "10000")
