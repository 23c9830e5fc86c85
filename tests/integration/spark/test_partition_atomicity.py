"""``atomicity="partition"``: one transaction for each Kafka partition, by Spark's tasks."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from sqlalchemy import Connection, text

from offsetstore import Append, Execute, OffsetStore, TopicPartition, TransactionalSink, Upsert
from offsetstore.errors import (
    ConfigurationError,
    ExecutorEnvironment,
    StaleClaim,
    UnsupportedQuery,
)
from offsetstore.protocol.ports import Writer
from offsetstore.protocol.work import Work
from offsetstore.spark.executors import preflight
from offsetstore.testing.fixtures import NewTopic
from tests.support.transactions import TransactionalProducer
from tests.support.transforms import EVENTS, traced
from tests.support.waiting import wait_until
from tests.support.world import World

VALUES = "SELECT value FROM events ORDER BY value"
ATTEMPTS = "CREATE TABLE attempts (partition int)"


def attempt(url: str, batches: Iterable[pa.RecordBatch]) -> tuple[list[dict[str, Any]], int]:
    """In a task: note down that it was tried, whatever becomes of its transaction; return the rows, and how often."""
    import psycopg  # noqa: PLC0415

    rows = [row for batch in batches for row in batch.to_pylist()]
    with psycopg.connect(url, autocommit=True) as aside:
        aside.execute("INSERT INTO attempts VALUES (%s)", [rows[0]["partition"]])
        query = "SELECT count(*) FROM attempts WHERE partition = %s"
        [times] = aside.execute(query, [rows[0]["partition"]]).fetchone() or (0,)
    return rows, times


def insert(connection: Connection, rows: list[dict[str, Any]]) -> None:
    """In a task: write the rows into the table `EVENTS`."""
    connection.execute(text("INSERT INTO events VALUES (:topic, :partition, :offset, :value)"), rows)


def land(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """In a task: write the rows of a partition."""
    insert(work.connection, [row for batch in batches for row in batch.to_pylist()])


@pytest.mark.behaviour("SINK-1", "SINK-3", "TX-7", "TX-10")
@pytest.mark.parametrize(
    ("into", "threshold", "transactions"),
    [(Append("events"), 8, 1), (Append("events"), 7, 2), (Execute(land), 8, 2)],
    ids=["small", "large", "execute"],
)
def test_each_partitions_rows_and_offset_come_in_a_transaction_of_their_own_unless_the_batch_is_small(
    world: World, caplog: pytest.LogCaptureFixture, into: Writer, threshold: int, transactions: int
) -> None:
    """Partitions without rows are advanced, too. Without a broker, the claim knows no partition."""
    topic = world.events_topic(partitions=4)
    for partition, values in enumerate((["0a"], ["1a", "1b"], ["dropped", "dropped"])):
        world.produce(topic, values, partition=partition)
    TransactionalProducer(world.kafka.bootstrap_servers, topic, partition=3).abort(["x", "y"])
    options = world.options(topic, startingOffsets="earliest", **{"kafka.isolation.level": "read_committed"})
    stream = world.spark.readStream.format("kafka").options(**options).load()
    claim = world.store.claim(world.group, topics=[topic])

    def transform(batch: DataFrame) -> DataFrame:
        return traced(batch).where("value <> 'dropped'")

    caplog.clear()
    with caplog.at_level(logging.WARNING, "offsetstore"):
        world.run(claim, transform, into, stream=stream, atomicity="partition", task_threshold=threshold)

    assert world.database.column(VALUES) == ["0a", "1a", "1b"]
    # Which transaction has written a row, PostgreSQL itself knows.
    written = world.database.rows("SELECT DISTINCT partition, xmin::text FROM events ORDER BY partition")
    offsets = world.database.rows("SELECT partition, xmin::text FROM kafka_partitions ORDER BY partition")
    assert written == offsets[:2]
    assert len({transaction for _, transaction in written}) == transactions
    assert world.stored(topic) == {0: 1, 1: 2, 2: 2, 3: 3}
    assert [one for one in caplog.messages if "repartitioned" in one] == []
    assert [event.event for event in world.store.history(world.group)].count("adopt") == 4


@pytest.mark.behaviour("TX-4", "TX-5", "TX-15")
def test_what_was_stored_before_is_skipped_or_cropped_also_when_it_moves_meanwhile(world: World) -> None:
    """As after a crash between the commits of two partitions, and as an older job's last commit would do it."""
    topic = world.events_topic(partitions=3)
    for partition in range(3):
        world.produce(topic, [f"{partition}{letter}" for letter in "abc"], partition=partition)
    claim = world.claim(topic)
    world.advance(claim, {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 1})
    seen: list[int] = []

    def transform(batch: DataFrame) -> DataFrame:
        seen.append(batch.count())
        if len(seen) == 1:  # the first plan is outdated by the time the tasks lock
            world.advance(claim, {TopicPartition(topic, 1): 2})
        return traced(batch)

    world.run(claim, transform, Append("events"), atomicity="partition")

    assert seen == [5, 1]  # by the second plan, partition 2 was done
    assert world.database.column(VALUES) == ["1c", "2a", "2b", "2c"]
    assert world.stored(topic) == {0: 3, 1: 3, 2: 3}


@pytest.mark.behaviour("SINK-1", "TX-2")
def test_a_worker_that_is_killed_loses_and_doubles_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once before the first commit, then after one."""
    topic = world.events_topic(partitions=3)
    for partition in range(3):
        world.produce(topic, [f"{partition}{letter}" for letter in "abc"], partition=partition)
    for point in ("before_commit", "after_commit"):
        claim = world.claim(topic)
        with monkeypatch.context() as broken:
            broken.setenv("OFFSETSTORE_FAILPOINT", f"{point}:kill")
            failed = world.run_to_failure(claim, traced, Append("events"), atomicity="partition")

        assert "Python worker exited unexpectedly" in failed.text
        # In one look: another partition's task may commit at this moment.
        found = world.database.rows(
            "SELECT p.next_offset, count(e.value) FROM kafka_partitions AS p"
            " LEFT JOIN events AS e USING (topic, partition) GROUP BY partition, p.next_offset"
        )
        assert len(found) == 3
        assert all(stored == written for stored, written in found)
        assert any(stored for stored, _ in found) is (point == "after_commit")

    world.run(world.claim(topic), traced, Append("events"), atomicity="partition")
    assert world.database.column(VALUES) == [f"{p}{letter}" for p in range(3) for letter in "abc"]
    assert world.stored(topic) == {0: 3, 1: 3, 2: 3}


@pytest.mark.behaviour("TX-12")
def test_what_may_pass_is_repeated_from_kafka_and_only_where_it_has_to_be(world: World) -> None:
    world.database.execute(EVENTS)
    world.database.execute(ATTEMPTS)
    topic = world.topic(["0a", "0b"], ["1a"])
    url = world.database.url

    def write(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        rows, times = attempt(url, batches)
        insert(work.connection, rows)
        if rows[0]["partition"] == 0 and times < 3:
            work.connection.execute(text("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(60)"))

    claim = world.claim(topic)
    world.run(claim, traced, Execute(write), atomicity="partition")
    claim.record_run()

    assert world.database.column(VALUES) == ["0a", "0b", "1a"]
    assert wait_until(lambda: world.store.runs(world.group)[-1].status.counters.get("rows")) == 3
    assert world.database.column("SELECT partition FROM attempts ORDER BY partition") == [0, 0, 0, 1]
    assert world.stored(topic) == {0: 2, 1: 1}


@pytest.mark.behaviour("SINK-1", "TX-2")
def test_the_users_own_error_is_the_sinks_and_the_other_partitions_are_stored(world: World) -> None:
    topic = world.events_topic(["a", "b"], ["c"])

    def write(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        rows = [row for batch in batches for row in batch.to_pylist()]
        insert(work.connection, rows)
        if rows[0]["partition"] == 1:
            raise LookupError("no such", "country")

    failed = world.run_to_failure(world.claim(topic), traced, Execute(write), atomicity="partition")
    assert isinstance(failed.error, LookupError)
    assert failed.error.args == ("no such", "country")
    assert "raise LookupError" in str(failed.error.__notes__)
    assert world.database.column(VALUES) == ["a", "b"]
    wait_until(lambda: world.store.errors(world.group))  # the failure waits only some seconds until it is recorded
    counters = world.store.runs(world.group)[-1].status.counters
    assert (counters["rows"], counters["offsets"]) == (2, 2)
    assert world.stored(topic) == {0: 2, 1: 0}


@pytest.mark.behaviour("SINK-1", "START-14")
@pytest.mark.parametrize("rows", [True, False], ids=["with rows", "without rows"])
def test_a_job_that_was_taken_over_in_mid_batch_writes_nothing(world: World, *, rows: bool) -> None:
    topic = world.events_topic(["a", "b"], ["c"])

    def transform(batch: DataFrame) -> DataFrame:
        world.claim(topic)
        return traced(batch).where(F.lit(rows))

    failed = world.run_to_failure(world.claim(topic), transform, Append("events"), atomicity="partition")

    assert isinstance(failed.error, StaleClaim)
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0, 1: 0}


@pytest.mark.behaviour("SINK-17")
def test_sums_of_keys_that_are_in_two_parallel_tasks_are_exact(world: World, offsetstore_topic: NewTopic) -> None:
    world.database.execute("CREATE TABLE sums (key text PRIMARY KEY, n bigint, total bigint)")
    topic = offsetstore_topic(2)
    keys = [f"k{number:02}" for number in range(40)]
    world.produce(topic, keys * 3)
    world.produce(topic, keys[::-1] * 3, partition=1)

    def transform(batch: DataFrame) -> DataFrame:
        key = F.col("value").cast("string").alias("key")
        return batch.select(key, F.lit(1).alias("n"), F.col("offset").alias("total"), "_kafka")

    into = Upsert("sums", key=["key"], add=["n", "total"])
    world.run(world.claim(topic), transform, into, atomicity="partition", maxOffsetsPerTrigger="120")

    assert world.database.rows("SELECT count(*), min(n), max(n), sum(total) FROM sums") == [(40, 6, 6, 119 * 120)]
    assert world.stored(topic) == {0: 120, 1: 120}


@pytest.mark.behaviour("SINK-1", "TX-2")
def test_a_task_that_is_stopped_among_its_rows_does_not_take_the_end_of_its_connection_for_the_last_row(
    world: World, offsetstore_topic: NewTopic
) -> None:
    """Arrow does: the rows that came until then would be committed as if they were all."""
    world.database.execute(EVENTS)
    world.database.execute(ATTEMPTS)
    topic = offsetstore_topic(1)
    # The first is more than Spark's buffer, and so sent at once; Spark then looks for the next but one.
    world.produce(topic, ["a" * 200_000, "b", "slow", "c"])
    url = world.database.url
    claim = world.claim(topic)

    def transform(batch: DataFrame) -> DataFrame:
        slow = F.expr("value <> 'slow' OR reflect('java.lang.Thread', 'sleep', 120000L) IS NULL")
        return traced(batch).where(slow)

    def write(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            rows, _ = attempt(url, [batch])
            insert(work.connection, rows)

    sink = TransactionalSink(claim, transform, into=Execute(write), atomicity="partition")
    world.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints))
        wait_until(lambda: world.database.one("SELECT count(*) FROM attempts") == 1, timeout=120)
        query.stop()
        open_ = f"SELECT count(*) FROM pg_stat_activity WHERE starts_with(application_name, '{claim.name}:')"
        wait_until(lambda: world.database.one(f"{open_} AND xact_start IS NOT NULL") == 0)
    finally:
        world.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert world.database.one("SELECT count(*) FROM attempts") == 1
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("SINK-14", "SINK-7")
def test_a_small_batch_is_refused_what_a_large_one_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is computed: executors that differ, and a transform that makes no row of one record."""
    topic = world.events_topic(["a"])
    real = importlib.metadata.version

    def version(name: str) -> str:
        return "0.0.1" if name == "pgpq" else real(name)

    small: dict[str, Any] = {"atomicity": "partition", "task_threshold": 100}
    checked: WeakSet[SparkContext] = WeakSet()  # empty: another test of this session may have passed
    monkeypatch.setattr(preflight, "_checked", checked)
    claim = world.claim(topic)
    with monkeypatch.context() as differs:
        differs.setattr(importlib.metadata, "version", version)
        failed = world.run_to_failure(claim, traced, Append("events"), **small)
    assert isinstance(failed.error, ExecutorEnvironment)

    failed = world.run_to_failure(claim, lambda batch: traced(batch).limit(1), Append("events"), **small)
    assert isinstance(failed.error, UnsupportedQuery)
    assert world.stored(topic) == {0: 0}


def test_what_cannot_work_is_refused_when_the_sink_is_made(offsetstore_database: str) -> None:
    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim("billing", topics=["payments"])

        def write(_work: Work, _batches: Iterable[pa.RecordBatch]) -> None:
            store.close()

        partition: dict[str, Any] = {"atomicity": "partition"}
        refused: list[tuple[Any, dict[str, Any], str]] = [
            (Append("events"), {"atomicity": "task"}, '"batch" or "partition"'),
            (Append("events"), {**partition, "task_threshold": -1}, "task_threshold must be 0 or more"),
            ({"a": Append("a"), "b": Append("b")}, partition, "one output"),
            (Execute(write), partition, "can't be sent to Spark's executors"),
        ]
        for into, arguments, said in refused:
            with pytest.raises(ConfigurationError, match=said):
                TransactionalSink(claim, traced, into=into, **arguments)
