"""``atomicity="partition"`` where the tasks run in executors of their own, some of which die."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
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
from offsetstore.protocol.work import Work
from offsetstore.testing.fixtures import NewTopic
from tests.support.cluster import Cluster
from tests.support.postgres import Database
from tests.support.transforms import traced
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World

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
