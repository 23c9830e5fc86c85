"""Executors in processes of their own, some of which die: what tasks need to connect, what outputs share, and
``atomicity="partition"``.
"""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import psycopg
import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from sqlalchemy import text

from offsetstore import Execute, OffsetStore, TransactionalSink
from offsetstore.local.postgres import PostgresServer, find_binaries
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.protocol.ports import Work
from offsetstore.spark.executors.connect import ExecutorStore, sending_password
from offsetstore.spark.executors.task import Parts
from offsetstore.testing.fixtures import NewTopic
from tests.support.cluster import Cluster, python_workers
from tests.support.postgres import Database
from tests.support.transforms import traced
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World

PASSWORD = "canary4711"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Spark with two executor processes; its events are written to ``events``."""
    directory = tmp_path_factory.mktemp("cluster")
    events = directory / "events"
    events.mkdir()
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
    }
    with Cluster(directory, conf=conf) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def strict_postgres() -> Iterator[str]:
    """The URL of a PostgreSQL that wants a password, with our tables."""
    with PostgresServer(find_binaries("embedded"), durability="none", password=PASSWORD) as server:
        engine = make_engine(server.url)
        with engine.begin() as connection:
            upgrade(connection)
        engine.dispose()
        yield server.url


def look_around(session: SparkSession, url: str) -> tuple[list[int], str]:
    """A job: its tasks connect, and tell which process they are in."""
    pickler: Any = import_module("pyspark.cloudpickle")  # without types
    with OffsetStore.connect(url) as store:
        shared = ExecutorStore.of(store)

        def tell(_: int, batches: Iterable[pa.RecordBatch | None]) -> int:
            assert all(batch is None or batch.num_rows for batch in batches)
            session = shared.connect().database.begin(name="task")
            assert session.connection.execute(text("SELECT 1")).scalar_one() == 1
            session.rollback()
            return os.getpid()

        assert PASSWORD.encode() not in pickler.dumps(tell)
        with sending_password(session, store):
            found = Parts.of(session.range(8, numPartitions=8)).run(tell)
        ui: Any = session.sparkContext.uiWebUrl
        application = session.sparkContext.applicationId
        pages = [f"{ui}/environment/", f"{ui}/api/v1/applications/{application}/environment"]
        return found, "".join(_read(page) for page in pages)


def _read(page: str) -> str:
    with urllib.request.urlopen(page, timeout=60) as answer:  # noqa: S310 - Spark's own
        return answer.read().decode()


def test_tasks_connect_with_the_drivers_password_which_nobody_writes_down(
    cluster: Cluster, strict_postgres: str
) -> None:
    found, pages = cluster.run(look_around, url=strict_postgres)

    workers = [pid for executor in cluster.executors() for pid in python_workers(executor)]
    assert {*found} <= {*workers}

    # Spark writes its events in a thread of its own.
    wait_until(lambda: b'"offsetstore.password":"' in _written(cluster.directory / "events"))  # there, sealed
    assert "spark.master" in pages
    assert PASSWORD not in pages
    assert PASSWORD.encode() not in _written(cluster.directory)
    for pid in [*workers, *cluster.executors()]:
        process = psutil.Process(pid)
        assert PASSWORD not in str([process.environ(), process.cmdline()])


def _written(directory: Path) -> bytes:
    """All that Spark has written: logs of the driver and the executors, events, blocks."""
    files = [file for file in directory.rglob("*") if file.is_file() and not file.is_symlink()]
    assert files
    return b"".join(file.read_bytes() for file in files)


# -- one transaction for each partition

INSERT = "INSERT INTO events VALUES (:topic, :partition, :offset, :value)"
UNDER_WAY = "CREATE TABLE under_way (partition int, executor int)"


def tell(url: str, batches: Iterable[pa.RecordBatch]) -> list[dict[str, Any]]:
    """In a task: say which partition it is, and in which executor's process, outside of its transaction."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    executor = psutil.Process(os.getppid()).ppid()  # the worker is forked by a daemon of the executor's
    with psycopg.connect(url, autocommit=True) as aside:
        aside.execute("INSERT INTO under_way VALUES (%s, %s)", [rows[0]["partition"], executor])
    return rows


def write_behind_a_gate(url: str, work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """In a task: write, and wait in the transaction until the test lets it go on."""
    work.connection.execute(text(INSERT), tell(url, batches))
    work.connection.execute(text("SET LOCAL lock_timeout = '60s'"))
    work.connection.execute(text("SELECT pg_advisory_xact_lock_shared(1)"))


def refuse(url: str, _work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """In a task: fail."""
    raise LookupError(f"partition {tell(url, batches)[0]['partition']} is not to my liking")


def run_sink(
    session: SparkSession,
    *,
    servers: str,
    url: str,
    topic: str,
    group: str,
    checkpoints: str,
    write: Callable[..., None],
) -> str | None:
    """A job on the cluster: write all of the topic; return what the sink failed with."""
    kafka: Any = SimpleNamespace(bootstrap_servers=servers)
    world = World(session, kafka, Database(url), OffsetStore.connect(url), group, checkpoints)
    try:
        claim = world.claim(topic)
        sink = TransactionalSink(claim, traced, into=Execute(partial(write, url)), atomicity="partition")
        query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(checkpoints))
        with suppress(StreamingQueryException):
            assert query.awaitTermination(SECONDS)
        return None if sink.error is None else repr(sink.error)
    finally:
        world.close()


@pytest.mark.behaviour("SINK-1")
def test_an_executor_that_is_killed_in_mid_batch_loses_and_doubles_nothing(world: World, cluster: Cluster) -> None:
    topic = world.events_topic(partitions=4)
    for partition in range(4):
        world.produce(topic, [f"{partition}-{number}" for number in range(50)], partition=partition)
    world.database.execute("SELECT pg_advisory_lock(1)")

    world.database.execute(UNDER_WAY)
    running = cluster.start(run_sink, **settings(world, topic), write=write_behind_a_gate)
    killed, *_ = wait_until(lambda: world.database.column("SELECT executor FROM under_way"), timeout=120)
    assert killed in cluster.executors()
    os.kill(killed, signal.SIGKILL)
    world.database.execute("SELECT pg_advisory_unlock(1)")

    assert running.result() is None
    assert killed not in cluster.wait_for_executors()
    ledger = 'SELECT partition, count(*), count(DISTINCT "offset") FROM events GROUP BY 1 ORDER BY 1'
    assert world.database.rows(ledger) == [(partition, 50, 50) for partition in range(4)]
    assert world.stored(topic) == dict.fromkeys(range(4), 50)


@pytest.mark.behaviour("TX-12")
def test_a_task_that_fails_is_not_repeated_by_spark(
    world: World, cluster: Cluster, offsetstore_topic: NewTopic
) -> None:
    """A cluster's Spark tries a task four times, unless it returns that it has failed."""
    world.database.execute(UNDER_WAY)
    topic = offsetstore_topic(2)
    for partition in range(2):
        world.produce(topic, ["a", "b"], partition=partition)

    error = cluster.run(run_sink, **settings(world, topic), write=refuse)

    assert error == "LookupError('partition 0 is not to my liking')"
    assert world.database.column("SELECT partition FROM under_way ORDER BY partition") == [0, 1]
    assert world.stored(topic) == {0: 0, 1: 0}


def settings(world: World, topic: str) -> dict[str, str]:
    return {
        "servers": world.kafka.bootstrap_servers,
        "url": world.database.url,
        "topic": topic,
        "group": world.group,
        "checkpoints": world.checkpoints,
    }
