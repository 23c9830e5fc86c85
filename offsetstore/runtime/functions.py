"""Calls of users' functions, and what they raise: for which errors no record is to blame, and what errors say.

Each such call goes through `call`: a function may raise anything, and must end neither a thread that others rely on nor
the process (decision 0099). Of an executor's errors only the names are known.
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

# Most packages that talk to a service have their own classes, which derive from none of Python's.
_OF_NETWORKS: Final = re.compile(r"Connect\w*Error|\w*Timeout\w*|URLError|gaierror")


class TermSignal(SystemExit):
    """What our handlers raise at SIGTERM."""


class InterruptSignal(KeyboardInterrupt):
    """What our handlers raise at Ctrl-C."""


def call(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a user's function.

    :raises Exception: whatever the function raises; `FunctionEnded` in place of what is no ``Exception``. Only if a
        signal ends the process, its exception passes.
    """
    # One of our own, as in a search for the record that made another call fail.
    handled = sys.exception()
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
    """Take from an error what was being handled when the function was called, which Python adds as its context."""
    for link in chain(error) if handled is not None else ():
        if link.__context__ is handled and link.__cause__ is not handled:
            link.__context__ = None


def _is_of_signal(error: BaseException) -> bool:
    """Whether a signal's handler raised it; a function may raise the same class itself."""
    # Our handlers raise classes of their own, so a function's `SystemExit` can't pass for one (decision 0099).
    if isinstance(error, (TermSignal, InterruptSignal)):
        return True
    # Handlers run in the main thread.
    if threading.current_thread() is not threading.main_thread():
        return False
    # With Python's own handler nothing distinguishes the two.
    if isinstance(error, KeyboardInterrupt) and _has_pythons_handler():
        return True
    # Other handlers, Spark's or the user's own, raise what a function may raise too: the traceback has their frame.
    handlers = {_code_of(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM)}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> object:
    while isinstance(handler, partial):
        handler = cast("Any", handler).func
    code: object = getattr(handler, "__code__", None)
    return code or getattr(getattr(handler, "__call__", None), "__code__", None)  # noqa: B004 - an object's own


def _has_pythons_handler() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def is_outage(name: str) -> bool:
    """Whether a class of this name, without its module, is an outage."""
    return _OF_NETWORKS.fullmatch(name) is not None or any(
        kind.__name__ == name for base in _KINDS for kind in _with_subclasses(base)
    )


def chain(
    error: BaseException, *, but_for: Callable[[BaseException], bool] = lambda _: False
) -> Iterator[BaseException]:
    """The error, its causes and contexts, and the members of groups.

    :param but_for: which errors are left out, with everything that only their own chains have.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        link = waiting.pop()
        if id(link) in seen or but_for(link):
            continue
        seen.add(id(link))
        yield link
        if isinstance(link, BaseExceptionGroup):
            waiting += cast("BaseExceptionGroup[BaseException]", link).exceptions
        waiting += [next_ for next_ in (link.__cause__, link.__context__) if next_ is not None]


def tells_of_outage(error: BaseException) -> bool:
    return any(is_outage(kind.__name__) for link in chain(error) for kind in type(link).__mro__)


def as_texts(error: BaseException) -> tuple[str, str]:
    """The error's own text, which may quote a record, and its traceback from the user's code on.

    If the user's class can't show it, the text says so, and there is no traceback.
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
    """Let go of the tracebacks of an error that is kept, or was dealt with; also of its chain and its groups' members.

    :param but_for: an error in the chain that is still to be raised, and keeps its tracebacks with its own chain.
    """
    # A traceback holds the frames from the thread's first one on, with all their locals, such as records. Often one of
    # these locals holds the error, and such a circle waits for the collector, which comes seldom (`as_main_work`,
    # decision 0100). The frames are emptied, too: those of context managers have tracebacks as locals.
    with_empty_frames(error)
    raised = set[int]() if but_for is None else set(map(id, chain(but_for)))
    for link in _own_chain(error):
        if id(link) not in raised:
            link.__traceback__ = None
    return error


@contextmanager
def dropped(*kinds: type[BaseException]) -> Generator[None]:
    """Suppress these errors in the block, and keep nothing of them."""
    try:
        yield
    except kinds as error:
        without_frames(error)


def with_empty_frames(error: BaseException) -> None:
    """Empty the frames of an error that leaves our code: it still tells where it was raised, and holds no records."""
    for link in _own_chain(error):
        for frame, _ in traceback.walk_tb(link.__traceback__):
            if not _may_go_on(frame):
                # Raised for a frame that runs.
                with suppress(RuntimeError):
                    frame.clear()


def _may_go_on(frame: FrameType) -> bool:
    """Whether clearing the frame may end something that waits: a coroutine, maybe of another thread, or a generator."""
    return bool(frame.f_code.co_flags & _COROUTINE) or (
        frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _YIELD
    )


def _own_chain(error: BaseException) -> list[BaseException]:
    """The chain without the errors that a caller is handling, and may raise again."""
    frame, running = inspect.currentframe(), set[int]()
    while frame is not None:
        # By their ids: to hold the frames would make another circle.
        running.add(id(frame))
        frame = frame.f_back

    # Python has put such an error into the chain of each that was raised meanwhile.
    def is_handled(link: BaseException) -> bool:
        trace = link.__traceback__
        return link is not error and trace is not None and id(trace.tb_frame) in running

    return [*chain(error, but_for=is_handled)]


def _with_subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)
