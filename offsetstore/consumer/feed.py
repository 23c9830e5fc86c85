"""Records that wait to be delivered together, and how far each partition was read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from offsetstore.consumer.delivery import Polled
from offsetstore.consumer.records import Record
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.processing.between import Flush
from offsetstore.store.term import Term, Terms


@dataclass(slots=True)
class _Partition:
    term: Term
    begin: int
    until: int
    records: list[Record] = field(default_factory=list[Record])


class Feed:
    """Gathers what is polled of the partitions that it was given; the polling thread's.

    :param limits: at the first of these it is due; ``rows`` counts records, and ``bytes`` those of keys and values.
    """

    def __init__(self, limits: Flush) -> None:
        self._limits = limits
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._count = self._bytes = 0
        self._since: float | None = None

    @property
    def partitions(self) -> AbstractSet[TopicPartition]:
        """Those that it was given."""
        return self._partitions.keys()

    def begin(self, offsets: Mapping[TopicPartition, int], terms: Terms) -> None:
        """Gather these partitions from these offsets on.

        :param terms: the member's; one that has lost a partition again has none of it.
        """
        self.drop(offsets)
        self._partitions |= {tp: _Partition(terms.get(tp) or Term(), offset, offset) for tp, offset in offsets.items()}

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions, and what waits of them."""
        for tp in partitions:
            gone = self._partitions.pop(tp, None)
            if gone is not None:
                self._count -= len(gone.records)
                self._bytes -= sum(map(_size, gone.records))
        if not any(one.until > one.begin for one in self._partitions.values()):
            self._since = None

    def add(self, record: Record) -> None:
        """Gather a record, unless it was gathered before, or is of another partition."""
        one = self._partitions.get(record.topic_partition)
        if one is None or record.offset < one.until:
            return
        one.records.append(record)
        one.until = record.offset + 1
        self._count += 1
        self._bytes += _size(record)
        self._since = self._since or time.monotonic()

    def reach(self, tp: TopicPartition, offset: int) -> None:
        """Record that there are no more records below this offset: what is left are gaps."""
        one = self._partitions.get(tp)
        if one is not None and offset > one.until:
            one.until = offset
            self._since = self._since or time.monotonic()

    @property
    def room(self) -> int:
        """How many more records it takes; none if it has reached the limit of bytes."""
        return max(0, self._limits.rows - self._count) if self._bytes < self._limits.bytes else 0

    @property
    def is_due(self) -> bool:
        """Whether it has reached one of its limits."""
        if self._since is None:
            return False
        return not self.room or time.monotonic() - self._since >= self._limits.seconds

    def take(self) -> dict[TopicPartition, Polled]:
        """Hand over all that waits."""
        taken: dict[TopicPartition, Polled] = {}
        for tp, one in self._partitions.items():
            if one.until > one.begin:
                taken[tp] = Polled(OffsetRange(one.begin, one.until), one.records, one.term)
                one.begin, one.records = one.until, []
        self._count = self._bytes = 0
        self._since = None
        return taken


def _size(record: Record) -> int:
    return len(record.payload.key or b"") + len(record.payload.value or b"")
