"""Check whether rows fit a table; one error names everything that does not, before any byte is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

import pyarrow as pa

from offsetstore.errors import ColumnMismatch, MissingPrivilege
from offsetstore.protocol.letters import REJECT
from offsetstore.writers.arrow.casts import Cast, find_cast, lossless_type
from offsetstore.writers.arrow.kinds import plain, replacement, unknown
from offsetstore.writers.table.catalogue import Column, TableName
from offsetstore.writers.table.conversions import RowMaker, conversion


@dataclass(frozen=True, slots=True)
class Match:
    """A column of the rows, its column in the table, and the cast to it."""

    column: Column
    cast: Cast


@dataclass(slots=True)
class _Mismatch:
    """Collects the columns that do not fit."""

    problems: list[str] = field(default_factory=list[str])
    found: dict[str, str] = field(default_factory=dict[str, str])
    expected: dict[str, str] = field(default_factory=dict[str, str])
    next_steps: list[str] = field(default_factory=list[str])

    def add(
        self, name: str, problem: str, *, found: str | None = None, expected: str | None = None, next_step: str
    ) -> None:
        self.problems.append(f"{name} {problem}")
        self.next_steps.append(next_step)
        if found is not None:
            self.found[name] = found
        if expected is not None:
            self.expected[name] = expected

    def refuse(self, table: TableName) -> None:
        if self.problems:
            next_step = " ".join(dict.fromkeys(self.next_steps))
            raise ColumnMismatch(
                f"the rows do not fit the table {table}: {', '.join(self.problems)}",
                found=self.found or None,
                expected=self.expected or None,
                next_step=next_step,
            )


def match_columns(
    schema: pa.Schema, columns: Mapping[str, Column], table: TableName, words: RowMaker = "spark"
) -> list[Match]:
    """Match the rows' columns, in their order, with the table's.

    :param words: the API in which the error says how to convert a column.
    :raises ColumnMismatch: the two don't fit; the error names all such columns.
    :raises MissingPrivilege: the default of another column takes from a sequence that the role may not use.
    """
    if not schema.names:
        raise ColumnMismatch(
            f"the rows have no columns to write to {table}",
            expected=f"columns of {', '.join(columns)}",
            next_step="Check what transform returns.",
        )
    mismatch = _Mismatch()
    fields = zip(schema.names, schema.types, strict=True)
    matches = [match for name, arrow in fields if (match := _match(name, arrow, columns, mismatch, words))]
    for name in sorted({name for name in schema.names if schema.names.count(name) > 1}):
        mismatch.add(name, "appears more than once", next_step="Keep each column once.")
    for column in columns.values():
        if column.required and column.name not in schema.names:
            mismatch.add(
                column.name,
                "is missing, but is NOT NULL without a default in the table",
                expected=column.type_name,
                next_step=f"Add {column.name} in the transform, or give it a default in the table.",
            )
    mismatch.refuse(table)
    if denied := {
        column.name: column.denied for column in columns.values() if column.denied and column.name not in schema.names
    }:
        raise MissingPrivilege(
            f"the role may not use the sequences of {table}; nothing was written",
            found="; ".join(f"no USAGE on {sequence}, the default of {name}" for name, sequence in denied.items()),
        )
    return matches


def _match(
    name: str, arrow: pa.DataType, columns: Mapping[str, Column], mismatch: _Mismatch, words: RowMaker
) -> Match | None:
    column = columns.get(name)
    if column is None:
        near = _near(name, columns)
        problem = "is not in the table" + (f" (did you mean {near}?)" if near else "")
        step = f"Rename it to {near}." if near else f"Drop {name} in the transform, or add it to the table."
        if name == REJECT:
            step = "Give the sink dead_letters=DeadLetters(), which keeps the records that are rejected."
        mismatch.add(name, problem, found=str(arrow), next_step=step)
    elif column.computed:
        step = f"Drop {name} in the transform: the database generates it."
        mismatch.add(name, "is GENERATED ALWAYS", found=str(arrow), next_step=step)
    elif plain(arrow) is None:
        problem = f"has a type that offsetstore does not write to tables, {unknown(arrow)}"
        step = f"Convert {unknown(arrow)} to {replacement(arrow)} in the transform"
        step += f": batch.column({name!r}).storage." if isinstance(arrow, pa.BaseExtensionType) else "."
        mismatch.add(name, problem, found=str(arrow), expected=column.type_name, next_step=step)
    elif (cast := find_cast(arrow, column)) is None and (instead := lossless_type(column)):
        problem = f"is {column.type_name} in the table, which can change values without an error"
        step = f"Change {name} to {instead} in the table."
        mismatch.add(name, problem, found=str(arrow), expected=instead, next_step=step)
    elif cast is None:
        step = str(conversion(name, arrow, column, words))
        mismatch.add(name, "has another type", found=str(arrow), expected=column.type_name, next_step=step)
    else:
        return Match(column, cast)
    return None


def _near(name: str, columns: Iterable[str]) -> str | None:
    """Guess the name that was meant."""
    names = list(columns)
    # First in another case, since Spark ignores case.
    same = [other for other in names if other.casefold() == name.casefold()]
    return (same or get_close_matches(name, names, n=1) or [None])[0]
