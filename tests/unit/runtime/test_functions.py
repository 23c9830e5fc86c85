"""Calls of a user's functions: whatever is raised there ends the call alone."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest

from offsetstore.errors import FunctionEnded, Outage, as_raised
from offsetstore.runtime.functions import InterruptSignal, TermSignal, as_texts, call, tells_of_outage
from tests.support.background import in_background

pytestmark = pytest.mark.behaviour("CONS-15")


class Leaves(BaseException):
    """No error to Python, and none of its own ends."""


ENDS = [
    SystemExit(1),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError("a task"),
    Leaves("canary"),
    BaseExceptionGroup("several", [Leaves(), ValueError()]),
]


def raising(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


@pytest.fixture
def _own_handler() -> object:
    """Another handler of Ctrl-C than Python's."""

    def told(number: int, frame: FrameType | None) -> None:
        raise InterruptSignal

    before = signal.signal(signal.SIGINT, told)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_own_handler")
@pytest.mark.parametrize("error", ENDS, ids=lambda one: type(one).__name__)
def test_what_ends_programs_ends_the_call_alone(error: BaseException) -> None:
    ended: BaseException | None = None
    try:
        call(raising(error))
    except BaseException as found:  # noqa: BLE001 - some would end the test's run
        ended = found
    assert isinstance(ended, FunctionEnded)
    assert as_raised(ended) is error
    assert "canary" not in str(ended)
    text, trace = as_texts(ended)
    assert text == str(error)
    assert type(error).__name__ in trace


@pytest.mark.parametrize(
    "error", [ValueError(), Outage(), StopIteration(), MemoryError(), TermSignal(0), InterruptSignal()], ids=repr
)
def test_an_exception_and_a_signal_that_a_handler_of_ours_has_received_pass_as_they_are(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised:
        call(raising(error))
    assert raised.value is error


def test_ctrl_c_passes_with_pythons_own_handler_in_the_main_thread_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offsetstore.runtime.functions._has_pythons_handler", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        call(raising(KeyboardInterrupt()))
    with pytest.raises(FunctionEnded):
        call(sys.exit, 1)
    elsewhere = in_background(lambda: call(raising(KeyboardInterrupt())))
    assert isinstance(elsewhere.exception(timeout=10), FunctionEnded)


class Ends:
    """Handlers of signals, of several kinds, which raise what a function may raise, too."""

    def method(self, *_: object) -> None:
        sys.exit(0)

    def __call__(self, *_: object) -> None:
        raise KeyboardInterrupt


def _of_spark(*_: object) -> None:
    raise KeyboardInterrupt


_ANONYMOUS: Callable[[int, FrameType | None], None] = lambda number, _: sys.exit(number)  # noqa: E731


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("handler", [_of_spark, _ANONYMOUS, Ends().method, Ends(), partial(partial(_of_spark, 1), 2)])
def test_what_another_handler_raises_at_a_signal_passes(number: signal.Signals, handler: Callable[..., None]) -> None:
    before = signal.signal(number, handler)
    try:
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            call(signal.raise_signal, number)
        with pytest.raises(FunctionEnded):
            call(sys.exit, 0)
    finally:
        signal.signal(number, before)


def test_an_outage_is_one_also_where_it_is_raised_with_what_ends_programs() -> None:
    for error in (BaseExceptionGroup("several", [Leaves(), ConnectionResetError()]), SystemExit(1)):
        error.__context__ = None if isinstance(error, BaseExceptionGroup) else TimeoutError()
        with pytest.raises(FunctionEnded) as ended:
            call(raising(error))
        assert tells_of_outage(ended.value)


class Unspeakable(BaseException):
    def __str__(self) -> str:
        raise Leaves


def test_a_class_that_cant_be_shown_ends_nothing() -> None:
    assert as_texts(Unspeakable())[0] == "it can't be shown: Leaves"
