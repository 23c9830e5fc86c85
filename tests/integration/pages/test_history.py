"""The history: who moved what and why, the newest first, filtered, in pages."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from offsetstore.monitoring.dashboard.views.runs import ON_A_PAGE
from tests.integration.pages.conftest import GROUP, P0, P1, Site, text_of

pytestmark = pytest.mark.behaviour("DASH-1")


def test_decisions_have_who_what_and_why_the_newest_first_and_can_be_filtered(site: Site) -> None:
    site.give(GROUP, {P0: 4, P1: 10}, stay=False)
    site.store.reset(GROUP, {P0: 3}, reason="ticket 17", actor="ana")
    site.store.pause(GROUP, reason="the table is rebuilt", actor="ben")
    site.take()
    page = site.text("/history")
    assert "reset payments-0 4 3 ana database role postgres ticket 17" in page
    assert page.index("the table is rebuilt") < page.index("ticket 17")
    only = site.text("/history", event="reset")
    assert "ticket 17" in only
    assert "the table is rebuilt" not in only
    now = datetime.now(UTC)
    for since, is_shown in ((now - timedelta(hours=1), True), (now + timedelta(hours=1), False)):
        page = site.page("/history", since=f"{since:%Y-%m-%dT%H:%M}")
        assert ("ticket 17" in page, "There are no such lines." in page) == (is_shown, not is_shown)
        assert f'value="{since:%Y-%m-%dT%H:%M}"' in page

    for name, wrong in (("since", "yesterday"), ("since", "0001-01-01T00:00+14:00"), ("before", "x")):
        assert site.get("/history", **{name: wrong}).status_code == 400, wrong
    answer = site.get("/history", event="pause", since="yester\u202eday")
    assert answer.status_code == 400
    assert "yester\\u202eday is not a time, such as 2025-03-01T09:30: all are listed." in text_of(answer.text)
    assert 'href="/group?group=billing"' in answer.text
    assert re.search(r"<option[^>]* selected[^>]*>pause<", answer.text)


def test_a_long_history_comes_in_pages(site: Site) -> None:
    site.give(GROUP, {P0: 4}, stay=False)
    count = ON_A_PAGE * 2 + 3
    for number in range(count):
        site.store.pause(GROUP, reason=f"reason {number:04}", actor="ana")
    site.take()
    first, *others = site.follow("/history", event="pause")
    assert ">Newest<" not in first
    assert all(">Newest<" in page for page in others)
    seen = [re.findall(r"reason (\d{4})", page) for page in (first, *others)]
    assert len(seen[0]) == ON_A_PAGE
    assert [one for page in seen for one in page] == [f"{number:04}" for number in reversed(range(count))]
