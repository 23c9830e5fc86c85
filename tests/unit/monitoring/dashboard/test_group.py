"""A group's page: its checks, topics and partitions."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from offsetstore import TopicPartition
from offsetstore.errors import BrokerUnavailable
from offsetstore.offsets import CommittedOffset, Watermarks
from offsetstore.testing import InMemoryOffsetStore
from tests.unit.monitoring.dashboard.conftest import P0, P1, P2, count_queries, give, rows_of, text_of

if TYPE_CHECKING:
    import httpx

    from offsetstore import OffsetStore
    from offsetstore.monitoring.dashboard.serving import DashboardServer
    from offsetstore.testing import MemoryDatabase, StaticBroker

pytestmark = pytest.mark.behaviour("DASH-1")

LETTERS = 249  # the longest name that Kafka allows


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
def test_the_head_says_how_the_group_is_and_whose(client: httpx.Client) -> None:
    text = text_of(show(client))
    assert "State ● live" in text
    assert "Lag 6 offsets, behind" in text
    assert re.search(r"Owner \S+, epoch 1 Claimed \d{4}-", text)
    assert re.search(r"Last heartbeat \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", text)


@pytest.mark.usefixtures("billing")
def test_each_check_has_a_word_for_its_verdict(client: httpx.Client) -> None:
    assert checks_of(show(client)) == dict.fromkeys(
        (
            "claim",
            "batch",
            "copies in Kafka",
            "unread partitions",
            "headroom",
            "topics",
            "pause",
            "dead letters",
            "pinned offsets",
        ),
        "ok",
    )


@pytest.mark.usefixtures("billing")
def test_a_pause_appears_with_its_reason_who_decided_and_the_command_that_ends_it(
    store: OffsetStore, server: DashboardServer, client: httpx.Client
) -> None:
    store.pause("billing", reason="a load <b>", actor="ana")
    server.snapshots.take()
    page = show(client)
    assert checks_of(page)["pause"] == "attention"
    assert "Paused by ana without an end: a load <b>." in text_of(page)
    assert "Next: offsetstore resume -g billing --reason" in text_of(page)
    assert "<b>" not in page


def test_a_job_that_left_is_told_by_how_its_last_run_ended(
    store: OffsetStore, server: DashboardServer, client: httpx.Client
) -> None:
    give(store, "billing", {P0: 4}, stay=False)
    server.snapshots.take()
    page = show(client)
    assert checks_of(page)["claim"] == "attention"
    assert "ended in good order" in text_of(page)
    assert "none: the owner has left" in text_of(page)
    assert checks_of(page)["unread partitions"] == "attention"


@pytest.mark.usefixtures("billing")
def test_records_that_were_removed_unread_are_bad(
    server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    payments = broker.current.topics["payments"]
    logs = {**payments.partitions, 0: Watermarks(7, 10)}
    broker.current = replace(broker.current, topics={"payments": replace(payments, partitions=logs)})
    server.snapshots.take()
    page = show(client)
    assert checks_of(page)["headroom"] == "bad"
    assert "3 offsets were removed from Kafka unread: payments-0." in text_of(page)


@pytest.mark.behaviour("DASH-2")
@pytest.mark.usefixtures("billing")
def test_without_kafka_the_page_says_what_it_does_not_know(
    server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    broker.error = BrokerUnavailable("Kafka does not answer")
    server.snapshots.take()
    page = show(client)
    assert "Not up to date. Kafka does not answer" in text_of(page)
    assert checks_of(page)["headroom"] == "attention"
    assert rows_of(page, "rows")[0].startswith("payments-0 4 - - -")


@pytest.mark.usefixtures("billing")
def test_topics_are_summed_up(client: httpx.Client) -> None:
    [row] = rows_of(show(client), "topics")
    assert re.fullmatch(r"payments 3 6 (5|6)m 4 0", row)


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


@pytest.mark.behaviour("DASH-2")
@pytest.mark.usefixtures("billing")
def test_it_is_sent_again_only_if_it_has_changed(
    store: OffsetStore, server: DashboardServer, client: httpx.Client
) -> None:
    page = client.get("/group?group=billing")
    again = {"If-None-Match": page.headers["etag"]}
    assert client.get("/group?group=billing", headers=again).status_code == 304
    store.pause("billing", reason="a load")
    server.snapshots.take()
    assert client.get("/group?group=billing", headers=again).status_code == 200


def test_a_group_without_offsets_says_what_that_means(
    store: OffsetStore, server: DashboardServer, client: httpx.Client
) -> None:
    give(store, "billing", {P0: 4}, stay=False)
    store.rename_group("billing", "shipping", reason="a better name")
    server.snapshots.take()
    assert "The group has no stored offsets" in text_of(show(client))


def test_a_group_that_there_is_not_is_not_found(client: httpx.Client) -> None:
    answer = client.get("/group?group=nobody")
    assert answer.status_code == 404
    assert "No such group has been claimed" in text_of(answer.text)


@pytest.mark.behaviour("DASH-4")
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("g" * LETTERS, "g" * LETTERS),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ('"><img src=x onerror=alert(1)>', '"><img src=x onerror=alert(1)>'),
        ("invoice\u202egnp.exe", "invoice\\u202egnp.exe"),
        ("a&b=c#d?e/f%20", "a&b=c#d?e/f%20"),
    ],
)
def test_names_are_inert_and_visible_and_lead_to_their_page(
    name: str, shown: str, store: OffsetStore, server: DashboardServer, client: httpx.Client
) -> None:
    give(store, name, {P0: 4})
    server.snapshots.take()
    page = show(client, name)
    assert f"<h1>{shown}</h1>" in page.replace("&lt;", "<").replace("&gt;", ">").replace("&#34;", '"').replace(
        "&amp;", "&"
    )
    assert "<script>" not in page
    assert "<img" not in page
    assert "\u202e" not in text_of(page)
    [link] = [unescape(href) for href in re.findall(r'href="(/partition\?[^"]+partition=0)"', page)]
    answer = client.get(link)
    assert answer.status_code == 200
    assert shown in text_of(answer.text)


@pytest.mark.usefixtures("billing")
def test_copies_in_kafka_are_compared(server: DashboardServer, client: httpx.Client, broker: StaticBroker) -> None:
    broker.current = replace(broker.current, committed={P1: CommittedOffset(7)})
    server.snapshots.take()
    assert "Kafka's copies are 3 offsets behind the store." in text_of(show(client))


def test_the_number_of_queries_does_not_depend_on_the_group(
    server: DashboardServer,
    client: httpx.Client,
    broker: StaticBroker,
    database: MemoryDatabase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker.current = type(broker).with_topics({"payments": 250, "refunds": 3}, end=10).current
    store = InMemoryOffsetStore(database)
    give(store, "small", {P0: 4})
    parts = [TopicPartition("payments", number) for number in range(250)]
    give(store, "large", dict.fromkeys((*parts, TopicPartition("refunds", 0)), 4))
    server.snapshots.take()
    queries = count_queries(database, monkeypatch)
    show(client, "small")
    small = len(queries)
    show(client, "large")
    assert 0 < small == len(queries) - small
