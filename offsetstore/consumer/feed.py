"""Records that wait to be delivered together, and how far each partition was read."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Final

from offsetstore.consumer.delivery import Polled
from offsetstore.consumer.filters import Context, Filter, Pending
from offsetstore.consumer.records import Record, as_given
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.processing.between import Flush
from offsetstore.store.term import Term, Terms

_USUAL: Final = 1024  # bytes of a record, until one was seen


@dataclass(slots=True)
class _Partition:
    """What was read of a partition.

    :param begin: what was taken ends here; ``until``: what was polled.
    :param records: those that go on with the next delivery.
    :param passed_over: how many deliveries in a row had no room for any of these.
    """

    term: Term
    begin: int
    until: int
    pending: Pending
    records: list[Record] = field(default_factory=list[Record])
    passed_over: int = 0

    @property
    def end(self) -> int:
        """Up to which offset all is decided."""
        first = self.pending.first
        return self.until if first is None else first


class Feed:
    """Gathers what is polled of the partitions that it was given; the polling thread's.

    :param limits: at the first of these it is due, and no more is handed over at a time, but for one record;
        ``rows`` counts records, and ``bytes`` those of keys, values and headers.
    :param filters: asked by `decide`.
    :param metadata: a partition's, as its term began, for filters.
    """

    def __init__(
        self,
        limits: Flush,
        filters: Sequence[Filter] = (),
        *,
        metadata: Callable[[TopicPartition, Term], object] = lambda _, __: None,
    ) -> None:
        self._limits = limits
        self.has_filters = bool(filters)
        self._filters = filters
        self._metadata = metadata
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._count = self._bytes = 0  # of all that is in memory
        self._mean: float = _USUAL  # bytes of a record
        self._deferred = self._deferred_bytes = 0  # of what filters have not decided about
        self._since: float | None = None
        self.dropped = Counter[str]()
        """How many records filters have dropped, by the names of their classes; whoever tells it clears it."""

    @property
    def partitions(self) -> AbstractSet[TopicPartition]:
        """Those that it was given."""
        return self._partitions.keys()

    @property
    def deferred(self) -> Collection[TopicPartition]:
        """Those with records that filters have not decided about."""
        return [tp for tp, one in self._partitions.items() if one.pending.first is not None] if self._filters else ()

    def begin(self, offsets: Mapping[TopicPartition, int], terms: Terms) -> None:
        """Gather these partitions from these offsets on.

        :param terms: the member's; one that has lost a partition again has none of it.
        """
        self.drop(offsets)
        for tp, offset in offsets.items():
            pending = Pending(self._filters, self.dropped)
            self._partitions[tp] = _Partition(terms.get(tp) or Term(), offset, offset, pending)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions, and what waits of them."""
        for tp in partitions:
            gone = self._partitions.pop(tp, None)
            if gone is not None:
                deferred = gone.pending.records
                self._forget(gone.records)
                self._forget(deferred)
                self._defer(deferred, -1)
        if not any(one.end > one.begin for one in self._partitions.values()):
            self._since = None

    def add(self, tp: TopicPartition, records: Iterable[Record], topic_id: str = "") -> None:
        """Gather a partition's records, unless they were gathered before, or it was not given the partition.

        :param topic_id: for filters, see `offsetstore.Record`.
        """
        one = self._partitions.get(tp)
        if one is None:
            return
        new = list[Record]()
        for record in records:
            if record.offset >= one.until:
                one.until = record.offset + 1
                new.append(record)
        self._count += len(new)
        self._bytes += sum(map(size_of, new))
        if self._count:
            self._mean = self._bytes / self._count
        if self._filters:
            for record in new:
                one.pending.add(record, as_given(record, topic_id))
            self._defer(new, 1)
        elif new:
            one.records += new
            self._since = self._since or time.monotonic()

    def reach(self, tp: TopicPartition, offset: int) -> None:
        """Record that there are no more records below this offset: what is left are gaps."""
        one = self._partitions.get(tp)
        if one is not None and offset > one.until:
            one.until = offset
            self._note(one)

    def decide(self, now: float, clock: float) -> None:
        """Ask the filters about what they have not decided about.

        :param now: seconds since 1970. ``clock``: monotonic.
        :raises SinkError: see `Pending.decide`.
        """
        for tp in self.deferred:
            one = self._partitions[tp]
            passed, dropped = one.pending.decide(Context(tp, now, partial(self._metadata, tp, one.term)), clock)
            one.records += passed
            self._forget(dropped)
            self._defer(passed, -1)
            self._defer(dropped, -1)
            self._note(one)
            if passed:  # others come first the next time, if there is a limit for all
                self._partitions[tp] = self._partitions.pop(tp)

    @property
    def room(self) -> int:
        """How many more records it takes, if they are as large as the others; none if it has reached a limit."""
        if (left := self._limits.bytes - self._bytes) <= 0:
            return 0
        return max(0, min(self._limits.rows - self._count, 1 + int(left / max(1.0, self._mean))))

    @property
    def is_due(self) -> bool:
        """Whether it has reached one of its limits, with what is decided."""
        if self._since is None:
            return False
        rows, size = self._count - self._deferred, self._bytes - self._deferred_bytes
        is_full = rows >= self._limits.rows or size >= self._limits.bytes
        return is_full or time.monotonic() - self._since >= self._limits.seconds

    def take(self) -> dict[TopicPartition, Polled]:
        """Hand over all that is decided, or of each partition as much as the limit of bytes allows."""
        taken: dict[TopicPartition, Polled] = {}
        counts = self._counts() if self._bytes - self._deferred_bytes > self._limits.bytes else {}
        for tp, one in self._partitions.items():
            count = counts.get(tp, len(one.records))
            records, left = one.records[:count], one.records[count:]
            if (end := left[0].offset if left else one.end) > one.begin and (records or not left):
                taken[tp] = Polled(OffsetRange(one.begin, end), records, one.term)
                one.begin, one.records = end, left
        if not counts:
            self._count, self._bytes, self._since = self._deferred, self._deferred_bytes, None
        for tp, count in counts.items():
            one = self._partitions[tp]
            one.passed_over = 0 if count else one.passed_over + 1
            self._forget(taken[tp].records if count else ())
        return taken

    def _counts(self) -> dict[TopicPartition, int]:
        """How many records of each partition make up the limit: a share for each in turn, then what others leave.

        The first of a share is handed over whatever its size is, so no partition waits because its records are large.
        """
        waiting = sorted(self._partitions.items(), key=lambda one: -one[1].passed_over)
        sizes = {tp: [0, *accumulate(map(size_of, one.records))] for tp, one in waiting if one.records}
        counts, left = dict.fromkeys(sizes, 0), self._limits.bytes
        share = left // len(sizes)
        for most in (share, left):
            for tp, upto in sizes.items():
                if left > 0:
                    before = counts[tp]
                    count = bisect_right(upto, upto[before] + min(most, left)) - 1
                    counts[tp] = max(count, 1)
                    left -= upto[counts[tp]] - upto[before]
        return counts

    def _note(self, one: _Partition) -> None:
        """Note since when there is anything to hand over."""
        if one.end > one.begin:
            self._since = self._since or time.monotonic()

    def _forget(self, records: Collection[Record]) -> None:
        self._count -= len(records)
        self._bytes -= sum(map(size_of, records))

    def _defer(self, records: Collection[Record], times: int) -> None:
        self._deferred += times * len(records)
        self._deferred_bytes += times * sum(map(size_of, records))


def size_of(record: Record) -> int:
    """Bytes of its key, value and headers."""
    payload = record.payload
    size = len(payload.key or b"") + len(payload.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in payload.headers) if payload.headers else size
