"""Flushes and idle work between batches, on a store in memory; the buffer is the test's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from unittest.mock import Mock

import pytest

from offsetstore import Claim, Work
from offsetstore.errors import RowsRefused, StoreUnavailable
from offsetstore.processing.between import Between, Tick
from offsetstore.protocol.events import FlushEnded, IdleWorkChanged, IdleWorkFailed
from offsetstore.testing import InMemoryOffsetStore
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

GROUP = "billing"


class Kept:
    """A buffer that is due as long as it has something; ``errors`` are raised by the next flushes."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.flushes = 0
        self.has_any = True

    @property
    def is_due(self) -> bool:
        return self.has_any

    def flush(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.flushes += self.has_any
        self.has_any = False

    def forget(self) -> None:
        self.has_any = False


def begin(claim: Claim, kept: Kept | None = None, tick: Callable[[Work], object] | None = None) -> Between:
    made = None if tick is None else Tick(tick, every=0.05)
    return Between(claim, threading.RLock(), nullcontext, tick=made, buffered=kept, seconds=0.1 if kept else None)


def a_while() -> None:
    threading.Event().wait(0.5)


@pytest.mark.behaviour("MARK-4", "OPS-2")
def test_a_paused_group_is_flushed_when_it_is_resumed(store: InMemoryOffsetStore, claim: Claim) -> None:
    kept = Kept()
    store.pause(GROUP, reason="maintenance")
    begin(claim, kept)
    a_while()
    assert kept.flushes == 0

    store.resume(GROUP, reason="done")
    wait_until(lambda: kept.flushes == 1)


@pytest.mark.behaviour("MARK-4")
def test_what_can_pass_is_tried_again_and_the_rest_waits_for_the_next_batch(claim: Claim, recorder: Recorder) -> None:
    kept = Kept(StoreUnavailable("away"), RowsRefused("a value"))
    between = begin(claim, kept)
    wait_until(lambda: len(recorder.of(FlushEnded, "failed")) == 2)
    a_while()
    assert (kept.flushes, len(recorder.of(FlushEnded, "failed"))) == (0, 2)

    between.batch_ended(lambda: True)
    wait_until(lambda: kept.flushes == 1)


@pytest.mark.behaviour("MARK-4")
def test_at_the_end_a_database_that_is_away_leaves_it_to_the_next_start(
    claim: Claim, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(RowsRefused("a value"))
    begin(claim, kept)
    wait_until(lambda: not kept.errors)
    monkeypatch.setattr(claim.database, "begin", Mock(side_effect=StoreUnavailable("away")))
    with caplog.at_level(logging.WARNING):
        claim.close()
    assert kept.flushes == 0
    assert "read again by the next start" in caplog.text


@pytest.mark.behaviour("OPS-6", "MARK-4")
def test_a_claim_that_idle_work_closes_is_flushed_after_its_transaction(claim: Claim) -> None:
    kept = Kept(RowsRefused("a value"))
    begin(claim, kept, tick=lambda _: claim.close())

    wait_until(lambda: claim.is_closed and kept.flushes == 1)
    claim.close()


@pytest.mark.behaviour("OPS-6")
def test_a_query_that_does_not_answer_ends_no_idle_work(claim: Claim, recorder: Recorder) -> None:
    calls: list[int] = []

    def fail() -> bool:
        raise RuntimeError

    between = begin(claim, tick=lambda _: calls.append(1))
    between.batch_ended(fail)

    wait_until(lambda: len(calls) > 1)
    assert recorder.of(IdleWorkFailed) == []
    assert [one.work for one in recorder.of(IdleWorkChanged)][:3] == ["tick", None, "tick"]
