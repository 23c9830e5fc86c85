"""An open page follows what happens, without a reload, and leaves the reader's place alone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from offsetstore import LetterError, OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import BrokerUnavailable
from offsetstore.monitoring.dashboard import snapshots
from offsetstore.monitoring.dashboard.serving import DashboardServer, DashboardSettings
from offsetstore.operations.group_state import Lag
from offsetstore.operations.samples import RINGS
from offsetstore.protocol.letters import NewLetter, Payload
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.pages.conftest import advance, give
from tests.support.browser import Pages, axe
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.behaviour("DASH-2"), pytest.mark.needs_program("chromium")]

ROOT = Path(__file__).parents[3]
TP = TopicPartition("payments", 0)
SOON = 60_000  # milliseconds: a snapshot, and a poll
TIMES = 10  # as fast goes the time of a page, which polls every five seconds
STEPS = r"((15|30|45|60|75|90|105)s|\d+m)"  # in which it says how long nothing has come; which, depends on when we look


@pytest.fixture
def broker() -> StaticBroker:
    """One partition with a hundred records of a minute ago."""
    broker = StaticBroker.with_topics({"payments": 1}, end=100)
    now = int(time.time() * 1000)
    broker.records[TP] = dict.fromkeys(range(1000), now - 60_000)
    return broker


@pytest.fixture
def server(store: OffsetStore, broker: StaticBroker, monkeypatch: pytest.MonkeyPatch) -> Iterator[DashboardServer]:
    monkeypatch.setattr(snapshots, "INTERVAL", 0.2)
    with DashboardServer(store, broker, DashboardSettings(port=0)) as server:
        yield server


def open_now(pages: Pages, server: DashboardServer, query: str = "") -> Page:
    server.snapshots.take()
    return pages.open(server.url + query, times=TIMES)


def without(server: DashboardServer, group: str) -> Lag | None:
    """The last lag, as if there were no such group."""
    lag = server.snapshots.latest().lag
    assert lag is not None
    return replace(lag, groups={name: one for name, one in lag.groups.items() if name != group})


def row(page: Page, group: str) -> Locator:
    return page.locator(f'tr[data-key="{group}"]')


@pytest.mark.behaviour("DASH-5")
def test_groups_come_move_and_change_on_a_page_that_had_none(
    store: OffsetStore, broker: StaticBroker, server: DashboardServer, pages: Pages
) -> None:
    page = open_now(pages, server, "?sort=lag")
    assert axe(page) == []
    expect(page.locator("main")).to_contain_text("No group has been claimed yet")
    give(store, "billing", {TP: 40}, stay=False)
    give(store, "shipping", {TP: 50}, stay=False)
    names = page.locator("tbody th a")
    expect(names).to_have_text(["billing", "shipping"], timeout=SOON)
    expect(row(page, "billing")).to_contain_text("60")
    page.get_by_role("link", name="shipping").focus()
    store.reset("shipping", {TP: 0}, reason="again")
    expect(names).to_have_text(["shipping", "billing"], timeout=SOON)
    assert page.evaluate("document.activeElement.textContent") == "shipping"
    give(store, "auditing", {TP: 10}, stay=False)
    expect(names).to_have_text(["shipping", "auditing", "billing"], timeout=SOON)
    store.pause("billing", reason="maintenance")
    expect(row(page, "billing")).to_contain_text("paused", timeout=SOON)
    broker.set_log(TP, 0, 105)
    expect(row(page, "billing")).to_contain_text("65", timeout=SOON)
    store.resume("billing", reason="done")
    expect(row(page, "billing")).to_contain_text("ended", timeout=SOON)


def test_focus_selection_and_scroll_survive(
    store: OffsetStore, broker: StaticBroker, server: DashboardServer, pages: Pages
) -> None:
    for number in range(45):
        give(store, f"group-{number:02}", {TP: number}, stay=False)
    page = open_now(pages, server, "?sort=group")
    row(page, "group-30").get_by_role("link").focus()
    page.evaluate("scrollTo(0, 500)")
    page.evaluate("""() => {
        const cell = document.querySelector('tr[data-key="group-25"] a');
        getSelection().selectAllChildren(cell);
    }""")
    is_same = row(page, "group-25").element_handle()
    broker.set_log(TP, 0, 1100)
    expect(row(page, "group-25")).to_contain_text("1,075", timeout=SOON)
    assert page.evaluate("document.activeElement.textContent") == "group-30"
    assert page.evaluate("getSelection().toString()") == "group-25"
    # If what is above grows by a line, the browser may scroll by as much.
    assert page.evaluate("scrollY") == pytest.approx(500, abs=30)
    assert page.evaluate("(row) => row.isConnected", is_same)


def test_a_page_says_when_nothing_answers(
    store: OffsetStore, broker: StaticBroker, server: DashboardServer, pages: Pages
) -> None:
    give(store, "billing", {TP: 40}, stay=False)
    page = open_now(pages, server)
    broker.error = BrokerUnavailable("no answer")
    expect(page.locator("#trouble")).to_contain_text("Not up to date", timeout=SOON)
    expect(row(page, "billing")).to_contain_text("billing")
    broker.error = None
    expect(page.locator("#trouble")).to_be_empty(timeout=SOON)
    server.close()
    says = re.compile(f"No answer from the dashboard for {STEPS}")
    expect(page.locator("#silence")).to_contain_text(says, timeout=SOON)
    assert "ago" in page.locator("#measured time").inner_text()
    page.goto("about:blank")  # or it would go on asking
    assert all(re.search("ERR_CONNECTION_|ERR_EMPTY_RESPONSE", fault) for fault in pages.take_faults())


def test_a_page_that_the_server_no_longer_has_says_why(
    store: OffsetStore, server: DashboardServer, pages: Pages
) -> None:
    give(store, "billing", {TP: 40}, stay=False)
    page = open_now(pages, server, "runs?group=billing")
    found = server.snapshots.latest().groups["billing"]
    server.snapshots.close()
    server.snapshots._latest = replace(server.snapshots.latest(), groups={}, lag=without(server, "billing"))
    says = re.compile(rf"Not up to date for {STEPS}: There is no group of this name\.")
    expect(page.locator("#silence")).to_contain_text(says, timeout=SOON)
    expect(page.locator("h1")).to_have_text(found.name)
    page.goto("about:blank")  # or it would go on asking
    assert all("404" in fault for fault in pages.take_faults())


def test_what_is_gone_does_not_stay_on_an_open_page(
    store: OffsetStore, query: Query, server: DashboardServer, pages: Pages
) -> None:
    """Its links would still decide something."""
    claim = store.claim("billing", topics=["payments"], mirror_every=None)
    payload = Payload(b"k", b"v", None, None, None)
    letter = NewLetter(TP, 0, "raised", LetterError("ValueError", ""), 1, None, payload)
    advance(store, claim, {TP: OffsetRange(0, 1)}, [letter])
    page = open_now(pages, server, "letters?group=billing")
    expect(page.locator("#letters")).to_contain_text("payments:0:0")
    query("DELETE FROM dead_letters")
    expect(page.locator("#counts")).to_contain_text("No record of this group", timeout=SOON)
    expect(page.locator("#letters")).to_have_count(0)


_DRAWN = """() => [...document.querySelectorAll("figure.chart canvas")].map(canvas => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return pixels.some(value => value > 0);
})"""
SAMPLES = """
INSERT INTO samples (consumer_group, resolution, slot, at, stored, lag, batches, batch_seconds, epoch)
SELECT 'billing', 10, mod(CAST(floor(extract(epoch FROM at) / 10) AS bigint), {slots}), at, s, 80, 30 - s, 1.5, 1
FROM generate_series(1, 30) AS s, LATERAL (SELECT now() - s * interval '10 s' AS at) AS t
"""


@pytest.mark.behaviour("DASH-5")
def test_curves_change_without_being_made_anew_and_what_is_selected_in_a_summary_stays_so(
    store: OffsetStore, broker: StaticBroker, server: DashboardServer, pages: Pages, query: Query
) -> None:
    give(store, "billing", {TP: 40}, stay=False)
    query(SAMPLES.format(slots=RINGS[0].slots))
    page = open_now(pages, server, "group?group=billing&span=5m")
    plots = page.locator("figure.chart canvas")
    expect(plots).to_have_count(3, timeout=SOON)
    assert page.evaluate(_DRAWN) == [True, True, True]
    for label in ("Lag: now 60, peak 80.", "Records per second: now ", "Seconds per batch: now "):
        assert page.get_by_role("img", name=label).count() == 1
    page.evaluate("document.querySelectorAll('canvas').forEach((canvas, at) => canvas.dataset.at = at)")
    page.evaluate("getSelection().selectAllChildren(document.querySelectorAll('#summary dd')[2])")  # the owner
    owner = page.evaluate("getSelection().toString()")
    assert ", epoch 1" in owner
    broker.set_log(TP, 0, 1100)
    expect(page.locator("#summary")).to_contain_text("1,060 offsets", timeout=SOON)
    page.get_by_text("Lag: now 1,060, peak 1,060.").wait_for()
    assert page.evaluate("getSelection().toString()") == owner
    assert page.evaluate("[...document.querySelectorAll('canvas')].map(canvas => canvas.dataset.at)") == ["0", "1", "2"]
    page.evaluate("document.querySelector('#topics').remove()")  # so the page has less than the server sends
    broker.set_log(TP, 0, 1200)
    expect(page.locator("#topics")).to_contain_text("1,160", timeout=SOON)
    expect(plots).to_have_count(3)


def test_a_page_that_is_hidden_or_typed_into_asks_for_nothing(
    server: DashboardServer, store: OffsetStore, pages: Pages
) -> None:
    give(store, "billing", {TP: 40}, stay=False)
    page = open_now(pages, server)
    page.evaluate("""() => {
        const ask = window.fetch;
        let letter = 0;
        document.addEventListener("input", () => (letter = Date.now()));
        window.asked = [];  // for each request, how long ago a letter was typed, by the page's time
        window.fetch = (...given) => { asked.push(Date.now() - letter); return ask(...given); };
    }""")

    def asked() -> list[float]:
        """Since the last look."""
        return page.evaluate("asked.splice(0)")

    wait_until(asked, timeout=60)
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true, configurable: true})")
    asked()
    page.wait_for_timeout(6_000 / TIMES)
    assert asked() == []
    wait_until(lambda: not page.evaluate("asking"), timeout=60)
    shown = """() => {
        delete document.hidden;
        document.dispatchEvent(new Event("visibilitychange"));
        return asked.splice(0).length;
    }"""
    assert page.evaluate(shown) == 1, "at once"
    for letter in "billing-b":  # five seconds for an answer between two letters
        page.get_by_role("searchbox").press_sequentially(letter)
        page.wait_for_timeout(2_000 / TIMES)
    assert [since for since in asked() if since < 3_000] == []
    assert page.get_by_role("searchbox").input_value() == "billing-b"
    assert page.locator("#silence").text_content() == "", "nothing is said to be silent"
