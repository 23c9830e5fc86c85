"""A group's page: its checks, topics and partitions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from html import unescape
from itertools import pairwise
from typing import cast

import pytest

from offsetstore import StartPolicy, TopicPartition
from offsetstore.errors import BrokerUnavailable, SinkError
from offsetstore.monitoring.dashboard.context import NOTHING
from offsetstore.offsets import CommittedOffset
from offsetstore.operations.people import people
from offsetstore.operations.samples import Sample, record_samples
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import join
from offsetstore.store.sessions import transaction
from tests.integration.conftest import Query
from tests.integration.pages.conftest import GROUP, P0, P1, P2, Site, rows_of, text_of

pytestmark = pytest.mark.behaviour("DASH-1")

BEHIND = {P0: 4, P1: 10, P2: 10}
"""Six records, in one partition."""


def checks_of(page: str) -> dict[str, str]:
    """The verdict of each check."""
    found = (re.fullmatch(r"([a-zA-Z ]+) [✓!✕] (ok|attention|bad) .+", row) for row in rows_of(page, "checks"))
    return {match[1]: match[2] for match in found if match}


def test_it_says_how_the_group_is_and_whose(site: Site) -> None:
    site.broker.current = replace(site.broker.current, committed={P1: CommittedOffset(1234)})
    site.give(GROUP, BEHIND)
    page = site.page("/group")
    text = text_of(page)
    assert "State ● live" in text
    assert "Lag 6 offsets, behind" in text
    assert re.search(r"Owner \S+, epoch 1 Claimed \d{4}-", text)
    assert re.search(r"Last heartbeat \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", text)
    assert "member-rows" not in page, "a job has no members"
    checks = checks_of(page)
    assert len(checks) == 12
    assert checks == {**dict.fromkeys(checks, "ok"), "copies in Kafka": checks["copies in Kafka"]}
    [row] = rows_of(page, "topics")
    assert re.fullmatch(r"payments 3 6 (5|6)m 4 0", row)
    shown = page[page.index(">In Kafka<") :]
    copies = re.findall(r'<tr data-key="payments[^"]*">(?:\s*<t[hd].*?</t[hd]>){2}\s*<td[^>]*>(.*?)</td>', shown)
    assert copies == [NOTHING, "1,234", NOTHING]
    explained = text[text.index("What the words mean") :]
    for word in ("Epoch", "Stored", "In Kafka", "Behind", "Headroom", "Pinned", "Contested"):
        assert word in explained


@pytest.mark.behaviour("CONS-11", "CONS-21")
def test_a_fleet_is_shown_with_its_members_their_partitions_and_the_starts_that_failed(site: Site) -> None:
    request = ClaimRequest(GROUP, site.broker, ("payments",), StartPolicy(), "refuse", 5.0, GROUP)
    for _ in range(3):
        member = join(site.store, request)
        member.end_with(SinkError("the transform raised"))
        member.close()
    site.take()
    page = site.page("/group")
    assert "✕ failed" in text_of(page)
    assert checks_of(page)["claim"] == "bad"
    with join(site.store, request) as first, join(site.store, request):
        first.assign([P0, P1])
        site.take()
        page = site.page("/group")
        assert "3 runs failed or fell silent in 15 minutes" in text_of(page)
        assert "✕ failed" in site.text()
    rows = rows_of(page, "member-rows")
    assert re.fullmatch(rf"{re.escape(first.owner)} ● live \d{{4}}-.* UTC payments 0-1", rows[0])
    assert re.fullmatch(r"\S+ ● live \d{4}-.* UTC none", rows[1])
    assert re.search(r"Epoch \d+ Topic id", site.text("/partition", topic="payments", partition=0))
    assert ["member ✕ failed" in row for row in site.rows("runs", "/runs")] == [False, False, True, True, True]
    assert "SinkError the transform raised" in site.text("/runs")


@pytest.mark.behaviour("DASH-2", "OUT-6", "OUT-7")
def test_what_is_not_well_is_shown_with_its_next_step(site: Site, query: Query) -> None:
    query("INSERT INTO outbox (consumer_group, topic, created_at) VALUES ('billing', 'events', '2025-03-01 12:00Z')")
    query(
        "INSERT INTO outbox_refused (id, consumer_group, topic, created_at, error) "
        "VALUES (7, 'billing', 'events', now(), 'MSG_SIZE_TOO_LARGE')"
    )
    site.give(GROUP, BEHIND)
    site.store.pause(GROUP, reason="a load <b>", actor="ana")
    site.take()
    page = site.page("/group")
    [row] = [row for row in rows_of(page, "checks") if row.startswith("outbox")]
    assert "Kafka refuses 1 row" in row
    assert "The first is row 1, for topic events. The oldest was written: 2025-03-01 12:00:00 UTC" in row
    text = text_of(page)
    assert (checks_of(page)["outbox"], checks_of(page)["pause"]) == ("bad", "attention")
    assert "Paused by ana without an end: a load <b>." in text
    assert "Next: offsetstore resume -g billing --reason" in text
    assert re.search(r'class="found">Paused by ana.*?<a href="/history\?group=billing">History</a>', page, re.DOTALL)
    assert "<b>" not in page
    assert "/actions/" not in page

    query("DELETE FROM outbox")
    site.broker.error = BrokerUnavailable("Kafka does not answer")
    site.take()
    page = site.page("/group")
    assert (checks_of(page)["outbox"], checks_of(page)["headroom"]) == ("attention", "attention")
    assert "Next: offsetstore outbox list -g billing" in text_of(page)
    assert "Not up to date. Kafka does not answer" in text_of(page)
    assert rows_of(page, "rows")[0].startswith("payments-0 4 - - -")


def curve_of(page: str, name: str) -> tuple[str, list[list[float | None]]]:
    """A figure's caption, and the times and values that the page's script draws."""
    pattern = rf'<figcaption[^>]* id="caption-{name}" data-series="([^"]*)"[^>]*>(.*?)</figcaption>'
    [(series, caption)] = re.findall(pattern, page)
    assert f'role="img" aria-labelledby="caption-{name}"' in page
    return caption, json.loads(unescape(series))


def test_curves_are_drawn_from_the_samples(site: Site, query: Query) -> None:
    site.give(GROUP, BEHIND)
    lag = site.server.snapshots.latest().lag
    assert lag is not None
    now = lag.store.at  # up to which the page draws, whichever slot that is in
    query("DELETE FROM samples")  # the snapshot's own
    for number in range(6):
        at = now - timedelta(seconds=10 * (5 - number))
        sample = Sample(
            at=at, stored=100 * number, lag=50 - number, batches=number, batch_seconds=2.5 * number, epoch=1
        )
        with transaction(site.store.database, name="a test") as session:
            record_samples(people(session), {GROUP: sample})
    page = site.page("/group", span="5m")
    caption, (times, lags) = curve_of(page, "lag")
    assert caption == "Lag: now 45, peak 50."
    assert [value for value in lags if value is not None][:3] == [50, 49, 48]
    assert len(times) == len(lags) == 30
    assert {after - before for before, after in pairwise(cast("list[float]", times))} == {10}
    rate, (_, rates) = curve_of(page, "rate")
    assert rate == "Records per second: now unknown, peak 10.0/s."  # since the last snapshot, and there was one alone
    assert rates[-1] == pytest.approx(10)
    assert curve_of(page, "batch")[0] == "Seconds per batch: now 2.5\N{NO-BREAK SPACE}s, peak 2.5\N{NO-BREAK SPACE}s."
    assert "There are no samples" not in page
    for span, points in (("1h", 180), ("24h", 240), ("31d", 186), ("no span", 180)):
        _caption, (times, values) = curve_of(site.page("/group", span=span), "lag")
        assert len(times) == len(values) == points, "no more points than can be seen"

    query("DELETE FROM samples")
    site.broker.error = BrokerUnavailable("Kafka does not answer")
    site.take()
    page = site.page("/group")
    assert curve_of(page, "lag")[0] == "Lag: not known yet."
    assert "There are no samples of this time." in text_of(page)


def test_partitions_are_filtered_and_sorted(site: Site) -> None:
    site.give(GROUP, BEHIND)
    site.store.reset(GROUP, {P2: 8}, reason="again")
    site.take()

    def names(**query: str) -> list[str]:
        return [row.split()[0] for row in site.rows("rows", "/group", **query)]

    assert names() == ["payments-0", "payments-2", "payments-1"]
    assert names(sort="number") == ["payments-0", "payments-1", "payments-2"]
    assert names(lagging="1") == ["payments-0", "payments-2"]
    assert names(topic="payments", partition="1") == ["payments-1"]
    assert names(partition="no number", sort="no sort", page="-3") == names()
    assert site.rows("rows", "/group", topic="refunds") == ["The group has no such partition."]
    assert site.rows("rows", "/group", partition=1, lagging=1) == ["No such partition is behind."]
    assert site.rows("rows", "/group", partition=2)[0].endswith("UTC pinned")


def test_a_hundred_partitions_are_on_a_page(site: Site) -> None:
    site.broker.current = type(site.broker).with_topics({"payments": 250}, end=10).current
    site.give(GROUP, {TopicPartition("payments", number): 4 for number in range(250)})
    counts = [len(site.rows("rows", "/group", sort="number", page=page)) for page in (1, 2, 3, 9)]
    assert counts == [100, 100, 50, 50]
    assert "250 partitions." in site.text("/group")
    assert "Page 3 of 3" in site.text("/group", page=9)


def test_a_group_without_offsets_says_what_that_means_and_one_that_there_is_not_is_not_found(site: Site) -> None:
    site.give(GROUP, {P0: 4}, stay=False)
    site.store.rename_group(GROUP, "shipping", reason="a better name")
    site.take()
    assert "The group has no stored offsets" in site.text("/group")
    assert "none: the owner has left" in site.text("/group")
    answer = site.get("/group", group="nobody")
    assert answer.status_code == 404
    assert "There is no group of this name" in text_of(answer.text)


def test_a_page_is_of_one_snapshot(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else numbers of an earlier one could stand below the time of a later one."""
    site.give(GROUP, BEHIND)
    latest, asked = site.server.snapshots.latest, list[str]()
    monkeypatch.setattr(site.server.snapshots, "latest", lambda: (asked.append("asked"), latest())[1])
    for path in ("/", "/group?group=billing", "/store", "/partition?group=billing&topic=payments&partition=0"):
        asked.clear()
        assert site.client.get(path).status_code == 200
        assert asked == ["asked"], path


@pytest.mark.behaviour("CONS-20")
def test_a_partition_that_stands_is_marked_and_comes_first(site: Site, query: Query) -> None:
    site.give(GROUP, {P0: 2, P1: 9, P2: 10})
    site.broker.records[P1] = dict.fromkeys(range(10), site.broker.records[P1][9] - 3_600_000)
    query("UPDATE consumer_groups SET claimed_at = now() - interval '9 hours'")
    query("UPDATE kafka_partitions SET updated_at = now() - interval '2 hours' WHERE partition = 1")
    site.take()
    page = site.page("/group")
    assert checks_of(page)["standing partitions"] == "bad"
    assert [row.split(" ")[:2] for row in rows_of(page, "rows")][:2] == [["payments-1", "stands"], ["payments-0", "2"]]
