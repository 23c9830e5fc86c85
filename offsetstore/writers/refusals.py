"""The database's errors, made ours: typed, and without a row's values.

What the database says about its own state is left alone, since `store.run` repeats on it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
from sqlalchemy import Connection

from offsetstore.errors import RowsRefused
from offsetstore.writers.copying import driver_connection

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from offsetstore.writers.names import TableName

# Connections, transactions, resources, locks, operators, the disk, the server: never a row's fault.
_NOT_THE_ROWS = ("08", "25", "28", "40", "53", "55", "57", "58", "XX")

_CHECK_DEFERRED = "SET CONSTRAINTS ALL IMMEDIATE"

_NEXT_STEPS = {
    "23": "Correct the rows in the transform, or the table's constraint.",
    "22": "Correct or cast the values in the transform.",
    "42501": "Grant the role INSERT; for an Upsert also SELECT and UPDATE, and TEMPORARY on the database.",
}


@contextmanager
def refusals(table: TableName | None, columns: Collection[str] = ()) -> Generator[None]:
    """Turn what the database refuses into `RowsRefused`.

    :param table: ``None`` where the database alone can tell which one it is.
    :param columns: names that may be looked for in the error's context, where the error itself names no column.
    :raises RowsRefused: data or statement refused. Its cause is suppressed: PostgreSQL quotes values in messages,
        DETAIL and CONTEXT.
    :raises psycopg.Error: untouched, where the reason is not in the rows.
    """
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate.startswith(_NOT_THE_ROWS):
            raise
        raise _refused(error, error.sqlstate, table, columns) from None


def check_deferred(connection: object) -> None:
    """Have the constraints checked that wait for COMMIT, where what they refuse could not be told from a lost answer.

    To be called when all rows are written and the offsets advanced: a trigger may compare them. Where the transaction
    is no database's, nothing waits.

    :raises RowsRefused: as `refusals` does.
    """
    if isinstance(connection, Connection):
        with refusals(None):
            driver_connection(connection).execute(_CHECK_DEFERRED)


def _refused(error: psycopg.Error, sqlstate: str, table: TableName | None, columns: Collection[str]) -> RowsRefused:
    diagnostic = error.diag
    column = diagnostic.column_name or _column_in_context(diagnostic.context, columns)
    named = f"{diagnostic.schema_name}.{diagnostic.table_name}" if diagnostic.table_name else None
    where = named or (str(table) if table else None)
    what = (
        f"the database refused what was to be written to {table or where or 'its tables'}: "
        f"{type(error).__name__} (SQLSTATE {sqlstate})"
    )
    if diagnostic.constraint_name:
        what += f", constraint {diagnostic.constraint_name} of {where}"
    if column:
        what += f", column {column}"
    return RowsRefused(
        what,
        table=where,
        column=column,
        constraint=diagnostic.constraint_name,
        sqlstate=sqlstate,
        next_step=_NEXT_STEPS.get(sqlstate, _NEXT_STEPS.get(sqlstate[:2])),
    )


def _column_in_context(context: str | None, columns: Collection[str]) -> str | None:
    """Find the column in ``COPY payments, line 3, column amount: "12x"``, and nothing that stands after it."""
    copies = [line for line in (context or "").splitlines() if line.startswith("COPY ")]
    _, _, place = (copies or [""])[-1].partition(", line ")
    _, _, named = place.partition(", column ")
    return max((name for name in columns if named == name or named.startswith(f"{name}:")), key=len, default=None)
