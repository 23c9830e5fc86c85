"""The history: who moved what and why, the newest first, filtered, in pages."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from offsetstore import OffsetStore
from offsetstore.monitoring.dashboard.serving import DashboardServer
from offsetstore.monitoring.dashboard.views.history import ON_A_PAGE
from tests.integration.pages.conftest import P0, P1, give, text_of

pytestmark = pytest.mark.behaviour("DASH-1")


@pytest.fixture
def decided(store: OffsetStore, server: DashboardServer) -> None:
    """A group that was claimed, reset and paused."""
    give(store, "billing", {P0: 4, P1: 10}, stay=False)
    store.reset("billing", {P0: 3}, reason="ticket 17", actor="ana")
    store.pause("billing", reason="the table is rebuilt", actor="ben")
    server.snapshots.take()


@pytest.mark.usefixtures("decided")
def test_decisions_have_who_what_and_why_the_newest_first_and_can_be_filtered(client: httpx.Client) -> None:
    page = text_of(client.get("/history", params={"group": "billing"}))

    assert "reset payments-0 4 3 ana database role postgres ticket 17" in page
    assert page.index("the table is rebuilt") < page.index("ticket 17")
    only = text_of(client.get("/history", params={"group": "billing", "event": "reset"}))
    assert "ticket 17" in only
    assert "the table is rebuilt" not in only
    now = datetime.now(UTC)
    for since, is_shown in ((now - timedelta(hours=1), True), (now + timedelta(hours=1), False)):
        answer = client.get("/history", params={"group": "billing", "since": f"{since:%Y-%m-%dT%H:%M}"})
        assert ("ticket 17" in answer.text) is is_shown
        assert f'value="{since:%Y-%m-%dT%H:%M}"' in answer.text
    assert "There are no such lines." in answer.text


def test_a_long_history_comes_in_pages(store: OffsetStore, server: DashboardServer, client: httpx.Client) -> None:
    give(store, "billing", {P0: 4}, stay=False)
    count = ON_A_PAGE * 2 + 3
    for number in range(count):
        store.pause("billing", reason=f"reason {number:04}", actor="ana")
    server.snapshots.take()
    answer = client.get("/history", params={"group": "billing", "event": "pause"})
    assert ">Newest<" not in answer.text
    seen = re.findall(r"reason (\d{4})", answer.text)
    assert len(seen) == ON_A_PAGE
    while older := re.search(r'rel="next" href="([^"]*)"', answer.text):
        answer = client.get(html.unescape(older[1]))
        seen += re.findall(r"reason (\d{4})", answer.text)
        assert ">Newest<" in answer.text
    assert seen == [f"{number:04}" for number in reversed(range(count))]


@pytest.mark.usefixtures("decided")
def test_what_cant_be_meant_is_refused_and_said_beside_its_field(client: httpx.Client) -> None:
    for wrong in ({"since": "yesterday"}, {"since": "0001-01-01T00:00+14:00"}, {"before": "x"}):
        assert client.get("/history", params={"group": "billing", **wrong}).status_code == 400, wrong
    page = client.get("/history", params={"group": "billing", "event": "pause", "since": "yester\u202eday"})
    assert page.status_code == 400
    assert "yester\\u202eday is not a time, such as 2025-03-01T09:30: all are listed." in text_of(page.text)
    assert 'href="/group?group=billing"' in page.text
    assert re.search(r"<option[^>]* selected[^>]*>pause<", page.text)
