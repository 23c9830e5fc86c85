"""A handler that is called for records, in threads or in its loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from offsetstore.processing.handling import CallOutcome, Handler, Handling, Record

both_ways = pytest.mark.parametrize("is_async", [False, True], ids=["threads", "loop"])


def called(function: Callable[[Record], Any], *, is_async: bool) -> Callable[[Record], Any]:
    """Make the function an async one, or leave it as it is."""

    async def later(record: Record) -> Any:
        return function(record)

    return later if is_async else function


def handled(
    handler: Handler, records: Sequence[Record], *, propagate: Collection[str] = (), chunk: int = 1_000
) -> list[CallOutcome]:
    """Feed the records, so many at a time, and fetch all outcomes, in the order of the offsets."""
    handling, found = Handling(handler, propagate=propagate, enough=2), list[CallOutcome]()
    try:
        for at in range(0, len(records), chunk):
            handling.feed(records[at : at + chunk])
            found += handling.finished(0)
        while handling.outstanding:
            found += handling.finished(10)
    finally:
        handling.close()
    return sorted(found, key=lambda one: one.record.offset)
