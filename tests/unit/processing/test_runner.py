"""The runner, with a source of records in memory: pauses, stops, idle work, marks of a function."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest

from offsetstore import Claim, DeadLetters, Flush, OffsetRange, Tick, Work
from offsetstore.errors import (
    ClaimInUse,
    ConfigurationError,
    FunctionFailed,
    LockTimeout,
    MarkBackwards,
    MarkBeyondDelivered,
    ProtocolMisuse,
    RowsRefused,
    SinkError,
    StaleClaim,
)
from offsetstore.processing.runner import Interrupted, RunnerSettings
from offsetstore.processing.unit import UNNAMED, Coordinates, PlanOutdated
from offsetstore.protocol.events import BatchEnded, BatchStarted, IdleWorkFailed, PauseChanged
from offsetstore.testing import InMemoryOffsetStore
from offsetstore.testing.memory import MemoryDatabase
from tests.support.background import in_background
from tests.support.memory_source import P0, Batch, MemorySource, Part, Results
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

LOG = {P0: [b"%d" % number for number in range(9)]}


def started(claim: Claim, writer: Any = None, **settings: Any) -> MemorySource:
    return MemorySource(claim, Results() if writer is None else writer, RunnerSettings(**settings), LOG)


def numbers(store: InMemoryOffsetStore) -> list[Any]:
    return store.rows("results")


def stored(store: InMemoryOffsetStore) -> int:
    return store.offsets("billing")[P0].next_offset


def a_while() -> None:
    threading.Event().wait(0.5)


@pytest.mark.behaviour("CONS-15")
def test_a_claim_knows_whether_a_delivery_has_made_rows(claim: Claim) -> None:
    source = started(claim)
    assert not claim.has_made_rows
    source.poll()
    assert claim.has_made_rows


def test_a_failed_delivery_is_told_with_what_it_has_read(claim: Claim, recorder: Recorder) -> None:
    source = started(claim, Results(refused={1}))
    with pytest.raises(RowsRefused, match="first refused at record payments-0@1") as refused:
        source.drain_log()
    assert source.runner.error is refused.value
    [failed] = recorder.of(BatchEnded, "failed")
    assert (failed.batch, failed.ranges[P0].until, failed.stored[P0].until) == (0, 3, 1)
    assert len(recorder.of(BatchStarted)) == 1


@pytest.mark.behaviour("CTX-1", "CTX-2")
def test_a_batch_tells_the_headers_that_follow_its_records_and_reads_them_when_it_is_asked(
    claim: Claim, recorder: Recorder
) -> None:
    for names in ((), ("traceparent",)):
        source = MemorySource(claim, Results(), RunnerSettings(propagate=names), LOG)
        source.headers = (("secret", b"s"), ("traceparent", b"00"))
        source.poll()

    without, with_headers = recorder.of(BatchStarted)
    assert without.headers is None
    assert with_headers.headers is not None
    assert with_headers.headers(2) == [(("traceparent", b"00"),)] * 2


@pytest.mark.behaviour("OPS-7", "DLQ-7")
def test_whatever_is_computed_of_a_job_is_computed_while_its_source_knows(store: InMemoryOffsetStore) -> None:
    """Spark's keeps PySpark's log off, by thread: of batches, flushes, idle work, replays, a drain, and the end."""
    working = threading.local()
    seen = dict[str, bool]()

    @contextmanager
    def while_working() -> Generator[None]:
        before, working.now = getattr(working, "now", False), True
        try:
            yield
        finally:
            working.now = before

    class Looking(Results):
        what = ""

        def write(self, work: Any, batches: Iterable[Any]) -> int:
            seen[self.what] = getattr(working, "now", False)
            return super().write(work, batches)

    def ticks(_: Work) -> None:
        seen["tick"] = getattr(working, "now", False)

    def made(group: str, **settings: Any) -> tuple[Looking, MemorySource]:
        claim, writer = store.claim(group, topics=["payments"]), Looking()
        return writer, MemorySource(claim, writer, RunnerSettings(**settings), LOG, while_working)

    def request(group: str) -> None:
        store.decide_letters(group, "requested")

    writer, source = made("letters", dead_letters=DeadLetters(max_retries=0), tick=Tick(ticks, every=0.05))
    writer.what, writer.refused = "batch", {1, 4}
    source.drain_log()
    writer.what, writer.refused = "replay", set[int]()
    request("letters")
    wait_until(lambda: "replay" in seen and "tick" in seen)
    source.runner.claim.close()

    writer, source = made("drained", dead_letters=DeadLetters(max_retries=0))
    writer.refused = {1}
    source.poll()
    source.stopping.set()
    writer.what, writer.refused = "drain", set[int]()
    request("drained")
    assert source.runner.drain(source.compute) == 1

    for what, seconds in (("flush", 0.05), ("close", 60)):
        writer, source = made(what, flush=Flush(seconds=seconds))
        writer.what = what
        source.poll()
        if what == "flush":
            wait_until(lambda: "flush" in seen)
        source.runner.claim.close()

    assert seen == dict.fromkeys(("", "batch", "replay", "tick", "drain", "flush", "close"), True)
    assert not working.now


@pytest.mark.behaviour("TX-18")
@pytest.mark.parametrize("repeats", [True, False])
def test_of_rows_that_differ_each_time_no_record_is_shown_to_be_the_one_that_cant_be_computed(
    store: InMemoryOffsetStore, claim: Claim, *, repeats: bool
) -> None:
    source = MemorySource(claim, Results(), RunnerSettings(), {P0: [b"0", b"bad", b"2"]})
    source.repeats = repeats
    with pytest.raises(FunctionFailed, match="first refused at record payments-0@1") as failed:
        source.drain_log()
    assert ("offsetstore reset" in failed.value.next_step) is repeats
    assert numbers(store) == [0]


@dataclass
class NowAndThen(Results):
    """Refuses the writes with these numbers, whatever they write."""

    refuses: Callable[[int], bool] = lambda _: False

    def write(self, work: Any, batches: Iterable[Any]) -> int:
        written = super().write(work, batches)
        if self.refuses(len(self.transactions)):
            raise RowsRefused("the database refused rows", sqlstate="23503")
        return written


@pytest.mark.behaviour("TX-18")
@pytest.mark.parametrize("refused", [{1}, {1, 3, 5, 7}, {1, 2, 3}, {1, 2, 3, 4}, {1, 2, 4, 5}], ids=str)
def test_a_refusal_that_comes_and_goes_names_no_record_and_each_is_written_once(
    store: InMemoryOffsetStore, claim: Claim, recorder: Recorder, refused: set[int]
) -> None:
    writer = NowAndThen(refuses=refused.__contains__)
    source = MemorySource(claim, writer, RunnerSettings(), {P0: [b"0", b"1", b"2"]})
    source.drain_log()
    assert (numbers(store), stored(store)) == ([0, 1, 2], 3)
    [written] = recorder.of(BatchEnded, "written")
    assert written.rows == {UNNAMED: 3}


@pytest.mark.behaviour("TX-17")
def test_a_batch_that_is_planned_again_while_it_is_written_in_halves_tells_of_all_its_rows(
    store: InMemoryOffsetStore, claim: Claim, recorder: Recorder
) -> None:
    @dataclass
    class Outdated(Results):
        """Refuses the whole, takes the first, and then has a plan that is outdated, once."""

        def write(self, work: Any, batches: Iterable[Any]) -> int:
            written = super().write(work, batches)
            if len(self.transactions) in {1, 2}:
                raise RowsRefused("the database refused rows", sqlstate="23503")
            if len(self.transactions) == 4:
                raise PlanOutdated
            return written

    MemorySource(claim, Outdated(), RunnerSettings(), {P0: [b"0", b"1", b"2"]}).drain_log()
    assert (numbers(store), stored(store)) == ([0, 1, 2], 3)
    [written] = recorder.of(BatchEnded, "written")
    assert written.rows == {UNNAMED: 3}


@pytest.mark.behaviour("TX-15")
def test_a_batch_that_is_overtaken_whole_while_it_is_computed_is_skipped(
    store: InMemoryOffsetStore, claim: Claim, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a task of an earlier attempt, say, that has come late."""
    source = started(claim)
    compute = Batch.rows

    def overtaken(self: Batch, part: Any, without: Any = ()) -> Any:
        with store.transaction(claim) as tx:
            tx.advance({tp: decision.remaining for tp, decision in tx.lock(part).items()})
        return compute(self, part, without)

    monkeypatch.setattr(Batch, "rows", overtaken)
    source.poll()
    assert len(recorder.of(BatchEnded, "skipped")) == 1
    assert (numbers(store), stored(store)) == ([], 3)


def test_without_letters_only_bad_records_are_looked_up_among_a_batchs(
    store: InMemoryOffsetStore, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be two million."""
    asked: set[int] = set()
    record = Part.record

    def noted(self: Part, number: int) -> Coordinates:
        asked.add(number)
        return record(self, number)

    monkeypatch.setattr(Part, "record", noted)
    settings = RunnerSettings(dead_letters=DeadLetters(max_retries=1))
    MemorySource(claim, Results(), settings, {P0: [b"0", b"bad", b"2"]}).drain_log()
    assert asked == {1}
    assert numbers(store) == [0, 2]


# -- a paused group


def paused(
    store: InMemoryOffsetStore, claim: Claim, recorder: Recorder, **until: Any
) -> tuple[MemorySource, Future[bool]]:
    """Have a delivery wait, since its group is paused."""
    store.pause("billing", reason="maintenance", **until)
    source = started(claim)
    waiting = in_background(source.poll)
    wait_until(lambda: recorder.of(PauseChanged) != [])
    return source, waiting


@pytest.mark.behaviour("OPS-2")
def test_a_paused_job_goes_on_by_itself_at_the_time_that_the_pause_names(recorder: Recorder) -> None:
    now = [datetime.now(UTC)]
    until = now[0] + timedelta(hours=1)
    with InMemoryOffsetStore(MemoryDatabase(lambda: now[0]), observers=[recorder]) as store:
        began = time.monotonic()
        _, waiting = paused(store, store.claim("billing", topics=["payments"]), recorder, until=until)
        time.sleep(0.5)
        assert not waiting.done()
        now[0] = until
        assert waiting.result(30)
        assert numbers(store) == [0, 1, 2]
        assert [one.pause is None for one in recorder.of(PauseChanged)] == [False, True]
        [written] = recorder.of(BatchEnded, "written")
        assert sum(written.seconds.values()) < time.monotonic() - began - 0.5  # the wait belongs to no phase


@pytest.mark.behaviour("OPS-2", "TX-17")
def test_a_batch_that_is_written_in_parts_waits_between_two_of_them_while_the_group_is_paused(
    store: InMemoryOffsetStore, claim: Claim, recorder: Recorder
) -> None:
    class OneByOne(Results):
        """Takes single records, and pauses the group with the first."""

        def write(self, work: Any, batches: Iterable[Any]) -> int:
            self.refused = {number for batch in batches for number in batch.column("record").to_pylist()}
            self.refused = set() if len(self.refused) == 1 else self.refused
            rows = super().write(work, batches)
            if not store.rows("results"):
                store.pause("billing", reason="maintenance")
            return rows

    source = started(claim, OneByOne())
    waiting = in_background(source.poll)
    wait_until(lambda: recorder.of(PauseChanged) != [] or waiting.done())
    assert (numbers(store), waiting.done()) == ([0], False)

    store.resume("billing", reason="done")
    assert waiting.result(30)
    assert numbers(store) == [0, 1, 2]
    assert [dict(event.rows) for event in recorder.of(BatchEnded, "written")] == [{"": 3}]


@pytest.mark.behaviour("OPS-2", "START-14")
@pytest.mark.parametrize("ends", ["taken over", "closed"])
def test_a_job_that_waits_ends_soon_if_its_claim_is_taken_over_or_closed(
    store: InMemoryOffsetStore, claim: Claim, recorder: Recorder, ends: str
) -> None:
    _, waiting = paused(store, claim, recorder)
    if ends == "closed":
        claim.close()
        with pytest.raises(ProtocolMisuse, match="was closed before the query ended"):
            waiting.result(30)
    second = store.claim("billing", topics=["payments"])
    if ends == "taken over":
        with pytest.raises(StaleClaim):
            waiting.result(30)
    assert numbers(store) == []
    assert all(one.pause for one in recorder.of(PauseChanged))
    store.resume("billing", reason="done")
    started(second).drain_log()
    assert numbers(store) == list(range(9))


@pytest.mark.behaviour("OPS-2")
def test_a_stop_does_not_wait_for_a_delivery_that_waits_because_its_group_is_paused(
    store: InMemoryOffsetStore, claim: Claim, recorder: Recorder
) -> None:
    source, waiting = paused(store, claim, recorder)
    began = time.monotonic()
    source.runner.stop(source.stopping.set, timeout=30)
    assert time.monotonic() - began < 15
    with pytest.raises(Interrupted):
        waiting.result(30)


# -- marks


@dataclass
class InFours:
    """Keeps numbers, and writes and marks them four at a time; ``fails`` is called after that."""

    fails: Callable[[int], object] = lambda _: None
    calls: int = 0
    kept: list[int] = field(default_factory=list[int])
    marks: bool = True

    def uses_kafka_column(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def check(self, connection: Any, schema: Any) -> None: ...

    def write(self, work: Any, batches: Iterable[Any]) -> int:
        self.calls += 1
        self.kept += [number for batch in batches for number in batch.column("record").to_pylist()]
        while len(self.kept) >= 4:
            done, self.kept = self.kept[:4], self.kept[4:]
            work.connection.extend("results", done)
            work.mark(P0, done[-1] + 1)
        self.fails(self.calls)
        return 0


@pytest.mark.behaviour("MARK-1", "MARK-2")
@pytest.mark.parametrize("error", [LockTimeout("no lock"), RowsRefused("the database refused rows")], ids=type)
def test_a_function_that_keeps_rows_is_not_called_again(
    store: InMemoryOffsetStore, claim: Claim, error: Exception
) -> None:
    """A rollback does not undo what it has done to its own memory; nor are refused rows searched for."""

    def fail(call: int) -> None:
        if call == 2:
            raise error

    function = InFours(fail)
    source = started(claim, function, marking="manual")
    with pytest.raises(type(error)):
        source.drain_log()
    with pytest.raises(SinkError, match=type(error).__name__):
        source.drain_log()
    assert (function.calls, numbers(store), stored(store)) == (2, [], 0)

    started(store.claim("billing", topics=["payments"]), InFours(), marking="manual").drain_log()
    assert (numbers(store), stored(store)) == (list(range(8)), 8)


@pytest.mark.behaviour("MARK-1", "MARK-3")
@pytest.mark.parametrize(("mark", "refused"), [(0, MarkBackwards), (11, MarkBeyondDelivered)])
def test_a_mark_out_of_range_ends_the_job_with_nothing_written(
    store: InMemoryOffsetStore, claim: Claim, mark: int, refused: type[Exception]
) -> None:
    class Marks(InFours):
        def write(self, work: Any, batches: Iterable[Any]) -> int:  # noqa: ARG002
            work.connection.extend("results", [99])
            work.mark(P0, mark)
            return 0

    with pytest.raises(refused):
        started(claim, Marks(), marking="manual").drain_log()
    assert (numbers(store), store.offsets("billing")) == ([], {})


@pytest.mark.behaviour("MARK-1", "DLQ-15")
def test_the_way_past_a_record_that_can_t_be_computed_loses_none_that_is_not_marked(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    log = {P0: [b"0", b"1", b"2", b"3", b"bad", b"5"]}
    source = started(claim, InFours(), marking="manual")
    source.log = log
    with pytest.raises(RowsRefused, match=r"leave it out in the transform") as raised:
        source.drain_log()
    assert (raised.value.topic_partition, raised.value.offsets) == (P0, OffsetRange(4, 5))
    assert "--from-offset" not in str(raised.value)
    assert (numbers(store), stored(store)) == ([], 0)


@pytest.mark.behaviour("MARK-1", "MARK-4")
def test_a_second_runner_on_the_claim_is_refused(store: InMemoryOffsetStore, claim: Claim) -> None:
    started(claim, InFours(), marking="manual")
    with pytest.raises(ClaimInUse):
        started(claim, InFours(), marking="manual")

    used = store.claim("billing", topics=["payments"])
    used.bind("a query")
    with pytest.raises(ClaimInUse):
        started(used, flush=Flush())


@pytest.mark.behaviour("START-22")
def test_a_second_query_that_is_refused_leaves_the_run_of_the_first_as_it_is(claim: Claim, recorder: Recorder) -> None:
    source = started(claim)

    @contextmanager
    def take() -> Generator[None]:
        claim.require_unused("the second")
        yield None

    claim.bind("the first")
    with pytest.raises(ClaimInUse):
        source.runner.run(0, take)
    assert recorder.of(BatchEnded) == []


# -- idle work


def tick(work: Work) -> None:
    assert work.ranges == {}
    work.connection.extend("ticks", [1])


def ticks(store: InMemoryOffsetStore) -> int:
    return len(store.rows("ticks"))


@pytest.mark.behaviour("OPS-6")
def test_idle_work_may_close_the_claim_and_ends_with_it(claim: Claim) -> None:
    calls: list[int] = []

    def close(_: Work) -> None:
        calls.append(1)
        claim.close()

    started(claim, tick=Tick(close, every=0.05))
    wait_until(lambda: claim.is_closed)
    a_while()
    assert calls == [1]
    with pytest.raises(ProtocolMisuse):
        started(claim, tick=Tick(close, every=0.05))


@pytest.mark.behaviour("OPS-2", "OPS-6")
def test_idle_work_waits_for_a_paused_group(store: InMemoryOffsetStore, claim: Claim) -> None:
    store.pause("billing", reason="maintenance")
    started(claim, tick=Tick(tick, every=0.05))
    a_while()
    assert ticks(store) == 0
    store.resume("billing", reason="done")
    wait_until(lambda: ticks(store))


@pytest.mark.behaviour("OPS-6")
def test_idle_work_waits_for_a_batch(store: InMemoryOffsetStore, claim: Claim) -> None:
    inside, go = threading.Event(), threading.Event()

    def hang(_: int) -> None:
        inside.set()
        assert go.wait(30)

    source = started(claim, InFours(hang), marking="manual", tick=Tick(tick, every=0.05))
    wait_until(lambda: ticks(store))
    polling = in_background(source.poll)
    assert inside.wait(30)
    before = ticks(store)
    a_while()
    assert ticks(store) == before
    go.set()
    assert polling.result(30)
    wait_until(lambda: ticks(store) > before)


@pytest.mark.behaviour("OPS-6")
def test_a_batch_that_waits_for_idle_work_for_long_says_so(
    claim: Claim, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offsetstore.processing.runner._LONG", 0.1)
    inside, go = threading.Event(), threading.Event()

    def hang(_: Work) -> None:
        inside.set()
        assert go.wait(30)

    source = started(claim, tick=Tick(hang, every=0.05))
    assert inside.wait(30)
    polling = in_background(source.poll)
    wait_until(lambda: "waits for more than 0.1 s: for a tick, or a replay of letters" in caplog.text)
    go.set()
    assert polling.result(30)


@pytest.mark.behaviour("OPS-6")
def test_idle_work_that_fails_is_rolled_back_and_called_again(
    store: InMemoryOffsetStore, claim: Claim, recorder: Recorder
) -> None:
    calls: list[int] = []

    def fail_once(work: Work) -> None:
        tick(work)
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError

    started(claim, tick=Tick(fail_once, every=0.05))
    wait_until(lambda: ticks(store) >= 1)
    [failed] = recorder.of(IdleWorkFailed)
    assert isinstance(failed.error, ZeroDivisionError)
    claim.close()
    assert ticks(store) == len(calls) - 1


@pytest.mark.behaviour("OPS-6")
def test_idle_work_of_a_stale_claim_writes_nothing_and_ends(store: InMemoryOffsetStore, claim: Claim) -> None:
    store.claim("billing", topics=["payments"])
    work = Mock()
    started(claim, tick=Tick(work, every=0.05))
    wait_until(lambda: claim.is_lost)
    a_while()
    assert not work.called


@pytest.mark.behaviour("OPS-6")
def test_the_time_between_two_calls_is_above_zero() -> None:
    with pytest.raises(ConfigurationError):
        Tick(tick, every=0)
