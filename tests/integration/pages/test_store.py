"""The page about the store itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from offsetstore import OffsetStore
from offsetstore.monitoring.dashboard.serving import DashboardServer
from offsetstore.operations.home import set_identity
from offsetstore.operations.people import TableFacts, people
from offsetstore.store.sessions import transaction
from tests.integration.conftest import Query
from tests.integration.pages.conftest import P0, give, text_of

pytestmark = pytest.mark.behaviour("DASH-1")

PARTITIONS = TableFacts("kafka_partitions", 12, 2_500_000, 7, 2_000, 1_900)


def test_it_shows_the_store_and_its_tables(store: OffsetStore, server: DashboardServer, client: httpx.Client) -> None:
    give(store, "billing", {P0: 4})
    server.snapshots.take()
    page = text_of(client.get("/store"))

    assert str(store.database.store_id()) in page
    assert "Server PostgreSQL " in page
    assert "on which this version of offsetstore runs" in page
    assert "the database's and this machine's agree" in page
    assert "younger than a second" in page
    assert "kafka_partitions " in page
    assert "Few updates" not in page


@pytest.mark.behaviour("OUT-13")
def test_it_says_how_the_relay_is(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, query: Query
) -> None:
    give(store, "billing", {P0: 4})
    server.snapshots.take()
    assert "Relay No relay was ever started" in text_of(client.get("/store"))
    query("INSERT INTO relay_runs (run_id, owner) VALUES (gen_random_uuid(), 'r@host:9')")
    server.snapshots.take()
    assert "Relay live : The relay r@host:9 runs." in text_of(client.get("/store"))
    query("UPDATE relay_runs SET seen_at = now() - interval '20 s'")
    server.snapshots.take()
    assert "Relay silent : The relay r@host:9 fell silent at 20" in text_of(client.get("/store"))


@pytest.mark.usefixtures("server")
def test_it_says_what_is_not_well(store: OffsetStore, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = store.facts()
    before = text_of(client.get("/store"))
    for changes, said in (
        ({"tables": (PARTITIONS,)}, "kafka_partitions 12 2.5 MB 7 2,000 95 % - -"),
        ({"tables": (replace(PARTITIONS, hot_updates=800),)}, "Few updates of kafka_partitions are HOT."),
        ({"revision": "0004", "expected": "0007"}, "0004 this version expects 0007: run offsetstore migrate"),
        ({"oldest_transaction": timedelta(hours=2)}, "VACUUM can't remove rows that it may still see"),
        ({"sees_all": False}, "others are shown to members of pg_read_all_stats"),
        ({"is_standby": True}, "a standby: jobs can't write to it"),
    ):
        changed = replace(facts, **changes)
        monkeypatch.setattr(store, "facts", lambda changed=changed: changed)
        assert said not in before
        assert said in text_of(client.get("/store"))
    few = replace(facts, tables=(replace(PARTITIONS, updates=10, hot_updates=1),))
    monkeypatch.setattr(store, "facts", lambda: few)
    assert "Few updates" not in text_of(client.get("/store")), "few say nothing about their share"


@pytest.mark.usefixtures("server")
@pytest.mark.behaviour("START-27")
def test_it_says_whether_it_is_the_database_that_the_store_belongs_to(store: OffsetStore, client: httpx.Client) -> None:
    for home, said in (("1:2", "in another database than before"), (None, "is not noticed")):
        assert said not in text_of(client.get("/store"))
        with transaction(store.database, name="test") as session:
            set_identity(people(session), store.identity().store_id, home)
        assert said in text_of(client.get("/store"))


def test_a_clock_that_is_wrong_is_told(
    server: DashboardServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.snapshots.take()
    snapshot = server.snapshots.latest()
    assert snapshot.lag is not None
    for seconds, said in ((3.0, "3.0s ahead of this machine's"), (-2.5, "2.5s behind this")):
        skewed = replace(snapshot, lag=replace(snapshot.lag, clock_skew=seconds))
        monkeypatch.setattr(server.snapshots, "latest", lambda skewed=skewed: skewed)
        assert said in text_of(client.get("/store"))
