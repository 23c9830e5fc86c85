"""Computed rows, each with the record that it was made from, so that single records can be left out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from offsetstore.errors import FunctionFailed, RowsRefused
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.unit import Coordinates
from offsetstore.protocol.letters import Payload
from offsetstore.protocol.ports import Work, Writer
from offsetstore.writers.arrow.misfits import finds_misfits

_FEW: Final = 64
"""Up to this many slices of a table are better than copying their rows."""


WhileHandling: TypeAlias = Callable[[], AbstractContextManager[object]]


class Batches(Protocol):
    """Record batches that can be read again and again."""

    num_rows: int
    nbytes: int

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Read the batches from the first one on."""
        ...


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """One output's rows; see `KeptRows`.

    :param handling: entered while the writer runs.
    """

    writer: Writer
    parts: Sequence[pa.RecordBatch | Batches]
    handling: WhileHandling = nullcontext

    @property
    def rows(self) -> int:
        return sum(part.num_rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return chain.from_iterable([part] if isinstance(part, pa.RecordBatch) else part for part in self.parts)

    def write(self, work: Work) -> int:
        with self.handling():
            return self.writer.write(work, self.batches())

    def joined(self, later: Sequence[ArrowRows]) -> ArrowRows:
        return ArrowRows(self.writer, [part for rows in (self, *later) for part in rows.parts], self.handling)


@dataclass(frozen=True, slots=True)
class RowsByRecord:
    """One output's rows, in the order of their records, which are numbered from 0.

    :param first: for each record number, the place of its first row, or where that would be; and one more at the end.
    :param handling: entered while the writer runs.
    """

    writer: Writer
    table: pa.Table
    first: array[int]
    handling: WhileHandling = nullcontext

    def has(self, number: int) -> bool:
        return self.first[number] < self.first[number + 1]

    def rows_of(self, numbers: Sequence[int]) -> ArrowRows:
        """The rows of these records, which are ascending."""
        return ArrowRows(self.writer, self._table_of(numbers).to_batches(), self.handling)

    def of(self, numbers: Sequence[int]) -> RowsByRecord:
        """The rows of these records, which are numbered anew from 0."""
        sizes = (self.first[number + 1] - self.first[number] for number in numbers)
        first = array("q", accumulate(sizes, initial=0))
        return RowsByRecord(self.writer, self._table_of(numbers), first, self.handling)

    def _table_of(self, numbers: Sequence[int]) -> pa.Table:
        runs: list[list[int]] = []
        for number in numbers:
            begin, end = self.first[number], self.first[number + 1]
            if runs and runs[-1][1] == begin:
                runs[-1][1] = end
            elif begin != end:
                runs.append([begin, end])
        if len(runs) > _FEW:
            rows = array("q", chain.from_iterable(range(*run) for run in runs))
            # Arrow can't take rows from columns of views or of runs: then slices do.
            with suppress(pa.ArrowNotImplementedError):
                return self.table.take(pa.array(rows, pa.int64()))
        slices = [self.table.slice(begin, end - begin) for begin, end in runs]
        return pa.concat_tables(slices) if slices else self.table.slice(0, 0)

    def nth(self, numbers: Sequence[int], row: int) -> int | None:
        """The record of a row, by the row's place among the rows of these records, from 0."""
        ends = [*accumulate(self.first[number + 1] - self.first[number] for number in numbers)]
        place = bisect_right(ends, row)
        return numbers[place] if place < len(numbers) else None

    def misfits(self, connection: Any) -> dict[int, RowsRefused]:
        """The records with a value that can never be stored. Only a `MisfitsWriter` reports them."""
        found: dict[int, RowsRefused] = {}
        writer, begin = self.writer, 0
        if not finds_misfits(writer):
            return found
        with self.handling():
            for batch in self.table.to_batches():
                for misfit in writer.misfits(connection, batch):
                    found.setdefault(bisect_right(self.first, begin + misfit.row) - 1, misfit.error)
                begin += batch.num_rows
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedPart(ABC):
    """A `CarefulPart` whose rows are in memory; a source adds `record` and `payloads`.

    :param failing: tries some records again, each alone, and returns those that fail.
    :param is_handled: whether a handler was called for each record, so that a record without rows is accepted, too.
    """

    numbers: Sequence[int]
    keys: Mapping[int, Hashable]
    rejected: Mapping[int, Rejected]
    failed: Mapping[int, FunctionFailed]
    replaces_in_order: bool
    outputs: Mapping[str, RowsByRecord] = field(repr=False)
    failing: Callable[[Sequence[int]], Mapping[int, FunctionFailed]] = field(repr=False, default=lambda _: {})
    is_handled: bool = False

    @property
    def with_rows(self) -> list[int]:
        outputs = self.outputs.values()
        return [n for n in self.numbers if n not in self.rejected and any(output.has(n) for output in outputs)]

    @property
    def accepted(self) -> list[int]:
        return [n for n in self.numbers if n not in self.rejected] if self.is_handled else self.with_rows

    def fail_again(self, numbers: Sequence[int]) -> Mapping[int, FunctionFailed]:
        failed = self.failing(numbers)
        # If a good record fails now, too, it is no record's fault; each retry asks one of them (decision 0048).
        for why in self.failing(self.with_rows[:1]).values() if failed else ():
            raise why from why.__cause__
        return failed

    def misfits(self, connection: object) -> dict[int, RowsRefused]:
        found: dict[int, RowsRefused] = {}
        for name, output in self.outputs.items():
            for number, error in output.misfits(connection).items():
                error.output = name
                found.setdefault(number, error)
        return found

    def rows_of(self, numbers: Sequence[int]) -> dict[str, ArrowRows]:
        return {name: output.rows_of(numbers) for name, output in self.outputs.items()}

    def hinted(self, refused: RowsRefused, numbers: Sequence[int]) -> int | None:
        output = None if refused.output is None else self.outputs.get(refused.output)
        return None if output is None or refused.row is None else output.nth(numbers, refused.row - 1)

    @abstractmethod
    def record(self, number: int) -> Coordinates: ...

    @abstractmethod
    def payloads(self, numbers: Sequence[int]) -> Mapping[int, Payload]: ...
