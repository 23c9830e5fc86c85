"""Arrow batches into a table by COPY, or into a temporary one first, on the transaction's own connection.

They are sent in the form that COPY reads: pgpq's binary one, or rows for psycopg if pgpq does not know a type.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast
from uuid import uuid4

import psycopg
import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder, encoders
from pgpq import schema as pgpq_schema
from psycopg import sql
from psycopg.adapt import PyFormat, Transformer
from psycopg.copy import Copy
from sqlalchemy import Connection

from offsetstore.errors import ConfigurationError, MissingPrivilege, RowsRefused, UnsafeTarget
from offsetstore.postgres.errors import NO_TABLE, VALUE_ERRORS, WRONG_OBJECT, before_rows
from offsetstore.postgres.statements import execute_together
from offsetstore.runtime import failpoints
from offsetstore.writers.arrow.casts import Match
from offsetstore.writers.arrow.kinds import plain_values
from offsetstore.writers.arrow.misfits import FittingRows
from offsetstore.writers.arrow.values import NO_FIT, UUID_TYPE, Unfit, has_type, uuid_objects
from offsetstore.writers.table.catalogue import TableName, Target, locate, missing, read_target, target_query

_Encoder: TypeAlias = "Callable[[Match, pa.Array[Any]], pa.Array[Any]]"
_Refusal: TypeAlias = tuple[Match, str, pa.DataType]

# Its stubs leave pyarrow's type parameters open.
_ENCODERS = cast("Any", encoders)

_T = TypeVar("_T")

CONVERSION_ERRORS: Final = (*VALUE_ERRORS, LookupError, pa.ArrowException)
"""What Arrow, pgpq, Python and psycopg raise for a value that can't be converted; most of them quote it."""

CHUNK_ROWS = 8192
"""The number of rows encoded and sent at a time: a large batch is never in memory twice."""

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
    with before_rows(table, table.identifier.as_string()):
        try:
            _, columns = execute_together(connection, lock, target_query(connection, table))
        except NO_TABLE:
            raise missing(table, connection.info.dbname) from None
        except WRONG_OBJECT as error:
            raise UnsafeTarget(
                f"{table} can't be locked as a table (is it a foreign table, or a materialized view?)",
                found=error.diag.message_detail or error.diag.message_primary,
                next_step="Name a table of this database.",
            ) from None
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
    # pgpq always writes UTF-8; for text, psycopg uses the connection's encoding.
    binary = encoding.binary and connection.info.encoding == "utf-8"
    statement = (_BINARY if binary else _TEXT).format(
        table=target, columns=sql.SQL(", ").join(map(sql.Identifier, encoding.columns))
    )
    with connection.cursor() as cursor, ExitStack() as stack:
        with before_rows(encoding.table, target.as_string()):
            copy = stack.enter_context(cursor.copy(statement))
        if not binary:
            _send_rows(copy, encoding, batches)
            return
        chunks = encoding.chunks(batches)
        first = next(chunks)
        middle = len(first) // 2
        copy.write(first[:middle])
        copy.connection.pgconn.flush()
        failpoints.reach("in_copy")
        copy.write(first[middle:])
        for chunk in chunks:
            copy.write(chunk)


def find_misfits(connection: psycopg.Connection, encoding: Encoding, batch: pa.RecordBatch) -> dict[int, RowsRefused]:
    """Find the rows that `copy_batches` would refuse to send, each with the error that it raises for that row alone."""
    # In UTF-8, psycopg can write everything that Arrow makes of checked values.
    if connection.info.encoding == "utf-8":
        return encoding.misfits(batch, binary=encoding.binary)
    return encoding.misfits(batch, _dump(connection), binary=False)


def _dump(connection: psycopg.Connection) -> Callable[[Any], object]:
    """Return a function that writes a value as text; it raises for a value that psycopg can't write."""
    transformer = Transformer(connection)
    return lambda value: transformer.get_dumper(value, PyFormat.TEXT).dump(value)


def _send_rows(copy: Copy, encoding: Encoding, batches: Iterable[pa.RecordBatch]) -> None:
    for number, row in enumerate(encoding.rows(batches)):
        _send_row(copy, encoding, row)
        if number == 0:
            copy.connection.pgconn.flush()
            failpoints.reach("in_copy")


def _send_row(copy: Copy, encoding: Encoding, row: tuple[Any, ...]) -> None:
    with suppress(*CONVERSION_ERRORS):
        copy.write_row(row)
        return
    # What psycopg can't write, such as a character that the connection's encoding lacks.
    raise encoding.refusal(row, _dump(copy.connection))


class Encoding:
    """Encodes rows for a table."""

    def __init__(self, table: TableName, matches: Sequence[Match]) -> None:
        self.table = table
        self._matches = matches
        self._schema = pa.schema([(match.column.name, match.cast.arrow) for match in matches])
        self.columns = [match.column.name for match in matches]
        self.binary = all(match.cast.binary for match in matches)

    def chunks(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        """Encode batch by batch; the first chunk has COPY's header before its rows, and the last is its trailer.

        :raises RowsRefused: a value that the table can't hold.
        """
        builders = {
            match.column.name: _builder(match.column.name, match.cast.arrow, match.column.kind)
            for match in self._matches
        }
        encoder = ArrowToPostgresBinaryEncoder.new_with_encoders(self._schema, builders)
        header = encoder.write_header()
        for batch in self._converted(batches):
            yield header + self._encode(encoder, batch)
            header = b""
        yield header + encoder.finish()

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        """Yield Python's values row by row: slower, but psycopg can write every type.

        :raises RowsRefused: a value that the table can't hold.
        """
        for batch in self._converted(batches):
            pairs = zip(self._matches, cast("Any", batch).columns, strict=True)
            columns = [self._fit(match, array, _python_values) for match, array in pairs]
            yield from zip(*columns, strict=True)

    def refusal(self, row: Sequence[Any], dump: Callable[[Any], object]) -> RowsRefused:
        """Make the error for a row that the driver can't write, about the first column whose value can't be dumped."""
        for match, value in zip(self._matches, row, strict=True):
            try:
                dump(value)
            except CONVERSION_ERRORS:
                return self._refused(match, NO_FIT, match.cast.arrow)
        return self._refused_rows()

    def misfits(
        self, batch: pa.RecordBatch, dump: Callable[[Any], object] | None = None, *, binary: bool
    ) -> dict[int, RowsRefused]:
        """Find the rows that `chunks`, or `rows`, refuses, each with the error that it raises for that row alone.

        :param dump: raises on a value that the driver can't write; ``None`` if it can write all.
        :param binary: whether the rows are sent as chunks.
        """
        encoders = [_encode_column if binary else _python_column, *([partial(_dump_column, dump)] if dump else [])]
        found: dict[int, _Refusal] = {}
        for start in range(0, batch.num_rows, CHUNK_ROWS):
            chunk: Any = batch.slice(start, CHUNK_ROWS)
            found |= self._search(FittingRows(map(plain_values, chunk.columns), start, chunk.num_rows), encoders)
        errors = {refusal: self._refused(*refusal) for refusal in found.values()}
        return {row: errors[refusal] for row, refusal in found.items()}

    def _search(self, rows: FittingRows, encoders: Iterable[_Encoder]) -> dict[int, _Refusal]:
        """Convert all columns, then encode them: the first that refuses a row says why, as if the row were alone."""
        found: dict[int, _Refusal] = {}
        # Values that can only be converted apart are left as they are.
        with suppress(pa.ArrowInvalid, pa.ArrowCapacityError):
            for index, match in enumerate(self._matches):
                kind = rows.columns[index].type
                refused = rows.convert(index, partial(_attempt, match.cast.convert), match.cast.suspects)
                found |= {row: (match, why, kind) for row, why in refused.items()}
            for encode in encoders:
                for index, match in enumerate(self._matches):
                    refused = rows.convert(index, partial(_attempt, partial(encode, match)), lambda _: ())
                    found |= {row: (match, why, match.cast.arrow) for row, why in refused.items()}
        return found

    def _encode(self, encoder: Any, batch: pa.RecordBatch) -> bytes:
        # pgpq's error for a refused value quotes it and does not name the column, so each column is tried afterwards.
        with suppress(*CONVERSION_ERRORS):
            return encoder.write_batch(batch)
        for match, array in zip(self._matches, cast("Any", batch).columns, strict=True):
            self._fit(match, array, partial(_encode_column, match))
        raise self._refused_rows()

    def _converted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for whole in batches:
            for start in range(0, whole.num_rows, CHUNK_ROWS):
                chunk: Any = whole.slice(start, CHUNK_ROWS)
                pairs = zip(self._matches, [plain_values(array) for array in chunk.columns], strict=True)
                converted = [self._fit(match, array, match.cast.convert) for match, array in pairs]
                yield pa.record_batch(converted, schema=self._schema)

    def _fit(self, match: Match, array: pa.Array[Any], convert: Callable[[pa.Array[Any]], _T]) -> _T:
        """Convert one column, or raise `RowsRefused` for it."""
        try:
            return convert(array)
        except CONVERSION_ERRORS as error:
            reason = _reason(error)
        # Outside of the block, so that the error has no context that quotes the value.
        raise self._refused(match, reason, array.type)

    def _refused_rows(self) -> RowsRefused:
        return RowsRefused(
            f"rows can't be encoded for {self.table}", table=str(self.table), expected=", ".join(self.columns)
        )

    def _refused(self, match: Match, reason: str, found: pa.DataType) -> RowsRefused:
        column = match.column
        return RowsRefused(
            f"column {column.name} holds {reason}",
            table=str(self.table),
            column=column.name,
            found=f"{found}",
            expected=f"values of {column.type_name}",
            next_step="Correct, round or filter such values in the transform, or change the column.",
        )


def _builder(name: str, arrow: pa.DataType, kind: str) -> Any:
    field: Any = pa.field(name, arrow)
    # The Arrow type alone does not show it: jsonb's binary form begins with a version byte.
    if kind == "jsonb" and pa.types.is_large_string(arrow):
        return _ENCODERS.LargeStringEncoderBuilder.new_with_output(field, pgpq_schema.Jsonb())
    if kind == "jsonb" and pa.types.is_string(arrow):
        return _ENCODERS.StringEncoderBuilder.new_with_output(field, pgpq_schema.Jsonb())
    return cast("Any", ArrowToPostgresBinaryEncoder).infer_encoder(field)


def _reason(error: Exception) -> str:
    """Say why a value is refused, without the text that quotes it."""
    # Arrow's own MemoryError is an ArrowException, too, but says nothing about a value.
    if isinstance(error, MemoryError):
        raise error
    return str(error) if isinstance(error, Unfit) else NO_FIT


def _attempt(convert: Callable[[pa.Array[Any]], pa.Array[Any]], array: pa.Array[Any]) -> pa.Array[Any] | str:
    """Convert the array, or say why it is refused."""
    try:
        return convert(array)
    except CONVERSION_ERRORS as error:
        return _reason(error)


def _encode_column(match: Match, array: pa.Array[Any]) -> pa.Array[Any]:
    name = match.column.name
    encoder = ArrowToPostgresBinaryEncoder.new_with_encoders(
        pa.schema([(name, array.type)]), {name: _builder(name, array.type, match.column.kind)}
    )
    encoder.write_header()
    encoder.write_batch(pa.record_batch([array], names=[name]))
    return array


def _python_column(_: Match, array: pa.Array[Any]) -> pa.Array[Any]:
    _python_values(array)
    return array


def _dump_column(dump: Callable[[Any], object], _: Match, array: pa.Array[Any]) -> pa.Array[Any]:
    for value in _python_values(array):
        dump(value)
    return array


def _python_values(array: pa.Array[Any]) -> list[Any]:
    if has_type(array.type, pa.types.is_duration):
        return [_with_clocks(value) for value in array.to_pylist()]
    return list(uuid_objects(array)) if array.type == UUID_TYPE else array.to_pylist()


def _with_clocks(value: Any) -> Any:
    """Write a duration as hours, as pgpq does; psycopg would make days of every 24 hours."""
    if isinstance(value, list):
        return [_with_clocks(inner) for inner in cast("list[Any]", value)]
    if value is None:
        return None
    micros = value // timedelta(microseconds=1)
    seconds, fraction = divmod(abs(micros), 1_000_000)
    sign = "-" if micros < 0 else ""
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
