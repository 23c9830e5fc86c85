"""What a claim leaves running when it is closed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from offsetstore import Retries
from offsetstore.errors import LockTimeout
from offsetstore.store import heartbeat
from offsetstore.testing import InMemoryOffsetStore
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from offsetstore import Transaction

FAST = Retries(attempts=4, shortest=0.0, longest=0.0)


def test_what_waits_for_another_try_gets_none_once_the_claim_is_closed() -> None:
    with InMemoryOffsetStore(retries=FAST) as store:
        claim = store.claim("billing", topics=["payments"])
        tries: list[int] = []

        def work(_: Transaction) -> None:
            tries.append(1)
            claim.close()  # another thread does
            raise LockTimeout("held")

        with pytest.raises(LockTimeout):
            claim.run(work)
        assert len(tries) == 1

        with pytest.raises(LockTimeout):
            claim.run(work)  # as the last flush does
        assert len(tries) == 1 + FAST.attempts


def test_a_query_that_is_bound_to_a_closed_claim_is_not_watched_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.01)
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        claim.close()
        claim.bind("one", lambda: True)
        wait_until(lambda: "offsetstore-query-watch" not in {thread.name for thread in threading.enumerate()})
