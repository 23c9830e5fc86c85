"""``atomicity="partition"``: one transaction for each Kafka partition, by Spark's tasks."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

import psycopg
import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from sqlalchemy import create_engine, event, text

from offsetstore import Append, Execute, OffsetStore, TopicPartition, Upsert
from offsetstore.errors import ExecutorEnvironment, UnsupportedQuery
from offsetstore.protocol.ports import Work, Writer
from offsetstore.spark.executors import preflight
from offsetstore.testing.fixtures import NewTopic
from tests.support.transactions import TransactionalProducer
from tests.support.transforms import traced
from tests.support.waiting import wait_until
from tests.support.world import World

VALUES = "SELECT value FROM events ORDER BY value"


def land(work: Work, batches: Iterable[pa.RecordBatch]) -> int:
    """In a task: write the rows of a partition; return its number."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    work.connection.execute(text("INSERT INTO events VALUES (:topic, :partition, :offset, :value)"), rows)
    return rows[0]["partition"]


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
    topic = world.events_topic(*([f"{partition}{letter}" for letter in "abc"] for partition in range(3)))
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
def test_a_worker_that_is_killed_after_a_commit_loses_and_doubles_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.events_topic(*([f"{partition}{letter}" for letter in "abc"] for partition in range(3)))
    claim = world.claim(topic)
    with monkeypatch.context() as broken:
        broken.setenv("OFFSETSTORE_FAILPOINT", "after_commit:kill")
        failed = world.run_to_failure(claim, traced, Append("events"), atomicity="partition")

    assert "Python worker exited unexpectedly" in failed.text
    # In one look: another partition's task may commit at this moment.
    found = world.database.rows(
        "SELECT p.next_offset, count(e.value) FROM kafka_partitions AS p"
        " LEFT JOIN events AS e USING (topic, partition) GROUP BY partition, p.next_offset"
    )
    assert len(found) == 3
    assert all(stored == written for stored, written in found)
    assert any(stored for stored, _ in found)

    world.run(world.claim(topic), traced, Append("events"), atomicity="partition")
    assert world.database.column(VALUES) == [f"{p}{letter}" for p in range(3) for letter in "abc"]
    assert world.stored(topic) == {0: 3, 1: 3, 2: 3}


@pytest.mark.behaviour("TX-12")
def test_what_may_pass_is_repeated_from_kafka_and_only_where_it_has_to_be(world: World) -> None:
    world.database.execute("CREATE TABLE attempts (partition int)")
    topic = world.events_topic(["0a", "0b"], ["1a"])
    url = world.database.url

    def write(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        partition = land(work, batches)
        with psycopg.connect(url, autocommit=True) as aside:  # noted whatever becomes of the transaction
            aside.execute("INSERT INTO attempts VALUES (%s)", [partition])
            [times] = aside.execute("SELECT count(*) FROM attempts WHERE partition = %s", [partition]).fetchone() or (
                0,
            )
        if partition == 0 and times < 3:
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
        if land(work, batches) == 1:
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


@pytest.mark.behaviour("SINK-20")
def test_executors_write_to_the_table_that_the_driver_has_found(world: World) -> None:
    """On an application's engine whose listener leads to ``tenant_a``. Executors do not have it."""
    topic = world.events_topic(["a", "b"], ["c"])
    world.database.execute("CREATE SCHEMA tenant_a")
    world.database.execute("CREATE TABLE tenant_a.events (LIKE public.events)")
    engine = create_engine(world.database.url.replace("postgresql://", "postgresql+psycopg://"))

    @event.listens_for(engine, "connect")
    def lead_to_tenant_a(connection: Any, _: object) -> None:  # pyright: ignore[reportUnusedFunction] - SQLAlchemy calls it
        connection.execute("SET search_path = tenant_a, public")
        connection.commit()

    world.store.close()
    world.store = OffsetStore.connect(engine)
    world.run(world.claim(topic), traced, Append("events"), atomicity="partition")

    tables = "SELECT (SELECT count(*) FROM public.events), (SELECT count(*) FROM tenant_a.events)"
    assert world.database.rows(tables) == [(0, 3)]
    world.store.close()
    engine.dispose()
