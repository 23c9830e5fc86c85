"""Tables into which rows are copied first, to be moved to their target by SQL.

An Upsert's own is temporary. Those of large batches are in `STAGING_SCHEMA`, of one batch and one output each, and are
filled in parallel, in transactions of their own: each row has the id of the attempt that copied it, and only rows of
attempts that reported themselves are moved. They are UNLOGGED, so that a crash of the server empties them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, cast
from uuid import uuid4

import pyarrow as pa
from psycopg import sql

from offsetstore.errors import ColumnMismatch
from offsetstore.postgres.schema import STAGING_SCHEMA
from offsetstore.writers.arrow.casts import Cast
from offsetstore.writers.arrow.copying import lock_against_change
from offsetstore.writers.arrow.values import UUID_TYPE
from offsetstore.writers.table.catalogue import Column, read_columns
from offsetstore.writers.table.matching import Match
from offsetstore.writers.table.names import TableName

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from uuid import UUID

    import psycopg

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
    """The table does not hold what was reported of it; the rows have to be computed and staged again."""


@dataclass(frozen=True, slots=True)
class Staging:
    """One such table; it pickles."""

    name: str
    schema: str = STAGING_SCHEMA

    @classmethod
    def temporary(cls) -> Self:
        """Name a table of this connection's alone, which goes with its transaction."""
        return cls(f"offsetstore_{uuid4().hex}", _TEMPORARY)

    @property
    def table(self) -> TableName:
        """The same as a target's name."""
        return TableName(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Staged:
    """What was reported of a table: ``rows`` in all, of these ``attempts``."""

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
    """Make a table for the target's columns of these names.

    :param further: columns of the staging table alone, as SELECT makes them.
    """
    temporary = staging.schema == _TEMPORARY
    columns = [*map(sql.Identifier, names), *further, *([] if temporary else [_ATTEMPT_COLUMN])]
    statement = _CREATE.format(
        kind=sql.SQL("TEMPORARY" if temporary else "UNLOGGED"),
        staging=staging.table.identifier,
        lifetime=sql.SQL("ON COMMIT DROP" if temporary else ""),
        columns=sql.SQL(", ").join(columns),
        table=table.identifier,
    )
    driver.execute(statement)


def staged_columns(driver: psycopg.Connection, staging: Staging) -> dict[str, Column]:
    """Read the columns that go to the target or into it; the table stays until the transaction's end.

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
    """Give the way of the attempt's id into the table."""
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
    """Compare the table with what was reported of it, and its columns with those of the target.

    :raises StagedRowsLost: they differ.
    """
    for name, column in staged_as.items():
        if name not in target or target[name].type_name != column.type_name:
            raise StagedRowsLost(f"the column {name} was changed while rows were staged")
    count = _COUNT.format(staging=staged.staging.table.identifier, reported=reported(staged))
    [(found,)] = driver.execute(count).fetchall()
    if found != staged.rows:
        raise StagedRowsLost(f"{staged.rows} rows were staged, and {found} are there")


def reported(staged: Staged) -> sql.Composed:
    """Write the condition that holds for the rows of attempts which reported themselves."""
    attempts = sql.Literal(list(staged.attempts))
    return _REPORTED.format(attempt=sql.Identifier(ATTEMPT), attempts=attempts)
