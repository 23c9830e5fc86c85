"""examples/shop_api.py under uvicorn, whose orders are in Kafka once, while it and the relay are killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import UUID

import httpx
import psycopg
import pytest

from offsetstore.kafka import admin
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.servers import LOOPBACK, free_port, tail
from offsetstore.testing.fixtures import NewTopic
from tests.integration.conftest import Query
from tests.support.examples import EXAMPLES
from tests.support.waiting import wait_until

TABLES = """
CREATE TABLE orders (id uuid PRIMARY KEY, item text NOT NULL, pieces int NOT NULL);
CREATE TABLE stock (item text PRIMARY KEY, pieces int NOT NULL CHECK (pieces >= 0));
INSERT INTO stock VALUES ('lamp', 100000), ('rare', 3)
"""
MAIN = "from offsetstore.cli.main import main; main()"
CLIENTS = 4
NOT_SENT = 0
# While records come, a relay's batches reach each of these a few times a second.
POINTS = ("outbox_recorded", "outbox_produced", "outbox_in_transaction", "outbox_sent")
# What an application is killed at: the order is written and the record is not, or both are. Nothing is committed.
LOCKS = ("LOCK TABLE outbox IN SHARE MODE", "SELECT FROM stock FOR UPDATE", "LOCK TABLE outbox IN SHARE MODE")
WAITING = """
SELECT 1 FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name NOT LIKE 'offsetstore%'
"""


@dataclass
class Shop:
    """The application, at one address, however often it is killed."""

    url: str
    log: Path
    port: int = field(default_factory=free_port)

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/orders"

    @contextmanager
    def running(self) -> Generator[subprocess.Popen[bytes]]:
        command = ["uvicorn", "shop_api:app", "--host", LOOPBACK, "--port", str(self.port), "--no-access-log"]
        address = {"DATABASE_URL": self.url.replace("postgresql:", "postgresql+psycopg:")}
        with process([*command, "--app-dir", str(EXAMPLES)], self.log, module=True, **address) as started:
            wait_until(lambda: started.poll() is not None or self._answers())
            assert started.poll() is None, tail(self.log)
            yield started

    def _answers(self) -> bool:
        try:
            return httpx.get(self.address).status_code == 405
        except httpx.TransportError:
            return False


@contextmanager
def process(arguments: list[str], log: Path, *, module: bool, **environment: str) -> Generator[subprocess.Popen[bytes]]:
    """A Python process, killed at the end of the block."""
    started = ["-m", *arguments] if module else ["-c", MAIN, *arguments]
    with (
        log.open("ab") as out,
        subprocess.Popen(
            [sys.executable, *started], env={**os.environ, **environment}, stdout=out, stderr=out
        ) as child,
    ):
        try:
            yield child
        finally:
            child.kill()


@dataclass
class Clients:
    """They post orders, until told to stop, and note the answers."""

    address: str
    stopping: threading.Event = field(default_factory=threading.Event)
    accepted: set[UUID] = field(default_factory=set[UUID])
    refused: set[UUID] = field(default_factory=set[UUID])
    given_up: set[UUID] = field(default_factory=set[UUID])

    def post(self, seed: int) -> None:
        random = Random(seed)  # noqa: S311 - no secret
        with httpx.Client(timeout=10) as client:
            while not self.stopping.is_set():
                order = UUID(int=random.getrandbits(128), version=4)
                item = random.choice(["lamp", "lamp", "lamp", "rare"])
                # Without an answer, an order may be there or not; half of the clients' calls are repeated.
                answer = self._answer(
                    client, {"id": str(order), "item": item, "pieces": 1}, again=random.random() < 0.5
                )
                if answer is None:
                    self.given_up.add(order)
                elif answer == NOT_SENT:
                    return
                elif answer == 409:
                    self.refused.add(order)
                else:
                    assert answer in {200, 201}
                    self.accepted.add(order)
                time.sleep(0.01)

    def _answer(self, client: httpx.Client, order: dict[str, object], *, again: bool) -> int | None:
        sent = False
        while not self.stopping.is_set():
            try:
                return client.post(self.address, json=order).status_code
            except httpx.ConnectError:
                time.sleep(0.02)  # the application is not there: nothing was sent
            except httpx.TransportError:
                sent = True
                if not again:
                    break
        return None if sent else NOT_SENT


def test_an_order_that_is_posted_again_is_accepted_and_another_under_its_id_is_refused(
    offsetstore_database: str, query: Query, tmp_path: Path
) -> None:
    query(TABLES)
    shop = Shop(offsetstore_database, tmp_path / "shop.log")
    order = {"id": str(UUID(int=1)), "item": "lamp", "pieces": 2}

    def post(**changed: object) -> tuple[int, object]:
        answer = httpx.post(shop.address, json=order | changed, timeout=10)
        return answer.status_code, answer.json()

    with shop.running():
        assert post() == (201, order)
        assert post() == (200, order)
        for changed in ({"pieces": 3}, {"item": "rare"}):
            assert post(**changed) == (409, {"detail": "another order has this id"})
    assert query("SELECT item, pieces FROM orders") == [("lamp", 2)]
    assert query("SELECT pieces FROM stock ORDER BY item") == [(99998,), (3,)]
    assert query("SELECT count(*)::int FROM outbox") == [(1,)]


@pytest.fixture
def topic(offsetstore_kafka: KafkaBroker) -> Iterator[str]:
    """The topic that the application names."""
    servers = offsetstore_kafka.bootstrap_servers
    admin.create_topic(servers, "orders", partitions=3)
    yield "orders"
    admin.delete_topic(servers, "orders")


@pytest.mark.behaviour("OUT-14", "OUT-2")
def test_each_committed_order_is_in_kafka_once_and_no_other_while_application_and_relay_are_killed(  # noqa: PLR0917
    offsetstore_kafka: KafkaBroker,
    offsetstore_database: str,
    offsetstore_topic: NewTopic,
    topic: str,
    query: Query,
    tmp_path: Path,
) -> None:
    random = Random(14)  # noqa: S311 - no secret
    query(TABLES)
    servers, anchor = offsetstore_kafka.bootstrap_servers, offsetstore_topic(1)
    shop = Shop(offsetstore_database, tmp_path / "shop.log")
    clients = Clients(shop.address)

    def relay(**failpoint: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        command = ["relay", "--bootstrap-servers", servers, "--anchor", anchor]
        return process(command, tmp_path / "relay.log", module=False, OFFSETSTORE_URL=shop.url, **failpoint)

    def kill_relays() -> None:
        for point in random.sample(POINTS, 2):
            with relay(OFFSETSTORE_FAILPOINT=f"{point}:{random.randint(1, 4)}") as killed:
                assert killed.wait(60) == -9

    with ThreadPoolExecutor() as pool:
        posting = [pool.submit(clients.post, seed) for seed in range(CLIENTS)]
        killing = pool.submit(kill_relays)
        try:
            for number, lock in enumerate(LOCKS, 1):
                with shop.running() as application, psycopg.connect(shop.url) as locking:
                    enough = len(clients.accepted) + 20
                    wait_until(lambda enough=enough: len(clients.accepted) > enough)
                    if number == len(LOCKS):
                        killing.result(60)  # the relays' batches need records
                    time.sleep(random.random() / 4)
                    locking.execute(lock)
                    wait_until(lambda: query(WAITING))
                    application.kill()
                    application.wait()
        finally:
            clients.stopping.set()
        for each in posting:
            each.result(30)
    with relay() as last:
        wait_until(lambda: last.poll() is not None or not query("SELECT id FROM outbox"))

    stored = {row[0]: row[1:] for row in query("SELECT * FROM orders")}
    found = [
        (UUID((message.key() or b"").decode()), tuple(json.loads(message.value() or b"").values()))
        for message in admin.read_committed(servers, topic)
    ]
    assert sorted(found) == sorted(stored.items()), tail(tmp_path / "relay.log")
    assert clients.accepted <= stored.keys() <= clients.accepted | clients.given_up
    assert len(clients.accepted) > 20 * len(LOCKS)
    assert clients.refused, "the rare item is sold out"
    assert clients.given_up - stored.keys(), "a kill has taken some back"
