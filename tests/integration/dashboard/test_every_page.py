"""Pages are for everyone, in light and dark, narrow and wide: axe-core finds nothing, Tab reaches all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote
from uuid import uuid4

import pytest

from offsetstore import OffsetStore
from offsetstore.local.postgres import PostgresServer
from offsetstore.monitoring.dashboard.context import Deciding
from offsetstore.monitoring.dashboard.serving import DashboardServer, DashboardSettings
from offsetstore.testing.fixtures import copy_database
from tests.support import furnished
from tests.support.browser import Pages, Scheme, axe
from tests.support.keyboard import unreachable

pytestmark = pytest.mark.needs_program("chromium")

ODD: Final = quote(furnished.ODD)
PAGES: Final = {
    "groups": "",
    "group": "group?group=billing",
    "group-odd": f"group?group={ODD}",
    "partition": "partition?group=billing&topic=payments&partition=0",
    "runs": "runs?group=billing",
    "letters": "letters?group=billing",
    "letter": "letter?group=billing&topic=payments&partition=0&offset=3",
    "history": f"history?group={ODD}",
    "store": "store",
    "login": "login",
    "reset": "actions/reset?group=billing",
    "resume": "actions/resume?group=shipping",
    "replay": "actions/replay?group=billing",
    "outbox-retry": "actions/outbox-retry?group=billing",
}
NARROW: Final = 360
VIEWS: Final[list[tuple[Scheme, int]]] = [("light", 1280), ("dark", NARROW)]
"""What depends on the scheme are colours alone, and on the width the layout."""


@pytest.fixture(scope="module")
def url(offsetstore_postgres: PostgresServer, offsetstore_template: str) -> Iterator[str]:
    kafka = furnished.broker()
    database = copy_database(offsetstore_postgres, f"pages_{uuid4().hex[:12]}", template=offsetstore_template)
    with OffsetStore.connect(database) as store:
        furnished.furnish(store, kafka)
        with DashboardServer(store, kafka, DashboardSettings(port=0), actions=Deciding(store, kafka)) as server:
            server.snapshots.take()
            yield server.url


@pytest.mark.behaviour("DASH-4", "DASH-5")
@pytest.mark.parametrize("name", PAGES)
def test_everyone_can_use_it(name: str, url: str, pages: Pages) -> None:
    for scheme, width in VIEWS:
        page = pages.open(url + PAGES[name], width=width, scheme=scheme)
        assert axe(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (scheme, width)
        assert "SECRET" not in page.content()
        if width > NARROW:
            # Who points at a curve sees its values; there is nothing to be done with them.
            assert [html for html in unreachable(page) if 'class="u-' not in html] == []


@pytest.mark.behaviour("DASH-3", "DASH-5")
def test_a_decision_is_made_with_the_keyboard_alone(url: str, pages: Pages) -> None:
    page = pages.open(url + PAGES["resume"], width=360, scheme="dark")
    page.get_by_role("button", name="Show what would happen").press("Enter")
    assert axe(page) == []
    assert unreachable(page) == []
    page.get_by_label("Reason").press_sequentially("done")
    page.get_by_label("The group's name").press_sequentially("shipping")
    page.get_by_role("button", name="now").press("Enter")
    page.get_by_text("Resumed shipping").wait_for()
    assert axe(page) == []
    assert unreachable(page) == []
    page.go_back()  # to the plan as it is now, and to no question whether to send a form again
    page.get_by_text("shipping was not paused; nothing was written.").wait_for()


@pytest.mark.behaviour("DASH-5")
def test_a_page_that_there_is_not_can_be_left(url: str, pages: Pages) -> None:
    for address in ("group?group=nobody", "nowhere"):
        page = pages.open(url + address, scheme="dark", width=360)
        assert axe(page) == []
        assert unreachable(page) == []
        page.get_by_role("link", name="All groups").click()
        page.wait_for_url(url)
    assert all("404" in fault for fault in pages.take_faults())


@pytest.mark.behaviour("DASH-3", "DASH-5")
def test_one_signs_in_and_out_by_keyboard(offsetstore_database: str, pages: Pages) -> None:
    with (
        OffsetStore.connect(offsetstore_database) as store,
        DashboardServer(store, furnished.broker(), DashboardSettings(port=0, token="t0ken-" * 6)) as server,
    ):
        page = pages.open(f"{server.url}store", width=360, scheme="dark")
        assert axe(page) == []
        assert page.locator("form input[autocomplete=username]").get_attribute("value"), "for a password manager"
        page.get_by_label("Token").press_sequentially("t0ken-" * 6)
        page.get_by_label("Token").press("Enter")
        page.get_by_role("heading", name="Store").wait_for()
        assert page.url == f"{server.url}store"
        assert axe(page) == []
        assert unreachable(page) == []
        page.get_by_role("button", name="Sign out").press("Enter")
        page.get_by_role("heading", name="Sign in").wait_for()
        page.goto(server.url)
        page.get_by_role("heading", name="Sign in").wait_for()
