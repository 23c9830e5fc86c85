"""What a claim leaves running when it is closed, and what it is not for."""

from __future__ import annotations

import os
import threading

import pytest

from offsetstore import Retries, Transaction
from offsetstore.errors import LockTimeout, SinkError
from offsetstore.store import heartbeat
from offsetstore.testing import InMemoryOffsetStore
from tests.support.forking import in_new_process, run_forked
from tests.support.waiting import wait_until

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


def test_what_the_claim_s_close_has_raised_is_not_raised_again_by_the_store_s(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[int] = []

    def last() -> None:
        tries.append(1)
        raise SinkError(f"what is kept can't be written, try {len(tries)}")

    store, other = InMemoryOffsetStore(), InMemoryOffsetStore()
    claim = store.claim("billing", topics=["payments"])
    claim.at_close(last)
    with pytest.raises(SinkError, match="try 1"):
        claim.close()
    store.close()  # tries again, and tells in the log
    assert len(tries) == 2
    assert "try 2" in caplog.text

    with pytest.raises(SinkError, match="try 3"):
        claim.close()
    other.claim("billing", topics=["payments"]).at_close(last)
    with pytest.raises(SinkError, match="try 4"):  # which no close has raised yet
        other.close()


def store_metadata_in_a_child() -> None:
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])

        def job() -> None:
            child = os.fork()
            if child == 0:
                claim.store_metadata(None, "lost with the child")
                return
            os.waitpid(child, 0)

        told = run_forked(job)
        assert told.startswith("ConfigurationError: this claim was made before a fork"), told


@pytest.mark.behaviour("META-5")
def test_metadata_for_the_next_advance_is_not_taken_from_a_forked_child() -> None:
    in_new_process(store_metadata_in_a_child)


def test_a_query_that_is_bound_to_a_closed_claim_is_not_watched_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.01)
    before = {*threading.enumerate()}
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        claim.close()
        claim.bind("one", lambda: True)
        wait_until(
            lambda: "offsetstore-query-watch" not in {thread.name for thread in {*threading.enumerate()} - before}
        )
