from __future__ import annotations

import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import httpx
import psycopg
import pytest

from offsetstore import Claim, OffsetRange, OffsetStore, TopicPartition
from offsetstore.monitoring.dashboard.serving import DashboardServer, DashboardSettings
from offsetstore.operations.group_state import Lag
from offsetstore.protocol.letters import NewLetter
from offsetstore.testing import StaticBroker
from tests.support.moments import at_time
from tests.support.waiting import wait_until

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without it, each client of httpx reads the certificates of all authorities."""
GROUP = "billing"
P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))


def give(store: OffsetStore, group: str, offsets: dict[TopicPartition, int], *, stay: bool = True) -> None:
    """Let a job store offsets, from 0, and run on or leave."""
    claim = store.claim(group, topics=sorted({tp.topic for tp in offsets}), mirror_every=None)
    advance(store, claim, {tp: OffsetRange(0, until) for tp, until in offsets.items()})
    if not stay:
        claim.close()


def advance(
    store: OffsetStore, claim: Claim, ranges: Mapping[TopicPartition, OffsetRange], letters: Sequence[NewLetter] = ()
) -> None:
    """Store offsets, and letters with them, in one transaction."""
    with store.transaction(claim) as tx:
        tx.lock(ranges)
        tx.letters.write(letters)
        tx.advance(ranges)


def text_of(page: str) -> str:
    """What a person reads, on one line."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def rows_of(page: str, region: str) -> list[str]:
    """The text of each row of a table, or of each item of a list."""
    [body] = re.findall(rf'<(?:tbody|ul)[^>]* id="{region}"[^>]*>(.*?)</(?:tbody|ul)>', page, re.DOTALL)
    return [text_of(row) for row in re.findall(r"<(?:tr|li)[^>]*>(.*?)</(?:tr|li)>", body, re.DOTALL)]


def hold_still(server: DashboardServer) -> None:
    """Wait for the first snapshot: from now on there are those alone that a test takes, however long that lasts."""
    wait_until(lambda: server.snapshots._turns, timeout=60)
    server.snapshots.close()


@pytest.fixture
def broker() -> StaticBroker:
    """Ten records in each of three partitions, one a minute."""
    broker = StaticBroker.with_topics({"payments": 3}, end=10)
    now = int(time.time() * 1000)
    for tp in (P0, P1, P2):
        broker.records[tp] = {offset: now - (10 - offset) * 60_000 for offset in range(10)}
    return broker


class Clock:
    """Lets time pass for the snapshots and since the last heartbeats, without waiting.

    For the snapshots no other time passes: a rate does not depend on how long the test takes.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._began: datetime | None = None
        self._ahead = timedelta(0)

    def of(self, at: datetime) -> datetime:
        """What it shows when the database's clock shows this."""
        self._began = self._began or at
        return self._began + self._ahead

    def put_forward(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._ahead += timedelta(seconds=seconds)
        with psycopg.connect(self._url) as connection:
            connection.execute("UPDATE heartbeats SET beat_at = beat_at - make_interval(secs => %s)", [seconds])


@pytest.fixture
def clock(store: OffsetStore, offsetstore_database: str, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, measure = Clock(offsetstore_database), store.lag

    def lag(*given: Any, **named: Any) -> Lag:
        found = measure(*given, **named)
        return at_time(found, clock.of(found.store.at))

    monkeypatch.setattr(store, "lag", lag)
    return clock


@pytest.fixture
def server(store: OffsetStore, broker: StaticBroker) -> Iterator[DashboardServer]:
    """The pages, with a snapshot that a test takes again when it has changed something."""
    with DashboardServer(store, broker, DashboardSettings(port=0)) as server:
        hold_still(server)
        yield server


@pytest.fixture
def client(server: DashboardServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"Accept": "text/html"}, timeout=60, verify=NO_TLS) as client:
        yield client


@dataclass(frozen=True)
class Site:
    """A store, its broker and its pages, of which most are about `GROUP` unless another one is asked for."""

    store: OffsetStore
    broker: StaticBroker
    server: DashboardServer
    client: httpx.Client

    def take(self) -> None:
        """Take a snapshot."""
        self.server.snapshots.take()

    def give(self, group: str, offsets: dict[TopicPartition, int], *, stay: bool = True) -> None:
        """As `give`, and shown."""
        give(self.store, group, offsets, stay=stay)
        self.take()

    def claim(self, group: str = GROUP) -> Claim:
        """The claim of a job, which is shown."""
        claim = self.store.claim(group, topics=["payments"], mirror_every=None)
        self.take()
        return claim

    def get(self, path: str = "/", **query: str | int) -> httpx.Response:
        return self.client.get(path, params=query if path in {"/", "/store"} else {"group": GROUP, **query})

    def page(self, path: str = "/", **query: str | int) -> str:
        answer = self.get(path, **query)
        assert answer.status_code == 200, answer.text
        return answer.text

    def text(self, path: str = "/", **query: str | int) -> str:
        return text_of(self.page(path, **query))

    def follow(self, path: str, **query: str | int) -> list[str]:
        """A list's pages, from the newest to the oldest."""
        pages = [self.page(path, **query)]
        while older := re.search(r'rel="next" href="([^"]*)"', pages[-1]):
            answer = self.client.get(unescape(older[1]))
            assert answer.status_code == 200, answer.text
            pages.append(answer.text)
        return pages

    def rows(self, region: str, path: str = "/", **query: str | int) -> list[str]:
        return rows_of(self.page(path, **query), region)


@pytest.fixture
def site(store: OffsetStore, broker: StaticBroker, server: DashboardServer, client: httpx.Client) -> Site:
    return Site(store, broker, server, client)
