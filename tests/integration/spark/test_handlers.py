"""A handler as a sink's transform: rows exactly once, whatever is repeated; and calls as seldom as can be."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from offsetstore import (
    Append,
    DeadLetters,
    Handler,
    LetterKey,
    Record,
    Retries,
    TopicPartition,
    Upsert,
)
from offsetstore.errors import (
    ConfigurationError,
    ExitCode,
    FunctionFailed,
    HandlerStuck,
    SinkError,
    UnsupportedQuery,
    exit_code,
)
from offsetstore.processing.handled_rows import columns_of, schema_of
from offsetstore.protocol.events import BatchEnded, HandlerCalled
from offsetstore.protocol.observers import Observers
from offsetstore.runtime import failpoints
from offsetstore.spark.columns import KAFKA_COLUMNS, kafka_frame
from offsetstore.spark.outputs import SparkOutputs
from offsetstore.spark.schemas import spark_columns
from offsetstore.testing import InMemoryOffsetStore
from tests.support import arrow_types
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until
from tests.support.world import World, made_unchecked

SCHEMA = "topic string, partition int, `offset` long, value string"
VALUES = 'SELECT value FROM events ORDER BY partition, "offset", value'
LETTERS = "SELECT partition, record_offset, cause, error_class, error_text, attempts FROM dead_letters ORDER BY 1, 2"
REFUSED = (
    "the database refused rows for public.events: CheckViolation (SQLSTATE 23514), constraint rule of public.events"
)
FAST = Retries(attempts=3, shortest=0.001, longest=0.001)
WAYS: dict[str, dict[str, Any]] = {
    "batch": {},
    "partition": {"atomicity": "partition"},
}


def row(record: Record) -> tuple[Any, ...]:
    return (record.topic, record.partition, record.offset, (record.value or b"").decode())


class Calls:
    """What was called, told by the tasks through a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def note(self, record: Record) -> None:
        """Note a call, in one write: those of all tasks do."""
        file = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, json.dumps([record.id, (record.value or b"").decode()]).encode() + b"\n")
        os.close(file)

    def handler(self, *, is_async: bool = False, prefix: str = "", **arguments: Any) -> Handler:
        """A handler that returns a record as a row; one that has "bad" in it fails, one with "shy" twice.

        With a prefix, which its rows then have, it succeeds.
        """

        def handle(record: Record) -> tuple[Any, ...] | None:
            self.note(record)
            *place, value = row(record)
            if not prefix and ("bad" in value or ("shy" in value and self.of[value] < 3)):
                raise ValueError(f"can't do {value}")
            return None if value == "nothing" else (*place, prefix + value)

        async def later(record: Record) -> tuple[Any, ...] | None:
            await asyncio.sleep(0)
            return handle(record)

        arguments.setdefault("retries", FAST)
        return Handler(later if is_async else handle, SCHEMA, **arguments)

    @property
    def of(self) -> Counter[str]:
        """How often each value was handled."""
        return Counter(value for _, value in self._read())

    @property
    def ids(self) -> Counter[str]:
        """How often each record was handled."""
        return Counter(id_ for id_, _ in self._read())

    def _read(self) -> list[list[str]]:
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path / "calls")


@pytest.mark.behaviour("DLQ-2", "HAND-2", "HAND-5", "HAND-7", "HAND-9")
@pytest.mark.parametrize("way", list(WAYS))
def test_records_that_fail_or_are_refused_are_letters_every_other_is_called_once_and_a_replay_has_the_same_id(
    world: World, calls: Calls, way: str
) -> None:
    topic = world.events_topic(["a", "bad 1", "nothing", "toxic", "b"], ["shy", "c"])
    world.database.execute("ALTER TABLE events ADD CONSTRAINT rule CHECK (value <> 'toxic')")
    seen = Recorder()
    world.store.observers = Observers([seen])
    handler, letters = calls.handler(is_async=way == "partition"), DeadLetters(max_retries=0)
    world.run(world.claim(topic), handler, Append("events"), dead_letters=letters, **WAYS[way])

    assert world.database.column(VALUES) == ["a", "b", "shy", "c"]
    assert world.database.rows(LETTERS) == [
        (0, 1, "raised", "ValueError", "can't do bad 1", 3),
        (0, 3, "refused", "RowsRefused", REFUSED, 1),
    ]
    assert calls.of == Counter({"a": 1, "bad 1": 3, "nothing": 1, "toxic": 1, "b": 1, "shy": 3, "c": 1})
    assert world.stored(topic) == {0: 5, 1: 2}
    [told] = seen.of(HandlerCalled)
    assert (told.calls, told.retries, told.timeouts) == (11, 4, 0)
    assert told.seconds > 0
    [ended] = seen.of(BatchEnded)
    assert seen.events.index(told) < seen.events.index(ended)

    letter = LetterKey(TopicPartition(topic, 0), 1)
    world.store.request_replay(world.group, letter, reason="the service was mended")
    with world.claim(topic) as claim:
        sink = made_unchecked(claim, calls.handler(prefix="good "), into=Append("events"), dead_letters=letters)
        assert sink.drain(world.spark) == 1
    assert world.database.column(VALUES) == ["a", "good bad 1", "b", "shy", "c"]
    assert (calls.of["bad 1"], len(calls.ids)) == (4, 7)


@pytest.mark.behaviour("HAND-10")
def test_each_type_of_arrow_is_stored_by_value(world: World) -> None:
    topic = world.topic(["1"])
    world.database.execute(arrow_types.TABLE)
    world.run(world.claim(topic), Handler(lambda _: arrow_types.row(), arrow_types.schema()), Append("kinds"))
    assert world.database.rows(arrow_types.differing(handled=True)) == [([],)]


@pytest.mark.behaviour("HAND-2")
def test_without_dead_letters_the_error_names_the_record_and_no_call_is_made_where_spark_runs_slow_tasks_twice(
    world: World, calls: Calls, request: pytest.FixtureRequest
) -> None:
    topic = world.events_topic(["a", "b", "bad 1", "c"])
    claim = world.claim(topic)
    conf = cast("Any", world.spark.sparkContext)._conf
    conf.set("spark.speculation", "True")  # Spark has read it at its start, so that nothing else changes
    request.addfinalizer(lambda: conf.set("spark.speculation", "false"))
    assert isinstance(world.run_to_failure(claim, calls.handler(), Append("events")).error, UnsupportedQuery)
    assert calls.of == Counter()
    conf.set("spark.speculation", "false")

    failure = world.run_to_failure(claim, calls.handler(), Append("events"), **WAYS["partition"])

    assert isinstance(failure.error, FunctionFailed)
    assert exit_code(failure.error) == ExitCode.OTHER
    assert (failure.error.topic_partition, str(failure.error.offsets)) == (TopicPartition(topic, 0), "[2, 3)")
    assert re.fullmatch(
        r"the handler failed with ValueError at test_handlers\.py:\d+ \(attempts: 3\)", failure.error.what
    )
    assert "--from-offset 2 --to-offset 3" in failure.error.next_step
    assert "dead_letters=DeadLetters()" in failure.error.next_step
    assert "in handle" in (failure.error.traceback or "")
    assert "can't do" not in str(failure.error)
    assert world.database.column(VALUES) == ["a", "b"]
    assert calls.of == Counter({"a": 1, "b": 1, "bad 1": 3, "c": 1})


@pytest.mark.behaviour("HAND-7")
def test_what_is_stored_is_not_handled_and_a_batch_that_is_planned_again_calls_no_handler_again(
    world: World, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.events_topic(["a", "b", "c"], ["d"])
    claim, reach, moved = world.claim(topic), failpoints.reach, list[str]()
    stream = world.read(claim)
    world.advance(claim, {TopicPartition(topic, 0): 1})

    def moving(point: str) -> None:
        if point == "before_lock" and not moved:
            moved.append(point)
            world.advance(claim, {TopicPartition(topic, 0): 2})
        reach(point)

    monkeypatch.setattr(failpoints, "reach", moving)
    world.run(claim, calls.handler(), Append("events"), stream=stream, **WAYS["partition"])

    assert moved
    assert world.database.column(VALUES) == ["c", "d"]
    assert calls.of == Counter("bcd")


@pytest.mark.behaviour("HAND-2", "HAND-4")
def test_a_handler_that_hangs_ends_the_query_with_the_record_named(world: World, calls: Calls) -> None:
    topic = world.events_topic(["a", "slow", "b"])
    seen = Recorder()
    world.store.observers = Observers([seen])

    def hangs(record: Record) -> None:
        calls.note(record)
        time.sleep(60 if record.value == b"slow" else 0)

    handler = Handler(hangs, SCHEMA, timeout=2, ordering="partition")
    failure = world.run_to_failure(
        world.claim(topic), handler, Append("events"), dead_letters=DeadLetters(), **WAYS["partition"]
    )

    assert isinstance(failure.error, HandlerStuck)
    assert f"{topic}-0 at offset 1" in str(failure.error)
    assert world.database.rows(LETTERS) == []
    assert calls.of == Counter(["a", "slow"])
    assert [event.error for event in seen.of(BatchEnded, "failed")] == [failure.error]
    assert [(told.calls, told.timeouts) for told in seen.of(HandlerCalled)] == [(2, 1)]


@pytest.mark.behaviour("HAND-4")
def test_a_stop_of_the_query_waits_for_no_call_longer_than_its_timeout(world: World, tmp_path: Path) -> None:
    topic, file, timeout = world.events_topic(["slow"]), tmp_path / "begun", 60.0

    def waits(_: Record) -> None:
        file.touch()
        time.sleep(600)

    claim = world.claim(topic)
    sink = made_unchecked(claim, Handler(waits, SCHEMA, timeout=timeout), into=Append("events"))
    query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints))
    wait_until(file.exists)
    began = time.monotonic()
    query.stop()

    assert time.monotonic() - began < timeout
    assert not query.isActive
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("HAND-1", "HAND-9", "SINK-12")
def test_the_order_of_a_key_is_kept_where_tasks_are_not_partitions(world: World, tmp_path: Path) -> None:
    """``minPartitions`` has Spark read each partition in several tasks."""
    world.database.execute("CREATE TABLE latest (name text PRIMARY KEY, value bigint)")
    topic, file = world.topic(partitions=2), str(tmp_path / "order")
    for partition in range(2):
        records = [(f"{partition}-{number % 7}", str(number)) for number in range(300)]
        world.produce_keyed(topic, records, partition=partition)

    async def handle(record: Record) -> dict[str, Any]:
        await asyncio.sleep(0.0001 * (record.offset % 5))
        with open(file, "a") as log:  # noqa: ASYNC230, PTH123
            log.write(json.dumps([(record.key or b"").decode(), record.offset]) + "\n")
        return {"name": (record.key or b"").decode(), "value": int(record.value or 0)}

    handler = Handler(handle, "name string, value long")
    world.run(world.claim(topic), handler, Upsert("latest", key=["name"]), minPartitions="6")

    expected = {f"{p}-{k}": max(n for n in range(300) if n % 7 == k) for p in range(2) for k in range(7)}
    assert dict(world.database.rows("SELECT name, value FROM latest")) == expected
    by_key: dict[str, list[int]] = {}
    for line in Path(file).read_text().splitlines():
        key, offset = json.loads(line)
        by_key.setdefault(key, []).append(offset)
    assert sum(map(len, by_key.values())) == 600
    assert all(offsets == sorted(offsets) for offsets in by_key.values())


@pytest.mark.behaviour("HAND-2", "HAND-5", "HAND-7")
def test_one_record_of_4_000_that_fails_twice_makes_4_002_calls(world: World, calls: Calls) -> None:
    partitions, each = 2, 2_000
    topic = world.events_topic(partitions=partitions)
    for partition in range(partitions):
        records = [(f"key {number % 500}", str(number)) for number in range(each)]
        world.produce_keyed(topic, records, partition=partition)
    claim, failures = world.claim(topic), list[Record]()
    # As the row of a partition begins that is added while the job runs.
    world.database.execute("UPDATE kafka_partitions SET topic_id = NULL WHERE partition = 1")

    async def handle(record: Record) -> tuple[Any, ...]:
        calls.note(record)
        if (record.partition, record.offset) == (1, 1_234) and len(failures) < 2:
            failures.append(record)
            raise ValueError("not yet")
        return row(record)

    world.run(claim, Handler(handle, SCHEMA, retries=FAST), Append("events"))

    assert (calls.ids.total(), len(calls.ids)) == (4_002, 4_000)
    [(again, times)] = [(id_, count) for id_, count in calls.ids.items() if count > 1]
    assert (again.split("/")[2:], times) == (["1", "1234"], 3)
    assert len({id_.rsplit("/", 2)[0] for id_ in calls.ids}) == 1, "all have the topic's id"
    written = 'SELECT count(*), count(DISTINCT (partition, "offset")) FROM events'
    assert world.database.rows(written) == [(4_000, 4_000)]
    assert world.stored(topic) == dict.fromkeys(range(partitions), each)


@pytest.mark.behaviour("HAND-7", "HAND-9")
def test_outcomes_that_are_lost_while_a_bad_record_is_searched_for_are_made_once_more_and_none_is_mixed(
    world: World, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler fails for a record, and would not when it is called again."""
    second = tmp_path / "second"
    topic = world.events_topic(["a", "toxic", "fickle", "b"])
    world.database.execute("ALTER TABLE events ADD CONSTRAINT rule CHECK (value <> 'toxic')")
    reach, lost = failpoints.reach, list[str]()

    def handle(record: Record) -> tuple[Any, ...]:
        calls.note(record)
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
    assert world.database.column(VALUES) == ["a", "b"]
    assert [row[1:3] for row in world.database.rows(LETTERS)] == [(1, "refused"), (2, "raised")]
    assert calls.of == Counter({"a": 2, "toxic": 2, "fickle": 4, "b": 2})


@pytest.mark.behaviour("HAND-7")
def test_a_worker_that_dies_is_no_records_fault_and_nothing_is_called_to_find_one(world: World, calls: Calls) -> None:
    topic = world.events_topic(["a", "b", "crash", "c", "d"])

    def handle(record: Record) -> tuple[Any, ...]:
        calls.note(record)
        if record.value == b"crash":
            end = time.monotonic() + 60
            while calls.ids.total() < 5 and time.monotonic() < end:  # all the others are called at once, too
                time.sleep(0.01)
            os._exit(1)
        return row(record)

    letters = DeadLetters()
    failure = world.run_to_failure(world.claim(topic), Handler(handle, SCHEMA), Append("events"), dead_letters=letters)

    assert type(failure.error) is SinkError
    assert "no record" not in str(failure.error)
    assert calls.of == Counter(["a", "b", "crash", "c", "d"])
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("HAND-10")
@pytest.mark.parametrize(
    "text",
    [
        "id LONG NOT NULL, `a ``b``` string,at: timestamp ,x decimal(10, 2) not null, y numeric, z real, t time(6)",
        r"a array<int>, b map<int, array<timestamp_ntz>> COMMENT 'it\'s', c struct<n: int NOT NULL, `m n` array<int>>",
        'a byte, b short, c integer, d interval day to second, e void COMMENT "x, y", f dec, g timestamp_ltz, h date',
        "s STRUCT<a STRUCT<b: BINARY, c: BOOLEAN>>",
    ],
)
def test_a_text_is_read_as_spark_reads_it(world: World, text: str) -> None:
    assert world.spark is not None  # which Spark needs for its own
    theirs: Any = StructType.fromDDL(text)
    for given in (text, theirs):
        made: Any = schema_of(given)
        assert spark_columns(columns_of(made)).simpleString() == theirs.simpleString()
        assert [one.nullable for one in made] == [one.nullable for one in theirs]


@pytest.mark.behaviour("HAND-3")
def test_a_function_that_cant_be_pickled_is_refused(offsetstore_spark: SparkSession) -> None:
    lock = threading.Lock()

    def locked(record: Record) -> tuple[int]:
        with lock:
            return (record.offset,)

    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        outputs = SparkOutputs(claim, Handler(locked, StructType().add("offset", "long")), Append("events"))
        with pytest.raises(ConfigurationError, match="can't be pickled") as caught:
            outputs.handled(kafka_frame(offsetstore_spark, [], KAFKA_COLUMNS))
        assert "lock" in str(caught.value.found)
