"""A writer with one table: it matches the rows' columns with the table's, and checks rows before COPY.

`Append`, which inserts every row as a new one, is here; `Upsert` is in `offsetstore/writers/upsert.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from difflib import get_close_matches
from operator import attrgetter

import psycopg
import pyarrow as pa
from psycopg import sql
from sqlalchemy import Connection, Table

from offsetstore.errors import ColumnMismatch, MissingPrivilege, RowsRefused
from offsetstore.postgres.errors import before_rows, null_refused, refusals
from offsetstore.protocol.letters import REJECT
from offsetstore.protocol.ports import Work
from offsetstore.writers.arrow.batches import Stream, drop_kafka, without_kafka
from offsetstore.writers.arrow.casts import Match, find_cast, lossless_type
from offsetstore.writers.arrow.copying import (
    Encoding,
    copy_batches,
    create_temporary,
    driver_connection,
    find_misfits,
    locate_target,
    locked_target,
    temporary_name,
)
from offsetstore.writers.arrow.kinds import plain, replacement, unknown
from offsetstore.writers.arrow.misfits import Misfit
from offsetstore.writers.arrow.values import null_rows
from offsetstore.writers.table.catalogue import Column, TableName, Target, check_rights, locate, read_target
from offsetstore.writers.table.conversions import RowMaker, conversion


class IntoTable(ABC):
    """Writes rows to one table.

    ``words``: the API in which errors say how to convert a column, by what makes the rows. ``option``: the option of
    `offsetstore grants` for the privileges on this writer's table.
    """

    words: RowMaker = "spark"
    option: str

    def __init__(self, table: str | Table) -> None:
        self.table = TableName.parse(table)

    def resolve_table(self, connection: Connection) -> None:
        """If no schema was named, look it up in the connection's search path, and keep to it."""
        # A sink asks once, on the driver: executors may have another search path (decision 0024).
        with self._refusals():
            self.table = locate_target(connection, self.table)

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Compare the columns with the table's, and the role's privileges with the required ones.

        :raises ColumnMismatch: the columns don't fit, the key of an `Upsert` is not unique, or there is no such table.
        :raises UnsafeTarget: the table, or a partition of it, is UNLOGGED, temporary or foreign.
        :raises KafkaColumnsMissing: rows have to be ordered by offset, and ``_kafka`` is missing.
        :raises MissingPrivilege: the role may not insert these columns, use the schema or the sequence of a default, or
            do something else that the writer needs.
        """
        self.check_order(schema)
        driver = driver_connection(connection)
        with self._refusals(), before_rows(self.table, self.table.identifier.as_string()):
            target = read_target(driver, self.table)
            names = [match.column.name for match in self.match(driver, target, schema)]
            check_rights(driver, self.table, self.rights(target, names), names)

    def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
        """Write the rows; return how many the batches had.

        :raises ColumnMismatch, UnsafeTarget, KafkaColumnsMissing: as `check`.
        :raises MissingPrivilege, SinkError: the database takes no rows, as without a grant or a replica identity.
        :raises RowsRefused: a value or a row does not fit the table.
        """
        stream = Stream.of(batches)
        if stream is None:
            return 0
        self.check_order(stream.schema)
        driver = driver_connection(work.connection)
        refused = self._refusals(stream.schema.names, copied=self.table.name)
        with refused, locked_target(driver, self.table) as target:
            self.send(driver, target, self.match(driver, target, stream.schema), stream)
        return stream.rows

    def misfits(self, connection: Connection, batch: pa.RecordBatch) -> list[Misfit]:
        """Find the rows that `write` refuses because of their own values; see `MisfitsWriter`."""
        self.check_order(batch.schema)
        driver = driver_connection(connection)
        with self._refusals(batch.schema.names), locked_target(driver, self.table) as target:
            matches, rows = self.match(driver, target, batch.schema), self.flat(batch)
            found = find_misfits(driver, self.encoding(matches, batch.schema), rows)
            found = self.with_nulls(found, driver, matches, rows)
        return [Misfit(row, found[row]) for row in sorted(found)]

    def _refusals(self, names: Collection[str] = (), *, copied: str | None = None) -> AbstractContextManager[None]:
        # An option's value can't name a table with a dot in its name.
        can_be_option = "." not in f"{self.table.schema or ''}{self.table.name}"
        grants = [self.option, str(self.table)] if can_be_option else None
        return refusals(self.table, names, copied=copied, grants=grants)

    @abstractmethod
    def uses_kafka_column(self, schema: pa.Schema) -> bool:
        """See `Writer`."""

    @abstractmethod
    def rights(self, target: Target, names: Sequence[str]) -> list[str]:
        """The privileges that the role needs to write these columns; see `check_rights`."""

    @abstractmethod
    def send(self, driver: psycopg.Connection, target: Target, matches: list[Match], stream: Stream) -> None:
        """Write the rows into the table, which is locked."""

    @abstractmethod
    def with_nulls(
        self, found: dict[int, RowsRefused], driver: psycopg.Connection, matches: list[Match], rows: pa.RecordBatch
    ) -> dict[int, RowsRefused]:
        """Add to the misfits the rows that are certain to be refused because of a NULL."""

    def check_order(self, schema: pa.Schema) -> None:  # noqa: B027 - Append has none
        """Refuse rows of this schema if they have to be ordered by ``_kafka``, and it is missing."""

    def match(self, driver: psycopg.Connection, target: Target, schema: pa.Schema) -> list[Match]:  # noqa: ARG002 - Upsert's
        """Match the columns that are written with the table's."""
        return match_columns(without_kafka(schema), target.columns, self.table, self.words)

    def encoding(self, matches: list[Match], schema: pa.Schema) -> Encoding:  # noqa: ARG002 - Upsert's
        """How `flat` batches are encoded."""
        return Encoding(self.table, matches)

    def flat(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of a batch that are copied."""
        return drop_kafka(batch)


_MOVE = sql.SQL("INSERT INTO {table} ({columns}) SELECT {columns} FROM {temporary}")


class Append(IntoTable):
    """Adds each row to a table, by COPY; where row-level security applies, by way of a temporary table.

    :param table: ``"payments"``, ``"schema.payments"`` or a SQLAlchemy ``Table``. Columns are matched by their exact
        names; a column that the rows do not have gets its default. If no schema is named, a sink looks it up once,
        in the search path of the driver's connection, and keeps to it, on executors too. The table and its partitions
        must survive a crash and be in this database; what its triggers write to is up to you.
    :raises ConfigurationError: not a valid table name.
    """

    appends = True
    option = "--append"

    def __repr__(self) -> str:
        return f"Append({str(self.table)!r})"

    def uses_kafka_column(self, schema: pa.Schema) -> bool:  # noqa: ARG002 - the Protocol's
        """Never: rows are not compared."""
        return False

    def rights(self, target: Target, names: Sequence[str]) -> list[str]:  # noqa: ARG002 - Upsert's
        """See `IntoTable`."""
        return ["INSERT", *(["TEMPORARY"] if target.has_policies else [])]

    def send(self, driver: psycopg.Connection, target: Target, matches: list[Match], stream: Stream) -> None:
        """See `IntoTable`."""
        encoding, rows = self.encoding(matches, stream.schema), map(self.flat, stream)
        # Where policies apply, PostgreSQL refuses COPY, but not INSERT.
        if not target.has_policies:
            copy_batches(driver, self.table.identifier, encoding, rows)
            return
        temporary, columns = temporary_name(), sql.SQL(", ").join(map(sql.Identifier, encoding.columns))
        move = _MOVE.format(table=self.table.identifier, columns=columns, temporary=temporary)
        create_temporary(driver, temporary, self.table, encoding.columns, target=target, move=move)
        copy_batches(driver, temporary, encoding, rows)
        driver.execute(move)

    def with_nulls(
        self, found: dict[int, RowsRefused], driver: psycopg.Connection, matches: list[Match], rows: pa.RecordBatch
    ) -> dict[int, RowsRefused]:
        """See `IntoTable`: rows with NULL where no trigger could fill it in."""
        # The database checks the columns in the table's order. Its own error would name a partition.
        columns = [match.column for match in matches if match.column.refuses_null]
        for column in sorted(columns, key=attrgetter("number")):
            if null := null_rows(rows, column.name):
                error = null_refused(self.table, str(locate(driver, self.table)), column.name)
                found = dict.fromkeys(null, error) | found
        return found


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

    def explain(self, name: str, arrow: pa.DataType, columns: Mapping[str, Column], words: RowMaker) -> None:
        """Say why `match_columns` has found no match for a column of the rows, and what to do about it.

        The last case is all that `find_cast` refuses.
        """
        column = columns.get(name)
        if column is None:
            near = _near(name, columns)
            problem = "is not in the table" + (f" (did you mean {near!r}?)" if near else "")
            step = f"Rename it to {near}." if near else f"Drop {name} in the transform, or add it to the table."
            if name == REJECT:
                step = "Give the sink dead_letters=DeadLetters(), which keeps the records that are rejected."
            self.add(name, problem, found=str(arrow), next_step=step)
        elif column.computed:
            step = f"Drop {name} in the transform: the database generates it."
            self.add(name, "is GENERATED ALWAYS", found=str(arrow), next_step=step)
        elif plain(arrow) is None:
            problem = f"has a type that offsetstore does not write to tables, {unknown(arrow)}"
            step = f"Convert {unknown(arrow)} to {replacement(arrow)} in the transform"
            step += f": batch.column({name!r}).storage." if isinstance(arrow, pa.BaseExtensionType) else "."
            self.add(name, problem, found=str(arrow), expected=column.type_name, next_step=step)
        elif instead := lossless_type(column):
            problem = f"is {column.type_name} in the table, which can change values without an error"
            step = f"Change {name} to {instead} in the table."
            self.add(name, problem, found=str(arrow), expected=instead, next_step=step)
        else:
            step = str(conversion(name, arrow, column, words))
            self.add(name, "has another type", found=str(arrow), expected=column.type_name, next_step=step)

    def error(self, table: TableName) -> ColumnMismatch:
        return ColumnMismatch(
            f"the rows do not fit the table {table}: {', '.join(self.problems)}",
            found=self.found or None,
            expected=self.expected or None,
            next_step=" ".join(dict.fromkeys(self.next_steps)),
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
    matches: list[Match] = []
    mismatch = _Mismatch()
    for name, arrow in zip(schema.names, schema.types, strict=True):
        column = columns.get(name)
        if column is not None and not column.computed and (cast := find_cast(arrow, column)) is not None:
            matches.append(Match(column, cast))
        else:
            mismatch.explain(name, arrow, columns, words)
    for name in sorted({name for name in schema.names if schema.names.count(name) > 1}):
        mismatch.add(name, "appears more than once", next_step="Keep each column once.")
    for column in columns.values():
        is_needed = column.not_null and not column.has_default and not column.computed
        if is_needed and column.name not in schema.names:
            mismatch.add(
                column.name,
                "is missing, but is NOT NULL without a default in the table",
                expected=column.type_name,
                next_step=f"Add {column.name} in the transform, or give it a default in the table.",
            )
    if mismatch.problems:
        raise mismatch.error(table)
    if denied := {
        column.name: column.denied for column in columns.values() if column.denied and column.name not in schema.names
    }:
        raise MissingPrivilege(
            f"the role may not use the sequences of {table}; nothing was written",
            found="; ".join(f"no USAGE on {sequence}, the default of {name}" for name, sequence in denied.items()),
        )
    return matches


def _near(name: str, columns: Iterable[str]) -> str | None:
    """Guess the name that was meant."""
    names = list(columns)
    # First in another case, since Spark ignores case.
    same = [other for other in names if other.casefold() == name.casefold()]
    return (same or get_close_matches(name, names, n=1) or [None])[0]
