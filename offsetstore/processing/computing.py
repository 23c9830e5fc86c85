"""Which records can't be computed: found by trial, a Spark job each.

A record's rows are made from that record alone. So a part can be computed if and only if each of its records can, and
the search is the cheapest one there is: from left to right, the next part twice as long as the last good one; a part
that can't be computed is halved until its first bad record is alone. With 20 of 100,000 that takes some 300 jobs.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from offsetstore.errors import FunctionFailed

_ALL: Final = 10
"""If so many records can't be computed, and no other one can, the records are not to blame."""


class Try(Protocol):
    """Computes records, and forgets their rows."""

    def __call__(self, begin: int, end: int) -> FunctionFailed | int:
        """Compute the records from place ``begin`` up to but excluding ``end``.

        :return: how many rows they make that are not rejected.
        """
        ...


class NoneComputed(Exception):
    """No record can be computed, of ten or more: it is a bug or an outage.

    :param failed: the first one's error.
    """

    def __init__(self, failed: FunctionFailed, tried: int) -> None:
        super().__init__(f"all {tried} records tried failed")
        self.failed = failed


class TimeIsUp(Exception):
    """The search ended at this place; before it, all that can't be computed is known, and others make a row."""

    def __init__(self, place: int, failed: Mapping[int, FunctionFailed]) -> None:
        super().__init__(place)
        self.place = place
        self.failed = failed


def find_failing(
    size: int, try_: Try, *, seconds: float = math.inf, check: Callable[[], None] = lambda: None
) -> dict[int, FunctionFailed]:
    """Find the records that can't be computed, by their places from 0, each with the error that it has alone.

    All of them together can't.

    :param check: called before each try; what it raises passes.
    :raises NoneComputed: none of the first ten can be computed, nor any of nine others, chosen by chance.
    :raises TimeIsUp: after so many seconds, at least one record was found, and another one makes a row: without that
        one, what comes before the place would not show that its bad records are to blame.
    """
    return _Search(size, try_, check).run(time.monotonic() + seconds)


@dataclass(slots=True)
class _Search:
    size: int
    try_: Try
    check: Callable[[], None]
    failed: dict[int, FunctionFailed] = field(default_factory=dict[int, "FunctionFailed"])
    has_computed: bool = False
    """Whether any could be."""
    has_rows: bool = False
    """Whether those that could be made any row; not those that were chosen by chance."""

    def run(self, deadline: float) -> dict[int, FunctionFailed]:
        begin, length, is_known = 0, self.size, True
        while begin < self.size:
            end = min(self.size, begin + length)
            if not is_known and self._fails(begin, end) is None:
                begin, length = end, 2 * length
            else:
                place = self._first(begin, end)
                if (error := self._fails(place, place + 1)) is not None:
                    self.failed[place] = error
                    if len(self.failed) == _ALL:
                        self._require_any(error)
                begin, length, is_known = place + 1, 2 * (place + 1 - begin), False
            if self.has_rows and time.monotonic() >= deadline and begin < self.size:
                raise TimeIsUp(begin, self.failed)
        return self.failed

    def _first(self, good: int, bad: int) -> int:
        """The place of the first bad record of a part that has one."""
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._fails(good, middle) is None:
                good = middle
            else:
                bad = middle
        return good

    def _fails(self, begin: int, end: int) -> FunctionFailed | None:
        self.check()
        made = self.try_(begin, end)
        if isinstance(made, int):
            self.has_computed = True
            self.has_rows = self.has_rows or made > 0
            return None
        return made

    def _require_any(self, error: FunctionFailed) -> None:
        """See that some record can be computed."""
        if self.has_computed:
            return
        others = sorted({*range(self.size)} - self.failed.keys())
        chosen = random.Random(0).sample(others, min(len(others), _ALL - 1))  # noqa: S311 - not a secret
        for place in sorted(chosen):
            self.check()
            if isinstance(self.try_(place, place + 1), int):
                return
        raise NoneComputed(error, len(self.failed) + len(chosen))
