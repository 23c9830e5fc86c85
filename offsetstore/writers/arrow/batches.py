"""What a writer gets: a stream of record batches, whose column ``_kafka`` has each row's Kafka coordinates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, cast

import pyarrow as pa

KAFKA = "_kafka"


def without_kafka(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.names.index(KAFKA)) if KAFKA in schema.names else schema


def drop_kafka(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.drop_columns([KAFKA]) if KAFKA in batch.schema.names else batch


def has_headers(schema: pa.Schema) -> bool:
    """Whether ``_kafka`` has the headers that follow each row's record; see ``takes_headers`` of `declares`."""
    kind: Any = cast("Any", schema).field(KAFKA).type if schema.names.count(KAFKA) == 1 else None
    return kind is not None and cast("Any", pa).types.is_struct(kind) and kind.get_field_index("headers") >= 0


class Stream:
    """The batches that have rows, at least one; all have the same ``schema``.

    ``rows`` counts the rows that have passed so far.
    """

    def __init__(self, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.schema = schema
        self.rows = 0
        self._batches = batches

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch]) -> Stream | None:
        """Look for the first row; ``None`` if there is none."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        return None if first is None else cls(first.schema, chain([first], filled))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch


def as_bytes(column: Any) -> Any:
    """Return the column with its texts as their bytes."""
    # Spark does not check that texts are UTF-8, and `to_pylist` fails for a column with one that is not.
    kind = _as_binary(column.type)
    return column if kind == column.type else column.cast(kind)


def shown(column: Any) -> list[Any]:
    """Return the column's values for people: bytes of texts that are not UTF-8 are replaced."""
    return [_shown(value) for value in as_bytes(column).to_pylist()]


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, dict):
        return {name: _shown(inner) for name, inner in cast("dict[str, Any]", value).items()}
    return value


def _as_binary(kind: Any) -> Any:
    types: Any = pa.types
    if types.is_string(kind):
        return pa.binary()
    if types.is_large_string(kind):
        return pa.large_binary()
    if types.is_list(kind):
        return pa.list_(_as_binary(kind.value_type))
    if types.is_large_list(kind):
        return pa.large_list(_as_binary(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _as_binary(field.type)) for field in kind])
    return kind
