"""The struct column ``_kafka``, in which the sink passes on each row's Kafka coordinates."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from offsetstore.writers.arrow.casts import Cast
from offsetstore.writers.table.catalogue import Column
from offsetstore.writers.table.matching import Match

KAFKA = "_kafka"

# In the order by which the later of two rows is found. Staged under names that no table is likely to have.
_COORDINATES = {
    "topic": Column(name=f"{KAFKA}.topic", type_name="text", kind="text"),
    "partition": Column(name=f"{KAFKA}.partition", type_name="integer", kind="int4"),
    "offset": Column(name=f"{KAFKA}.offset", type_name="bigint", kind="int8"),
}
_ARROW = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}

STAGED_COORDINATES = tuple(column.name for column in _COORDINATES.values())


def without_kafka(schema: pa.Schema) -> pa.Schema:
    """Return the schema of what is written."""
    return schema.remove(schema.names.index(KAFKA)) if KAFKA in schema.names else schema


def drop_kafka(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Drop the coordinates."""
    return batch.drop_columns([KAFKA]) if KAFKA in batch.schema.names else batch


def flatten_kafka(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Put topic, partition and offset in columns of their own, after the others."""
    coordinates = cast("Any", batch).column(KAFKA)
    flat = drop_kafka(batch)
    for field, column in _COORDINATES.items():
        values = cast("Any", pc).struct_field(coordinates, field)
        flat = flat.append_column(column.name, values.cast(_ARROW[field]))
    return flat


def coordinate_matches() -> list[Match]:
    """Return the matches of the flattened columns for a temporary table."""
    return [Match(column, Cast(_ARROW[field])) for field, column in _COORDINATES.items()]
