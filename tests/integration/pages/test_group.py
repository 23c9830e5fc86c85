"""A group's page: its checks, topics and partitions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import timedelta
from html import unescape
from itertools import pairwise
from typing import cast
from urllib.parse import urlencode

import httpx
import pytest

from offsetstore import OffsetStore, StartPolicy, TopicPartition
from offsetstore.errors import BrokerUnavailable, SinkError
from offsetstore.monitoring.dashboard.rendering import NOTHING
from offsetstore.monitoring.dashboard.serving import DashboardServer
from offsetstore.offsets import CommittedOffset
from offsetstore.operations.people import people
from offsetstore.operations.samples import Sample, record_samples
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import join
from offsetstore.store.sessions import transaction
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.pages.conftest import P0, P1, P2, give, rows_of, text_of

pytestmark = pytest.mark.behaviour("DASH-1")


def checks_of(page: str) -> dict[str, str]:
    """The verdict of each check."""
    found = (re.fullmatch(r"([a-zA-Z ]+) [✓!✕] (ok|attention|bad) .+", row) for row in rows_of(page, "checks"))
    return {match[1]: match[2] for match in found if match}


def show(client: httpx.Client, group: str = "billing", **query: str) -> str:
    answer = client.get(f"/group?{urlencode({'group': group, **query})}")
    assert answer.status_code == 200
    return answer.text


@pytest.fixture
def billing(store: OffsetStore, server: DashboardServer) -> None:
    """A live job, six records behind in one partition."""
    give(store, "billing", {P0: 4, P1: 10, P2: 10})
    server.snapshots.take()


@pytest.mark.usefixtures("billing")
def test_it_says_how_the_group_is_and_whose(
    server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    broker.current = replace(broker.current, committed={P1: CommittedOffset(1234)})
    server.snapshots.take()
    page = show(client)
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


@pytest.mark.behaviour("CONS-11")
def test_the_members_of_a_fleet_are_shown_with_their_partitions(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    request = ClaimRequest("shared", broker, ("payments",), StartPolicy(), "refuse", 5.0, "shared")
    with join(store, request) as first, join(store, request):
        first.assign([P0, P1])
        server.snapshots.take()
        page = show(client, "shared")
    rows = rows_of(page, "member-rows")
    assert re.fullmatch(rf"{re.escape(first.owner)} ● live \d{{4}}-.* UTC payments 0-1", rows[0])
    assert re.fullmatch(r"\S+ ● live \d{4}-.* UTC none", rows[1])
    answer = client.get("/partition?group=shared&topic=payments&partition=0")
    assert "Epoch 1 Topic id" in text_of(answer)


@pytest.mark.behaviour("CONS-21")
def test_a_fleet_that_fails_at_each_start_is_failed_on_all_pages(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    for _ in range(3):
        member = join(store, ClaimRequest("shared", broker, ("payments",), StartPolicy(), "refuse", 5.0, "shared"))
        member.end_with(SinkError("the transform raised"))
        member.close()
    server.snapshots.take()
    assert "✕ failed" in text_of(show(client, "shared"))
    assert checks_of(show(client, "shared"))["claim"] == "bad"
    with join(store, ClaimRequest("shared", broker, ("payments",), StartPolicy(), "refuse", 5.0, "shared")):
        server.snapshots.take()
        page = show(client, "shared")
        assert "3 runs failed or fell silent in 15 minutes" in text_of(page)
        assert "✕ failed" in text_of(client.get("/"))
    runs = rows_of(client.get("/runs?group=shared").text, "runs")
    assert ["member ✕ failed" in row for row in runs] == [False, True, True, True]
    assert "SinkError the transform raised" in text_of(client.get("/runs?group=shared"))


@pytest.mark.behaviour("DASH-2", "OUT-6", "OUT-7")
@pytest.mark.usefixtures("billing")
def test_what_is_not_well_is_shown_with_its_next_step(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, broker: StaticBroker, query: Query
) -> None:
    query("INSERT INTO outbox (consumer_group, topic, created_at) VALUES ('billing', 'events', '2025-03-01 12:00Z')")
    query(
        "INSERT INTO outbox_refused (id, consumer_group, topic, created_at, error) "
        "VALUES (7, 'billing', 'events', now(), 'MSG_SIZE_TOO_LARGE')"
    )
    store.pause("billing", reason="a load <b>", actor="ana")
    server.snapshots.take()
    page = show(client)
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
    broker.error = BrokerUnavailable("Kafka does not answer")
    server.snapshots.take()
    page = show(client)
    assert checks_of(page)["outbox"] == "attention"
    assert "Next: offsetstore outbox list -g billing" in text_of(page)
    assert "Not up to date. Kafka does not answer" in text_of(page)
    assert checks_of(page)["headroom"] == "attention"
    assert rows_of(page, "rows")[0].startswith("payments-0 4 - - -")


def curve_of(page: str, name: str) -> tuple[str, list[list[float | None]]]:
    """A figure's caption, and the times and values that the page's script draws."""
    pattern = rf'<figcaption[^>]* id="caption-{name}" data-series="([^"]*)"[^>]*>(.*?)</figcaption>'
    [(series, caption)] = re.findall(pattern, page)
    assert f'role="img" aria-labelledby="caption-{name}"' in page
    return caption, json.loads(unescape(series))


@pytest.mark.usefixtures("billing")
def test_curves_are_drawn_from_the_samples(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, query: Query
) -> None:
    lag = server.snapshots.latest().lag
    assert lag is not None
    now = lag.store.at  # up to which the page draws, whichever slot that is in
    query("DELETE FROM samples")  # the snapshot's own
    for number in range(6):
        at = now - timedelta(seconds=10 * (5 - number))
        sample = Sample(
            at=at, stored=100 * number, lag=50 - number, batches=number, batch_seconds=2.5 * number, epoch=1
        )
        with transaction(store.database, name="a test") as session:
            record_samples(people(session), {"billing": sample})
    page = show(client, span="5m")
    lag, (times, lags) = curve_of(page, "lag")
    assert lag == "Lag: now 45, peak 50."
    assert [value for value in lags if value is not None][:3] == [50, 49, 48]
    assert len(times) == len(lags) == 30
    assert {after - before for before, after in pairwise(cast("list[float]", times))} == {10}
    rate, (_, rates) = curve_of(page, "rate")
    assert rate == "Records per second: now unknown, peak 10.0/s."  # since the last snapshot, and there was one alone
    assert rates[-1] == pytest.approx(10)
    assert curve_of(page, "batch")[0] == "Seconds per batch: now 2.5\N{NO-BREAK SPACE}s, peak 2.5\N{NO-BREAK SPACE}s."
    assert "There are no samples" not in page
    for span, points in (("1h", 180), ("24h", 240), ("31d", 186), ("no span", 180)):
        _caption, (times, values) = curve_of(show(client, span=span), "lag")
        assert len(times) == len(values) == points, "no more points than can be seen"


def test_without_samples_the_page_says_where_they_come_from(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    give(store, "billing", {P0: 4})
    broker.error = BrokerUnavailable("Kafka does not answer")
    server.snapshots.take()
    page = show(client)
    assert curve_of(page, "lag")[0] == "Lag: not known yet."
    assert "There are no samples of this time." in text_of(page)


@pytest.mark.usefixtures("billing")
def test_partitions_are_filtered_and_sorted(store: OffsetStore, server: DashboardServer, client: httpx.Client) -> None:
    store.reset("billing", {P2: 8}, reason="again")
    server.snapshots.take()

    def names(**query: str) -> list[str]:
        return [row.split()[0] for row in rows_of(show(client, **query), "rows")]

    assert names() == ["payments-0", "payments-2", "payments-1"]
    assert names(sort="number") == ["payments-0", "payments-1", "payments-2"]
    assert names(lagging="1") == ["payments-0", "payments-2"]
    assert names(topic="payments", partition="1") == ["payments-1"]
    assert names(partition="no number", sort="no sort", page="-3") == names()
    assert rows_of(show(client, topic="refunds"), "rows") == ["The group has no such partition."]
    assert rows_of(show(client, partition="1", lagging="1"), "rows") == ["No such partition is behind."]
    assert rows_of(show(client, partition="2"), "rows")[0].endswith("UTC pinned")


def test_a_hundred_partitions_are_on_a_page(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    broker.current = type(broker).with_topics({"payments": 250}, end=10).current
    give(store, "billing", {TopicPartition("payments", number): 4 for number in range(250)})
    server.snapshots.take()
    counts = [len(rows_of(show(client, sort="number", page=page), "rows")) for page in "1239"]
    assert counts == [100, 100, 50, 50]
    assert "250 partitions." in text_of(show(client))
    assert "Page 3 of 3" in text_of(show(client, page="9"))


def test_a_group_without_offsets_says_what_that_means_and_one_that_there_is_not_is_not_found(
    store: OffsetStore, server: DashboardServer, client: httpx.Client
) -> None:
    give(store, "billing", {P0: 4}, stay=False)
    store.rename_group("billing", "shipping", reason="a better name")
    server.snapshots.take()
    assert "The group has no stored offsets" in text_of(show(client))
    assert "none: the owner has left" in text_of(show(client))
    answer = client.get("/group?group=nobody")
    assert answer.status_code == 404
    assert "There is no group of this name" in text_of(answer.text)


@pytest.mark.usefixtures("billing")
def test_a_page_is_of_one_snapshot(
    server: DashboardServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else numbers of an earlier one could stand below the time of a later one."""
    latest, asked = server.snapshots.latest, list[str]()
    monkeypatch.setattr(server.snapshots, "latest", lambda: (asked.append("asked"), latest())[1])
    for path in ("/", "/group?group=billing", "/store", "/partition?group=billing&topic=payments&partition=0"):
        asked.clear()
        assert client.get(path).status_code == 200
        assert asked == ["asked"], path


@pytest.mark.behaviour("CONS-20")
def test_a_partition_that_stands_is_marked_and_comes_first(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, broker: StaticBroker, query: Query
) -> None:
    give(store, "billing", {P0: 2, P1: 9, P2: 10})
    broker.records[P1] = dict.fromkeys(range(10), broker.records[P1][9] - 3_600_000)
    query("UPDATE consumer_groups SET claimed_at = now() - interval '9 hours'")
    query("UPDATE kafka_partitions SET updated_at = now() - interval '2 hours' WHERE partition = 1")
    server.snapshots.take()
    page = show(client)
    assert checks_of(page)["standing partitions"] == "bad"
    assert [row.split(" ")[:2] for row in rows_of(page, "rows")][:2] == [["payments-1", "stands"], ["payments-0", "2"]]
