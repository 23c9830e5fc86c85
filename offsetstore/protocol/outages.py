"""Errors of a user's function: what they say, and for which of them no record is to blame.

On an executor only their names are known.
"""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar, cast

from offsetstore.errors import Outage

_E = TypeVar("_E", bound=BaseException)

_KINDS: Final = (MemoryError, ImportError, ConnectionError, TimeoutError, Outage)

_COROUTINE: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # to clear the frame of one that waits ends it

# Most packages that talk to a service have classes of their own, which are none of Python's.
_OF_NETWORKS: Final = re.compile(r"Connect\w*Error|\w*Timeout\w*|URLError|gaierror")


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
    """The error's own text, which may quote a record, and its traceback. A class of the user's may fail to show it."""
    try:
        return str(error), "".join(traceback.format_exception(error))
    except Exception as broken:  # noqa: BLE001 - the user's own class
        return f"it can't be shown: {type(broken).__name__}", ""


def without_frames(error: _E) -> _E:
    """Let go of the tracebacks of an error that is kept, or was dealt with; of its chain and its groups' members, too.

    A traceback holds the frames from the thread's first one on, with all their locals, such as records. Often one of
    these locals holds the error, and such a circle waits for the collector, which comes seldom (`as_main_work`).
    """
    with_empty_frames(error)  # since some have tracebacks as locals, as those of context managers do
    for one in _own_chain(error):
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
            if not frame.f_code.co_flags & _COROUTINE:
                with suppress(RuntimeError):  # it runs
                    frame.clear()


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
