"""Misfits: the rows whose values can't be converted for a table, all of them at once.

Converting decides, as it does when rows are written: a row is a misfit if its value is refused alone. The rows that a
`Cast` suspects are tried first, since narrowing the batch down to ten thousand single rows takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import pyarrow as pa
from sqlalchemy import Connection

from offsetstore.errors import RowsRefused
from offsetstore.protocol.ports import Writer

Array: TypeAlias = "pa.Array[Any]"
Convert: TypeAlias = "Callable[[Array], Array | str]"
Suspects: TypeAlias = "Callable[[Array], Collection[int]]"


@dataclass(frozen=True, slots=True)
class Misfit:
    """A row that would be refused if it were written alone.

    :param row: its index in the batch.
    :param error: what writing it alone would raise; rows may share it.
    """

    row: int
    error: RowsRefused


@runtime_checkable
class MisfitsWriter(Writer, Protocol):
    """A writer that can find the rows it refuses without writing them: these become letters without a trial."""

    def misfits(self, connection: Connection, batch: pa.RecordBatch) -> list[Misfit]:
        """Find the misfits among the rows of a batch, as ``write`` takes it; in order.

        The table is locked as in ``write``, so that it can't change in this transaction. Rows that only the database
        refuses are not found, except for NULLs that no trigger could replace.

        :raises ColumnMismatch, UnsafeTarget, KafkaColumnsMissing: as ``check`` does.
        """
        ...


def finds_misfits(writer: Writer) -> TypeGuard[MisfitsWriter]:
    """Tell whether the writer has ``misfits``, and these go with its ``write``."""
    if not isinstance(writer, MisfitsWriter):
        return False
    # A subclass that overrides only ``write`` may refuse more (decision 0080).
    classes, names = type(writer).__mro__, ("misfits", "write")
    misfits, write = (next(number for number, own in enumerate(classes) if name in vars(own)) for name in names)
    return misfits <= write


class FittingRows:
    """The rows of a batch that nothing has refused yet.

    :param first: the number of the first row.
    """

    def __init__(self, columns: Iterable[Array], first: int, count: int) -> None:
        self.columns = list(columns)
        self._numbers = list(range(first, first + count))

    def convert(self, column: int, attempt: Convert, suspects: Suspects) -> dict[int, str]:
        """Convert a column, and leave out the rows whose value is refused.

        Returns the reasons by the rows' numbers; the rest is as in `converted`.
        """
        made, refused = converted(self.columns[column], attempt, suspects)
        numbered = {self._numbers[row]: why for row, why in refused.items()}
        if refused:
            self.columns = [_without(array, refused) for array in self.columns]
            self._numbers = [number for number in self._numbers if number not in numbered]
        self.columns[column] = made
        return numbered


def converted(array: Array, attempt: Convert, suspects: Suspects) -> tuple[Array, dict[int, str]]:
    """Convert the rows that can be converted; return these, and the reason for each of the others.

    :param attempt: converts an array, or says why it is refused.
    :param suspects: guesses which rows are refused. The others are found too, but take several attempts each.
    """
    refused: dict[int, str] = {}
    rows = list(range(len(array)))
    while isinstance(made := attempt(array), str):
        found = {row: why for row in suspects(array) if isinstance(why := attempt(array.slice(row, 1)), str)}
        if not found:
            parts = [(0, attempt(array.slice(0, 0))), *_narrow(array, 0, len(array), attempt)]
            refused |= {rows[start]: why for start, why in parts if isinstance(why, str)}
            return pa.concat_arrays([part for _, part in parts if not isinstance(part, str)]), refused
        refused |= {rows[row]: why for row, why in found.items()}
        rows = [row for place, row in enumerate(rows) if place not in found]
        array = _without(array, found)
    return made, refused


def _narrow(array: Array, start: int, length: int, attempt: Convert) -> Iterator[tuple[int, Array | str]]:
    # A refused part is split into quarters: where one row in ten is refused, that takes fewer attempts than halves.
    made = attempt(array.slice(start, length))
    if length == 1 or not isinstance(made, str):
        yield start, made
        return
    step = -(-length // 4)
    for offset in range(0, length, step):
        yield from _narrow(array, start + offset, min(step, length - offset), attempt)


def _without(array: Array, rows: Collection[int]) -> Array:
    # Arrow can't filter all types, but it can concatenate slices of any type.
    bounds = [-1, *sorted(rows), len(array)]
    slices = [array.slice(before + 1, row - before - 1) for before, row in pairwise(bounds) if row - before > 1]
    return pa.concat_arrays(slices) if slices else array.slice(0, 0)
