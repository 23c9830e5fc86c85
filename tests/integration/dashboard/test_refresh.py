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
from offsetstore.monitoring.dashboard.serving import DashboardServer, Settings
from offsetstore.operations.lag import Lag
from offsetstore.protocol.letters import NewLetter, Payload
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.support.browser import Pages, axe
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.behaviour("DASH-2"), pytest.mark.needs_program("chromium")]

ROOT = Path(__file__).parents[3]
TP = TopicPartition("payments", 0)
SOON = 60_000  # milliseconds: a snapshot, and a poll
TIMES = 10  # as fast goes the time of a page, which polls every five seconds
STEPS = r"((15|30|45|60|75|90|105)s|\d+m)"  # in which it says how long nothing has come; which, depends on when we look


def give(store: OffsetStore, group: str, until: int) -> None:
    """Let a job store an offset, and leave."""
    claim = store.claim(group, topics=["payments"], mirror_every=None)
    ranges = {TP: OffsetRange(0, until)}
    with store.transaction(claim) as tx:
        tx.lock(ranges)
        tx.advance(ranges)
    claim.close()


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
    with DashboardServer(store, broker, Settings(port=0)) as server:
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


def test_a_paused_group_s_lag_goes_on_moving(
    store: OffsetStore, broker: StaticBroker, server: DashboardServer, pages: Pages
) -> None:
    give(store, "billing", 40)
    store.pause("billing", reason="maintenance")
    page = open_now(pages, server)
    expect(row(page, "billing")).to_contain_text("paused", timeout=SOON)
    expect(row(page, "billing")).to_contain_text("60")
    broker.set_log(TP, 0, 105)
    expect(row(page, "billing")).to_contain_text("65", timeout=SOON)
    store.resume("billing", reason="done")
    expect(row(page, "billing")).to_contain_text("ended", timeout=SOON)


@pytest.mark.behaviour("DASH-5")
def test_the_first_group_appears_on_a_page_that_had_none(
    store: OffsetStore, server: DashboardServer, pages: Pages
) -> None:
    page = open_now(pages, server)
    assert axe(page) == []
    expect(page.locator("main")).to_contain_text("No group has been claimed yet")
    give(store, "billing", 40)
    expect(row(page, "billing")).to_contain_text("60", timeout=SOON)


def test_focus_selection_and_scroll_survive(
    store: OffsetStore, broker: StaticBroker, server: DashboardServer, pages: Pages
) -> None:
    for number in range(45):
        give(store, f"group-{number:02}", number)
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


def test_groups_come_move_and_go(store: OffsetStore, server: DashboardServer, pages: Pages) -> None:
    give(store, "billing", 40)
    give(store, "shipping", 50)
    page = open_now(pages, server, "?sort=lag")
    names = page.locator("tbody th a")
    expect(names).to_have_text(["billing", "shipping"], timeout=SOON)
    page.get_by_role("link", name="shipping").focus()
    store.reset("shipping", {TP: 0}, reason="again")
    expect(names).to_have_text(["shipping", "billing"], timeout=SOON)
    assert page.evaluate("document.activeElement.textContent") == "shipping"
    give(store, "auditing", 10)
    expect(names).to_have_text(["shipping", "auditing", "billing"], timeout=SOON)


def test_a_page_says_when_nothing_answers(
    store: OffsetStore, broker: StaticBroker, server: DashboardServer, pages: Pages
) -> None:
    give(store, "billing", 40)
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
    give(store, "billing", 40)
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
    with store.transaction(claim) as tx:
        tx.lock({TP: OffsetRange(0, 1)})
        tx.write_letters(
            [NewLetter(TP, 0, "raised", LetterError("ValueError", ""), 1, None, Payload(b"k", b"v", None, None, None))]
        )
        tx.advance({TP: OffsetRange(0, 1)})
    page = open_now(pages, server, "letters?group=billing")
    expect(page.locator("#letters")).to_contain_text("payments:0:0")
    query("DELETE FROM dead_letters")
    expect(page.locator("#counts")).to_contain_text("No record of this group", timeout=SOON)
    expect(page.locator("#letters")).to_have_count(0)


def test_what_is_selected_in_a_summary_stays_so(
    store: OffsetStore, broker: StaticBroker, server: DashboardServer, pages: Pages
) -> None:
    give(store, "billing", 40)
    page = open_now(pages, server, "group?group=billing")
    page.evaluate("getSelection().selectAllChildren(document.querySelectorAll('#summary dd')[2])")  # the owner
    owner = page.evaluate("getSelection().toString()")
    assert ", epoch 1" in owner
    broker.set_log(TP, 0, 1100)
    expect(page.locator("#summary")).to_contain_text("1,060 offsets", timeout=SOON)
    assert page.evaluate("getSelection().toString()") == owner


def test_a_curve_is_drawn_again_in_a_page_whose_main_part_is_new(
    store: OffsetStore, broker: StaticBroker, server: DashboardServer, pages: Pages
) -> None:
    give(store, "billing", 40)
    page = open_now(pages, server, "group?group=billing&span=5m")
    plot = page.locator("#chart-lag canvas")
    expect(plot).to_have_count(1, timeout=SOON)
    page.evaluate("document.querySelector('#topics').remove()")  # so the page has less than the server sends
    broker.set_log(TP, 0, 1100)
    expect(page.locator("#topics")).to_contain_text("1,060", timeout=SOON)
    expect(plot).to_have_count(1)


def test_a_page_that_is_hidden_or_typed_into_asks_for_nothing(
    server: DashboardServer, store: OffsetStore, pages: Pages
) -> None:
    give(store, "billing", 40)
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
