"""The list of groups: what it says of each, and how it is searched, sorted and kept up to date."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from offsetstore import OffsetStore
from offsetstore.errors import BrokerUnavailable, MissingPrivilege, StoreUnavailable
from offsetstore.monitoring.dashboard.snapshots import Snapshot
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.operations.people import people
from offsetstore.operations.samples import Sample, record_samples
from offsetstore.store.sessions import transaction
from tests.integration.conftest import Query
from tests.integration.pages.conftest import GROUP, P0, P1, P2, Clock, Site, advance, give, rows_of, text_of

pytestmark = pytest.mark.behaviour("DASH-1")

MINUTE = timedelta(minutes=1)


def names(site: Site, **query: str | int) -> list[str]:
    return [row.split()[0] for row in site.rows("groups", "/", **query)]


@pytest.mark.behaviour("OUT-13")
def test_rows_of_the_outbox_that_no_relay_sends_are_told_above_the_list_and_lead_to_the_store(
    site: Site, query: Query
) -> None:
    """Also if no group has them."""

    def told() -> str | None:
        site.take()
        found = re.search(r'<div data-live id="outbox">(.*?)</div>', site.page(), re.DOTALL)
        assert found is not None
        assert not found[1] or 'href="/store"' in found[1]
        return text_of(found[1]) or None

    assert told() is None
    query("INSERT INTO outbox (consumer_group, topic) VALUES ('shop', 'orders'), ('shop', 'orders')")
    assert told() == "2 rows of the outbox not sent : relay never started"
    site.give(GROUP, {P0: 4})
    query("INSERT INTO relay_runs (run_id, owner) VALUES (gen_random_uuid(), 'r@host:9')")
    assert told() is None
    query("UPDATE relay_runs SET seen_at = now() - interval '20 s'")
    assert told() == "2 rows of the outbox not sent : relay silent"
    query("DELETE FROM outbox")
    assert told() is None


def test_each_group_has_its_state_lag_and_last_advance(site: Site) -> None:
    site.take()
    text = site.text()
    assert "No group has been claimed yet." in text
    assert "make demo" in text
    give(site.store, GROUP, {P0: 4, P1: 10, P2: 10})
    give(site.store, "left", {P0: 10}, stay=False)
    for name, stay in (("paused", True), ("paused-left", False)):
        give(site.store, name, {P0: 10}, stay=stay)
        site.store.pause(name, reason="a load")
    site.store.claim("waits", site.broker, mirror_every=None)
    site.take()
    page = site.page(sort="group")
    billing, left, paused, paused_left, waits = rows_of(page, "groups")
    assert re.fullmatch(r"billing ● live 6 [56]m 0 - - \d{4}-\S+ \S+ UTC", billing)
    assert re.fullmatch(r"left ✓ ended 0 0s 0 - - .* UTC", left)
    assert re.fullmatch(r"paused Ⅱ paused 0 0s 0 - - .* UTC", paused)
    assert paused_left.startswith("paused-left Ⅱ paused , no job 0")
    assert re.fullmatch(r"waits ● live 30 10m 0 - - never", waits)
    assert "5 groups, 1 ended, 2 paused, 2 live." in text_of(page)
    for path in ("/group", "/partition"):
        assert " never " in site.text(path, group="waits", topic="payments", partition=0)


# -- search, order and pages


def test_groups_are_searched_by_a_part_of_their_name(site: Site) -> None:
    for name in ("billing", "Billing-eu", "shipping"):
        site.give(name, {P0: 10})
    assert names(site, q="BILL") == ["Billing-eu", "billing"]
    page = site.page(q="<i>\u202e")
    assert "No group's name has “<i>\\u202e” in it." in text_of(page)
    assert "<i>" not in page
    assert 'value="&lt;i&gt;\u202e"' in page, "as it was typed"


def test_groups_are_sorted_by_what_needs_someone_first(site: Site) -> None:
    for name, until, stay in (("a-idle", 10, True), ("b-behind", 8, True), ("c-left", 10, False), ("d-far", 2, True)):
        site.give(name, {P0: until}, stay=stay)
    for orders, expected in (
        (("state", "no sort"), ["c-left", "d-far", "b-behind", "a-idle"]),
        (("lag", "behind"), ["d-far", "b-behind", "a-idle", "c-left"]),
        (("group", "advance", "letters"), ["a-idle", "b-behind", "c-left", "d-far"]),  # by name, where all is equal
    ):
        for order in orders:
            assert names(site, sort=order) == expected, order
    assert names(site) == names(site, sort="no sort")
    refunds = TopicPartition("refunds", 0)
    site.broker.set_log(refunds, 0, 10)
    site.broker.unanswered["refunds"] = BrokerUnavailable("refunds has no leader")
    site.give("unknown", {refunds: 9})
    assert names(site, sort="lag")[0] == names(site, sort="behind")[0] == "unknown"


def test_fifty_groups_are_on_a_page(site: Site) -> None:
    for number in range(52):
        give(site.store, f"group-{number:02}", {P0: 10}, stay=False)
    site.take()
    assert names(site) == names(site, page="no number") == [f"group-{number:02}" for number in range(50)]
    assert names(site, page=2) == names(site, page=99) == ["group-50", "group-51"]
    assert "Page 2 of 2" in site.text(page=2)
    assert "52 groups, 52 ended." in site.text(page=2)


# -- curves


def sampled(store: OffsetStore, *, every: int) -> None:
    """Give `GROUP` eight stored offsets, ten seconds apart, up to ten seconds ago.

    So a snapshot that is taken afterwards has a slot of its own.
    """
    now = datetime.now(UTC)
    for number in range(8):
        at, stored = now - timedelta(seconds=10 * (8 - number)), number * every
        with transaction(store.database, name="a test") as session:
            record_samples(people(session), {GROUP: Sample(at=at, stored=stored, lag=1000 - stored, epoch=1)})


def test_trends_come_from_the_samples(site: Site) -> None:
    give(site.store, GROUP, {P0: 4})
    sampled(site.store, every=100)
    site.take()
    page = site.page(span="5m")
    [row] = rows_of(page, "groups")
    assert re.fullmatch(r"billing ● live 6 \dm 0 - \S+ \S+ UTC", row)
    [label] = re.findall(r'<svg class="trend"[^>]* aria-label="([^"]+)"', page)
    assert label == "Lag over 5m: 1,000 to 6, at most 1,000"
    assert names(site, span="no span") == [GROUP]


def test_a_rate_is_the_one_since_the_last_snapshot_however_long_the_trend(site: Site, clock: Clock) -> None:
    sampled(site.store, every=100)
    site.give(GROUP, {P0: 4}, stay=False)
    clock.put_forward(10)
    claim = site.claim()
    assert " 0 - " in site.rows("groups", span="5m")[0]  # another epoch: a reset passes records over, say
    clock.put_forward(10)
    advance(site.store, claim, {P0: OffsetRange(4, 9)})
    site.take()
    for span in ("5m", "31d"):
        [row] = site.rows("groups", span=span)
        assert re.fullmatch(r"billing ● live 1 \d+[ms] 0 0\.5 (- )?\S+ \S+ UTC", row)
        assert "Records per second: now 0.5/s" in site.text("/group", span=span)
    clock.put_forward(10)
    site.take()
    for span in ("5m", "31d"):
        assert " 0 0.0 " in site.rows("groups", span=span)[0]


@pytest.mark.behaviour("OPS-16")
def test_a_log_that_lost_records_is_told_while_it_is_too_short_and_when_it_has_grown(site: Site) -> None:
    told = "a log lost records that had been read"
    site.broker.set_log(P0, 0, 3)
    site.give(GROUP, {P0: 4})
    assert told in site.text()
    assert "1 beyond the end" in site.text("/group")

    site.broker.set_log(P0, 0, 10)
    site.take()
    assert told not in site.text()
    with transaction(site.store.database, name="test") as session:
        token = session.read_partitions(GROUP)[P0].token
        session.write_suspects(GROUP, token, {P0: "the log ended at 3, below the stored offset 4"})
    site.take()
    assert told in site.text()
    assert "suspect" in site.text("/group")


def test_each_measurement_becomes_a_sample_unless_kafka_was_silent(site: Site) -> None:
    site.give(GROUP, {P0: 4})
    [sample] = site.store.samples([GROUP], MINUTE)[GROUP]
    assert (sample.stored, sample.lag) == (4, 6)
    site.store.rename_group(GROUP, "shipping", reason="a better name")
    site.broker.error = BrokerUnavailable("Kafka does not answer")
    site.take()
    assert site.store.samples(["shipping"], MINUTE)["shipping"] == [sample]


def test_a_role_that_may_not_write_samples_is_told_once_and_tried_again_later(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error = MissingPrivilege("the role may not write samples", next_step="Run `offsetstore grants`.")
    give(site.store, GROUP, {P0: 4})
    with monkeypatch.context() as patched:
        refuse = Mock(side_effect=error)
        patched.setattr(site.store, "record_samples", refuse)
        for _ in range(3):
            site.take()
    assert refuse.call_count == 1  # the database's log is not filled with it
    assert [line.getMessage() for line in caplog.records if "samples" in line.getMessage()] == [
        "no samples for curves are kept: the role may not write samples. Run `offsetstore grants`."
    ]
    assert names(site) == [GROUP]
    assert "Not up to date" not in site.page()
    site.take()
    assert not site.store.samples([GROUP], MINUTE).get(GROUP)
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 301)  # not for the server's loop, which sleeps by it
    monkeypatch.setattr("offsetstore.monitoring.dashboard.snapshots.time", later)
    site.take()
    assert site.store.samples([GROUP], MINUTE)[GROUP]


# -- what is new, and what is not


@pytest.mark.behaviour("DASH-2")
def test_the_browser_gets_the_page_again_only_if_it_has_changed(site: Site) -> None:
    site.give(GROUP, {P0: 4, P1: 10, P2: 10})
    again = {"If-None-Match": site.get().headers["etag"]}
    assert site.client.get("/", headers=again).status_code == 304
    site.give("shipping", {P0: 10, P1: 10, P2: 10})
    changed = site.client.get("/", headers=again)
    assert changed.status_code == 200
    assert "shipping" in changed.text


@pytest.mark.behaviour("DASH-2")
def test_while_the_database_is_silent_the_page_keeps_what_was_read_last_and_does_not_ask_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.give(GROUP, {P0: 4})
    measured = re.findall(r'id="measured">Measured <time datetime="([^"]+)"', site.page())
    with monkeypatch.context() as patch:
        patch.setattr(site.store.database, "begin", Mock(side_effect=StoreUnavailable("the database does not answer")))
        site.take()
        page = site.page()
        assert "Not up to date. the database does not answer" in text_of(page)
        assert rows_of(page, "groups")[0].startswith("billing ● live 6")
        assert re.findall(r'id="measured">Measured <time datetime="([^"]+)"', page) == measured
        assert site.get("/group").status_code == 503
    site.broker.error = BrokerUnavailable("Kafka does not answer")  # first the one, then both
    site.take()
    monkeypatch.setattr(site.store, "lag", Mock(side_effect=StoreUnavailable("the database does not answer")))
    site.take()
    monkeypatch.setattr(site.store, "samples", Mock(side_effect=AssertionError("it was asked")))
    assert "the database does not answer" in site.page()
    assert names(site) == [GROUP]
    monkeypatch.setattr(site.server.snapshots, "_latest", Snapshot(trouble="the role may not read"))
    page = site.page()
    assert "No group has been claimed" not in page
    assert "The database has not been read yet." in page
