"""The commands that pages name."""

from __future__ import annotations

import re
from html import unescape

import httpx
import pytest

from offsetstore import OffsetRange, OffsetStore
from offsetstore.monitoring.dashboard.serving import DashboardServer
from offsetstore.protocol.letters import LetterError, NewLetter
from tests.integration.pages.conftest import P0, advance

GROUP = "our billing"


@pytest.mark.behaviour("OPS-23")
def test_they_can_be_pasted_where_the_tables_have_a_schema_of_their_own(
    store: OffsetStore, server: DashboardServer, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = store.claim(GROUP, topics=["payments"], mirror_every=None)
    letter = NewLetter(P0, 0, "raised", LetterError("ValueError", "no"), 1, None, None)
    advance(store, claim, {P0: OffsetRange(0, 4)}, [letter])
    monkeypatch.setattr(store.database, "schema", "our jobs")
    server.snapshots.take()
    named = {"topic": "payments", "partition": "0", "offset": "0"}
    pages = {"/group": {}, "/runs": {}, "/letters": {}, "/letter": named}
    told = {
        path: re.findall("<code>(offsetstore .*?)</code>", client.get(path, params={"group": GROUP, **more}).text)
        for path, more in pages.items()
    }
    asked = "-g 'our billing' --schema 'our jobs'"
    assert {path: [unescape(one) for one in commands] for path, commands in told.items()} == {
        "/group": [
            f"offsetstore resolve {asked} -t payments -b HOST:PORT",
            f"offsetstore dead-letters list {asked} --by error",
        ],
        "/runs": ["offsetstore errors -g 'our billing' --follow --schema 'our jobs'"],
        "/letters": [f"offsetstore dead-letters replay {asked} --error-class … --reason …"],
        "/letter": ["offsetstore dead-letters show -g 'our billing' payments:0:0 --schema 'our jobs'"],
    }
