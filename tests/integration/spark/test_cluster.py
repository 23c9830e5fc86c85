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
from offsetstore.local.postgres.binaries import find_binaries
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.protocol.work import Work
from offsetstore.spark.executors.connect import ExecutorStore, sending_password
from offsetstore.spark.executors.record_batches import Parts
from offsetstore.testing.fixtures import NewTopic
from tests.support.cluster import Cluster, python_workers
from tests.support.postgres import Database
from tests.support.sharing_job import is_kept, outdated_by_a_dead_executor, outdated_by_twins
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


def who(shared: ExecutorStore, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: which process it is, and which connection it has."""
    import pyarrow as pa  # noqa: PLC0415

    for _ in batches:
        session = shared.connect().database.begin(name="task")
        backend = session.connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        session.rollback()
        yield pa.RecordBatch.from_pydict({"process": [os.getpid()], "backend": [backend]})


def look_around(session: SparkSession, url: str) -> tuple[list[list[tuple[int, int]]], str]:
    """A job: its tasks connect, in three batches; before the third, the database has closed their connections."""
    pickler: Any = import_module("pyspark.cloudpickle")  # without types
    with OffsetStore.connect(url) as store:
        shared = ExecutorStore.of(store)

        def tell(_: int, batches: Iterable[pa.RecordBatch | None]) -> list[Any]:
            rows = who(shared, (batch for batch in batches if batch is not None))
            return [row for told in rows for row in told.to_pylist()]

        assert PASSWORD.encode() not in pickler.dumps(tell)
        found: list[list[tuple[int, int]]] = []
        for number in range(3):
            if number == 2:
                _close_connections(store, [backend for _, backend in found[-1]])
            frame = session.range(8, numPartitions=8)
            with sending_password(session, store):
                rows = [row for told in Parts.of(frame).run(tell) for row in told]
            found.append([(row["process"], row["backend"]) for row in rows])
        ui: Any = session.sparkContext.uiWebUrl
        application = session.sparkContext.applicationId
        pages = [f"{ui}/environment/", f"{ui}/api/v1/applications/{application}/environment"]
        return found, "".join(_read(page) for page in pages)


def _close_connections(store: OffsetStore, backends: list[int]) -> None:
    session = store.database.begin(name="test")
    terminate = text("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE pid = ANY(:backends)")
    assert session.connection.execute(terminate, {"backends": backends}).scalars().all()
    session.rollback()


def _read(page: str) -> str:
    with urllib.request.urlopen(page, timeout=60) as answer:  # noqa: S310 - Spark's own
        return answer.read().decode()


def test_tasks_connect_with_the_drivers_password_which_nobody_writes_down(
    cluster: Cluster, strict_postgres: str
) -> None:
    found, pages = cluster.run(look_around, url=strict_postgres)

    first, second, third = (dict(batch) for batch in found)
    assert all(len(set(batch)) == len(dict(batch)) for batch in found), "a worker has one connection"
    workers = [pid for executor in cluster.executors() for pid in python_workers(executor)]
    assert first.keys() | second.keys() | third.keys() <= set(workers)
    assert [first[pid] for pid in first if pid in second] == [second[pid] for pid in first if pid in second]
    assert not set(third.values()) & {*first.values(), *second.values()}

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


def connect_by_environment(session: SparkSession, url: str, password: str) -> list[int]:
    """A job on executors that have the password in their environment."""
    context = session.sparkContext
    with OffsetStore.connect(url, credentials=lambda: password) as store:
        shared = ExecutorStore.of(store)
        context.environment["OFFSETSTORE_PASSWORD"] = password
        try:
            frame = session.range(2, numPartitions=2).mapInArrow(
                lambda batches: who(shared, batches), "process long, backend long"
            )
            return [row.backend for row in frame.collect()]
        finally:
            del context.environment["OFFSETSTORE_PASSWORD"]


def test_an_executors_own_environment_can_have_it(cluster: Cluster, strict_postgres: str) -> None:
    plain = strict_postgres.replace(f":{PASSWORD}@", "@")
    assert len(cluster.run(connect_by_environment, url=plain, password=PASSWORD)) == 2


@pytest.mark.behaviour("SINK-19")
def test_executors_that_die_or_compute_a_part_twice_make_the_outputs_outdated(cluster: Cluster) -> None:
    assert cluster.run(is_kept)
    assert cluster.run(outdated_by_twins)
    assert cluster.run(outdated_by_a_dead_executor, executors=cluster.executors()[:1])


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
