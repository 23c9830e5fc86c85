"""Headers that follow a record through a job: those that ``propagate=`` names, and no others.

They follow it into the context of a handler's call, into its letter (its trace) and into what is produced from it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, cast

from offsetstore.errors import ConfigurationError
from offsetstore.protocol.letters import Headers

_headers: Final[ContextVar[Headers]] = ContextVar("offsetstore_headers", default=())


def current_headers() -> Headers:
    """The headers that follow the record which is being handled: pairs of a name and its value, in the record's order.

    Names may repeat, and a value may be ``None``: ``dict(current_headers())`` has the last value of each name. Empty
    outside of a handler's call, and in a thread that the call has started without its context.
    """
    return _headers.get()


def propagated(headers: Headers | None, names: Collection[str]) -> Headers:
    """The headers that follow a record: those that have one of the names, as they are, in the record's order.

    :param headers: all of the record's, ``None`` if the reader did not read them.
    """
    return tuple((name, value) for name, value in headers or () if name in names)


@contextmanager
def as_current(headers: Headers) -> Generator[None]:
    """Make these the `current_headers` until the block ends."""
    token = _headers.set(headers)
    try:
        yield
    finally:
        _headers.reset(token)


def check_propagate(names: object) -> None:
    """Check the argument ``propagate``.

    :raises ConfigurationError: it is not a list of names.
    """
    is_list = isinstance(names, (tuple, list, set, frozenset))
    if not is_list or not all(isinstance(name, str) and name for name in cast("Collection[object]", names)):
        raise ConfigurationError(
            "propagate must list the names of headers",
            found=repr(cast("object", names)),
            expected='("traceparent", "tenant"), say',
        )
