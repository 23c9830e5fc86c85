"""Batches whose rows are computed, and are written later, together: when, and what they add up to."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.numbers import check_seconds, check_whole

_Rows = TypeVar("_Rows")


@dataclass(frozen=True, slots=True)
class Flush:
    """When a sink writes the batches that it keeps in memory: at the first of these limits.

    Their rows and offsets are then written in one transaction. After a crash the next start reads them again.

    :param rows: rows of all outputs.
    :param seconds: since the first of the batches was kept.
    :param bytes: of the rows as Arrow record batches.
    :raises ConfigurationError: a limit is not above 0, or not finite.
    """

    rows: int = 50_000
    seconds: float = 10.0
    bytes: int = 256 << 20

    def __post_init__(self) -> None:
        """Check the limits."""
        check_whole("Flush.rows", self.rows, "rows", least=1)
        check_seconds("Flush.seconds", self.seconds)
        check_whole("Flush.bytes", self.bytes, "bytes", least=1)


@dataclass(frozen=True, slots=True)
class Kept(Generic[_Rows]):
    """One batch: its number, what remained of its ranges, and the rows of each output; ``bytes`` is their size."""

    number: int
    ranges: Mapping[TopicPartition, OffsetRange]
    outputs: Mapping[str, _Rows]
    rows: int
    bytes: int
    since: float = field(default_factory=time.monotonic)


class Buffer(Generic[_Rows]):
    """The batches that are kept, in order. The sink's lock guards it."""

    def __init__(self, limits: Flush) -> None:
        self._limits = limits
        self.batches: tuple[Kept[_Rows], ...] = ()
        self.ranges: dict[TopicPartition, OffsetRange] = {}
        self._rows = self._bytes = 0

    def append(self, kept: Kept[_Rows]) -> None:
        """Keep another batch; each of its ranges begins where that partition's last one ends."""
        self.batches = (*self.batches, kept)
        for tp, range_ in kept.ranges.items():
            self.ranges[tp] = OffsetRange(self.ranges[tp].from_ if tp in self.ranges else range_.from_, range_.until)
        self._rows += kept.rows
        self._bytes += kept.bytes

    def remove(self, gone: Collection[Kept[_Rows]]) -> None:
        """Forget these batches: the first ones, which are written, or the last, which is delivered again."""
        left = [kept for kept in self.batches if not any(kept is one for one in gone)]
        self.batches, self.ranges, self._rows, self._bytes = (), {}, 0, 0
        for kept in left:
            self.append(kept)

    @property
    def is_due(self) -> bool:
        """Whether it has reached one of its limits."""
        if not self.batches:
            return False
        is_full = self._rows >= self._limits.rows or self._bytes >= self._limits.bytes
        return is_full or time.monotonic() - self.batches[0].since >= self._limits.seconds
