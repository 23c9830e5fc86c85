"""How old the first unread record of a partition is, found with DESCRIBE alone.

Kafka tells the first record at or after a time. The later the time, the later the record, so the time is searched at
which that record passes the stored offset: in turns as if the records came evenly, and by halving the logarithm of the
age, since two percent of three days are more than an hour. A record's own timestamp comes with its offset, so the
search converges on two records, the last one found below the stored offset and the first one found at or above it, and
ends at once where the latter is at the stored offset itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from offsetstore.offsets import TopicPartition
from offsetstore.protocol.ports import FoundRecord

Stored = tuple[TopicPartition, int]
At = tuple[TopicPartition, int]
LookUp = Callable[[Collection[At]], Mapping[At, FoundRecord | None]]

TOLERANCE_MS: Final = 1000
"""An age may be wrong by this many milliseconds, or by `TOLERANCE` of itself, whichever is more."""
TOLERANCE: Final = 0.02

AHEAD_MS: Final = 60_000

# A steady log takes two rounds, any other about twelve; the rest is for odd timestamps (decision 0037).
_ROUNDS: Final = 24


@dataclass(frozen=True, slots=True)
class FirstUnread:
    """The timestamp of a partition's first unread record, in milliseconds since 1970.

    It is too early by at most the tolerance, if timestamps are in order: Kafka does not show a record whose timestamp
    is earlier than that of a record before it. With ``is_bound`` it is a bound: the record may be younger. Kafka's
    answers then leave out the records from the stored offset to the next one found: compaction may have removed them,
    or their timestamps are no later than that of a record before them. ``timestamp_ms`` is ``None`` if no record with a
    timestamp was found at all, or if a record that was read is ahead of the clock, which hides the others.
    """

    timestamp_ms: int | None
    is_bound: bool = False

    def age(self, now_ms: int) -> float | None:
        """Its age in seconds; 0 for a timestamp ahead of the clock."""
        return None if self.timestamp_ms is None else max(0, now_ms - self.timestamp_ms) / 1000

    def is_ahead(self, now_ms: int) -> bool:
        """Whether its timestamp is so far ahead of the clock that no difference of clocks explains it."""
        return self.timestamp_ms is not None and self.timestamp_ms - now_ms > AHEAD_MS


def find_first_unread(unread: Mapping[Stored, int], now_ms: int, look_up: LookUp) -> dict[Stored, FirstUnread]:
    """Search in all partitions at once; each round is one call of ``look_up``.

    :param unread: where each log ends, by partition and next offset. If ``look_up`` does not answer for a partition,
        the result leaves it out.
    :param look_up: returns the first record of a partition at or after a time, ``None`` if there is none.
    """
    searches = {key: Search(key[1], end, now_ms) for key, end in unread.items()}
    results: dict[Stored, FirstUnread] = {}
    for _round in range(_ROUNDS):
        if not searches:
            break
        found = look_up({(tp, search.time) for (tp, _offset), search in searches.items()})
        going_on: dict[Stored, Search] = {}
        for key, search in searches.items():
            asked = key[0], search.time
            if asked not in found:
                continue
            if (result := search.take(found[asked])) is None:
                going_on[key] = search
            else:
                results[key] = result
        searches = going_on
    return results | {key: search.result() for key, search in searches.items()}


class Search:
    """The search in one partition: ask Kafka for `time`, then `take` the answer."""

    __slots__ = ("_above", "_asked", "_below", "_end", "_halves", "_now", "_stored", "time")

    def __init__(self, stored: int, end: int, now_ms: int) -> None:
        # The log's first record comes first: if it is unread, no search is needed.
        self.time = 0
        """The time to ask for next, in milliseconds since 1970."""
        self._stored = stored
        self._end = FoundRecord(end, now_ms)
        self._now = now_ms
        self._below: FoundRecord | None = None
        """The last record found below the stored offset: not later than the first unread one."""
        self._above: FoundRecord | None = None
        """The first record found at or above the stored offset."""
        self._asked: int | None = None
        """The earliest time for which no record below the stored offset was found."""
        self._halves = False

    def take(self, record: FoundRecord | None) -> FirstUnread | None:
        """Take Kafka's answer for `time`; return the result, or ``None`` if the new `time` has to be asked for."""
        if record is not None and record.offset < self._stored:
            self._below = record
            is_same = False
        else:
            is_same = self._asked is not None and record == self._above
            self._above, self._asked = record, self.time
        below = self._below
        if below is None or below.timestamp_ms >= self._now or self._is_found():
            return self.result()
        # No record below the stored offset has a later timestamp than the one found.
        if self._asked is not None and self._asked <= below.timestamp_ms + 1:
            return self.result()
        self.time = self._next(below, is_same=is_same)
        return None

    def result(self) -> FirstUnread:
        above, below = self._above, self._below
        if above is not None and (below is None or above.offset == self._stored):
            return FirstUnread(above.timestamp_ms)
        # A read record ahead of the clock hides all that follow it (decision 0037).
        if below is None or below.timestamp_ms > self._now:
            return FirstUnread(None, is_bound=True)
        # Without a record above, the unread ones are no later than one that was read: timestamps are out of order.
        is_hidden = above is None and not self._is_near(below.timestamp_ms, self._now)
        return FirstUnread(below.timestamp_ms, is_bound=is_hidden or not self._is_found())

    def _is_found(self) -> bool:
        above, below = self._above, self._below
        if below is None:
            return above is not None
        if above is None:
            # All unread records are between the last one below and now, if they are in order.
            return self._is_near(below.timestamp_ms, self._now)
        return above.offset == self._stored or self._is_near(below.timestamp_ms, above.timestamp_ms)

    def _is_near(self, earlier: int, later: int) -> bool:
        return later - earlier <= max(TOLERANCE_MS, TOLERANCE * (self._now - later))

    def _next(self, below: FoundRecord, *, is_same: bool) -> int:
        earliest, latest = below.timestamp_ms, self._now if self._asked is None else self._asked
        if self._is_near(earliest, latest):
            return earliest + math.isqrt(latest - earliest) if is_same else (earliest + latest) // 2
        oldest = self._now - earliest
        # The same record again means a gap in time: the record below may be the last one before it.
        if is_same:
            return earliest + max(TOLERANCE_MS, int(oldest * TOLERANCE / (1 + TOLERANCE)))
        # Interpolating alone is slow in uneven logs, halving alone takes eleven rounds in every log (decision 0037).
        self._halves = not self._halves
        even = _between(below, self._above or self._end, self._stored)
        if self._halves and earliest < even < latest:
            return even
        return self._now - int(math.sqrt(oldest * max(TOLERANCE_MS / 2, self._now - latest)))


def _between(below: FoundRecord, above: FoundRecord, offset: int) -> int:
    """The time just before the offset, if the records come evenly."""
    share = (offset - 0.5 - below.offset) / (above.offset - below.offset)
    return below.timestamp_ms + int(share * (above.timestamp_ms - below.timestamp_ms))
