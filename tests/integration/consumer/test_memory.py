"""What a consumer keeps of failures and outages: nothing. Garbage is not collected, as it is seldom in a process."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from types import FrameType, SimpleNamespace, TracebackType
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from offsetstore import Append, Broker, DeadLetters, Flush, Handler, OffsetStore, Retries, Tick, TopicPartition, Work
from offsetstore.consumer import Consumer
from offsetstore.consumer.records import ConsumedRecord
from offsetstore.local.postgres import PostgresServer
from offsetstore.processing import handling
from tests.integration.conftest import Query
from tests.support.background import in_background
from tests.support.kafka_client import FakeClient, FakeCluster
from tests.support.signals import stopped
from tests.support.slow_proxy import FINE, SlowProxy, Weather
from tests.support.tcp import server_of, url_at
from tests.support.waiting import wait_until

P0 = TopicPartition("payments", 0)
GROUP = "billing"
ROUNDS = 4
LARGE = b"x" * 500_000


class Client(FakeClient):
    """Polls records with the values that a test gives it."""

    given = 0

    def give_values(self, *values: bytes) -> None:
        made: Any = confluent_kafka.Message
        polled = [
            made(topic=P0.topic, partition=0, offset=self.given + n, value=value, timestamp=(0, -1))
            for n, value in enumerate(values)
        ]
        self.given += len(values)
        self.give(polled)


def parse(records: Any) -> pa.RecordBatch:
    values: list[bytes] = records.column("value").to_pylist()
    if any(len(value) > 10 for value in values):
        raise ValueError("too large")
    made: Any = pa.record_batch({"record": pa.array([int(value) for value in values], pa.int64())})
    return made


class Function:
    """A handler's: a call for a large record fails, and each first call meets an outage."""

    def __init__(self) -> None:
        self._called: set[int] = set()

    async def __call__(self, record: handling.Record) -> tuple[int]:
        await asyncio.sleep(0)
        if record.offset not in self._called:
            self._called.add(record.offset)
            raise ConnectionError("the service is away")
        value = record.value or b""
        if len(value) > 10:
            raise ValueError("too large")
        return (int(value),)


def handler() -> Handler:
    return Handler(Function(), "record long", retries=Retries(attempts=2, shortest=0.001, longest=0.001))


def fail(_: Work) -> None:
    raise ValueError("the tick")


def alive(*kinds: type) -> int:
    return sum(isinstance(one, kinds) for one in gc.get_objects())


def threads() -> Counter[str]:
    return Counter(one.name for one in threading.enumerate() if one.name.startswith("offsetstore"))


@contextmanager
def frozen(server: PostgresServer) -> Generator[None]:
    """No process of PostgreSQL goes on."""
    assert server.pid is not None
    with stopped(server.pid):
        backends = [*map(int, Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split())]
        try:
            send(signal.SIGSTOP, backends)
            yield
        finally:
            send(signal.SIGCONT, backends)


def send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(pid, number)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "offsetstore")  # what is logged with an error would keep it
    monkeypatch.setattr("offsetstore.consumer.commits.INTERVAL", 0.05)
    monkeypatch.setattr("offsetstore.consumer.commits.LOOK_SECONDS", 0.2)
    monkeypatch.setattr("offsetstore.consumer.commits.LAST_COMMIT", 0.2)
    monkeypatch.setattr("offsetstore.store.heartbeat.INTERVAL", 0.2)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    made = Client(P0)
    # In this module alone: the copies of offsets have real clients.
    replaced = SimpleNamespace(**{**vars(confluent_kafka), "Consumer": made.made})
    monkeypatch.setattr("offsetstore.consumer.consumer.confluent_kafka", replaced)
    return made


@pytest.fixture
def silent() -> Iterator[str]:
    """A broker that accepts connections and says nothing, as one does that is frozen."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.behaviour("CONS-18")
@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("transform", [pytest.param(lambda: parse, id="transform"), handler])
def test_nothing_is_left_of_letters_refused_rows_and_outages(
    offsetstore_postgres: PostgresServer,
    offsetstore_database: str,
    query: Query,
    *,
    client: Client,
    silent: str,
    transform: Callable[[], Any],
) -> None:
    had = {kind: alive(kind) for kind in (ConsumedRecord, confluent_kafka.Consumer, TracebackType, FrameType)}
    others = threads()  # that other tests have left
    tasks = len([*Path("/proc/self/task").iterdir()])
    query("CREATE TABLE results (record bigint CONSTRAINT unlucky CHECK (record <> 13))")
    with (
        SlowProxy(server_of(offsetstore_database), Random(0)) as proxy,  # noqa: S311 - no secret
        OffsetStore.connect(
            url_at(offsetstore_database, proxy.port), retries=Retries(attempts=200, shortest=0.02, longest=0.05)
        ) as store,
    ):
        consumer = Consumer(
            store,
            GROUP,
            topics=[P0.topic],
            kafka={"bootstrap.servers": silent},
            transform=transform(),
            into=Append("results"),
            flush=Flush(seconds=0.01),
            dead_letters=DeadLetters(max_retries=0, keep="coordinates"),
            tick=Tick(fail, every=0.05),
        )
        consumer.request = replace(consumer.request, broker=FakeCluster.with_topics({P0.topic: 1}, end=10_000))
        consumer.asked = Broker({"bootstrap.servers": silent}, timeout=0.2)
        running = in_background(consumer.run)

        def wait() -> None:
            stored = f"SELECT next_offset FROM kafka_partitions WHERE next_offset = {client.given}"
            wait_until(lambda: query(stored) or running.done())
            assert not running.done()

        def turn(number: int) -> None:
            client.give_values(b"1", LARGE, b"2", b"13", b"3")
            wait()
            proxy.weather = Weather(reset=1.0)  # PostgreSQL is away
            proxy.reset_all()
            client.give_values(b"4")
            resets = proxy.happened["resets"]
            wait_until(lambda: proxy.happened["resets"] >= resets + 3)
            proxy.weather = FINE
            wait()
            if number % 4 == 0:  # both are silent
                with frozen(offsetstore_postgres):
                    client.give_values(b"5")
                    threading.Event().wait(0.5)  # some intervals
            wait()

        for number in range(2):
            turn(number)
        for number in range(ROUNDS):
            turn(number)
            mine = threads() - others
            assert all(count == 1 for name, count in mine.items() if name != "offsetstore-kafka-end")
        wait_until(
            lambda: alive(ConsumedRecord) <= had[ConsumedRecord] + 6
        )  # of the last flush, in the frame of a thread that waits
        wait_until(lambda: alive(confluent_kafka.Consumer) <= had[confluent_kafka.Consumer] + 1)
        wait_until(lambda: "offsetstore-kafka-end" not in threads() - others)
        wait_until(lambda: alive(TracebackType) <= had[TracebackType] + 10)  # of an error that is being handled
        connections = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        assert query(connections)[0][0] <= 10  # two pools, and this one
        assert alive(FrameType) <= had[FrameType] + 50
        assert len([*Path("/proc/self/task").iterdir()]) <= tasks + 25
        consumer.stop()
        running.result(timeout=60)
