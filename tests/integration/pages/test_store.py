"""The page about the store itself."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from offsetstore.operations.home import set_identity
from offsetstore.operations.people import TableFacts, people
from offsetstore.store.sessions import transaction
from tests.integration.conftest import Query
from tests.integration.pages.conftest import GROUP, P0, Site

pytestmark = pytest.mark.behaviour("DASH-1")

PARTITIONS = TableFacts("kafka_partitions", 12, 2_500_000, 7, 2_000, 1_900)


@pytest.mark.behaviour("OUT-13")
def test_it_shows_the_store_its_tables_and_how_the_relay_is(site: Site, query: Query) -> None:
    site.give(GROUP, {P0: 4})
    page = site.text("/store")
    for text in (
        str(site.store.database.store_id()),
        "Server PostgreSQL ",
        "on which this version of offsetstore runs",
        "the database's and this machine's agree",
        "younger than a second",
        "kafka_partitions ",
        "Relay No relay was ever started",
    ):
        assert text in page
    assert "Few updates" not in page
    for change, told in (
        ("INSERT INTO relay_runs (run_id, owner) VALUES (gen_random_uuid(), 'r@host:9')", "live : The relay r@host:9"),
        ("UPDATE relay_runs SET seen_at = now() - interval '20 s'", "silent : The relay r@host:9 fell silent at 20"),
    ):
        query(change)
        site.take()
        assert f"Relay {told}" in site.text("/store")


@pytest.mark.behaviour("OUT-14")
def test_it_names_applications_with_rows_in_the_outbox_and_no_list_of_groups_does(site: Site, query: Query) -> None:
    site.give(GROUP, {P0: 4})
    assert "Outbox rows of applications" not in site.text("/store")
    for source, topic in (("shop", "orders"), (GROUP, "events"), ("shop", "orders")):
        query(f"INSERT INTO outbox (consumer_group, topic) VALUES ('{source}', '{topic}')")
    query(
        "INSERT INTO outbox_refused (id, consumer_group, topic, created_at, error) "
        "VALUES (7, 'till', 'a', now(), 'MSG_SIZE_TOO_LARGE')"
    )
    site.take()
    page = site.text("/store")
    assert re.search(r"applications shop: 2 not sent, since .*\(first row 1, for orders\), none refused", page)
    assert "till: 0 not sent, 1 refused" in page
    assert f"{GROUP}: " not in page
    assert "shop" not in site.text("/")
    assert site.client.get("/group", params={"group": "shop"}).status_code == 404


@pytest.mark.behaviour("START-27")
def test_it_says_what_is_not_well(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = site.store.facts()
    before = site.text("/store")
    with monkeypatch.context() as patched:
        for changes, said in (
            ({"tables": (PARTITIONS,)}, "kafka_partitions 12 2.5 MB 7 2,000 95 % - -"),
            ({"tables": (replace(PARTITIONS, hot_updates=800),)}, "Few updates of kafka_partitions are HOT."),
            ({"revision": "0004", "expected": "0007"}, "0004 this version expects 0007: run offsetstore migrate"),
            ({"oldest_transaction": timedelta(hours=2)}, "VACUUM can't remove rows that it may still see"),
            ({"sees_all": False}, "others are shown to members of pg_read_all_stats"),
            ({"is_standby": True}, "a standby: jobs can't write to it"),
        ):
            changed = replace(facts, **changes)
            patched.setattr(site.store, "facts", lambda changed=changed: changed)
            assert said not in before
            assert said in site.text("/store")
        few = replace(facts, tables=(replace(PARTITIONS, updates=10, hot_updates=1),))
        patched.setattr(site.store, "facts", lambda: few)
        assert "Few updates" not in site.text("/store"), "few say nothing about their share"
    for home, said in (("1:2", "in another database than before"), (None, "is not noticed")):
        assert said not in site.text("/store")
        with transaction(site.store.database, name="test") as session:
            set_identity(people(session), site.store.identity().store_id, home)
        assert said in site.text("/store")
    snapshot = site.server.snapshots.latest()
    assert snapshot.lag is not None
    for seconds, said in ((3.0, "3.0s ahead of this machine's"), (-2.5, "2.5s behind this")):
        skewed = replace(snapshot, lag=replace(snapshot.lag, clock_skew=seconds))
        monkeypatch.setattr(site.server.snapshots, "latest", lambda skewed=skewed: skewed)
        assert said in site.text("/store")
