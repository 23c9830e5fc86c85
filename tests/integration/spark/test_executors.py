"""Executors in processes of their own: the preflight, and a task's way to the database."""

from __future__ import annotations

import importlib.metadata
import os
import threading
import urllib.request
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from weakref import WeakSet

import psutil
import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from sqlalchemy import text

from offsetstore import OffsetStore, Timeouts
from offsetstore.errors import ExecutorEnvironment
from offsetstore.local.postgres.binaries import find_binaries
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.spark.executors import preflight
from offsetstore.spark.executors.connect import ExecutorStore, sending_password
from offsetstore.spark.executors.preflight import PACKAGES, check_executors, check_once
from offsetstore.spark.executors.record_batches import Parts
from tests.support.cluster import Cluster
from tests.support.waiting import wait_until

PASSWORD = "canary4711"


# -- the preflight, on threads of this process


def test_executors_with_the_drivers_packages_pass(offsetstore_spark: SparkSession) -> None:
    [found] = check_executors(offsetstore_spark)
    assert set(found.versions) == set(PACKAGES)


def test_another_version_is_refused_by_name(offsetstore_spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        return "0.0.1" if name == "pgpq" else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(ExecutorEnvironment) as caught:
        check_executors(offsetstore_spark)
    assert f"pgpq {real('pgpq')}" in str(caught.value.found)
    assert "pgpq 0.0.1" in str(caught.value.expected)
    assert "pyarrow" not in str(caught.value.found)


def test_an_application_is_checked_once_and_again_after_a_failure(
    offsetstore_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(_: str) -> str:
        return "0.0.1"

    checked: WeakSet[SparkContext] = WeakSet()
    monkeypatch.setattr(preflight, "_checked", checked)
    with monkeypatch.context() as differs:
        differs.setattr(importlib.metadata, "version", version)
        for _ in range(2):
            with pytest.raises(ExecutorEnvironment):
                check_once(offsetstore_spark)
    check_once(offsetstore_spark)
    monkeypatch.setattr(preflight, "check_executors", pytest.fail)
    check_once(offsetstore_spark.newSession())


@pytest.mark.parametrize(
    ("attribute", "value", "told"),
    [("pythonVer", "3.9", "different version"), ("pythonExec", "/nowhere/python", "Cannot run program")],
)
def test_a_python_that_does_not_start_is_refused(
    offsetstore_spark: SparkSession, monkeypatch: pytest.MonkeyPatch, attribute: str, value: str, told: str
) -> None:
    monkeypatch.setattr(offsetstore_spark.sparkContext, attribute, value)
    with pytest.raises(ExecutorEnvironment, match="--archives") as caught:
        check_executors(offsetstore_spark)
    assert told in str(caught.value.found)


def test_executors_that_have_no_time_are_given_up(offsetstore_spark: SparkSession) -> None:
    context = offsetstore_spark.sparkContext
    begun = threading.Event()

    def wait(_: int) -> None:
        threading.Event().wait(60)

    def occupy() -> None:
        context.addJobTag("occupy")
        begun.set()
        with pytest.raises(Exception, match="cancelled"):
            context.parallelize([0, 1], 2).foreach(wait)

    busy = threading.Thread(target=occupy)
    busy.start()
    begun.wait()
    wait_until(lambda: context.statusTracker().getActiveJobsIds())
    try:
        with pytest.raises(ExecutorEnvironment, match=r"no answer within 0\.5 s"):
            check_executors(offsetstore_spark, timeout=0.5)
    finally:
        context.cancelJobsWithTag("occupy")
        busy.join()


# -- the cluster: what a task needs to reach a database that asks for a password


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
    terminate = text("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid = ANY(:backends)")
    assert session.connection.execute(terminate, {"backends": backends}).scalars().all()
    session.rollback()


def _read(page: str) -> str:
    with urllib.request.urlopen(page, timeout=20) as answer:  # noqa: S310 - Spark's own
        return answer.read().decode()


def test_tasks_connect_with_the_drivers_password_which_nobody_writes_down(
    cluster: Cluster, strict_postgres: str
) -> None:
    found, pages = cluster.run(look_around, url=strict_postgres)

    first, second, third = (dict(batch) for batch in found)
    assert all(len(set(batch)) == len(dict(batch)) for batch in found), "a worker has one connection"
    workers = [pid for executor in cluster.executors() for pid in cluster.python_workers(executor)]
    assert first.keys() | second.keys() | third.keys() <= set(workers)
    assert [first[pid] for pid in first if pid in second] == [second[pid] for pid in first if pid in second]
    assert not set(third.values()) & {*first.values(), *second.values()}

    assert "spark.master" in pages
    assert PASSWORD not in pages
    assert PASSWORD.encode() not in _written(cluster.directory)
    for pid in [*workers, *cluster.executors()]:
        process = psutil.Process(pid)
        assert PASSWORD not in str([process.environ(), process.cmdline()])
    assert b'"offsetstore.password":"' in _written(cluster.directory / "events"), "it was there, sealed"


def _written(directory: Path) -> bytes:
    """All that Spark has written: logs of the driver and the executors, events, blocks."""
    files = [file for file in directory.rglob("*") if file.is_file() and not file.is_symlink()]
    assert files
    return b"".join(file.read_bytes() for file in files)


def fail_to_connect(session: SparkSession, url: str) -> str:
    """A job whose tasks are not sent the password, and have no connection to this store yet."""
    with OffsetStore.connect(url, timeouts=Timeouts(lock=1)) as store:
        shared = ExecutorStore.of(store)
        frame = session.range(1, numPartitions=1).mapInArrow(
            lambda batches: who(shared, batches), "process long, backend long"
        )
        try:
            frame.collect()
        except Exception as error:  # noqa: BLE001 - its text is what is asked for
            return str(error)
    return ""


def test_outside_of_the_block_no_task_has_the_password(cluster: Cluster, strict_postgres: str) -> None:
    assert "no password supplied" in cluster.run(fail_to_connect, url=strict_postgres)


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


def test_the_password_does_not_outlast_the_block(offsetstore_spark: SparkSession, offsetstore_database: str) -> None:
    context = offsetstore_spark.sparkContext
    with OffsetStore.connect(offsetstore_database, credentials=lambda: PASSWORD) as store:
        with sending_password(offsetstore_spark, store):
            assert PASSWORD not in str(context.getLocalProperty("offsetstore.password"))
        assert context.getLocalProperty("offsetstore.password") is None
    with OffsetStore.connect(offsetstore_database) as store, sending_password(offsetstore_spark, store):
        assert context.getLocalProperty("offsetstore.password") is None, "there is none to send"
