"""What a consumer tells whoever looks after its process, and how it hands over records that may have killed others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from offsetstore.consumer.delivery import Polled
from offsetstore.consumer.feed import Feed
from offsetstore.consumer.filters import Filter
from offsetstore.consumer.records import ConsumedRecord, size_of
from offsetstore.offsets import OffsetRange, Ranges, TopicPartition
from offsetstore.processing.between import Flush
from offsetstore.store.claim import Claim
from offsetstore.store.term import Term


class Watch(Protocol):
    """Whoever looks after a consumer's process, such as a supervisor."""

    def joined(self, claim: Claim, /) -> None:
        """The process has joined the fleet, and has handled nothing yet."""
        ...

    def suspects(self) -> Ranges:
        """The ranges in which processes have died: their records are handled one by one."""
        ...

    def handles(self, ranges: Ranges, skip: str, /) -> None:
        """From now on the user's function or a writer handles these records; with no ranges, none.

        :param skip: a sentence with the command that skips them, if they are a single record.
        """
        ...


class Unwatched:
    """Nobody looks after the process."""

    def joined(self, _: Claim) -> None:
        """See `Watch`."""

    def suspects(self) -> Ranges:
        """See `Watch`."""
        return {}

    def handles(self, _: Ranges, __: str) -> None:
        """See `Watch`."""


@dataclass(slots=True)
class _Apart:
    """What was taken of a partition, but not handed over yet."""

    begin: int
    until: int
    records: deque[ConsumedRecord]
    term: Term
    bytes: int = 0

    def add(self, new: Polled) -> None:
        self.records += new.records
        self.bytes += sum(map(size_of, new.records))
        self.until = new.range.until

    def first(self) -> Polled:
        """Take the first record, with the range up to it."""
        records = [self.records.popleft()] if self.records else []
        self.bytes -= sum(map(size_of, records))
        begin, self.begin = self.begin, records[0].offset + 1 if records else self.until
        return Polled(OffsetRange(begin, self.begin), records, self.term)

    def rest(self) -> Polled:
        return Polled(OffsetRange(self.begin, self.until), [*self.records], self.term)


class CarefulFeed(Feed):
    """A feed that hands over the records of suspect ranges one by one, in turn with those of other partitions.

    ``is_careful`` tells whether any of these are waiting.
    """

    def __init__(
        self,
        limits: Flush,
        filters: Sequence[Filter] = (),
        *,
        metadata: Callable[[TopicPartition, Term], object] = lambda _, __: None,
        log_end: Callable[[TopicPartition], int] = lambda _: 0,
        suspects: Callable[[], Ranges] = dict,
    ) -> None:
        super().__init__(limits, filters, metadata=metadata, log_end=log_end)
        self._suspects = suspects
        self._apart: dict[TopicPartition, _Apart] = {}
        self._was_one = False

    @property
    def is_careful(self) -> bool:
        return bool(self._apart)

    @property
    def held(self) -> AbstractSet[TopicPartition]:
        """Partitions that are not to be polled for now."""
        return {*self.deferred, *self._apart}

    @property
    def starving(self) -> AbstractSet[TopicPartition]:
        """See `Feed`: partitions that are kept apart have their own turns."""
        return super().starving - self._apart.keys()

    @property
    def room(self) -> int:
        """See `Feed`: what is kept apart counts, too."""
        if not self._apart:
            return super().room
        size = sum(apart.bytes for apart in self._apart.values())
        rows = sum(len(apart.records) for apart in self._apart.values())
        # Half of the limits is for other partitions, so that none of them waits for the partitions kept apart.
        size = max(self._limits.bytes - size, (self._limits.bytes + 1) // 2) - self._bytes
        rows = max(self._limits.rows - rows, (self._limits.rows + 1) // 2) - self._count
        return max(0, min(super().room, rows, 1 + int(size / max(1.0, self._mean)))) if size > 0 else 0

    @property
    def is_due(self) -> bool:
        """See `Feed`."""
        return self.is_careful or super().is_due

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Feed`."""
        gone = [*partitions]
        for tp in gone:
            self._apart.pop(tp, None)
        super().drop(gone)

    def take(self) -> dict[TopicPartition, Polled]:
        """Hand over all records that are decided about and not suspect, or a single suspect one."""
        if self._was_one or not self._apart:
            self._was_one = False
            if (taken := self.take_others()) or not self._apart:
                return taken
        self._was_one = True
        # In turn, but the record that has killed processes comes last: each would die before it has handled the others.
        suspects = self._suspects()
        tp = min(self._apart, key=lambda tp: tp in suspects and suspects[tp].size == 1)
        apart = self._apart.pop(tp)
        polled = apart.first()
        if apart.begin < apart.until:
            self._apart[tp] = apart  # behind the others
        return {tp: polled}

    def take_others(self) -> dict[TopicPartition, Polled]:
        """Hand over all records that are decided about and not suspect; empty only if there are none."""
        while True:
            taken, suspects = super().take(), self._suspects()
            if not suspects and not self._apart:
                return taken
            for tp, new in taken.items():
                waiting = self._apart.setdefault(tp, _Apart(new.range.from_, new.range.from_, deque(), new.term))
                waiting.add(new)
            apart, self._apart = self._apart, {}
            passed: dict[TopicPartition, Polled] = {}
            for tp, waiting in apart.items():
                suspect = suspects.get(tp)
                if suspect is not None and waiting.begin < suspect.until and suspect.from_ < waiting.until:
                    self._apart[tp] = waiting
                else:
                    passed[tp] = waiting.rest()
            if passed or not taken:
                return passed


def ranges_of(places: Iterable[tuple[TopicPartition, int]]) -> Ranges:
    """Each partition's range from the first to the last of these records."""
    ranges: dict[TopicPartition, OffsetRange] = {}
    for tp, offset in places:
        known = ranges.get(tp, OffsetRange(offset, offset))
        ranges[tp] = OffsetRange(min(known.from_, offset), max(known.until, offset + 1))
    return ranges


def has_any(ranges: Ranges, places: Iterable[tuple[TopicPartition, int]]) -> bool:
    none = OffsetRange(0, 0)
    return any((range_ := ranges.get(tp, none)).from_ <= offset < range_.until for tp, offset in places)


def single(polled: Mapping[TopicPartition, Polled]) -> tuple[TopicPartition, OffsetRange] | None:
    """Partition and range of the record, if there is only one; else ``None``."""
    if len(polled) != 1:
        return None
    [(tp, part)] = polled.items()
    return (tp, part.range) if len(part.records) == 1 else None
