"""Headers that follow a record through a job: those that ``propagate=`` names, and no others.

They follow it into the context of a handler's call, into its letter (the trace id) and into records produced from it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, cast

from offsetstore.errors import ConfigurationError
from offsetstore.protocol.letters import Headers

# A context variable, since each call has a copy of the context: no record's headers leak into another call, whether it
# runs in a thread or in the event loop (decision 0097).
_headers: Final[ContextVar[Headers]] = ContextVar("offsetstore_headers", default=())


def current_headers() -> Headers:
    """The propagated headers of the record that is being handled: pairs of name and value, in the record's order.

    Names may repeat, and a value may be ``None``: ``dict(current_headers())`` has the last value of each name. Empty
    outside of a handler's call, and in a thread that the call started without its context.
    """
    return _headers.get()


def propagated(headers: Headers | None, names: Collection[str]) -> Headers:
    """The headers of a record that have one of these names, unchanged and in the record's order.

    :param headers: all headers of the record, ``None`` if the reader did not read them.
    """
    # Pairs, not a mapping: names may repeat (decision 0097).
    return tuple((name, value) for name, value in headers or () if name in names)


@contextmanager
def as_current(headers: Headers) -> Generator[None]:
    token = _headers.set(headers)
    try:
        yield
    finally:
        _headers.reset(token)


def check_propagate(names: object) -> None:
    """Check the argument ``propagate``.

    :raises ConfigurationError: it is not a list of names.
    """
    # A single text would pass as a collection of names, one for each of its characters.
    is_list = isinstance(names, (tuple, list, set, frozenset))
    if not is_list or not all(isinstance(name, str) and name for name in cast("Collection[object]", names)):
        raise ConfigurationError(
            "propagate must list the names of headers",
            found=repr(cast("object", names)),
            expected='("traceparent", "tenant"), say',
        )
