"""Failpoints for users: a transaction that fails at a named point, in memory."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from offsetstore import OffsetRange, Outcome, TopicPartition, Transaction
from offsetstore.errors import ConfigurationError
from offsetstore.testing import POINTS, FailpointReached, InMemoryOffsetStore, failpoint

P0 = TopicPartition("payments", 0)
BOTH = ["first", "second"]


def work(tx: Transaction) -> None:
    plan = tx.lock({P0: OffsetRange(0, 2)})
    if plan[P0].outcome is not Outcome.SKIP:
        tx.connection.extend("payments", BOTH)
        tx.advance({P0: plan[P0].remaining})


@pytest.mark.parametrize(("point", "stored"), [("before_commit", []), ("after_commit", BOTH)])
def test_a_job_that_fails_at_a_point_and_is_run_again_has_written_once(point: str, stored: list[str]) -> None:
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        with failpoint(point), pytest.raises(FailpointReached, match=point):
            store.run(claim, work)
        assert store.rows("payments") == stored
        store.run(claim, work)
        assert store.rows("payments") == BOTH


def test_the_nth_time_is_counted_within_the_block_and_the_variable_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OFFSETSTORE_FAILPOINT", "in_copy:7:raise")
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        for _ in range(2):
            with failpoint("after_lock", nth=2):
                assert os.environ["OFFSETSTORE_FAILPOINT"].startswith("after_lock:")
                store.run(claim, work)
                with pytest.raises(FailpointReached):
                    store.run(claim, work)
            assert os.environ["OFFSETSTORE_FAILPOINT"] == "in_copy:7:raise"
    monkeypatch.delenv("OFFSETSTORE_FAILPOINT")


def test_a_block_that_does_not_reach_the_point_fails_the_test() -> None:
    with (
        pytest.raises(AssertionError, match="failpoint after_commit was reached 0 times, not 1"),
        failpoint("after_commit"),
    ):
        pass
    with pytest.raises(ZeroDivisionError), failpoint("after_commit"):
        raise ZeroDivisionError


def test_a_point_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match="before_commit"), failpoint("before_comit"):
        pass
    assert "OFFSETSTORE_FAILPOINT" not in os.environ


@pytest.mark.parametrize("nth", [0, -1])
def test_only_a_time_from_1_on_is_accepted(nth: int) -> None:
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        with failpoint("after_lock"), pytest.raises(FailpointReached):
            store.run(claim, work)
    with pytest.raises(ConfigurationError, match="not a valid failpoint"), failpoint("after_lock", nth=nth):
        pass


def test_a_block_within_another_counts_for_itself_and_so_does_a_process_that_it_starts() -> None:
    program = "from offsetstore.testing import *\nwith InMemoryOffsetStore() as store: store.claim('a', topics=['t'])"
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        with failpoint("after_lock", nth=2):
            store.run(claim, work)
            with failpoint("after_lock"), pytest.raises(FailpointReached):
                store.run(claim, work)
            with pytest.raises(FailpointReached):
                store.run(claim, work)
        for _ in range(2):  # the second time as well
            with failpoint("in_claim"):
                started = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
                with pytest.raises(FailpointReached):
                    store.claim("billing", topics=["payments"])
            assert "FailpointReached: in_claim" in started.stderr


def test_a_kill_ends_the_process() -> None:
    program = (
        "from offsetstore.testing import *\nwith failpoint('in_claim', action='kill'), InMemoryOffsetStore() as store:"
    )
    program += "\n    store.claim('billing', topics=['payments'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -9
    assert done.stderr.startswith("offsetstore failpoint in_claim: kill")
    assert "in_claim" in POINTS
