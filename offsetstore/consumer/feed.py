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
from offsetstore.consumer.records import ConsumedRecord, as_given, size_of
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.processing.between import Flush
from offsetstore.protocol.events import HeldRecord
from offsetstore.store.term import Term, Terms

_USUAL: Final = 1024  # bytes of a record, until one was seen
_TURN: Final = 2  # deliveries in a row without a partition, before it alone is polled: the third one has it
_DEFERRED: Final = 10_000  # records that filters defer, of all partitions: a smaller flush would read them again often


@dataclass(slots=True)
class _Partition:
    """What was read of a partition.

    :param begin: what was taken ends here; ``until``: what was polled.
    :param records: those that go on with the next delivery.
    :param passed_over: how many deliveries in a row had nothing of it, though it had records.
    :param log_end: Kafka's end, as the client had read all that it may: what is between is of open transactions.
    """

    term: Term
    begin: int
    until: int
    pending: Pending
    records: list[ConsumedRecord] = field(default_factory=list[ConsumedRecord])
    passed_over: int = 0
    log_end: int = 0

    @property
    def end(self) -> int:
        """Up to which offset all is decided."""
        first = self.pending.first
        return self.until if first is None else first


class Feed:
    """Gathers what is polled of the partitions that it was given; the polling thread's.

    Kafka's client hands over what it has fetched in the order of its fetches, with up to 1 MiB of a partition at a time
    and 64 MiB of all. So of partitions with a backlog, one may come long before the next. What comes behind is dropped
    by the client when a partition is paused, and fetched again; see `starving`.

    :param limits: at the first of these it is due, and no more is handed over at a time, but for one record;
        ``rows`` counts records, and ``bytes`` those of keys, values and headers.
    :param filters: asked by `decide`.
    :param metadata: a partition's, as its term began, for filters.
    :param log_end: Kafka's end of a partition, as its client knows it: its high watermark.
    """

    def __init__(
        self,
        limits: Flush,
        filters: Sequence[Filter] = (),
        *,
        metadata: Callable[[TopicPartition, Term], object] = lambda _, __: None,
        log_end: Callable[[TopicPartition], int] = lambda _: 0,
    ) -> None:
        self._limits = limits
        self.has_filters = bool(filters)
        self._filters = filters
        self._metadata = metadata
        self._log_end = log_end
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._count = self._bytes = 0  # of what is decided
        self._mean: float = _USUAL  # bytes of a record
        self._since: float | None = None
        self._starving = set[TopicPartition]()
        self.quiet = set[TopicPartition]()
        """Those that the last delivery had nothing of, and of which no records are known."""
        self.dropped = Counter[str]()
        """How many records filters have dropped, by the names of their classes; whoever tells it clears it."""
        self.again = dict[TopicPartition, int]()
        """From where partitions are to be read again; whoever has Kafka's client do that clears it."""

    @property
    def partitions(self) -> AbstractSet[TopicPartition]:
        """Those that it was given."""
        return self._partitions.keys()

    @property
    def deferred(self) -> Collection[TopicPartition]:
        """Those with records that filters have not decided about."""
        return [tp for tp, one in self._partitions.items() if one.pending.first is not None] if self._filters else ()

    @property
    def held_records(self) -> dict[TopicPartition, HeldRecord]:
        """See `RecordsHeld`."""
        found = ((tp, self._partitions[tp].pending.held) for tp in self.deferred)
        return {tp: held for tp, held in found if held is not None}

    @property
    def starving(self) -> AbstractSet[TopicPartition]:
        """Those that the last deliveries had nothing of, though Kafka has records: they alone are to be polled.

        Of each, `share` records may be added beside what there is `room` for.
        """
        return self._starving

    @property
    def share(self) -> int:
        """How many records of one partition are its share of a delivery, if they are as large as the others."""
        rows, size = self._share
        return max(1, min(rows, int(size / max(1.0, self._mean))))

    @property
    def _share(self) -> tuple[int, int]:
        count = len(self._partitions) or 1
        return max(1, self._limits.rows // count), self._limits.bytes // count

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
            self._starving.discard(tp)
            self.quiet.discard(tp)
            self.again.pop(tp, None)
            gone = self._partitions.pop(tp, None)
            if gone is not None:
                self._forget(gone.records)
        if not any(one.end > one.begin for one in self._partitions.values()):
            self._since = None

    def add(self, tp: TopicPartition, records: Iterable[ConsumedRecord], topic_id: str = "") -> None:
        """Gather a partition's records, unless they were gathered before, or it was not given the partition.

        :param topic_id: for filters, see `offsetstore.Record`.
        """
        one = self._partitions.get(tp)
        if one is None:
            return
        new = list[ConsumedRecord]()
        for record in records:
            if record.offset >= one.until:
                one.until = record.offset + 1
                new.append(record)
        if not new:
            return
        one.log_end = 0
        self._starving.discard(tp)
        if self._filters:
            self._mean = sum(map(size_of, new)) / len(new)
            for record in new:
                one.pending.add(record, as_given(record, topic_id))
        else:
            self._gather(one, new)
            self._since = self._since or time.monotonic()

    def reach(self, tp: TopicPartition, offset: int) -> None:
        """Record that there are no more records below this offset: what is left are gaps."""
        one = self._partitions.get(tp)
        if one is not None and offset >= one.until:
            one.log_end = self._log_end(tp)  # not for good: what comes next may wait behind others
            self._starving.discard(tp)
        if one is not None and offset > one.until:
            one.until = offset
            self._note(one)

    def decide(self, now: float, clock: float) -> None:
        """Ask the filters about what they have not decided about.

        :param now: seconds since 1970. ``clock``: monotonic.
        :raises SinkError: see `Pending.decide`.
        """
        rows, size = max(1, max(self._limits.rows, _DEFERRED) // (len(self._partitions) or 1)), self._share[1]
        for tp in self.deferred:
            one = self._partitions[tp]
            context = Context(tp, now, partial(self._metadata, tp, one.term))
            passed, _, again = one.pending.decide(context, clock, rows=rows, size=size)
            if again is not None:
                one.until = self.again[tp] = again
                one.log_end = 0
            self._gather(one, passed)
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
        is_full = self._count >= self._limits.rows or self._bytes >= self._limits.bytes
        return is_full or time.monotonic() - self._since >= self._limits.seconds

    def take(self) -> dict[TopicPartition, Polled]:
        """Hand over all that is decided, or of each partition as much as the limits allow."""
        taken: dict[TopicPartition, Polled] = {}
        is_more = self._count > self._limits.rows or self._bytes > self._limits.bytes
        counts = self._counts() if is_more else {}
        for tp, one in self._partitions.items():
            count = counts.get(tp, len(one.records))
            records, left = one.records[:count], one.records[count:]
            if (end := left[0].offset if left else one.end) > one.begin and (records or not left):
                taken[tp] = Polled(OffsetRange(one.begin, end), records, one.term)
                one.begin, one.records = end, left
        if not counts:
            self._count, self._bytes, self._since = 0, 0, None
        for tp in counts:
            self._forget(taken[tp].records if tp in taken else ())
        if taken:
            self._count_turns(taken)
        return taken

    def _count_turns(self, taken: Collection[TopicPartition]) -> None:
        """Note which partitions this delivery has nothing of, though they have records."""
        self.quiet.clear()
        for tp, one in self._partitions.items():
            is_deferred = one.pending.first is not None
            if tp not in taken and (
                one.records or (not is_deferred and self._log_end(tp) > max(one.until, one.log_end))
            ):
                one.passed_over += 1
                if one.passed_over >= _TURN and not one.records:
                    self._starving.add(tp)
                continue
            one.passed_over = 0
            self._starving.discard(tp)
            if tp not in taken and not is_deferred:
                self.quiet.add(tp)

    def _counts(self) -> dict[TopicPartition, int]:
        """How many records of each partition make up the limits: a share for each in turn, then what others leave.

        The first of a share is handed over whatever its size is, so no partition waits because its records are large.
        """
        waiting = sorted(self._partitions.items(), key=lambda one: -one[1].passed_over)
        sizes = {tp: [0, *accumulate(map(size_of, one.records))] for tp, one in waiting if one.records}
        counts = dict.fromkeys(sizes, 0)
        rows, left = self._limits.rows, self._limits.bytes
        for most_rows, most in ((max(1, rows // len(sizes)), left // len(sizes)), (rows, left)):
            for tp, upto in sizes.items():
                if left > 0 and rows > 0:
                    before = counts[tp]
                    count = bisect_right(upto, upto[before] + min(most, left)) - 1
                    counts[tp] = min(max(count, 1), before + min(most_rows, rows))
                    left -= upto[counts[tp]] - upto[before]
                    rows -= counts[tp] - before
        return counts

    def _note(self, one: _Partition) -> None:
        """Note since when there is anything to hand over."""
        if one.end > one.begin:
            self._since = self._since or time.monotonic()

    def _gather(self, one: _Partition, records: Sequence[ConsumedRecord]) -> None:
        one.records += records
        self._count += len(records)
        self._bytes += sum(map(size_of, records))
        if self._count:
            self._mean = self._bytes / self._count

    def _forget(self, records: Collection[ConsumedRecord]) -> None:
        self._count -= len(records)
        self._bytes -= sum(map(size_of, records))
