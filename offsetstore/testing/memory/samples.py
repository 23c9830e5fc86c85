"""Samples of groups in memory: the part of a `MemorySession` that implements `SampleSession`."""

# ruff: noqa: D102 - the Protocol says what the methods do

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter
from typing import TypeAlias, TypeVar

from offsetstore.protocol.samples import RINGS, Sample, Selection

_N = TypeVar("_N", int, float)

SampleRow: TypeAlias = tuple[str, int, int]
"""Group, resolution and slot."""


@dataclass(slots=True)
class SampleContents:
    """The table; ``None`` stands for a row that was deleted."""

    samples: dict[SampleRow, Sample | None] = field(default_factory=dict[SampleRow, Sample | None])

    def apply(self, changes: SampleContents) -> None:
        """Take over what a transaction wrote."""
        self.samples |= changes.samples

    def copy(self) -> SampleContents:
        """As it is now."""
        return SampleContents(dict(self.samples))


class SampleMemory:
    """See the module. A session gives it its own changes, what is committed, and its clock."""

    _statement: Callable[[], AbstractContextManager[object]]
    _epoch: Callable[[str], int | None]
    _take_sample: Callable[[SampleRow], None]
    """Locks a sample's row FOR UPDATE."""

    def __init__(
        self, committed: SampleContents, changes: Callable[[], SampleContents], clock: Callable[[], datetime]
    ) -> None:
        self._committed_samples = committed
        self._changed_samples = changes
        self._sample_clock = clock

    def record_samples(self, samples: Mapping[str, Sample]) -> None:
        with self._statement():
            known = {group: one for group, one in sorted(samples.items()) if self._epoch(group) == one.epoch}
            for group, sample in known.items():
                for ring in RINGS:
                    row = (group, ring.seconds, _number(sample.at, ring.seconds) % ring.slots)
                    self._take_sample(row)
                    self._changed_samples().samples[row] = _merged(self._samples().get(row), sample, ring.seconds)

    def samples(self, groups: Collection[str], selection: Selection) -> dict[str, list[Sample]]:
        now, every = self._sample_clock(), selection.ring.seconds * selection.step
        last = _number(now, every)
        windows = range(last - selection.windows + 1, last + 1)
        with self._statement():
            all_ = sorted(((row, one) for row, one in self._samples().items()), key=lambda item: item[1].at)
        newest: dict[tuple[str, int], Sample] = {
            (group, _number(one.at, every)): one
            for (group, resolution, _), one in all_
            if resolution == selection.ring.seconds and one.at > now - selection.span
        }
        return {
            group: sorted(
                (one for (name, number), one in newest.items() if name == group and number in windows),
                key=attrgetter("at"),
            )
            for group in groups
        }

    def _samples(self) -> dict[SampleRow, Sample]:
        rows = self._committed_samples.samples | self._changed_samples().samples
        return {row: one for row, one in rows.items() if one is not None}

    def _rename_samples(self, group: str, new: str) -> None:
        there = self._samples()
        for (name, resolution, slot), sample in there.items():
            if name == group and (new, resolution, slot) not in there:
                self._changed_samples().samples |= {(group, resolution, slot): None, (new, resolution, slot): sample}

    def _delete_samples(self, group: str) -> None:
        self._changed_samples().samples |= {row: None for row in self._samples() if row[0] == group}


def _number(at: datetime, seconds: int) -> int:
    return int(at.timestamp() // seconds)


def _merged(before: Sample | None, after: Sample, seconds: int) -> Sample:
    """What the slot has then."""
    if before is None or _number(before.at, seconds) != _number(after.at, seconds):
        return after
    if after.at <= before.at:
        return before
    return replace(
        after,
        lag=max(_known(before.lag, after.lag), default=None),
        lag_seconds=max(_known(before.lag_seconds, after.lag_seconds), default=None),
        headroom=min(_known(before.headroom, after.headroom), default=None),
    )


def _known(*numbers: _N | None) -> list[_N]:
    return [number for number in numbers if number is not None]
