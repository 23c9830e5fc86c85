"""Calls of a user's functions, and what these raise: for which errors no record is to blame, and what they say.

Each such call goes through `call`: a function may raise anything, and must end neither a thread that others rely on nor
the process. On an executor only the names of errors are known.
"""

from __future__ import annotations

import dis
import inspect
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Final, ParamSpec, TypeVar, cast

from offsetstore.errors import FunctionEnded, Outage, as_raised
from offsetstore.text import OURS

_P = ParamSpec("_P")
_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)

_KINDS: Final = (MemoryError, ImportError, ConnectionError, TimeoutError, Outage)

_COROUTINE: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_YIELD: Final = dis.opmap["YIELD_VALUE"]

# Most packages that talk to a service have classes of their own, which are none of Python's.
_OF_NETWORKS: Final = re.compile(r"Connect\w*Error|\w*Timeout\w*|URLError|gaierror")


class TermSignal(SystemExit):
    """What our handlers raise at SIGTERM."""


class InterruptSignal(KeyboardInterrupt):
    """What our handlers raise at Ctrl-C."""


def call(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a user's function.

    :raises Exception: whatever the function raises; `FunctionEnded` from what is no ``Exception``. Only where a signal
        ends the process, its exception passes.
    """
    handled = sys.exception()  # of ours, as in a search for the record that made another call fail
    try:
        return function(*args, **kwargs)
    except Exception as error:
        _is_not_of(error, handled)
        raise
    except BaseException as error:
        _is_not_of(error, handled)
        if _is_of_signal(error):
            raise
        raise FunctionEnded(f"it raised {type(error).__name__}") from error


def _is_not_of(error: BaseException, handled: BaseException | None) -> None:
    """Take from an error what was being handled when the function was called, which Python gives it as its context."""
    for one in chain(error) if handled is not None else ():
        if one.__context__ is handled and one.__cause__ is not handled:
            one.__context__ = None


def _is_of_signal(error: BaseException) -> bool:
    """Whether a signal's handler has raised it, which runs in the main thread; a function may raise the same itself."""
    if isinstance(error, (TermSignal, InterruptSignal)):
        return True
    if threading.current_thread() is not threading.main_thread():
        return False
    # With Python's own handler there is nothing to tell the two apart by.
    if isinstance(error, KeyboardInterrupt) and _has_pythons_handler():
        return True
    handlers = {_code_of(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> object:
    """Spark's handlers, and the user's own, raise what a function may raise, too."""
    while isinstance(handler, partial):
        handler = cast("Any", handler).func
    code: object = getattr(handler, "__code__", None)
    return code or getattr(getattr(handler, "__call__", None), "__code__", None)  # noqa: B004 - an object's own


def _has_pythons_handler() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def is_outage(name: str) -> bool:
    """Whether a class of this name, without its module, is an outage."""
    return _OF_NETWORKS.fullmatch(name) is not None or any(
        one.__name__ == name for kind in _KINDS for one in _with_subclasses(kind)
    )


def chain(
    error: BaseException, *, but_for: Callable[[BaseException], bool] = lambda _: False
) -> Iterator[BaseException]:
    """The error, what it was raised from or while handling, and the members of groups.

    :param but_for: what is left out, with all that only its own chain has.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or but_for(one):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", one).exceptions
        waiting += [next_ for next_ in (one.__cause__, one.__context__) if next_ is not None]


def tells_of_outage(error: BaseException) -> bool:
    """Whether any error in its chain is an outage, by its class or by a base."""
    return any(is_outage(kind.__name__) for one in chain(error) for kind in type(one).__mro__)


def as_texts(error: BaseException) -> tuple[str, str]:
    """The error's own text, which may quote a record, and its traceback from the user's code on.

    A class of the user's may fail to show it.
    """
    error = as_raised(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OURS):
        trace = trace.tb_next
    try:
        return call(str, error), "".join(call(traceback.format_exception, type(error), error, trace))
    except Exception as broken:  # noqa: BLE001 - the user's own class
        return f"it can't be shown: {type(as_raised(broken)).__name__}", ""


def without_frames(error: _E, *, but_for: BaseException | None = None) -> _E:
    """Let go of the tracebacks of an error that is kept, or was dealt with; of its chain and its groups' members, too.

    :param but_for: an error in the chain that is still told, with its own chain.

    A traceback holds the frames from the thread's first one on, with all their locals, such as records. Often one of
    these locals holds the error, and such a circle waits for the collector, which comes seldom (`as_main_work`).
    """
    with_empty_frames(error)  # since some have tracebacks as locals, as those of context managers do
    told = set[int]() if but_for is None else set(map(id, chain(but_for)))
    for one in _own_chain(error):
        if id(one) not in told:
            one.__traceback__ = None
    return error


@contextmanager
def dropped(*kinds: type[BaseException]) -> Generator[None]:
    """Suppress such an error from the block, and keep nothing of it."""
    try:
        yield
    except kinds as error:
        without_frames(error)


def with_empty_frames(error: BaseException) -> None:
    """Empty the frames of an error that leaves our code: it still tells where it was raised, and holds no records."""
    for one in _own_chain(error):
        for frame, _ in traceback.walk_tb(one.__traceback__):
            if not _may_go_on(frame):
                with suppress(RuntimeError):  # it runs
                    frame.clear()


def _may_go_on(frame: FrameType) -> bool:
    """Whether to clear the frame may end what waits: a coroutine, maybe of another thread, or a generator."""
    return bool(frame.f_code.co_flags & _COROUTINE) or (
        frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _YIELD
    )


def _own_chain(error: BaseException) -> list[BaseException]:
    """The chain without errors that a caller is handling, and may raise again: any error met meanwhile has them."""
    frame, running = inspect.currentframe(), set[int]()
    while frame is not None:
        running.add(id(frame))  # to hold the frames would make another circle
        frame = frame.f_back

    def is_handled(one: BaseException) -> bool:
        trace = one.__traceback__
        return one is not error and trace is not None and id(trace.tb_frame) in running

    return [*chain(error, but_for=is_handled)]


def _with_subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _with_subclasses(one)
