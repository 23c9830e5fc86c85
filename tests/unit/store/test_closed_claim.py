"""What a claim leaves running when it is closed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from offsetstore.store import heartbeat
from offsetstore.testing import InMemoryOffsetStore
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    import pytest


def test_a_query_that_is_bound_to_a_closed_claim_is_not_watched_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.01)
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        claim.close()
        claim.bind("one", lambda: True)
        wait_until(lambda: "offsetstore-query-watch" not in {thread.name for thread in threading.enumerate()})
