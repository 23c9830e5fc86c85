"""A handler as a sink's transform: rows exactly once, whatever is repeated; and calls as seldom as can be."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from offsetstore import (
    Append,
    DeadLetters,
    Execute,
    Flush,
    Handler,
    Record,
    Retries,
    TopicPartition,
    TransactionalSink,
    Upsert,
    Work,
)
from offsetstore.errors import (
    ConfigurationError,
    ExitCode,
    FunctionFailed,
    HandlerStuck,
    UnsupportedQuery,
    exit_code,
)
from offsetstore.processing.handled_rows import columns_of, schema_of
from offsetstore.protocol import failpoints
from offsetstore.protocol.events import BatchEnded, HandlerCalled
from offsetstore.protocol.observers import Observers
from offsetstore.spark.kafka_columns import KAFKA_COLUMNS, kafka_frame
from offsetstore.spark.outputs import Outputs
from offsetstore.spark.schemas import spark_columns
from offsetstore.spark.settings import SinkSettings
from offsetstore.testing import InMemoryOffsetStore
from tests.support import arrow_types
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until
from tests.support.world import World, made_unchecked

SCHEMA = "topic string, partition int, `offset` long, value string"
VALUES = 'SELECT value FROM events ORDER BY partition, "offset", value'
LETTERS = "SELECT partition, record_offset, cause, error_class, error_text, attempts FROM dead_letters ORDER BY 1, 2"
FAST = Retries(attempts=3, shortest=0.001, longest=0.001)
WAYS: dict[str, dict[str, Any]] = {
    "batch": {},
    "partition": {"atomicity": "partition"},
}


class Calls:
    """What was called, told by the tasks through a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def handler(self, *, is_async: bool = False, prefix: str = "", **arguments: Any) -> Handler:
        """A handler that returns a record as a row; one that has "bad" in it fails, one with "shy" twice.

        With a prefix, which its rows then have, it succeeds.
        """
        file = str(self._file)

        def handle(record: Record) -> tuple[Any, ...] | None:
            with open(file, "a+") as log:  # noqa: PTH123 - a function that is pickled by value
                log.write(json.dumps([record.id, (record.value or b"").decode()]) + "\n")
                log.seek(0)
                tried = sum(json.loads(line)[0] == record.id for line in log)
            value = (record.value or b"").decode()
            if prefix:
                return (record.topic, record.partition, record.offset, prefix + value)
            if "bad" in value or ("shy" in value and tried < 3):
                raise ValueError(f"can't do {value}")
            if value == "nothing":
                return None
            return (record.topic, record.partition, record.offset, value)

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
    def ids(self) -> set[str]:
        """The records that were handled."""
        return {id_ for id_, _ in self._read()}

    def _read(self) -> list[list[str]]:
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []


@pytest.fixture
def calls(tmp_path: Path) -> Calls:
    return Calls(tmp_path / "calls")


@pytest.mark.behaviour("HAND-2", "HAND-9")
@pytest.mark.parametrize(("way", "is_async"), [("batch", False), ("partition", True)])
def test_a_record_that_fails_is_a_letter_and_every_other_is_called_once(
    world: World, calls: Calls, way: str, *, is_async: bool
) -> None:
    topic = world.events_topic(["a", "bad 1", "nothing", "b"], ["shy", "c"])

    seen = Recorder()
    world.store.observers = Observers([seen])
    claim = world.claim(topic)
    world.run(claim, calls.handler(is_async=is_async), Append("events"), dead_letters=DeadLetters(), **WAYS[way])

    assert world.database.column(VALUES) == ["a", "b", "shy", "c"]
    assert world.database.rows(LETTERS) == [(0, 1, "raised", "ValueError", "can't do bad 1", 3)]
    assert calls.of == Counter({"a": 1, "bad 1": 3, "nothing": 1, "b": 1, "shy": 3, "c": 1})
    assert world.stored(topic) == {0: 4, 1: 2}
    [told] = seen.of(HandlerCalled)
    assert (told.calls, told.retries, told.timeouts) == (10, 4, 0)
    assert told.seconds > 0
    [ended] = seen.of(BatchEnded)
    assert seen.events.index(told) < seen.events.index(ended)


@pytest.mark.behaviour("HAND-10")
def test_each_type_of_arrow_is_stored_by_value(world: World) -> None:
    topic = world.topic(["1"])
    world.database.execute(arrow_types.TABLE)
    world.run(world.claim(topic), Handler(lambda _: arrow_types.row(), arrow_types.schema()), Append("kinds"))
    assert world.database.rows(arrow_types.differing(handled=True)) == [([],)]


@pytest.mark.behaviour("HAND-2")
def test_without_dead_letters_the_error_names_the_record(world: World, calls: Calls) -> None:
    topic = world.events_topic(["a", "b", "bad 1", "c"])

    failure = world.run_to_failure(world.claim(topic), calls.handler(), Append("events"), **WAYS["partition"])

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


@pytest.mark.behaviour("HAND-7", "HAND-9")
@pytest.mark.parametrize("way", list(WAYS))
def test_a_refused_row_and_the_careful_way_call_no_handler_again(world: World, calls: Calls, way: str) -> None:
    topic = world.events_topic(["a", "toxic", "b"], ["c", "bad"])
    world.database.execute("ALTER TABLE events ADD CONSTRAINT rule CHECK (length(value) = 1)")

    letters = DeadLetters(max_retries=0)
    world.run(world.claim(topic), calls.handler(), Append("events"), dead_letters=letters, **WAYS[way])

    assert world.database.column(VALUES) == ["a", "b", "c"]
    assert [row[:4] for row in world.database.rows(LETTERS)] == [
        (0, 1, "refused", "RowsRefused"),
        (1, 1, "raised", "ValueError"),
    ]
    assert calls.of == Counter({"a": 1, "toxic": 1, "b": 1, "c": 1, "bad": 3})


@pytest.mark.behaviour("HAND-7")
@pytest.mark.parametrize("way", list(WAYS))
def test_what_is_stored_is_not_handled_and_a_batch_that_is_planned_again_calls_no_handler_again(
    world: World, calls: Calls, way: str, monkeypatch: pytest.MonkeyPatch
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
    world.run(claim, calls.handler(), Append("events"), stream=stream, **WAYS[way])

    assert moved
    assert world.database.column(VALUES) == ["c", "d"]
    assert calls.of == Counter("bcd")


@pytest.mark.behaviour("HAND-9")
def test_several_outputs_are_handled_once(world: World, calls: Calls) -> None:
    world.database.execute("CREATE TABLE payments (id bigint); CREATE TABLE customers (id bigint, name text)")
    topic = world.topic(["ann", "bad", "bob"])
    single = calls.handler().fn

    def handle(record: Record) -> dict[str, Any]:
        _, _, offset, name = single(record)
        return {"payments": [{"id": offset}, {"id": -offset}], "customers": (offset, name)}

    handler = Handler(handle, {"payments": "id long", "customers": "id long, name string"}, retries=FAST)
    into = {"payments": Append("payments"), "customers": Append("customers")}
    world.run(world.claim(topic), handler, into, dead_letters=DeadLetters())

    assert world.database.column("SELECT id FROM payments ORDER BY id") == [-2, 0, 0, 2]
    assert world.database.rows("SELECT id, name FROM customers ORDER BY id") == [(0, "ann"), (2, "bob")]
    assert [row[1] for row in world.database.rows(LETTERS)] == [1]
    assert calls.of == Counter({"ann": 1, "bad": 3, "bob": 1})


@pytest.mark.behaviour("HAND-2", "HAND-4")
def test_a_handler_that_hangs_ends_the_query_with_the_record_named(world: World, tmp_path: Path) -> None:
    topic, file = world.events_topic(["a", "slow", "b"]), str(tmp_path / "calls")
    seen = Recorder()
    world.store.observers = Observers([seen])

    def hangs(record: Record) -> None:
        import time  # noqa: PLC0415

        with open(file, "a") as log:  # noqa: PTH123
            log.write("called\n")
        time.sleep(60 if record.value == b"slow" else 0)

    handler = Handler(hangs, SCHEMA, timeout=2, ordering="partition")
    failure = world.run_to_failure(
        world.claim(topic), handler, Append("events"), dead_letters=DeadLetters(), **WAYS["partition"]
    )

    assert isinstance(failure.error, HandlerStuck)
    assert f"{topic}-0 at offset 1" in str(failure.error)
    assert world.database.rows(LETTERS) == []
    assert Path(file).read_text().count("called") == 2
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


@pytest.mark.behaviour("HAND-1", "HAND-9")
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


@pytest.mark.behaviour("HAND-9", "HAND-5")
def test_a_flush_hands_what_was_handled_to_an_execute(world: World, calls: Calls) -> None:
    topic = world.events_topic(["a", "b", "c"])

    def insert(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        for row in (row for batch in batches for row in batch.to_pylist()):
            work.connection.exec_driver_sql(
                'INSERT INTO events (partition, "offset", value) VALUES (%s, %s, %s)',
                (row["partition"], row["offset"], row["value"] + "!"),
            )

    with world.claim(topic) as claim:
        flush = Flush(rows=1_000, seconds=600)
        sink = made_unchecked(claim, calls.handler(), into=Execute(insert), flush=flush)
        options = {"maxOffsetsPerTrigger": "1"}
        query = world.start(sink, world.read(claim, **options), checkpoint=claim.checkpoint(world.checkpoints))
        assert query.awaitTermination(120)
        assert world.database.column(VALUES) == []
    assert world.database.column(VALUES) == ["a!", "b!", "c!"]
    assert calls.of == Counter("abc")
    [topic_id] = world.database.column("SELECT DISTINCT topic_id FROM kafka_partitions")
    assert calls.ids == {f"{topic}/{topic_id}/0/{offset}" for offset in range(3)}


@pytest.mark.behaviour("HAND-5", "DLQ-2")
def test_a_replayed_letter_is_handled_under_its_records_id(world: World, calls: Calls) -> None:
    topic = world.events_topic(["a", "bad"])
    world.run(world.claim(topic), calls.handler(), Append("events"), dead_letters=DeadLetters())
    [letter] = world.store.letters(world.group).letters
    world.store.request_replay(world.group, letter, reason="the service was mended")

    with world.claim(topic) as claim:
        handler = calls.handler(prefix="good ")
        sink = made_unchecked(claim, handler, into=Append("events"), dead_letters=DeadLetters())
        assert sink.drain(world.spark) == 1

    assert world.database.column(VALUES) == ["a", "good bad"]
    assert calls.of == Counter({"a": 1, "bad": 4})
    assert len(calls.ids) == 2


@pytest.mark.behaviour("HAND-8")
def test_what_does_not_go_together(world: World, calls: Calls) -> None:
    world.database.execute("CREATE TABLE latest (name text PRIMARY KEY, value bigint)")
    handler = Handler(calls.handler().fn, "name string, value long", ordering="none")
    only_keys = Handler(calls.handler().fn, "name string", ordering="none")
    claim = world.store.claim(world.group, topics=["payments"])
    with pytest.raises(ConfigurationError, match='ordering="none"'):
        TransactionalSink(claim, handler, into=Upsert("latest", key=["name"]))
    TransactionalSink(claim, handler, into=Upsert("latest", key=["name"], version="value"))
    TransactionalSink(claim, only_keys, into=Upsert("latest", key=["name"]))
    kept = claim.checkpoint(world.checkpoints, keep=True)
    settings = SinkSettings(marking="automatic", flush=None, dead_letters=None)
    with pytest.raises(UnsupportedQuery, match="a Handler takes Kafka's records"):
        settings.check_query(claim, KAFKA_COLUMNS, kept, has_handler=True)


def test_a_query_where_spark_runs_slow_tasks_twice_makes_no_call(
    world: World, calls: Calls, request: pytest.FixtureRequest
) -> None:
    conf = cast("Any", world.spark.sparkContext)._conf
    conf.set("spark.speculation", "True")  # Spark has read it at its start, so that nothing else changes
    request.addfinalizer(lambda: conf.set("spark.speculation", "false"))
    topic = world.events_topic(["a"])

    failed = world.run_to_failure(world.claim(topic), calls.handler(), Append("events"))

    assert isinstance(failed.error, UnsupportedQuery)
    assert calls.of == Counter()


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
def test_schemas_that_are_none_and_a_function_that_cant_be_pickled_are_refused(offsetstore_spark: SparkSession) -> None:
    lock = threading.Lock()

    def locked(record: Record) -> tuple[int]:
        with lock:
            return (record.offset,)

    interval = pa.schema([("id", arrow_types.arrow.month_day_nano_interval())])
    refused: list[tuple[Any, str]] = [
        ("id lung", "schema can't be read; found 'id lung': column id: the type lung is unknown"),
        (7, "schema can't be read; found 7"),
        ("_reject string", "uses itself"),
        (interval, "In id, replace month_day_nano_interval by"),
    ]
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        for schema, said in refused:
            with pytest.raises(ConfigurationError) as caught:
                TransactionalSink(claim, Handler(lambda _: None, schema), into=Append("events"))
            assert said in str(caught.value)
        outputs = Outputs(claim, Handler(locked, StructType().add("offset", "long")), Append("events"))
        with pytest.raises(ConfigurationError, match="can't be pickled") as caught:
            outputs.handled(kafka_frame(offsetstore_spark, [], KAFKA_COLUMNS))
        assert "lock" in str(caught.value.found)
