"""The list of groups: what it says of each, and how it is searched, sorted and kept up to date."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.parse import urlencode
from uuid import UUID

import httpx
import pytest

from offsetstore import OffsetStore
from offsetstore.errors import BrokerUnavailable, MissingPrivilege, StoreUnavailable
from offsetstore.monitoring.dashboard.serving import DashboardServer
from offsetstore.monitoring.dashboard.snapshots import Snapshot
from offsetstore.offsets import OffsetRange, Pause, StoredOffset, Token, TopicPartition
from offsetstore.operations.group_status import State, state_of
from offsetstore.operations.lag import GroupLag, PartitionLag, TopicLag
from offsetstore.operations.people import people
from offsetstore.operations.samples import Sample, record_samples
from offsetstore.protocol.database import GroupRow
from offsetstore.protocol.runs import Ending
from offsetstore.protocol.snapshot import LogEnds
from offsetstore.store.sessions import transaction
from offsetstore.testing import StaticBroker
from tests.integration.pages.conftest import P0, P1, P2, Clock, advance, give, rows_of, text_of

pytestmark = pytest.mark.behaviour("DASH-1")

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
TOKEN = Token(1, UUID(int=1))
MINUTE = timedelta(minutes=1)


def show(client: httpx.Client, **query: str) -> str:
    answer = client.get(f"/?{urlencode(query)}")
    assert answer.status_code == 200
    return answer.text


def names(client: httpx.Client, **query: str) -> list[str]:
    return [row.split()[0] for row in rows_of(show(client, **query), "groups")]


# -- the state, in one word


def one(
    *,
    lag: int = 6,
    age: float = 60.0,
    alive: timedelta | None = MINUTE / 60,
    advanced: timedelta = MINUTE,
    is_bound: bool = False,
    is_known: bool = True,
    ending: Ending | None = None,
) -> GroupLag:
    """A group with one partition.

    :param is_known: whether Kafka told of it.
    :param age: of the first unread record, in seconds.
    :param alive: since the last heartbeat.
    :param advanced: since the last advance.
    """
    stored = StoredOffset(100 - lag, TOKEN, updated_at=NOW - advanced)
    part = PartitionLag(stored, LogEnds(0, 100, 100), age if lag else 0.0, is_bound)
    if not is_known:
        part = PartitionLag(stored, None)
    owner = GroupRow(TOKEN, "ana@host:7", NOW - 60 * MINUTE, alive, ending=ending)
    return GroupLag(owner, {"payments": TopicLag({0: part})})


@pytest.mark.parametrize(
    ("lag", "expected"),
    [
        (one(), "live"),
        (one(lag=0, advanced=60 * MINUTE), "live"),
        (one(age=3600, advanced=MINUTE), "live"),
        (one(age=60, advanced=60 * MINUTE), "live"),
        (one(age=901, advanced=16 * MINUTE), "stalled"),
        (one(age=901, advanced=16 * MINUTE, is_bound=True), "live"),
        (one(advanced=16 * MINUTE, is_known=False), "live"),
        (one(alive=MINUTE), "stalled"),
        (one(alive=MINUTE, is_known=False), "stalled"),
        (one(alive=MINUTE, lag=0), "silent"),
        (one(alive=None), "ended"),
        (one(alive=None, age=901, advanced=16 * MINUTE), "stalled"),
        (one(ending="failed"), "failed"),
        (one(alive=MINUTE, ending="failed"), "failed"),
        (one(alive=None, ending="failed", age=901, advanced=16 * MINUTE), "failed"),
        (one(alive=MINUTE, ending="closed"), "ended"),
    ],
    ids=[
        "it reads",
        "idle",
        "a backlog that shrinks",
        "a record after an idle time",
        "no progress, and old records",
        "no progress, and records that may be younger",
        "no progress, and Kafka is silent",
        "vanished, with records unread",
        "vanished, and Kafka is silent",
        "vanished, with nothing to read",
        "left",
        "left long ago, with old records",
        "failed a moment ago",
        "failed, and the claim was never closed",
        "failed long ago",
        "its query has ended cleanly, and the claim was never closed",
    ],
)
def test_a_group_is_in_one_word(lag: GroupLag, expected: State) -> None:
    assert state_of(lag, NOW) == expected
    paused = replace(lag, owner=replace(lag.owner, pause=Pause(NOW, None, "a load")))
    assert state_of(paused, NOW) == "paused", "whatever else is the case"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(PartitionLag(StoredOffset(1, TOKEN), LogEnds(0, 9, 9), 9000, is_bound=True), id="may be younger"),
        pytest.param(PartitionLag(StoredOffset(1, TOKEN), None), id="has no leader"),
    ],
)
def test_a_partition_of_which_little_is_known_hides_none_that_is_behind(other: PartitionLag) -> None:
    group = one(age=901, advanced=16 * MINUTE)
    parts = {**group.topics["payments"].partitions, 1: other}
    assert state_of(replace(group, topics={"payments": TopicLag(parts)}), NOW) == "stalled"


def test_each_group_has_its_state_lag_and_last_advance(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    server.snapshots.take()
    text = text_of(show(client))
    assert "No group has been claimed yet." in text
    assert "make demo" in text
    give(store, "billing", {P0: 4, P1: 10, P2: 10})
    give(store, "left", {P0: 10}, stay=False)
    give(store, "paused", {P0: 10})
    store.pause("paused", reason="a load")
    give(store, "paused-left", {P0: 10}, stay=False)
    store.pause("paused-left", reason="a load")
    store.claim("waits", broker, mirror_every=None)
    server.snapshots.take()
    page = show(client, sort="group")
    billing, left, paused, paused_left, waits = rows_of(page, "groups")
    assert re.fullmatch(r"billing ● live 6 [56]m 0 - - \d{4}-\S+ \S+ UTC", billing)
    assert re.fullmatch(r"left ✓ ended 0 0s 0 - - .* UTC", left)
    assert re.fullmatch(r"paused Ⅱ paused 0 0s 0 - - .* UTC", paused)
    assert paused_left.startswith("paused-left Ⅱ paused , no job 0")
    assert re.fullmatch(r"waits ● live 30 10m 0 - - never", waits)
    assert "5 groups, 1 ended, 2 paused, 2 live." in text_of(page)
    for address in (f"/group?group=waits&topic={P0.topic}", f"/partition?group=waits&topic={P0.topic}&partition=0"):
        assert " never " in text_of(client.get(address))


# -- search, order and pages


def test_groups_are_searched_by_a_part_of_their_name(
    store: OffsetStore, server: DashboardServer, client: httpx.Client
) -> None:
    for name in ("billing", "Billing-eu", "shipping"):
        give(store, name, {P0: 10})
    server.snapshots.take()
    assert names(client, q="BILL") == ["Billing-eu", "billing"]
    page = show(client, q="<i>\u202e")
    assert "No group's name has “<i>\\u202e” in it." in text_of(page)
    assert "<i>" not in page
    assert 'value="&lt;i&gt;\u202e"' in page, "as it was typed"


def test_groups_are_sorted_by_what_needs_someone_first(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    give(store, "a-idle", {P0: 10})
    give(store, "b-behind", {P0: 8})
    give(store, "c-left", {P0: 10}, stay=False)
    give(store, "d-far-behind", {P0: 2})
    server.snapshots.take()
    assert names(client) == names(client, sort="no sort") == ["c-left", "d-far-behind", "b-behind", "a-idle"]
    assert names(client, sort="group") == ["a-idle", "b-behind", "c-left", "d-far-behind"]
    assert names(client, sort="lag") == names(client, sort="behind") == ["d-far-behind", "b-behind", "a-idle", "c-left"]
    assert names(client, sort="advance") == ["a-idle", "b-behind", "c-left", "d-far-behind"], "the oldest first"
    assert names(client, sort="letters") == names(client, sort="group"), "by name, where all else is equal"
    refunds = TopicPartition("refunds", 0)
    broker.set_log(refunds, 0, 10)
    broker.unanswered["refunds"] = BrokerUnavailable("refunds has no leader")
    give(store, "unknown", {refunds: 9})
    server.snapshots.take()
    assert names(client, sort="lag")[0] == names(client, sort="behind")[0] == "unknown"


def test_fifty_groups_are_on_a_page(store: OffsetStore, server: DashboardServer, client: httpx.Client) -> None:
    for number in range(52):
        give(store, f"group-{number:02}", {P0: 10}, stay=False)
    server.snapshots.take()
    assert names(client) == [f"group-{number:02}" for number in range(50)]
    assert names(client, page="2") == names(client, page="99") == ["group-50", "group-51"]
    assert names(client, page="no number") == names(client)
    assert "Page 2 of 2" in text_of(show(client, page="2"))
    assert "52 groups, 52 ended." in text_of(show(client, page="2"))


# -- curves


def sampled(store: OffsetStore, group: str, stored: list[int | None]) -> None:
    """Give a group's stored offsets, ten seconds apart, up to ten seconds ago; ``None``: nothing was measured.

    So a snapshot that is taken afterwards has a slot of its own.
    """
    now = datetime.now(UTC)
    for number, offset in enumerate(stored):
        if offset is not None:
            at = now - timedelta(seconds=10 * (len(stored) - number))
            with transaction(store.database, name="a test") as session:
                record_samples(people(session), {group: Sample(at=at, stored=offset, lag=1000 - offset, epoch=1)})


def test_trends_come_from_the_samples(store: OffsetStore, server: DashboardServer, client: httpx.Client) -> None:
    give(store, "billing", {P0: 4})
    sampled(store, "billing", list(range(0, 800, 100)))
    server.snapshots.take()
    page = show(client, span="5m")
    [row] = rows_of(page, "groups")
    assert re.fullmatch(r"billing ● live 6 \dm 0 - \S+ \S+ UTC", row)
    [label] = re.findall(r'<svg class="trend"[^>]* aria-label="([^"]+)"', page)
    assert label == "Lag over 5m: 1,000 to 6, at most 1,000"
    assert names(client, span="no span") == ["billing"]


@pytest.mark.parametrize("span", ["5m", "31d"])
def test_a_rate_is_the_one_since_the_last_snapshot_however_long_the_trend(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, clock: Clock, span: str
) -> None:
    sampled(store, "billing", list(range(0, 800, 100)))
    give(store, "billing", {P0: 4}, stay=False)
    server.snapshots.take()
    clock.put_forward(10)
    claim = store.claim("billing", topics=["payments"], mirror_every=None)
    server.snapshots.take()
    assert " 0 - " in rows_of(show(client, span="5m"), "groups")[0]  # another epoch: a reset passes records over, say
    clock.put_forward(10)
    advance(store, claim, {P0: OffsetRange(4, 9)})
    server.snapshots.take()
    [row] = rows_of(show(client, span=span), "groups")
    assert re.fullmatch(r"billing ● live 1 \d+[ms] 0 0\.5 (- )?\S+ \S+ UTC", row)
    assert "Records per second: now 0.5/s" in client.get("/group", params={"group": "billing", "span": span}).text
    clock.put_forward(10)
    server.snapshots.take()
    assert " 0 0.0 " in rows_of(show(client, span=span), "groups")[0]


def test_a_database_that_is_known_not_to_answer_is_not_waited_for(
    store: OffsetStore,
    server: DashboardServer,
    client: httpx.Client,
    broker: StaticBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give(store, "billing", {P0: 4})
    server.snapshots.take()
    broker.error = BrokerUnavailable("Kafka does not answer")  # first the one, then both
    server.snapshots.take()
    monkeypatch.setattr(store, "lag", Mock(side_effect=StoreUnavailable("the database does not answer")))
    server.snapshots.take()
    monkeypatch.setattr(store, "samples", Mock(side_effect=AssertionError("it was asked")))
    page = show(client)
    assert "the database does not answer" in page
    assert names(client) == ["billing"]


@pytest.mark.behaviour("OPS-16")
def test_a_log_that_lost_records_is_told_while_it_is_too_short_and_when_it_has_grown(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, broker: StaticBroker
) -> None:
    told = "a log lost records that had been read"
    give(store, "billing", {P0: 4})
    broker.set_log(P0, 0, 3)
    server.snapshots.take()
    assert told in text_of(show(client))
    assert "1 beyond the end" in text_of(client.get("/group?group=billing"))

    broker.set_log(P0, 0, 10)
    server.snapshots.take()
    assert told not in text_of(show(client))
    with transaction(store.database, name="test") as session:
        token = session.read_partitions("billing")[P0].token
        session.write_suspects("billing", token, {P0: "the log ended at 3, below the stored offset 4"})
    server.snapshots.take()
    assert told in text_of(show(client))
    assert "suspect" in text_of(client.get("/group?group=billing"))


def test_each_measurement_becomes_a_sample_unless_kafka_was_silent(
    store: OffsetStore, server: DashboardServer, broker: StaticBroker
) -> None:
    give(store, "billing", {P0: 4})
    server.snapshots.take()
    [sample] = store.samples(["billing"], MINUTE)["billing"]
    assert (sample.stored, sample.lag) == (4, 6)
    store.rename_group("billing", "shipping", reason="a better name")
    broker.error = BrokerUnavailable("Kafka does not answer")
    server.snapshots.take()
    assert store.samples(["shipping"], MINUTE)["shipping"] == [sample]


def test_a_role_that_may_not_write_samples_is_told_once_and_tried_again_later(
    store: OffsetStore,
    server: DashboardServer,
    client: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = MissingPrivilege("the role may not write samples", next_step="Run `offsetstore grants`.")
    give(store, "billing", {P0: 4})
    with monkeypatch.context() as patched:
        refuse = Mock(side_effect=error)
        patched.setattr(store, "record_samples", refuse)
        for _ in range(3):
            server.snapshots.take()
    assert refuse.call_count == 1  # the database's log is not filled with it
    assert [line.getMessage() for line in caplog.records if "samples" in line.getMessage()] == [
        "no samples for curves are kept: the role may not write samples. Run `offsetstore grants`."
    ]
    assert names(client) == ["billing"]
    assert "Not up to date" not in show(client)
    server.snapshots.take()
    assert not store.samples(["billing"], MINUTE).get("billing")
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + 301)  # not for the server's loop, which sleeps by it
    monkeypatch.setattr("offsetstore.monitoring.dashboard.snapshots.time", later)
    server.snapshots.take()
    assert store.samples(["billing"], MINUTE)["billing"]


# -- what is new, and what is not


@pytest.mark.behaviour("DASH-2")
def test_the_browser_gets_the_page_again_only_if_it_has_changed(
    store: OffsetStore, server: DashboardServer, client: httpx.Client
) -> None:
    give(store, "billing", {P0: 4, P1: 10, P2: 10})
    server.snapshots.take()
    page = client.get("/")
    again = {"If-None-Match": page.headers["etag"]}
    assert client.get("/", headers=again).status_code == 304
    give(store, "shipping", {P0: 10, P1: 10, P2: 10})
    server.snapshots.take()
    changed = client.get("/", headers=again)
    assert changed.status_code == 200
    assert "shipping" in changed.text


@pytest.mark.behaviour("DASH-2")
def test_while_the_database_is_silent_the_page_keeps_what_was_read_last(
    store: OffsetStore,
    server: DashboardServer,
    client: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give(store, "billing", {P0: 4})
    server.snapshots.take()
    measured = re.findall(r'id="measured">Measured <time datetime="([^"]+)"', show(client))

    def refuse(**_options: object) -> None:
        raise StoreUnavailable("the database does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(store.database, "begin", refuse)
        server.snapshots.take()
        page = show(client)
        assert "Not up to date. the database does not answer" in text_of(page)
        assert rows_of(page, "groups")[0].startswith("billing ● live 6")
        assert re.findall(r'id="measured">Measured <time datetime="([^"]+)"', page) == measured
        assert client.get("/group?group=billing").status_code == 503
    monkeypatch.setattr(server.snapshots, "_latest", Snapshot(trouble="the role may not read"))
    page = show(client)
    assert "No group has been claimed" not in page
    assert "The database has not been read yet." in page
