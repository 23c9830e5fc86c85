"""Arrow batches in the form that COPY reads: pgpq's binary one, or rows for psycopg if pgpq does not know a type."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder, encoders
from pgpq import schema as pgpq_schema

from offsetstore.errors import RowsRefused
from offsetstore.postgres.errors import VALUE_ERRORS
from offsetstore.writers.arrow.values import UUID_TYPE, Unfit, uuid_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from offsetstore.writers.table.matching import Match
    from offsetstore.writers.table.names import TableName

_ENCODERS = cast("Any", encoders)  # its stubs leave pyarrow's type parameters open

_T = TypeVar("_T")

CONVERSION_ERRORS: Final = (*VALUE_ERRORS, LookupError, pa.ArrowException)
"""What Arrow, pgpq, Python and psycopg raise on a value that can't be converted; most of them quote it."""

_NO_FIT: Final = "a value that does not fit without loss"

CHUNK_ROWS = 8192
"""The number of rows encoded and sent at a time: a large batch is never in memory twice."""


class Encoding:
    """Encodes a DataFrame's rows for a table."""

    def __init__(self, table: TableName, matches: Sequence[Match]) -> None:
        self._table = table
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
            columns = [self._fit(*pair, _python_values) for pair in zip(self._matches, _columns(batch), strict=True)]
            yield from zip(*columns, strict=True)

    def refusal(self, row: Sequence[Any], dump: Callable[[Any], object]) -> RowsRefused:
        """Make the error for a row that the driver can't write, about the first column whose value can't be dumped."""
        for match, value in zip(self._matches, row, strict=True):
            try:
                dump(value)
            except CONVERSION_ERRORS:
                return self._refused(match, _NO_FIT, match.cast.arrow)
        return self._refused_rows()

    def _encode(self, encoder: Any, batch: pa.RecordBatch) -> bytes:
        """Encode one batch; pgpq's own error for a refused value quotes it, and does not name the column."""
        with suppress(*CONVERSION_ERRORS):
            return encoder.write_batch(batch)
        for match, array in zip(self._matches, _columns(batch), strict=True):
            name = match.column.name
            self._fit(match, array, partial(_encode_alone, name, match.column.kind))
        raise self._refused_rows()

    def _converted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for whole in batches:
            for start in range(0, whole.num_rows, CHUNK_ROWS):
                batch = whole.slice(start, CHUNK_ROWS)
                pairs = zip(self._matches, _columns(batch), strict=True)
                converted = [self._fit(match, array, match.cast.convert) for match, array in pairs]
                yield pa.record_batch(converted, schema=self._schema)

    def _fit(self, match: Match, array: pa.Array[Any], convert: Callable[[pa.Array[Any]], _T]) -> _T:
        """Convert one column; a value that fails is refused here, without the error that quotes it."""
        try:
            return convert(array)
        except Unfit as error:
            reason = str(error)
        except MemoryError:  # one of Arrow's errors too
            raise
        except CONVERSION_ERRORS:
            reason = _NO_FIT
        raise self._refused(match, reason, array.type)

    def _refused_rows(self) -> RowsRefused:
        return RowsRefused(
            f"rows can't be encoded for {self._table}", table=str(self._table), expected=", ".join(self.columns)
        )

    def _refused(self, match: Match, reason: str, found: pa.DataType) -> RowsRefused:
        column = match.column
        return RowsRefused(
            f"column {column.name} of the DataFrame holds {reason}",
            table=str(self._table),
            column=column.name,
            found=f"{found}",
            expected=f"values of {column.type_name}",
            next_step="Correct, round or filter such values in the transform.",
        )


def _columns(batch: pa.RecordBatch) -> list[pa.Array[Any]]:
    return cast("list[pa.Array[Any]]", cast("Any", batch).columns)


def _builder(name: str, arrow: pa.DataType, kind: str) -> Any:
    """Choose the encoder if the Arrow type alone does not tell: jsonb begins with a version byte."""
    field: Any = pa.field(name, arrow)
    if kind == "jsonb" and pa.types.is_large_string(arrow):
        return _ENCODERS.LargeStringEncoderBuilder.new_with_output(field, pgpq_schema.Jsonb())
    if kind == "jsonb" and pa.types.is_string(arrow):
        return _ENCODERS.StringEncoderBuilder.new_with_output(field, pgpq_schema.Jsonb())
    return cast("Any", ArrowToPostgresBinaryEncoder).infer_encoder(field)


def _encode_alone(name: str, kind: str, array: pa.Array[Any]) -> None:
    encoder = ArrowToPostgresBinaryEncoder.new_with_encoders(
        pa.schema([(name, array.type)]), {name: _builder(name, array.type, kind)}
    )
    encoder.write_header()
    encoder.write_batch(pa.record_batch([array], names=[name]))


def _python_values(array: pa.Array[Any]) -> list[Any]:
    return list(uuid_objects(array)) if array.type == UUID_TYPE else array.to_pylist()
