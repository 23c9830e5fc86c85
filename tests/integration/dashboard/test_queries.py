"""What the pages of groups cost on PostgreSQL, whatever a group is like."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import httpx
import pytest
from sqlalchemy import event

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.monitoring.dashboard.serving import DashboardServer, Settings
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.testing import StaticBroker

PARTITIONS = 1_000
LARGEST = 10_000  # bytes of a page, compressed


@pytest.fixture
def server(store: OffsetStore) -> Iterator[DashboardServer]:
    broker = StaticBroker.with_topics({"payments": PARTITIONS}, end=10)
    for group, count in (("small", 1), ("large", PARTITIONS)):
        claim = store.claim(group, topics=["payments"], mirror_every=None)
        ranges = {TopicPartition("payments", number): OffsetRange(0, 4) for number in range(count)}
        with store.transaction(claim) as tx:
            tx.lock(ranges)
            tx.advance(ranges)
        claim.close()
    for number in range(60):
        store.write_metadata("large", TopicPartition("payments", 0), number, reason="a test")
    with DashboardServer(store, broker, Settings(port=0)) as server:
        yield server


@pytest.fixture
def statements(store: OffsetStore) -> Iterator[list[str]]:
    """Those that the store sends, in order."""
    assert isinstance(store.database, PostgresDatabase)
    sent: list[str] = []

    def note(*arguments: object) -> None:
        sent.append(str(arguments[2]))

    event.listen(store.database.engine, "before_cursor_execute", note)
    yield sent
    event.remove(store.database.engine, "before_cursor_execute", note)


@pytest.mark.behaviour("DASH-1")
def test_pages_take_as_many_statements_and_bytes_whatever_the_group(
    server: DashboardServer, statements: list[str]
) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:

        def cost(path: str, **query: object) -> int:
            """Count the statements of one page."""
            statements.clear()
            with client.stream("GET", f"{path}?{urlencode(query)}") as answer:
                assert answer.status_code == 200
                assert sum(map(len, answer.iter_raw())) < LARGEST
            return len(statements)

        client.get("/login")  # answered once the first snapshot is there
        server.snapshots.close()  # whose statements are not those of a page
        assert cost("/") == cost("/", q="large")
        for page in ({}, {"page": 10}, {"sort": "number"}, {"lagging": 1}, {"span": "31d"}):
            assert cost("/group", group="small", **page) == cost("/group", group="large", **page)
        place = {"topic": "payments", "partition": 0}
        assert cost("/partition", group="small", **place) == cost("/partition", group="large", **place)
