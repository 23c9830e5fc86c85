"""Errors of a user's function: what they say, and for which of them no record is to blame.

On an executor only their names are known.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from typing import Final, cast

from offsetstore.errors import Outage

_KINDS: Final = (MemoryError, ImportError, ConnectionError, TimeoutError, Outage)

# Most packages that talk to a service have classes of their own, which are none of Python's.
_OF_NETWORKS: Final = re.compile(r"Connect\w*Error|\w*Timeout\w*|URLError|gaierror")


def is_outage(name: str) -> bool:
    """Whether a class of this name, without its module, is an outage."""
    return _OF_NETWORKS.fullmatch(name) is not None or any(
        one.__name__ == name for kind in _KINDS for one in _with_subclasses(kind)
    )


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from or while handling, and the members of groups."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
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


def _with_subclasses(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _with_subclasses(one)
