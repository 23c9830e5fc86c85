"""Arrow batches as what COPY reads: pgpq's binary form, or rows for psycopg where pgpq does not know a type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder, encoders
from pgpq import schema as pgpq_schema

from offsetstore.errors import RowsRefused
from offsetstore.writers.values import UUID_TYPE, Unfit, uuid_objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from offsetstore.writers.matching import Match
    from offsetstore.writers.names import TableName

_ENCODERS = cast("Any", encoders)  # its stubs leave pyarrow's type parameters open

CHUNK_ROWS = 8192
"""So many rows are encoded and sent at a time, so that a large batch is never in memory twice."""


class Encoding:
    """The way of a DataFrame's rows into a table."""

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
            yield header + encoder.write_batch(batch)
            header = b""
        yield header + encoder.finish()

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        """Give Python's values row by row: slower, and psycopg can write whatever PostgreSQL can read.

        :raises RowsRefused: a value that the table can't hold.
        """
        for batch in self._converted(batches):
            yield from zip(*map(_python_values, _columns(batch)), strict=True)

    def _converted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for whole in batches:
            for start in range(0, whole.num_rows, CHUNK_ROWS):
                batch = whole.slice(start, CHUNK_ROWS)
                converted = [self._convert(*pair) for pair in zip(self._matches, _columns(batch), strict=True)]
                yield pa.record_batch(converted, schema=self._schema)

    def _convert(self, match: Match, array: pa.Array[Any]) -> pa.Array[Any]:
        try:
            return match.cast.convert(array)
        except ValueError as error:  # Arrow's quotes the value
            reason = str(error) if isinstance(error, Unfit) else "a value that does not fit, or would lose something"
        column = match.column
        what = f"column {column.name} of the DataFrame holds {reason}"
        raise RowsRefused(
            what,
            table=str(self._table),
            column=column.name,
            found=f"{array.type}",
            expected=f"values of {column.type_name}",
            next_step="Correct, round or filter such values in the transform.",
        )


def _columns(batch: pa.RecordBatch) -> list[pa.Array[Any]]:
    return cast("list[pa.Array[Any]]", cast("Any", batch).columns)


def _builder(name: str, arrow: pa.DataType, kind: str) -> Any:
    """Name the encoder where the Arrow type alone does not tell: jsonb begins with a version byte."""
    field: Any = pa.field(name, arrow)
    if kind == "jsonb" and pa.types.is_large_string(arrow):
        return _ENCODERS.LargeStringEncoderBuilder.new_with_output(field, pgpq_schema.Jsonb())
    if kind == "jsonb" and pa.types.is_string(arrow):
        return _ENCODERS.StringEncoderBuilder.new_with_output(field, pgpq_schema.Jsonb())
    return cast("Any", ArrowToPostgresBinaryEncoder).infer_encoder(field)


def _python_values(array: pa.Array[Any]) -> Iterable[Any]:
    return uuid_objects(array) if array.type == UUID_TYPE else array.to_pylist()
