"""The runs of a group's job and their errors: how they are listed, and what is said of each."""

from __future__ import annotations

import html
import re
from uuid import uuid4

import pytest

from offsetstore import OffsetRange
from offsetstore.errors import OffsetGap, OffsetStoreError, next_step_after
from offsetstore.monitoring.dashboard.views.runs import ERRORS_ON_A_PAGE, RUNS_ON_A_PAGE
from offsetstore.protocol.events import BatchEnded, BatchStarted, QueryStarted, Retried
from offsetstore.protocol.runs import JobError, RunStatus
from offsetstore.store.sessions import transaction
from tests.integration.pages.conftest import GROUP, P0, Site

pytestmark = pytest.mark.behaviour("DASH-1")


def started(ui_url: str) -> QueryStarted:
    return QueryStarted(group=GROUP, query_id=str(uuid4()), run_id=str(uuid4()), application_id="app-17", ui_url=ui_url)


def test_a_run_says_what_it_did_and_how_it_ended(site: Site) -> None:
    claim = site.claim()
    on, ranges = claim.observers.on, {P0: OffsetRange(0, 40)}
    on(started("http://driver:4040"))
    on(BatchStarted(group=GROUP, batch=7, ranges=ranges))
    on(BatchEnded(outcome="written", group=GROUP, batch=7, ranges=ranges, rows={"": 1234}, seconds={}))
    claim.close()
    site.claim()
    page = site.text("/runs")

    assert page.index("● live") < page.index("✓ ended")
    for text in ("number 7, 40 offsets", "1,234", "app-17", claim.owner):
        assert text in page


@pytest.mark.behaviour("DASH-4")
def test_spark_s_address_is_a_link_only_if_it_leads_to_a_page(site: Site) -> None:
    addresses = ("http://driver:4040", "https://driver/ui?x=1&y=2")
    for address in ("javascript:alert(1)", "java\nscript:alert(1)", "//driver", "http://[bad", *addresses):
        claim = site.claim()
        claim.observers.on(started(address))
        claim.close()
    page = site.page("/runs")
    links = re.findall(r'href="([^"]*)"[^>]*rel="noreferrer noopener"', page)
    assert {html.unescape(link) for link in links} == set(addresses)
    assert "script:alert(1)&" not in page
    assert 'href="java' not in page


def test_errors_have_what_where_and_the_next_step(site: Site) -> None:
    claim = site.claim()
    assert "recorded no errors" in site.page("/runs")
    assert site.get("/runs", group="shipping").status_code == site.client.get("/runs").status_code == 404
    gap = OffsetGap("[0, 4) is missing", topic_partition=P0, found=4, expected=0)
    claim.observers.on(BatchEnded(outcome="failed", group=GROUP, batch=7, ranges={P0: OffsetRange(4, 9)}, error=gap))
    for attempt in range(3):
        claim.observers.on(Retried(group=GROUP, attempt=attempt, error=ValueError("a row: 4711"), wait=0.1))
    claim.close()
    page = site.text("/runs")

    assert "batch 7 payments-0 payments-0 [4, 9)" in page
    assert "OffsetGap payments-0: [0, 4) is missing; found 4; expected 0" in page
    assert gap.next_step
    assert f"Next: {gap.next_step}" in page
    assert "retry ValueError Its text is not kept" in page
    assert "4711" not in page
    only = site.text("/runs", source="retry")
    assert "OffsetGap" not in only
    assert "ValueError" in only


def test_advice_is_that_of_the_text_or_none() -> None:
    def told(text: object, name: str = "OffsetGap") -> tuple[str | None, str]:
        error = JobError(source="job", error_class=name, text=None if text is None else str(text))
        return error.what, error.next_step

    usual = OffsetGap("a gap")
    assert usual.next_step == next_step_after("OffsetGap") != ""
    assert told(usual) == ("a gap.", usual.next_step)
    assert told(OffsetGap("a gap", next_step="Ask Ana.")) == ("a gap. Ask Ana.", "")
    assert told(OffsetStoreError("odd"), "OffsetStoreError")[1] == ""
    assert told(None, "ValueError") == (None, "")
    assert next_step_after("next_step_after") == next_step_after("IntEnum") == next_step_after("nothing") == ""


def test_long_lists_come_in_pages(site: Site) -> None:
    count = RUNS_ON_A_PAGE + 1
    claim = [site.store.claim(GROUP, topics=["payments"], mirror_every=None) for _ in range(count)][-1]
    site.take()
    errors = [JobError(source="retry", error_class=f"Error{number:03}") for number in range(ERRORS_ON_A_PAGE + 1)]
    with transaction(site.store.database, name="test") as session:
        session.write_run(GROUP, claim.token, RunStatus(), None)
        session.append_errors(GROUP, claim.token, errors)
    first = site.page("/runs")
    assert first.index(f"Error{ERRORS_ON_A_PAGE:03}") < first.index("Error001")
    assert "Error000" not in first
    assert first.count('<th scope="row"') == RUNS_ON_A_PAGE
    for link in ("page=2", "errors=2"):
        assert f"/runs?group=billing&amp;{link}" in first
    second = site.page("/runs", page=2, errors=2)
    assert second.count('<th scope="row"') == 1
    assert "Error000" in second
    assert ">Older<" not in second
    assert "There are no runs on this page." in site.page("/runs", page=9**9)
