"""The runs of a group's job and their errors: how they are listed, and what is said of each."""

from __future__ import annotations

import html
import re
from uuid import uuid4

import httpx
import pytest

from offsetstore import OffsetRange, OffsetStore
from offsetstore.errors import OffsetGap, OffsetStoreError, next_step_after
from offsetstore.monitoring.dashboard.serving import DashboardServer
from offsetstore.monitoring.dashboard.views.runs import ERRORS_ON_A_PAGE, RUNS_ON_A_PAGE
from offsetstore.protocol.events import BatchEnded, BatchStarted, QueryStarted, Retried
from offsetstore.protocol.runs import JobError, RunStatus
from offsetstore.store.claim import Claim
from offsetstore.store.sessions import transaction
from tests.integration.pages.conftest import P0, text_of

pytestmark = pytest.mark.behaviour("DASH-1")


def claimed(store: OffsetStore, server: DashboardServer, group: str = "billing") -> Claim:
    claim = store.claim(group, topics=["payments"], mirror_every=None)
    server.snapshots.take()
    return claim


def started(ui_url: str) -> QueryStarted:
    return QueryStarted(
        group="billing", query_id=str(uuid4()), run_id=str(uuid4()), application_id="app-17", ui_url=ui_url
    )


def test_a_run_says_what_it_did_and_how_it_ended(
    store: OffsetStore, server: DashboardServer, client: httpx.Client
) -> None:
    claim = claimed(store, server)
    on, ranges = claim.observers.on, {P0: OffsetRange(0, 40)}
    on(started("http://driver:4040"))
    on(BatchStarted(group="billing", batch=7, ranges=ranges))
    on(BatchEnded(outcome="written", group="billing", batch=7, ranges=ranges, rows={"": 1234}, seconds={}))
    claim.close()
    store.claim("billing", topics=["payments"], mirror_every=None)
    page = text_of(client.get("/runs", params={"group": "billing"}))

    assert page.index("● live") < page.index("✓ ended")
    assert "number 7, 40 offsets" in page
    assert "1,234" in page
    assert "app-17" in page
    assert claim.owner in page


@pytest.mark.behaviour("DASH-4")
def test_spark_s_address_is_a_link_only_if_it_leads_to_a_page(
    store: OffsetStore, server: DashboardServer, client: httpx.Client
) -> None:
    addresses = ("http://driver:4040", "https://driver/ui?x=1&y=2")
    for address in ("javascript:alert(1)", "java\nscript:alert(1)", "//driver", "http://[bad", *addresses):
        claim = claimed(store, server)
        claim.observers.on(started(address))
        claim.close()
    page = client.get("/runs", params={"group": "billing"}).text
    links = re.findall(r'href="([^"]*)"[^>]*rel="noreferrer noopener"', page)
    assert {html.unescape(link) for link in links} == set(addresses)
    assert "script:alert(1)&" not in page
    assert 'href="java' not in page


def test_errors_have_what_where_and_the_next_step(
    store: OffsetStore, server: DashboardServer, client: httpx.Client
) -> None:
    claim = claimed(store, server)
    assert "recorded no errors" in client.get("/runs", params={"group": "billing"}).text
    assert client.get("/runs", params={"group": "shipping"}).status_code == client.get("/runs").status_code == 404
    gap = OffsetGap("[0, 4) is missing", topic_partition=P0, found=4, expected=0)
    claim.observers.on(
        BatchEnded(outcome="failed", group="billing", batch=7, ranges={P0: OffsetRange(4, 9)}, error=gap)
    )
    for attempt in range(3):
        claim.observers.on(Retried(group="billing", attempt=attempt, error=ValueError("a row: 4711"), wait=0.1))
    claim.close()
    page = text_of(client.get("/runs", params={"group": "billing"}))

    assert "batch 7 payments-0 payments-0 [4, 9)" in page
    assert "OffsetGap payments-0: [0, 4) is missing; found 4; expected 0" in page
    assert gap.next_step
    assert f"Next: {gap.next_step}" in page
    assert "retry ValueError Its text is not kept" in page
    assert "4711" not in page
    only = text_of(client.get("/runs", params={"group": "billing", "source": "retry"}))
    assert "OffsetGap" not in only
    assert "ValueError" in only


def test_advice_is_that_of_the_text_or_none() -> None:
    def error(text: str | None, name: str) -> JobError:
        return JobError(source="job", error_class=name, text=text)

    usual = OffsetGap("a gap")
    assert usual.next_step == next_step_after("OffsetGap") != ""
    found = error(str(usual), "OffsetGap")
    assert (found.what, found.next_step) == ("a gap.", usual.next_step)
    special = error(str(OffsetGap("a gap", next_step="Ask Ana.")), "OffsetGap")
    assert (special.what, special.next_step) == ("a gap. Ask Ana.", "")
    assert error(str(OffsetStoreError("odd")), "OffsetStoreError").next_step == ""
    assert (error(None, "ValueError").what, error(None, "ValueError").next_step) == (None, "")
    assert next_step_after("next_step_after") == next_step_after("IntEnum") == next_step_after("nothing") == ""


def test_long_lists_come_in_pages(store: OffsetStore, server: DashboardServer, client: httpx.Client) -> None:
    count = RUNS_ON_A_PAGE + 1
    claim = [store.claim("billing", topics=["payments"], mirror_every=None) for _ in range(count)][-1]
    server.snapshots.take()
    with transaction(store.database, name="test") as session:
        session.write_run("billing", claim.token, RunStatus(), None)
        session.append_errors(
            "billing",
            claim.token,
            [JobError(source="retry", error_class=f"Error{number:03}") for number in range(ERRORS_ON_A_PAGE + 1)],
        )
    first = client.get("/runs", params={"group": "billing"})
    text = text_of(first)
    assert text.index(f"Error{ERRORS_ON_A_PAGE:03}") < text.index("Error001")
    assert "Error000" not in text
    assert first.text.count('<th scope="row"') == RUNS_ON_A_PAGE
    runs_link, errors_link = ("/runs?group=billing&amp;page=2", "/runs?group=billing&amp;errors=2")
    assert runs_link in first.text
    assert errors_link in first.text
    second = client.get("/runs", params={"group": "billing", "page": 2, "errors": 2})
    assert second.text.count('<th scope="row"') == 1
    assert "Error000" in second.text
    assert ">Older<" not in second.text
    assert "There are no runs on this page." in client.get("/runs", params={"group": "billing", "page": 9**9}).text
