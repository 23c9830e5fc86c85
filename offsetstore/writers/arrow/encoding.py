"""Arrow batches in the form that COPY reads: pgpq's binary one, or rows for psycopg if pgpq does not know a type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

import pyarrow as pa
from pgpq import ArrowToPostgresBinaryEncoder, encoders
from pgpq import schema as pgpq_schema

from offsetstore.errors import RowsRefused
from offsetstore.postgres.errors import VALUE_ERRORS
from offsetstore.writers.arrow.kinds import plain_values
from offsetstore.writers.arrow.misfits import FittingRows
from offsetstore.writers.arrow.values import NO_FIT, UUID_TYPE, Unfit, has_type, uuid_objects
from offsetstore.writers.table.catalogue import TableName
from offsetstore.writers.table.matching import Match

_Encoder: TypeAlias = "Callable[[Match, pa.Array[Any]], pa.Array[Any]]"
_Refusal: TypeAlias = tuple[Match, str, pa.DataType]

# Its stubs leave pyarrow's type parameters open.
_ENCODERS = cast("Any", encoders)

_T = TypeVar("_T")

CONVERSION_ERRORS: Final = (*VALUE_ERRORS, LookupError, pa.ArrowException)
"""What Arrow, pgpq, Python and psycopg raise for a value that can't be converted; most of them quote it."""

CHUNK_ROWS = 8192
"""The number of rows encoded and sent at a time: a large batch is never in memory twice."""


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
            columns = [self._fit(*pair, _python_values) for pair in zip(self._matches, _columns(batch), strict=True)]
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
            chunk = batch.slice(start, CHUNK_ROWS)
            found |= self._search(FittingRows(_columns(chunk), start, chunk.num_rows), encoders)
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
                    refused = rows.convert(index, partial(_attempt, partial(encode, match)), _no_suspects)
                    found |= {row: (match, why, match.cast.arrow) for row, why in refused.items()}
        return found

    def _encode(self, encoder: Any, batch: pa.RecordBatch) -> bytes:
        # pgpq's error for a refused value quotes it and does not name the column, so each column is tried afterwards.
        with suppress(*CONVERSION_ERRORS):
            return encoder.write_batch(batch)
        for match, array in zip(self._matches, _columns(batch), strict=True):
            self._fit(match, array, partial(_encode_column, match))
        raise self._refused_rows()

    def _converted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for whole in batches:
            for start in range(0, whole.num_rows, CHUNK_ROWS):
                batch = whole.slice(start, CHUNK_ROWS)
                pairs = zip(self._matches, _columns(batch), strict=True)
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


def _columns(batch: pa.RecordBatch) -> list[pa.Array[Any]]:
    return [plain_values(array) for array in cast("Any", batch).columns]


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


def _no_suspects(_: pa.Array[Any]) -> tuple[int, ...]:
    return ()


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
