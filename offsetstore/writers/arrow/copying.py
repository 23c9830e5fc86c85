"""COPY of Arrow batches into a table, or into a temporary one first, on the transaction's own connection."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, cast
from uuid import uuid4

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.adapt import PyFormat, Transformer
from psycopg.copy import Copy
from sqlalchemy import Connection

from offsetstore.errors import ConfigurationError, MissingPrivilege, RowsRefused, UnsafeTarget
from offsetstore.postgres.errors import NO_TABLE, WRONG_OBJECT, before_rows
from offsetstore.postgres.statements import execute_together
from offsetstore.runtime import failpoints
from offsetstore.writers.arrow.encoding import CONVERSION_ERRORS, Encoding
from offsetstore.writers.table.catalogue import TableName, Target, locate, missing, read_target, target_query

# ONLY: partitions can't change their types without the partitioned table, and locking thousands would take more locks
# than a server has (decision 0024).
_LOCK = sql.SQL("LOCK TABLE ONLY {table} IN ROW EXCLUSIVE MODE")
_BINARY = sql.SQL("COPY {table} ({columns}) FROM STDIN (FORMAT binary)")
_TEXT = sql.SQL("COPY {table} ({columns}) FROM STDIN")

# AS SELECT takes over the target's types, modifiers and collations, but neither constraints nor defaults.
_CREATE = sql.SQL("""
CREATE TEMPORARY TABLE {temporary} ON COMMIT DROP AS
SELECT {columns}
FROM {table}
WITH NO DATA
""")


def driver_connection(connection: Connection) -> psycopg.Connection:
    """Return the psycopg connection below SQLAlchemy's, in the same transaction."""
    # SQLAlchemy begins with its own first statement. There is none here, so without this it would not know of the
    # transaction that psycopg begins.
    if not connection.in_transaction():
        connection.begin()
    return cast("psycopg.Connection", connection.connection.driver_connection)


def locate_target(connection: Connection, table: TableName) -> TableName:
    """If no schema was named, look the table up in the connection's search path.

    :raises ConfigurationError: SQLAlchemy would translate the schema, which COPY does not.
    """
    translated: Mapping[str | None, str | None] = connection.get_execution_options().get("schema_translate_map") or {}
    if (schema := translated.get(table.schema, table.schema)) != table.schema:
        raise ConfigurationError(
            f"the engine's schema_translate_map is not applied to the table {table}",
            found=f"{table.schema} -> {schema}",
            expected="the table's own schema",
            next_step=f'Name the table that you mean: "{schema}.{table.name}".',
        )
    return locate(driver_connection(connection), table)


@contextmanager
def _lock_errors(connection: psycopg.Connection, table: TableName) -> Generator[None]:
    with before_rows(table, table.identifier.as_string()):
        try:
            yield
        except NO_TABLE:
            raise missing(table, connection.info.dbname) from None
        except WRONG_OBJECT as error:
            raise UnsafeTarget(
                f"{table} can't be locked as a table (is it a foreign table, or a materialized view?)",
                found=error.diag.message_detail or error.diag.message_primary,
                next_step="Name a table of this database.",
            ) from None


@contextmanager
def locked_target(connection: psycopg.Connection, table: TableName) -> Generator[Target]:
    """Take the lock that COPY takes anyway, and read the target for the writes in the block.

    Without it, a concurrent ALTER TABLE could change a column's type in between, and a binary COPY would not notice:
    the eight bytes of a bigint are a valid numeric with another value.

    The lock does not prevent partitions from being attached, nor their kind from being changed before they get rows, so
    a partitioned table is read again after all writes. By then, the partitions that got rows are locked.

    :raises ColumnMismatch, UnsafeTarget: as `read_target` does, or the table can't be locked, like a foreign one; the
        transaction has to be rolled back.
    """
    lock = _LOCK.format(table=table.identifier).as_string(connection)
    with _lock_errors(connection, table):
        _, columns = execute_together(connection, lock, target_query(connection, table))
    target = read_target(connection, table, columns.rows)
    yield target
    # Only now do the rows written lock their partitions: before, one could be attached or set UNLOGGED (decision 0024).
    if target.is_partitioned:
        read_target(connection, table)


def temporary_name() -> sql.Identifier:
    return sql.Identifier("pg_temp", f"offsetstore_{uuid4().hex}")


def create_temporary(
    driver: psycopg.Connection,
    temporary: sql.Identifier,
    table: TableName,
    names: Iterable[str],
    further: Iterable[sql.Composable] = (),
    *,
    target: Target,
    move: sql.Composed,
) -> None:
    """Create the temporary table with the named columns of the table, and try the statement that will move the rows.

    The table is dropped when the transaction ends. It has no rows yet: if the statement fails, no row is at fault.
    EXPLAIN checks privileges, the conflict's constraint and the replica identity as the statement does.

    :param further: columns that only the temporary table has, as SELECT expressions.
    :raises MissingPrivilege, SinkError: the database refuses the table or the statement.
    """
    # Asked beforehand: on a connection that has made one before, PostgreSQL's error names a schema (decision 0080).
    if not target.allows_temporary:
        raise MissingPrivilege(
            f"the role may not create a temporary table, from which rows get into {table}; nothing was written",
            found="no TEMPORARY on the database",
        )
    columns = sql.SQL(", ").join([*map(sql.Identifier, names), *further])
    create = _CREATE.format(temporary=temporary, columns=columns, table=table.identifier)
    with before_rows(table, table.identifier.as_string(driver)):
        execute_together(driver, create.as_string(driver), f"EXPLAIN {move.as_string(driver)}")


def copy_batches(
    connection: psycopg.Connection, target: sql.Identifier, encoding: Encoding, batches: Iterable[pa.RecordBatch]
) -> None:
    """Send the batches, which have at least one row, chunk by chunk.

    :raises MissingPrivilege, SinkError: the database refuses to begin, so no row is at fault.
    """
    binary = _goes_binary(connection, encoding)
    statement = (_BINARY if binary else _TEXT).format(
        table=target, columns=sql.SQL(", ").join(map(sql.Identifier, encoding.columns))
    )
    with connection.cursor() as cursor, ExitStack() as stack:
        with before_rows(encoding.table, target.as_string()):
            copy = stack.enter_context(cursor.copy(statement))
        if binary:
            _send_chunks(copy, encoding, batches)
        else:
            _send_rows(copy, encoding, batches)


def find_misfits(connection: psycopg.Connection, encoding: Encoding, batch: pa.RecordBatch) -> dict[int, RowsRefused]:
    """Find the rows that `copy_batches` would refuse to send, each with the error that it raises for that row alone."""
    # In UTF-8, psycopg can write everything that Arrow makes of checked values.
    dump = None if connection.info.encoding == "utf-8" else _dump(connection)
    return encoding.misfits(batch, dump, binary=_goes_binary(connection, encoding))


def _goes_binary(connection: psycopg.Connection, encoding: Encoding) -> bool:
    # pgpq always writes UTF-8; for text, psycopg uses the connection's encoding.
    return encoding.binary and connection.info.encoding == "utf-8"


def _dump(connection: psycopg.Connection) -> Callable[[Any], object]:
    """Return a function that writes a value as text; it raises for a value that psycopg can't write."""
    transformer = Transformer(connection)
    return lambda value: transformer.get_dumper(value, PyFormat.TEXT).dump(value)


def _send_chunks(copy: Copy, encoding: Encoding, batches: Iterable[pa.RecordBatch]) -> None:
    chunks = encoding.chunks(batches)
    first = next(chunks)
    middle = len(first) // 2
    copy.write(first[:middle])
    copy.connection.pgconn.flush()
    failpoints.reach("in_copy")
    copy.write(first[middle:])
    for chunk in chunks:
        copy.write(chunk)


def _send_rows(copy: Copy, encoding: Encoding, batches: Iterable[pa.RecordBatch]) -> None:
    for number, row in enumerate(encoding.rows(batches)):
        _send_row(copy, encoding, row)
        if number == 0:
            copy.connection.pgconn.flush()
            failpoints.reach("in_copy")


def _send_row(copy: Copy, encoding: Encoding, row: Sequence[Any]) -> None:
    """Write one row; refuse what psycopg can't write, such as a character that the connection's encoding lacks."""
    with suppress(*CONVERSION_ERRORS):
        copy.write_row(row)
        return
    raise encoding.refusal(row, _dump(copy.connection))
