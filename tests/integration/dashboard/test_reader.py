"""What the pages show with the dashboard's role, on PostgreSQL: all that it may read, and no record's contents."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import httpx
import psycopg
import pytest

from offsetstore import LetterError, LetterKey, OffsetRange, OffsetStore
from offsetstore.monitoring.dashboard.serving import DashboardServer, Settings
from offsetstore.postgres.schema import metadata
from offsetstore.protocol.letters import NewLetter, Payload, digest
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.dashboard.conftest import GROUP
from tests.integration.transacting import P0
from tests.support.waiting import wait_until

SECRET = "planted-4711"
ODD = "<script>alert(1)</script>\u202e"


def letter(offset: int) -> NewLetter:
    raw = SECRET.encode()
    error = LetterError("ValueError", f"can't read {SECRET}", traceback=f"line 1: {SECRET}")
    return NewLetter(P0, offset, "rejected", error, 0, digest(P0, raw), Payload(raw, raw, ((SECRET, raw),), 0, 0))


@pytest.fixture
def pages(store: OffsetStore, reader: OffsetStore) -> Iterator[httpx.Client]:
    """The dashboard with its own role, over a group with letters, of which one is settled, errors and decisions."""
    broker = StaticBroker.with_topics({"payments": 2}, end=100)
    claim = store.claim(GROUP, broker, mirror_every=None)
    with store.transaction(claim) as tx:
        tx.lock({P0: OffsetRange(0, 10)})
        tx.write_letters([letter(2), letter(4)])
        tx.advance({P0: OffsetRange(0, 10)})
    claim.end_with(ValueError(f"can't read {SECRET}"))
    claim.close()
    store.discard(GROUP, LetterKey(P0, 4), reason=f"reason {ODD}", actor=f"actor {ODD}")
    with (
        DashboardServer(reader, broker, Settings(port=0)) as server,
        httpx.Client(base_url=server.url, headers={"Accept": "text/html"}, timeout=60) as client,
    ):
        wait_until(lambda: server.snapshots.latest().lag is not None)
        yield client


def questions() -> Iterator[tuple[str, dict[str, str]]]:
    """Each page, with each of its parameters, also as something that one might try."""
    group = {"group": GROUP}
    place = {**group, "topic": "payments", "partition": "0", "offset": "2"}
    tries = ("all", "value", "\0")
    names = "contents payload show columns state cause error_class sqlstate table constraint column topic partition "
    names += "offset topic_id after page errors source event since before limit"
    yield "/", {}
    yield "/store", {}
    for path in ("/runs", "/letters", "/letter", "/history"):
        yield path, place
        for name, value in itertools.product(names.split(), tries):
            yield path, {**place, name: value}
    for state in ("open", "dead", "requested", "replayed", "discarded", "superseded", "all"):
        yield "/letters", {**group, "state": state}
    yield "/letter", {**place, "offset": "4"}


@pytest.mark.behaviour("DASH-4")
def test_no_page_shows_a_record_s_contents_whatever_it_is_asked(pages: httpx.Client) -> None:
    statuses: set[int] = set()
    for path, query in questions():
        answer = pages.get(path, params=query)
        statuses.add(answer.status_code)
        assert SECRET not in answer.text, (path, query)
        assert "<script>alert" not in answer.text
    assert statuses == {200, 400, 404}


@pytest.mark.behaviour("DASH-1")
def test_the_store_s_own_page_needs_no_more_rights(pages: httpx.Client) -> None:
    page = pages.get("/store")
    assert page.status_code == 200
    assert "PostgreSQL" in page.text
    assert "others are shown to members of <code>pg_read_all_stats</code>" in page.text


@pytest.mark.behaviour("DASH-1")
def test_facts_of_the_store_are_those_of_the_server(
    offsetstore_database: str, store: OffsetStore, reader: OffsetStore, query: Query
) -> None:
    with OffsetStore.connect(offsetstore_database) as job:  # whose connections end: an open one may count later
        claim = job.claim(GROUP, StaticBroker.with_topics({"payments": 2}, end=100), mirror_every=None)
        for start in range(50):
            with job.transaction(claim) as tx:
                tx.lock({P0: OffsetRange(start, start + 1)})
                tx.advance({P0: OffsetRange(start, start + 1)})
    query("VACUUM ANALYZE kafka_partitions")

    def updates() -> int:
        return next(table.updates for table in reader.facts().tables if table.name == "kafka_partitions")

    wait_until(lambda: updates() >= 50, timeout=60)
    facts = reader.facts()
    assert [table.name for table in facts.tables] == sorted(metadata.tables)
    partitions = next(table for table in facts.tables if table.name == "kafka_partitions")
    assert partitions.hot_share is not None
    assert partitions.hot_share > 0.9
    assert partitions.size > 8_192
    assert partitions.vacuumed_at is not None
    assert (facts.schema, facts.revision, facts.is_as_expected, facts.is_standby) == (
        "public",
        facts.expected,
        True,
        False,
    )
    assert (facts.sees_all, store.facts().sees_all) == (False, True)


@pytest.mark.behaviour("DASH-1")
def test_an_old_transaction_is_seen_by_those_who_may(offsetstore_database: str, store: OffsetStore) -> None:
    with psycopg.connect(offsetstore_database) as other:
        other.execute("SELECT 1")
        wait_until(lambda: store.facts().oldest_transaction.total_seconds() > 0.5)
