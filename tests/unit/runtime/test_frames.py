"""An error that is kept, or was dealt with, holds nothing of what was being worked on. Garbage is not collected."""

from __future__ import annotations

import asyncio
import inspect
import traceback
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NoReturn, cast

import pyarrow as pa
import pytest

from offsetstore import Append, Handler, OffsetRange, Retries, TopicPartition
from offsetstore.consumer.delivery import Computation, ConsumerOutputs
from offsetstore.consumer.records import ConsumedRecord
from offsetstore.errors import BrokerUnavailable, FunctionFailed, LockTimeout, Outage, RowsRefused, SinkError
from offsetstore.kafka.broker import _Requests
from offsetstore.kafka.client import Deadline
from offsetstore.postgres.errors import strip_chain
from offsetstore.processing import handling
from offsetstore.processing.blame import KeptTrials
from offsetstore.processing.handling import Handling
from offsetstore.protocol.events import BatchEnded, MirrorTried, Retried
from offsetstore.protocol.letters import Payload
from offsetstore.protocol.observers import Observers
from offsetstore.runtime.background import meanwhile
from offsetstore.runtime.functions import _may_go_on, with_empty_frames, without_frames
from offsetstore.testing import InMemoryOffsetStore
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.behaviour("CONS-18"), pytest.mark.usefixtures("uncollected")]
P0 = TopicPartition("payments", 0)


class Held:
    """What a frame has, such as a record."""


class Watched:
    """Works on something, fails, and tells afterwards whether that is gone."""

    def __init__(self, kind: type[Exception] = ValueError) -> None:
        self._kind = kind
        self._held: weakref.ref[Held] | None = None

    def fail(self, *_: object, **__: object) -> NoReturn:
        held = Held()
        self._held = weakref.ref(held)
        error = self._kind("it")  # a circle, as of many errors
        raise error

    @property
    def is_gone(self) -> bool:
        assert self._held is not None
        return self._held() is None


def raised(call: Callable[..., object]) -> Exception:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - that is what is asked for
        return error
    raise AssertionError


def test_a_kept_error_holds_no_frames_nor_do_those_it_follows_from_or_has() -> None:
    inner, hidden, outer, member = (Watched() for _ in range(4))

    def fail() -> None:
        try:
            try:
                inner.fail()
            except ValueError:
                hidden.fail()
        except ValueError as error:
            raise ExceptionGroup("all", [raised(outer.fail), raised(member.fail)]) from error

    kept = without_frames(raised(fail))
    assert [one.is_gone for one in (inner, hidden, outer, member)] == [True] * 4
    assert kept.__traceback__ is None


def test_what_a_caller_is_handling_stays_as_it_is() -> None:
    outer, inner = Watched(KeyError), Watched()

    def handle() -> None:
        try:
            outer.fail()
        except KeyError:
            without_frames(raised(inner.fail))
            raise

    handled = raised(handle)
    assert (inner.is_gone, outer.is_gone) == (True, False)
    assert traceback.extract_tb(handled.__traceback__)[-1].name == "fail"


def test_a_coroutine_s_frame_stays_also_while_it_runs() -> None:
    """In another thread, it may wait again before its frame is emptied."""

    async def look() -> bool:
        return _may_go_on(cast("Any", inspect.currentframe()))

    assert asyncio.run(look())


def test_a_generator_that_has_caught_an_error_goes_on() -> None:
    errors = list[Exception]()

    def catch() -> Generator[str]:
        try:
            Watched().fail()
        except ValueError as error:
            errors.append(error)
            yield "first"
        yield "it goes on"

    caught = catch()
    assert next(caught) == "first"
    without_frames(errors[0])
    assert [*caught] == ["it goes on"]


def test_a_generator_that_an_error_has_ended_holds_nothing() -> None:
    watched = Watched()

    def fail() -> Generator[Held]:
        held = Held()
        yield held
        held = watched
        watched.fail()

    error = raised(lambda: [*fail()])
    with_empty_frames(error)
    assert watched.is_gone
    assert traceback.extract_tb(error.__traceback__)[-1].name == "fail"
    assert not any(
        frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code is fail.__code__
    )


@contextmanager
def translating() -> Generator[None]:
    try:
        yield
    except ValueError:
        raise KeyError from None


def test_a_context_manager_that_an_error_has_passed_holds_nothing() -> None:
    watched = Watched()

    def fail() -> None:
        with ExitStack() as stack:
            stack.enter_context(translating())
            watched.fail()

    without_frames(raised(fail))
    assert watched.is_gone


def test_a_future_whose_error_nobody_asks_for_holds_nothing() -> None:
    held = Held()
    watched = weakref.ref(held)

    def work(of: list[Held]) -> NoReturn:
        taken = of.pop()
        raise ValueError(str(taken))

    future = meanwhile("test", lambda given=[held]: work(given))
    del held
    wait([future], timeout=30)
    del future
    wait_until(lambda: watched() is None)


def test_observers_that_keep_an_error_keep_no_frames_but_of_one_that_is_raised_next() -> None:
    of_retry, of_mirror, of_batch = Watched(LockTimeout), Watched(BrokerUnavailable), Watched()
    kept = Recorder()
    observers = Observers([kept])
    observers.on(Retried(group="g", attempt=1, error=raised(of_retry.fail), wait=0.0))
    observers.on(MirrorTried(group="g", reason="it", error=raised(of_mirror.fail)))
    observers.on(BatchEnded(group="g", batch=1, ranges={}, outcome="failed", error=raised(of_batch.fail)))
    assert [one.is_gone for one in (of_retry, of_mirror, of_batch)] == [True, True, False]


def test_a_record_that_cant_be_computed_is_not_held_by_its_error() -> None:
    def transform(records: pa.RecordBatch) -> NoReturn:
        held = Held()
        gone.append(weakref.ref(held))
        raise ValueError(records.num_rows)

    gone: list[weakref.ref[Held]] = []
    outputs, claim = ConsumerOutputs(transform, Append("results")), cast("Any", None)
    why = Computation(claim, outputs).tried([ConsumedRecord(P0, 0, Payload(None, b"1", (), 0, 0))])
    assert isinstance(why, FunctionFailed)
    assert isinstance(why.__cause__, ValueError)
    assert [one() for one in gone] == [None]
    assert "in transform" in (why.traceback or "")


def test_a_refusal_that_is_kept_of_a_trial_holds_nothing() -> None:
    store, watched = InMemoryOffsetStore(), Watched(RowsRefused)
    with suppress(InterruptedError), store.claim("billing", topics=["payments"]).transaction() as tx:
        tx.lock({P0: OffsetRange(0, 1)})
        assert KeptTrials(tx, watched.fail).accept([1]) is not None
        assert watched.is_gone
        raise InterruptedError


@pytest.mark.parametrize("is_async", [False, True])
def test_a_call_that_is_repeated_after_an_outage_leaves_nothing(*, is_async: bool) -> None:
    watched, calls = Watched(Outage), list[int]()

    def call(_: handling.Record) -> None:
        calls.append(1)
        if len(calls) == 1:
            watched.fail()

    async def later(record: handling.Record) -> None:
        call(record)

    handler = Handler(
        later if is_async else call, "record long", retries=Retries(attempts=2, shortest=0.0, longest=0.0)
    )
    handling_ = Handling(handler)
    handling_.feed([handling.Record("payments", 0, 0, None, b"1", (), None, "")])
    while not handling_.finished(1.0):
        pass
    handling_.close()
    made = weakref.ref(handling_)
    del handling_
    wait_until(lambda: watched.is_gone and made() is None)


def test_of_a_failed_request_to_kafka_no_client_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is closed, and what the first attempts have raised is forgotten."""
    closed: list[object] = []

    class Client:
        def __init__(self, *_: object) -> None: ...

        def forget(self) -> None: ...

        def close(self) -> None:
            closed.append(None)

    monkeypatch.setattr("offsetstore.kafka.broker.Client", Client)
    asked, settings = list[Watched](), cast("Any", type("Settings", (), {"config": {}}))

    def ask(*_: object) -> NoReturn:
        asked.append(Watched(BrokerUnavailable))
        asked[-1].fail()

    with suppress(BrokerUnavailable):
        _Requests(settings).ask(ask, Deadline.after(1.0))
    assert len(asked) == len(closed) == 2
    assert asked[0].is_gone


def carry(error: Exception, carrier: Exception) -> None:
    """Raise one error from another, which is raised first."""
    try:
        raise error
    except type(error) as cause:
        raise carrier from cause


def test_a_cause_that_is_told_keeps_its_place_where_what_has_carried_it_is_stripped() -> None:
    """As an outage of a transform does, of which `TransformRaised` is only the carrier."""
    outage, carrier, told = ConnectionError(), LookupError(), SinkError("it")
    for one in (carrier, told):
        with pytest.raises(type(one)):
            carry(outage, one)
    told.__context__ = carrier
    strip_chain(told)
    assert told.__cause__ is outage
    assert outage.__traceback__ is not None
    assert carrier.__traceback__ is None
