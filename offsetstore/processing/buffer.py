"""Batches whose rows are computed, and are written later, together: when, and what they add up to."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from offsetstore.errors import ConfigurationError
from offsetstore.offsets import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetstore.offsets import TopicPartition

_Rows = TypeVar("_Rows")


@dataclass(frozen=True, slots=True)
class Flush:
    """When a sink writes the batches that it keeps in memory: at the first of these limits.

    Their rows and offsets are then written in one transaction. After a crash the next start reads them again.

    :param rows: rows of all outputs.
    :param seconds: since the first of the batches was kept.
    :param bytes: of the rows as Arrow record batches.
    :raises ConfigurationError: a limit is not above 0.
    """

    rows: int = 50_000
    seconds: float = 10.0
    bytes: int = 256 << 20

    def __post_init__(self) -> None:
        """Check the limits."""
        if not (self.rows > 0 and self.seconds > 0 and self.bytes > 0):
            raise ConfigurationError("a limit of Flush is out of range", found=repr(self), expected="limits above 0")


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
        self.batches: list[Kept[_Rows]] = []

    @property
    def is_due(self) -> bool:
        """Whether it has reached one of its limits."""
        if not self.batches:
            return False
        limits = self._limits
        return (
            sum(batch.rows for batch in self.batches) >= limits.rows
            or sum(batch.bytes for batch in self.batches) >= limits.bytes
            or time.monotonic() - self.batches[0].since >= limits.seconds
        )

    def ends(self) -> dict[TopicPartition, int]:
        """The next offset that was not delivered yet, of each partition that has records here."""
        return {tp: range_.until for tp, range_ in joined(self.batches).items()}


def joined(batches: Iterable[Kept[_Rows]]) -> dict[TopicPartition, OffsetRange]:
    """The ranges of successive batches: each one begins where the one before it ends."""
    ranges: dict[TopicPartition, OffsetRange] = {}
    for batch in batches:
        for tp, range_ in batch.ranges.items():
            ranges[tp] = OffsetRange(ranges[tp].from_ if tp in ranges else range_.from_, range_.until)
    return ranges
