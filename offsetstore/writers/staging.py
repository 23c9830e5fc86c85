"""Tables into which rows are copied first, and from which SQL moves them to their target.

An Upsert's own is temporary. Those of large batches are in `STAGING_SCHEMA`, one for each batch and output, and are
filled in parallel, in separate transactions: each row has the id of the attempt that copied it, and only rows of
attempts that reported back are moved. They are UNLOGGED: a crash of the server empties them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, cast
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
from psycopg import sql

from offsetstore.errors import ColumnMismatch, MissingPrivilege
from offsetstore.postgres.errors import before_rows
from offsetstore.postgres.schema import STAGING_SCHEMA
from offsetstore.postgres.together import execute_together
from offsetstore.writers.arrow.casts import Cast
from offsetstore.writers.arrow.copying import lock_against_change
from offsetstore.writers.arrow.values import UUID_TYPE
from offsetstore.writers.table.catalogue import Column, Target, read_columns
from offsetstore.writers.table.matching import Match
from offsetstore.writers.table.names import TableName

ATTEMPT: Final = "_offsetstore.attempt"
"""The column of the attempt's id, under a name that no table is likely to have."""

_TEMPORARY: Final = "pg_temp"

# AS SELECT: types, modifiers and collations are the target's, constraints and defaults are not.
_CREATE = sql.SQL("""
CREATE {kind} TABLE {staging} {lifetime} AS
SELECT {columns}
FROM {table}
WITH NO DATA
""")
_ATTEMPT_COLUMN = sql.SQL("NULL::uuid AS {}").format(sql.Identifier(ATTEMPT))
_REPORTED = sql.SQL("WHERE {attempt} = ANY ({attempts})")
_COUNT = sql.SQL("SELECT count(*) FROM {staging} {reported}")


class StagedRowsLost(Exception):
    """The table does not hold the rows that were reported; they have to be computed and staged again."""


@dataclass(frozen=True, slots=True)
class Staging:
    """One staging table; it can be pickled."""

    name: str
    schema: str = STAGING_SCHEMA

    @classmethod
    def temporary(cls) -> Self:
        """Name a temporary table of this connection, dropped when its transaction ends."""
        return cls(f"offsetstore_{uuid4().hex}", _TEMPORARY)

    @property
    def table(self) -> TableName:
        """Its name, as for a target."""
        return TableName(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Staged:
    """What was reported for a table: ``rows`` in all, from these ``attempts``."""

    staging: Staging
    attempts: tuple[UUID, ...]
    rows: int


def create(
    driver: psycopg.Connection,
    staging: Staging,
    table: TableName,
    names: Iterable[str],
    further: Iterable[sql.Composable] = (),
) -> None:
    """Create a table with those of the target's columns that are named.

    :param further: columns that only the staging table has, as SELECT expressions.
    """
    driver.execute(_create_statement(staging, table, names, further))


def _create_statement(
    staging: Staging, table: TableName, names: Iterable[str], further: Iterable[sql.Composable]
) -> sql.Composed:
    temporary = staging.schema == _TEMPORARY
    columns = [*map(sql.Identifier, names), *further, *([] if temporary else [_ATTEMPT_COLUMN])]
    return _CREATE.format(
        kind=sql.SQL("TEMPORARY" if temporary else "UNLOGGED"),
        staging=staging.table.identifier,
        lifetime=sql.SQL("ON COMMIT DROP" if temporary else ""),
        columns=sql.SQL(", ").join(columns),
        table=table.identifier,
    )


def create_temporary(
    driver: psycopg.Connection,
    staging: Staging,
    table: TableName,
    names: Iterable[str],
    further: Iterable[sql.Composable] = (),
    *,
    target: Target,
    move: sql.Composed,
) -> None:
    """Do `create`, and try the statement that will move the rows while there are none: if it fails, no row is to blame.

    EXPLAIN checks privileges, the conflict's constraint and the replica identity as the statement does.

    :raises MissingPrivilege, SinkError: the database refuses one of the two.
    """
    if not target.allows_temporary:
        raise MissingPrivilege(
            f"the role may not create a temporary table, from which rows get into {table}; nothing was written",
            found="no TEMPORARY on the database",
        )
    statement = _create_statement(staging, table, names, further)
    with before_rows(table, table.identifier.as_string(driver)):
        execute_together(driver, statement.as_string(driver), f"EXPLAIN {move.as_string(driver)}")


def staged_columns(driver: psycopg.Connection, staging: Staging) -> dict[str, Column]:
    """Read the staging table's columns; the table can't be dropped until the transaction ends.

    :raises StagedRowsLost: it is gone.
    """
    try:
        lock_against_change(driver, staging.table)
        columns = read_columns(driver, staging.table)
    except ColumnMismatch:
        raise StagedRowsLost(f"the staging table {staging.table} is gone") from None
    del columns[ATTEMPT]
    return columns


def attempt_match() -> Match:
    """Return the match for the column of the attempt's id."""
    return Match(Column(name=ATTEMPT, type_name="uuid", kind="uuid"), Cast(UUID_TYPE))


def with_attempt(batches: Iterable[pa.RecordBatch], attempt: UUID) -> Iterator[pa.RecordBatch]:
    """Add the attempt's id to each row."""
    arrow = cast("Any", pa)
    value = arrow.scalar(attempt.bytes, UUID_TYPE)
    for batch in batches:
        yield batch.append_column(ATTEMPT, arrow.repeat(value, batch.num_rows))


def check_staged(
    driver: psycopg.Connection, staged: Staged, staged_as: Mapping[str, Column], target: Mapping[str, Column]
) -> None:
    """Compare the table's rows with what was reported, and its columns with the target's.

    :raises StagedRowsLost: they differ.
    """
    for name, column in staged_as.items():
        if name not in target or target[name].type_name != column.type_name:
            raise StagedRowsLost(f"the column {name} was changed while rows were staged")
    count = _COUNT.format(staging=staged.staging.table.identifier, reported=reported(staged))
    [(found,)] = driver.execute(count).fetchall()
    if found != staged.rows:
        raise StagedRowsLost(f"{staged.rows} rows were staged, but the table holds {found}")


def reported(staged: Staged) -> sql.Composed:
    """Write the condition for the rows of the attempts that reported back."""
    attempts = sql.Literal(list(staged.attempts))
    return _REPORTED.format(attempt=sql.Identifier(ATTEMPT), attempts=attempts)
