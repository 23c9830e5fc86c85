"""A deploy of a consumer: its processes are replaced one by one, and no partition waits for long."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from offsetstore.local.kafka import KafkaBroker
from offsetstore.testing.fixtures import NewTopic
from tests.integration.conftest import Query
from tests.integration.consumer.conftest import owners
from tests.support.consuming import Consuming, soon

PARTITIONS = 6
IDLE = 5.0
"""Seconds; on a machine that has nothing else to do."""
MOST_IDLE = 25.0
"""On any machine: less than it takes until Kafka misses a member, or until rows are no longer waited for."""

GAPS = f"""
SELECT max(gap) FROM (
    SELECT extract(epoch FROM at - lag(at) OVER (PARTITION BY record % {PARTITIONS} ORDER BY at)) AS gap FROM results
) AS gaps
"""


@contextmanager
def producing(bootstrap: str, topic: str) -> Generator[list[int]]:
    """Produce numbers, ten a second into each partition; the list gets each."""
    made: list[int] = []
    is_over = threading.Event()

    def produce() -> None:
        with Producer({"bootstrap.servers": bootstrap}) as producer:
            while not is_over.wait(0.1):
                for partition in range(PARTITIONS):
                    producer.produce(topic, str(len(made)).encode(), partition=partition)
                    made.append(len(made))
            assert producer.flush(30) == 0

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield made
    finally:
        is_over.set()
        thread.join()


@pytest.mark.behaviour("CONS-5", "CONS-8", "CONS-11")
def test_a_deploy_one_by_one_writes_each_record_once_and_leaves_no_partition_idle_for_long(
    offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_database: str, query: Query, tmp_path: Path
) -> None:
    query("CREATE TABLE results (record bigint, at timestamptz DEFAULT clock_timestamp())")
    bootstrap, topic = offsetstore_kafka.bootstrap_servers, offsetstore_topic(PARTITIONS)
    kafka = {"session.timeout.ms": 45_000}  # librdkafka's default
    given = {"bootstrap": bootstrap, "topic": topic, "kafka": kafka, "rows": 50_000, "seconds": 1.0}
    with ExitStack() as closing:

        def start(number: int) -> Consuming:
            log = tmp_path / f"{number}.log"
            made = Consuming("--port", "0", url=offsetstore_database, given=given, log=log)
            return closing.enter_context(made)

        running = [start(number) for number in range(2)]
        for one in running:
            soon(one.is_ready)
        soon(lambda: owners(query) == 2)
        with producing(bootstrap, topic) as made:
            soon(lambda: query(f"SELECT count(DISTINCT record % {PARTITIONS}) FROM results") == [(PARTITIONS,)])
            assert running.pop(0).end() == 0
            running.append(start(2))
            soon(running[-1].is_ready)
            soon(lambda: owners(query) == 2)
        soon(lambda: query("SELECT count(*) FROM results")[0][0] >= len(made))
        for one in running:
            assert one.end() == 0
    assert [record for (record,) in query("SELECT record FROM results ORDER BY record")] == [*range(len(made))]
    [(idle,)] = query(GAPS)
    busy = max(os.getloadavg()[:2]) / (os.cpu_count() or 1)
    assert float(idle) <= min(MOST_IDLE, IDLE * max(1.0, busy)), f"{idle} s"
