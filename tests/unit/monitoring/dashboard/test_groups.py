"""The list of groups: what it says of each, and how it is searched, sorted and kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.monitoring.dashboard.conftest import P0, P1, P2, give

if TYPE_CHECKING:
    import httpx

    from offsetstore import OffsetStore
    from offsetstore.monitoring.dashboard.serving import DashboardServer

pytestmark = pytest.mark.behaviour("DASH-1")


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
