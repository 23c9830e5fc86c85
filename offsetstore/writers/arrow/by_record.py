"""Rows with the record that each was made from, so that those of single records can be left out."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, Final

import pyarrow as pa

from offsetstore.errors import RowsRefused
from offsetstore.protocol.ports import Writer
from offsetstore.writers.arrow.misfits import finds_misfits

_FEW: Final = 64  # slices of a table that are better than copying their rows


@dataclass(frozen=True, slots=True)
class RowsByRecord:
    """One output's rows, in order of their records, which are numbered from 0.

    :param first: by record number, the first row of the record, or where it would be; one more at the end.
    """

    writer: Writer
    table: pa.Table
    first: array[int]

    def has(self, number: int) -> bool:
        """Whether the record has any."""
        return self.first[number] < self.first[number + 1]

    def of(self, numbers: Sequence[int]) -> pa.Table:
        """The rows of some records, in ascending order."""
        runs: list[list[int]] = []
        for number in numbers:
            begin, end = self.first[number], self.first[number + 1]
            if runs and runs[-1][1] == begin:
                runs[-1][1] = end
            elif begin != end:
                runs.append([begin, end])
        if len(runs) > _FEW:
            rows = array("q", chain.from_iterable(range(*run) for run in runs))
            return self.table.take(pa.array(rows, pa.int64()))
        slices = [self.table.slice(begin, end - begin) for begin, end in runs]
        return pa.concat_tables(slices) if slices else self.table.slice(0, 0)

    def nth(self, numbers: Sequence[int], row: int) -> int | None:
        """The record of a row among the rows `of` these records; both are counted from 0."""
        ends = [*accumulate(self.first[number + 1] - self.first[number] for number in numbers)]
        place = bisect_right(ends, row)
        return numbers[place] if place < len(numbers) else None

    def misfits(self, connection: Any) -> dict[int, RowsRefused]:
        """The records with a value that can never fit. Only a `MisfitsWriter` reports these."""
        found: dict[int, RowsRefused] = {}
        writer, begin = self.writer, 0
        if not finds_misfits(writer):
            return found
        for batch in self.table.to_batches():
            for misfit in writer.misfits(connection, batch):
                found.setdefault(bisect_right(self.first, begin + misfit.row) - 1, misfit.error)
            begin += batch.num_rows
        return found
