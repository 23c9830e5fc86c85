"""A computed part of a batch, for tests of recovery without Spark: each record makes one row, (partition, offset)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from offsetstore import OffsetRange, TopicPartition
from offsetstore.errors import FunctionFailed, RowsRefused
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.letters import Recovery
from offsetstore.processing.unit import UNNAMED, Coordinates, Ranges, Stored, Written
from offsetstore.protocol.letters import Headers, LetterError, Payload, rejected
from offsetstore.store.term import Term, Terms

Row: TypeAlias = tuple[int, int]
Write: TypeAlias = Callable[[Any, Sequence[Row]], None]
"""Writes rows with a transaction, or raises what the database would."""


@dataclass(frozen=True)
class Records:
    """What is in Kafka besides good records.

    :param rejects: by transform, with the reasons.
    :param misfit: with a value that can never fit.
    :param rowless: records of which transform makes no row.
    :param missing: offsets without a record.
    :param failing: records that can't be computed.
    :param again: those of them that fail once more.
    :param are_handled: whether a handler was called for each; what is rejected it has failed for then.
    :param headers: of each.
    """

    rejects: Mapping[Row, str] = field(default_factory=dict[Row, str])
    misfit: Mapping[Row, RowsRefused] = field(default_factory=dict[Row, "RowsRefused"])
    rowless: Collection[Row] = ()
    missing: Collection[Row] = ()
    failing: Mapping[Row, FunctionFailed] = field(default_factory=dict[Row, "FunctionFailed"])
    again: Callable[[], Mapping[Row, FunctionFailed]] | None = None
    are_handled: bool = False
    headers: Headers | None = None


@dataclass(frozen=True)
class Rows:
    """The rows of some records."""

    values: Sequence[Row]
    write_rows: Write

    @property
    def rows(self) -> int:
        return len(self.values)

    def write(self, work: Any) -> int:
        self.write_rows(work, self.values)
        return len(self.values)


@dataclass(frozen=True)
class FakePart:
    """See `CarefulPart`; ``read_again`` gets the records whose bytes are asked for."""

    ranges: Mapping[TopicPartition, OffsetRange]
    write_rows: Write
    records: Records = field(default_factory=Records)
    keys: Mapping[int, int] = field(default_factory=dict[int, int])
    read_again: list[Row] = field(default_factory=list[Row])

    @property
    def _places(self) -> list[Coordinates]:
        return [(tp, offset) for tp, one in sorted(self.ranges.items()) for offset in range(one.from_, one.until)]

    @property
    def _rows(self) -> list[Row]:
        return [(tp.partition, offset) for tp, offset in self._places]

    @property
    def numbers(self) -> list[int]:
        return [number for number, row in enumerate(self._rows) if row not in self.records.missing]

    @property
    def with_rows(self) -> list[int]:
        rows = self._rows
        none = {*self.records.rowless, *self.records.failing, *self.records.rejects}
        return [number for number in self.numbers if rows[number] not in none]

    @property
    def failed(self) -> dict[int, FunctionFailed]:
        failing = self.records.failing
        return {n: failing[row] for n, row in enumerate(self._rows) if row in failing and n in self.numbers}

    @property
    def is_handled(self) -> bool:
        return self.records.are_handled

    def fail_again(self, numbers: Sequence[int]) -> dict[int, FunctionFailed]:
        rows = self._rows
        failing = self.records.failing if self.records.again is None else self.records.again()
        return {number: failing[rows[number]] for number in numbers if rows[number] in failing}

    @property
    def accepted(self) -> list[int]:
        return [n for n in self.numbers if n not in self.rejected] if self.records.are_handled else self.with_rows

    @property
    def rejected(self) -> dict[int, Rejected]:
        rejects = self.records.rejects
        found = {number: rejects[row] for number, row in enumerate(self._rows) if row in rejects}
        if not self.records.are_handled:
            return {number: Rejected(rejected(reason)) for number, reason in found.items()}
        return {n: Rejected(LetterError("ValueError", text), "raised", 3, " at app.py:7") for n, text in found.items()}

    def record(self, number: int) -> Coordinates:
        return self._places[number]

    def misfits(self, connection: object) -> dict[int, RowsRefused]:
        assert connection is not None
        misfit = self.records.misfit
        return {number: misfit[row] for number, row in enumerate(self._rows) if row in misfit}

    def rows_of(self, numbers: Sequence[int]) -> dict[str, Rows]:
        rows = self._rows
        none = {*self.records.rowless, *self.records.failing}
        chosen = [rows[number] for number in numbers if rows[number] not in none]
        return {UNNAMED: Rows(chosen, self.write_rows)}

    def hinted(self, refused: RowsRefused, numbers: Sequence[int]) -> int | None:
        chosen = [number for number in numbers if self._rows[number] not in self.records.rowless]
        return None if refused.row is None else chosen[refused.row - 1]

    def payloads(self, numbers: Sequence[int]) -> dict[int, Payload]:
        rows = self._rows
        self.read_again.extend(rows[number] for number in numbers)
        return {number: Payload(None, repr(rows[number]).encode(), self.records.headers, 0, 0) for number in numbers}


@dataclass(frozen=True)
class FakeDelivery:
    """What recovery asks of a delivery: ``compute`` yields its parts."""

    number: int
    ranges: Ranges
    compute: Callable[..., AbstractContextManager[Any]]
    sleep: Callable[[float], None] = lambda _: None
    terms: Terms = field(default_factory=dict[TopicPartition, Term])

    def careful(self, part: Ranges, *, suspects: Collection[Any], **_: Any) -> AbstractContextManager[Any]:
        return self.compute(part, suspects=suspects)


def written(
    recovery: Recovery,
    number: int,
    ranges: Ranges,
    compute: Callable[..., AbstractContextManager[Any]],
    *,
    sleep: Callable[[float], None] = lambda _: None,
    stored: Stored | None = None,
) -> Written | None:
    """Have recovery write what remains of a delivery."""
    delivery: Any = FakeDelivery(number, ranges, compute, sleep)
    return recovery.write(delivery, Stored() if stored is None else stored)
