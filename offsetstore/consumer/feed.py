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
# Deliveries in a row without a partition, before it is polled alone: the third delivery has it (decision 0101).
_TURN: Final = 2
_DEFERRED: Final = 10_000  # deferred records of all partitions: with a smaller flush they would often be read again


@dataclass(slots=True)
class _Partition:
    """What was read of a partition.

    :param begin: where the last delivery ended; ``until``: where the last poll did.
    :param records: those for the next delivery.
    :param passed_over: how many deliveries in a row had nothing of it, though it had records.
    :param log_end: the log's end when the client had read all that it may; records below it are of open transactions.
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
        """The offset below which filters have decided about all records."""
        first = self.pending.first
        return self.until if first is None else first


class Feed:
    """Gathers the polled records of the partitions that it was given. Only the polling thread uses it.

    Kafka's client hands over what it has fetched in the order of its fetches, with up to 1 MiB of a partition at a time
    and 64 MiB of all. So of several partitions with a backlog, one may come long before the next. If a partition is
    paused, the client drops what it has fetched of it, and fetches it again later; see `starving`.

    :param limits: a delivery is due at the first of these, and exceeds none by more than one record; ``rows`` counts
        records, ``bytes`` their keys, values and headers.
    :param filters: asked by `decide`.
    :param metadata: a partition's metadata when its term began, for filters.
    :param log_end: a partition's high watermark, as Kafka's client knows it.
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
        """Partitions that the last delivery had nothing of, and that have no known records."""
        self.dropped = Counter[str]()
        """How many records filters have dropped, by the filters' class names; whoever reports them clears it."""
        self.again = dict[TopicPartition, int]()
        """Where Kafka's client is to read partitions again; whoever makes it seek there clears it."""

    @property
    def partitions(self) -> AbstractSet[TopicPartition]:
        return self._partitions.keys()

    @property
    def deferred(self) -> Collection[TopicPartition]:
        """Partitions with records that filters have not decided about."""
        return [tp for tp, part in self._partitions.items() if part.pending.first is not None] if self._filters else ()

    @property
    def held_records(self) -> dict[TopicPartition, HeldRecord]:
        """See `RecordsHeld`."""
        found = ((tp, self._partitions[tp].pending.held) for tp in self.deferred)
        return {tp: held for tp, held in found if held is not None}

    @property
    def starving(self) -> AbstractSet[TopicPartition]:
        """Partitions that the last deliveries had nothing of, though Kafka has records: to be polled alone.

        Of each, `share` records may be added, beyond the `room` that is left.
        """
        return self._starving

    @property
    def share(self) -> int:
        """One partition's share of a delivery, in records of the usual size; at least one."""
        rows, size = self._share
        return max(1, min(rows, int(size / max(1.0, self._mean))))

    @property
    def _share(self) -> tuple[int, int]:
        count = len(self._partitions) or 1
        return max(1, self._limits.rows // count), self._limits.bytes // count

    def begin(self, offsets: Mapping[TopicPartition, int], terms: Terms) -> None:
        """Gather these partitions from these offsets on.

        :param terms: the member's. A partition that it has lost meanwhile has none.
        """
        self.drop(offsets)
        for tp, offset in offsets.items():
            pending = Pending(self._filters, self.dropped)
            self._partitions[tp] = _Partition(terms.get(tp) or Term(), offset, offset, pending)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions and their waiting records."""
        for tp in partitions:
            self._starving.discard(tp)
            self.quiet.discard(tp)
            self.again.pop(tp, None)
            gone = self._partitions.pop(tp, None)
            if gone is not None:
                self._forget(gone.records)
        if not any(partition.end > partition.begin for partition in self._partitions.values()):
            self._since = None

    def add(self, tp: TopicPartition, records: Iterable[ConsumedRecord], topic_id: str = "") -> None:
        """Gather a partition's records, except records that it has already, or of a partition that it was not given.

        :param topic_id: for filters, see `offsetstore.Record`.
        """
        partition = self._partitions.get(tp)
        if partition is None:
            return
        new = list[ConsumedRecord]()
        for record in records:
            if record.offset >= partition.until:
                partition.until = record.offset + 1
                new.append(record)
        if not new:
            return
        partition.log_end = 0
        self._starving.discard(tp)
        if self._filters:
            self._mean = sum(map(size_of, new)) / len(new)
            for record in new:
                partition.pending.add(record, as_given(record, topic_id))
        else:
            self._gather(partition, new)
            self._since = self._since or time.monotonic()

    def reach(self, tp: TopicPartition, offset: int) -> None:
        """Record that all below this offset was read; what is missing are gaps."""
        partition = self._partitions.get(tp)
        if partition is not None and offset >= partition.until:
            partition.log_end = self._log_end(tp)  # not for good: what comes next may wait behind others
            self._starving.discard(tp)
        if partition is not None and offset > partition.until:
            partition.until = offset
            self._note(partition)

    def decide(self, now: float, clock: float) -> None:
        """Ask the filters about the records that they have not decided about.

        :param now: seconds since 1970; ``clock``: monotonic.
        :raises SinkError: see `Pending.decide`.
        """
        rows, size = max(1, max(self._limits.rows, _DEFERRED) // (len(self._partitions) or 1)), self._share[1]
        for tp in self.deferred:
            partition = self._partitions[tp]
            context = Context(tp, now, partial(self._metadata, tp, partition.term))
            passed, _, again = partition.pending.decide(context, clock, rows=rows, size=size)
            if again is not None:
                partition.until = self.again[tp] = again
                partition.log_end = 0
            self._gather(partition, passed)
            self._note(partition)
            # A filter with one limit for all partitions, such as Throttle, is next asked about the others first.
            if passed:
                self._partitions[tp] = self._partitions.pop(tp)

    @property
    def room(self) -> int:
        """How many more records it takes, if they have the usual size; 0 once a limit is reached."""
        if (left := self._limits.bytes - self._bytes) <= 0:
            return 0
        return max(0, min(self._limits.rows - self._count, 1 + int(left / max(1.0, self._mean))))

    @property
    def is_due(self) -> bool:
        """Whether the records that are decided about have reached one of the limits."""
        if self._since is None:
            return False
        is_full = self._count >= self._limits.rows or self._bytes >= self._limits.bytes
        return is_full or time.monotonic() - self._since >= self._limits.seconds

    def take(self) -> dict[TopicPartition, Polled]:
        """Hand over all records that are decided about, or as many of each partition as the limits allow."""
        taken: dict[TopicPartition, Polled] = {}
        is_more = self._count > self._limits.rows or self._bytes > self._limits.bytes
        counts = self._counts() if is_more else {}
        for tp, partition in self._partitions.items():
            count = counts.get(tp, len(partition.records))
            records, left = partition.records[:count], partition.records[count:]
            if (end := left[0].offset if left else partition.end) > partition.begin and (records or not left):
                taken[tp] = Polled(OffsetRange(partition.begin, end), records, partition.term)
                partition.begin, partition.records = end, left
        if not counts:
            self._count, self._bytes, self._since = 0, 0, None
        for tp in counts:
            self._forget(taken[tp].records if tp in taken else ())
        if taken:
            self._count_turns(taken)
        return taken

    def _count_turns(self, taken: Collection[TopicPartition]) -> None:
        """Note which partitions this delivery has nothing of, though they have records (decision 0101)."""
        self.quiet.clear()
        for tp, partition in self._partitions.items():
            is_deferred = partition.pending.first is not None
            if tp not in taken and (
                partition.records or (not is_deferred and self._log_end(tp) > max(partition.until, partition.log_end))
            ):
                partition.passed_over += 1
                if partition.passed_over >= _TURN and not partition.records:
                    self._starving.add(tp)
                continue
            partition.passed_over = 0
            self._starving.discard(tp)
            if tp not in taken and not is_deferred:
                self.quiet.add(tp)

    def _counts(self) -> dict[TopicPartition, int]:
        """How many records of each partition fit the limits: first a share for each, then what others leave."""
        # Those first that were passed over most often (decision 0101).
        waiting = sorted(self._partitions.items(), key=lambda item: -item[1].passed_over)
        sizes = {tp: [0, *accumulate(map(size_of, part.records))] for tp, part in waiting if part.records}
        counts = dict.fromkeys(sizes, 0)
        rows, left = self._limits.rows, self._limits.bytes
        for most_rows, most in ((max(1, rows // len(sizes)), left // len(sizes)), (rows, left)):
            for tp, upto in sizes.items():
                if left > 0 and rows > 0:
                    before = counts[tp]
                    count = bisect_right(upto, upto[before] + min(most, left)) - 1
                    # At least one, whatever its size: no partition waits because its records are large.
                    counts[tp] = min(max(count, 1), before + min(most_rows, rows))
                    left -= upto[counts[tp]] - upto[before]
                    rows -= counts[tp] - before
        return counts

    def _note(self, partition: _Partition) -> None:
        """Note since when there is anything to hand over."""
        if partition.end > partition.begin:
            self._since = self._since or time.monotonic()

    def _gather(self, partition: _Partition, records: Sequence[ConsumedRecord]) -> None:
        partition.records += records
        self._count += len(records)
        self._bytes += sum(map(size_of, records))
        if self._count:
            self._mean = self._bytes / self._count

    def _forget(self, records: Collection[ConsumedRecord]) -> None:
        self._count -= len(records)
        self._bytes -= sum(map(size_of, records))
