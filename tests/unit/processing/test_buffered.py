"""Deliveries that are kept in memory and written together, by the engine with a source of records in memory."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from offsetstore import BatchInfo, Claim, Flush, OffsetRange
from offsetstore.errors import CommitUnknown, ProtocolMisuse, RowsRefused, SinkError, StaleClaim
from offsetstore.processing import policies
from offsetstore.processing.runner import RunnerSettings
from offsetstore.protocol.events import BatchEnded, FlushEnded
from offsetstore.testing import InMemoryOffsetStore
from tests.support.clock import Clock
from tests.support.memory_source import P0, P1, Log, MemorySource, Results
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

LOG = {P0: [b"0", b"1", b"2", b"3", b"4", b"5", b"6"], P1: [b"10", b"11", b"12", b"13", b"14", b"15"]}
ALL = [0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14, 15]
LATER = Flush(rows=1_000, seconds=600)
"""Nothing in these tests reaches its limits."""


@pytest.fixture
def results() -> Results:
    return Results()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What a buffer's limit of time is compared with: no time has passed until the test says so."""
    clock = Clock()
    monkeypatch.setattr(policies, "time", SimpleNamespace(monotonic=clock))
    return clock


def started(claim: Claim, results: Results, flush: Flush = LATER, log: Log = LOG, **settings: Any) -> MemorySource:
    return MemorySource(claim, results, RunnerSettings(flush=flush, **settings), log)


def numbers(store: InMemoryOffsetStore) -> list[int]:
    found: list[Any] = store.rows("results")
    return sorted(found)


def stored(store: InMemoryOffsetStore) -> dict[int, int]:
    return {tp.partition: row.next_offset for tp, row in store.offsets("billing").items()}


@pytest.mark.behaviour("MARK-4")
def test_batches_are_written_together_at_a_number_of_rows_and_the_rest_at_the_end(
    store: InMemoryOffsetStore, claim: Claim, results: Results, recorder: Recorder
) -> None:
    started(claim, results, Flush(rows=7, seconds=600)).drain_log()
    assert (numbers(store), stored(store)) == ([0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15], {0: 6, 1: 6})
    assert claim.delivered == {P0: 7, P1: 6}
    claim.close()

    assert (numbers(store), stored(store)) == (ALL, {0: 7, 1: 6})
    assert [event.batch for event in recorder.of(BatchEnded, "kept")] == [0, 1, 2]
    assert [event.batches for event in recorder.of(FlushEnded, "written")] == [(0, 1), (2, 2)]
    assert [dict(event.rows) for event in recorder.of(FlushEnded, "written")] == [{"": 12}, {"": 1}]


@pytest.mark.behaviour("MARK-4")
def test_a_number_of_bytes_is_a_limit_too(claim: Claim, results: Results) -> None:
    started(claim, results, Flush(seconds=600, bytes=1)).drain_log()
    assert len(results.transactions) == 3


@pytest.mark.behaviour("MARK-4")
def test_batches_are_written_when_their_time_is_up_without_another_batch(
    store: InMemoryOffsetStore, claim: Claim, results: Results, clock: Clock
) -> None:
    started(claim, results, Flush(rows=1_000, seconds=0.3)).drain_log()
    threading.Event().wait(0.5)
    assert numbers(store) == []
    clock.now = math.inf
    wait_until(lambda: numbers(store) == ALL)


@pytest.mark.behaviour("MARK-4")
@pytest.mark.parametrize("knows", [True, False])
def test_what_a_job_that_was_taken_over_keeps_is_read_again_by_the_next(
    store: InMemoryOffsetStore, claim: Claim, results: Results, *, knows: bool
) -> None:
    started(claim, results).drain_log()
    successor = store.claim("billing", topics=["payments"])
    if knows:
        claim.lose()
        claim.close()
    else:
        with pytest.raises(StaleClaim):
            claim.close()
    assert numbers(store) == []

    started(successor, results).drain_log()
    successor.close()
    assert numbers(store) == ALL


@pytest.mark.behaviour("MARK-4")
def test_a_batch_that_fails_is_not_kept_twice(store: InMemoryOffsetStore, claim: Claim, results: Results) -> None:
    broken = [True]

    def note(_: BatchInfo) -> object:
        if broken:
            raise ZeroDivisionError
        return "flushed"

    source = started(claim, results, Flush(rows=12, seconds=600), metadata=note)
    with pytest.raises(ZeroDivisionError):
        source.drain_log()
    assert set(claim.delivered.values()) == {3}
    broken.clear()
    source.drain_log()
    claim.close()

    assert numbers(store) == ALL
    assert set(store.metadata("billing").values()) == {"flushed"}


@pytest.mark.behaviour("MARK-4")
@pytest.mark.parametrize(
    ("refused", "ends"),
    [(1, {0: 0, 1: 0}), (4, {0: 3, 1: 3}), (6, {0: 6, 1: 6}), (15, {0: 6, 1: 5})],
    ids=["in the first", "in the second", "in the last", "in the last, behind another"],
)
def test_of_refused_rows_the_batches_before_them_are_written(
    store: InMemoryOffsetStore, claim: Claim, results: Results, refused: int, ends: dict[int, int]
) -> None:
    results.refused = {refused}
    log = {**LOG, P1: LOG[P1][:6]} if refused != 15 else {P0: LOG[P0][:6], P1: LOG[P1]}
    flush = Flush(rows=13 if refused != 15 else 12, seconds=600)
    source = started(claim, results, flush, log)
    with pytest.raises(RowsRefused):
        source.drain_log()
    with pytest.raises(RowsRefused):  # it is handed over again
        source.poll()
    assert stored(store) == ends
    assert len(numbers(store)) == sum(ends.values())
    claim.lose()
    claim.close()
    assert stored(store) == ends

    results.refused = set()
    with store.claim("billing", topics=["payments"]) as again:
        started(again, results).drain_log()
    assert numbers(store) == ALL


@pytest.mark.behaviour("MARK-4")
def test_an_offset_that_something_else_moved_ends_the_job(
    store: InMemoryOffsetStore, claim: Claim, results: Results
) -> None:
    started(claim, results).drain_log()
    with store.transaction(claim) as tx:
        tx.advance({P0: tx.lock({P0: OffsetRange(0, 3)})[P0].remaining})
    with pytest.raises(SinkError, match="something else"):
        claim.close()
    claim.lose()
    assert numbers(store) == []


@pytest.mark.behaviour("MARK-4", "DLQ-15")
@pytest.mark.parametrize("bad", [b"bad", b"?"])
def test_a_record_that_can_t_be_computed_is_passed_over_by_the_command(
    store: InMemoryOffsetStore, claim: Claim, results: Results, bad: bytes
) -> None:
    log = {P0: [b"0", b"1", b"2", b"3", bad, b"5"], P1: [b"10", b"11", b"12", b"13", b"14", b"15"]}
    with pytest.raises(RowsRefused, match=r"-t payments:0 --from-offset 4 --to-offset 5 ") as raised:
        started(claim, results, log=log).drain_log()
    assert raised.value.offsets == OffsetRange(4, 5)
    assert (numbers(store), stored(store)) == ([0, 1, 2, 3, 10, 11, 12], {0: 4, 1: 3})
    claim.close()

    store.reset("billing", {P0: 5}, reason="as the error says")
    successor = store.claim("billing", topics=["payments"])
    started(successor, results, log=log).drain_log()
    successor.close()
    assert numbers(store) == [0, 1, 2, 3, 5, 10, 11, 12, 13, 14, 15]


@pytest.mark.behaviour("MARK-4")
def test_a_flush_by_the_clock_that_fails_is_told_once_and_raised_by_the_next_batch(
    store: InMemoryOffsetStore, claim: Claim, results: Results, recorder: Recorder, clock: Clock
) -> None:
    results.refused = {2}
    source = started(claim, results, Flush(rows=1_000, seconds=0.2), {P1: LOG[P1][:3], P0: LOG[P0][:3]})
    source.drain_log()
    clock.now = math.inf  # not before the end of the last batch, after which a flush is tried again
    wait_until(lambda: recorder.of(FlushEnded, "failed") != [])
    threading.Event().wait(0.7)
    assert [type(event.error) for event in recorder.of(FlushEnded, "failed")] == [RowsRefused]

    source.log = LOG
    with pytest.raises(RowsRefused):
        source.poll()
    with pytest.raises(RowsRefused, match="without flush="):
        claim.close()
    results.refused = set()
    claim.close()  # it tries again
    assert numbers(store) == [0, 1, 2, 10, 11, 12]


@pytest.mark.behaviour("MARK-4", "OPS-2")
def test_what_is_kept_at_the_end_of_a_paused_job_is_read_again(
    store: InMemoryOffsetStore, claim: Claim, results: Results, caplog: pytest.LogCaptureFixture
) -> None:
    started(claim, results).drain_log()
    store.pause("billing", reason="maintenance")
    with caplog.at_level(logging.WARNING):
        claim.close()
    assert "read again by the next start" in caplog.text
    assert (numbers(store), stored(store)) == ([], {0: 0, 1: 0})  # without a broker, the rows tell where to begin


@pytest.mark.behaviour("MARK-4")
def test_a_claim_that_is_closed_while_rows_are_computed_keeps_nothing_more(
    store: InMemoryOffsetStore, claim: Claim, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = started(claim, results)
    source.poll()
    check: Callable[..., Any] = claim.require_open

    def closing() -> None:
        if len(calls) == 1:
            claim.close()
        calls.append(1)
        check()

    calls: list[int] = []
    monkeypatch.setattr(claim, "require_open", closing)
    with pytest.raises(ProtocolMisuse):
        source.poll()
    assert stored(store) == {0: 3, 1: 3}


@pytest.mark.behaviour("MARK-4", "TX-11")
def test_after_an_unknown_commit_nothing_more_is_kept_or_written(
    claim: Claim, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = started(claim, results)
    source.drain_log()
    monkeypatch.setattr(claim, "run", Mock(side_effect=CommitUnknown("the answer was lost")))
    with pytest.raises(CommitUnknown):
        claim.close()
    monkeypatch.undo()
    with pytest.raises(SinkError, match="CommitUnknown"):
        claim.close()
    assert results.transactions == []
