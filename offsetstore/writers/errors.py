"""Turn the database's errors into ours: typed, and without a row's values.

Errors about the database's own state keep their type, since `store.run` retries them, but lose what may quote a row.
Nothing that leaves `refusals` has a cause: py4j and `logging` print causes.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import psycopg
from sqlalchemy import Connection
from sqlalchemy.exc import StatementError

from offsetstore.errors import RowsRefused, SinkError
from offsetstore.postgres import errors
from offsetstore.writers.arrow.copying import driver_connection

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from offsetstore.writers.table.names import TableName

# Connections, transactions, resources, locks, operators, the disk, the server: never a row's fault.
_NOT_THE_ROWS = ("08", "25", "28", "40", "53", "55", "57", "58", "XX")

# Features, prepared statements, cursors, databases, schemas, and what is missing or not allowed: the SQL's fault, if it
# is the user's own.
_OF_THE_SQL = ("0A", "26", "34", "3D", "3F", "42")

# "syntax error at or near" quotes the statement, which may contain values.
_SYNTAX_ERROR = "42601"

# What SQLAlchemy's types and psycopg's adapters raise on a value that they can't send.
_VALUE_ERRORS = (ArithmeticError, TypeError, ValueError, psycopg.DataError)

_CHECK_DEFERRED = "SET CONSTRAINTS ALL IMMEDIATE"

_NEXT_STEPS = {
    "23": "Correct the rows in the transform, or the table's constraint.",
    "22": "Correct or cast the values in the transform.",
    "42501": "Grant the role INSERT; for an Upsert also SELECT and UPDATE, and TEMPORARY on the database.",
}


@contextmanager
def refusals(table: TableName | None, columns: Collection[str] = (), *, sql_of: str | None = None) -> Generator[None]:
    """Turn what the database refuses into `RowsRefused`.

    :param table: ``None`` if only the database can tell which one it is.
    :param columns: names to look for in the error's context, if the error itself names no column.
    :param sql_of: whose SQL it is, if it is the user's own: its errors are then not the rows' fault.
    :raises RowsRefused: the database refuses the data or the statement, or the driver can't send a value. PostgreSQL
        quotes values in messages, DETAIL and CONTEXT, so nothing of the original is kept.
    :raises SinkError: the database refuses the user's own SQL.
    :raises psycopg.Error: stripped, if the rows are not the reason; SQLAlchemy's instead, if that was raised.
    """
    try:
        yield
    except (psycopg.Error, StatementError) as error:
        raise _ours(error, table, columns, sql_of) from None
    except Exception as error:
        errors.strip_chain(error)  # the user's own may have been raised from the database's
        errors.raise_stripped(error)  # or be a group of them
        raise


def check_deferred(connection: object) -> None:
    """Check deferred constraints before COMMIT, at which their refusal could not be told from a lost answer.

    Call it when all rows are written and the offsets advanced: a trigger may compare them. If there is no database
    behind the transaction, nothing is deferred.

    :raises RowsRefused: as `refusals` does.
    """
    if isinstance(connection, Connection):
        with refusals(None):
            driver_connection(connection).execute(_CHECK_DEFERRED)


def _ours(
    error: psycopg.Error | StatementError, table: TableName | None, columns: Collection[str], sql_of: str | None
) -> Exception:
    inner = errors.driver_error(error)
    state = None if inner is None else inner.sqlstate
    if inner is not None and state is not None:
        if state.startswith(_NOT_THE_ROWS):
            return errors.stripped(error)
        if sql_of is not None and state.startswith(_OF_THE_SQL):
            return _wrong_sql(inner, state, sql_of)
        return _refused(inner, state, table, columns)
    of_client = inner or cast("StatementError", error).orig
    if isinstance(of_client, _VALUE_ERRORS):
        return RowsRefused(
            f"a value can't be sent to the database for {table or 'the SQL of ' + (sql_of or 'a writer')}",
            table=str(table) if table else None,
            found=type(of_client).__name__,
        )
    return errors.stripped(error)


def _wrong_sql(error: psycopg.Error, sqlstate: str, sql_of: str) -> SinkError:
    position = error.diag.statement_position
    place = f", at character {position}" if position else ""
    words = f"a syntax error{place}" if sqlstate == _SYNTAX_ERROR else errors.words(error)
    step = "Grant the role what the SQL needs." if sqlstate == "42501" else "Correct the function's SQL."
    return SinkError(f"the database refused the SQL of {sql_of}", found=f"SQLSTATE {sqlstate}, {words}", next_step=step)


def _refused(error: psycopg.Error, sqlstate: str, table: TableName | None, columns: Collection[str]) -> RowsRefused:
    diagnostic = error.diag
    column = diagnostic.column_name or _column_in_context(diagnostic.context, columns)
    named = f"{diagnostic.schema_name}.{diagnostic.table_name}" if diagnostic.table_name else None
    where = named or (str(table) if table else None)
    what = (
        f"the database refused rows for {table or where or 'its tables'}: {type(error).__name__} (SQLSTATE {sqlstate})"
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
    """Find the column in ``COPY payments, line 3, column amount: "12x"``, and nothing after it."""
    copies = [line for line in (context or "").splitlines() if line.startswith("COPY ")]
    _, _, place = (copies or [""])[-1].partition(", line ")
    _, _, named = place.partition(", column ")
    return max((name for name in columns if named == name or named.startswith(f"{name}:")), key=len, default=None)
