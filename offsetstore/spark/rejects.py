"""The column ``_reject``, by which a transform rejects a record: its text is the reason, NULL for a good row.

While a batch is computed the column has a name of its own, which no table has. The ordinary ways to write look only
whether there is any reject; if so, nothing is written, and the batch is computed again carefully.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StringType

from offsetstore.errors import ColumnMismatch, RowsRefused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

REJECT: Final = "_reject"
COLUMN: Final = "_offsetstore_reject"


def rename(frame: DataFrame) -> DataFrame:
    """Give the column the name that it has while the batch is computed.

    :raises ColumnMismatch: it is not of strings.
    """
    if REJECT not in frame.columns:
        return frame
    kind = frame.schema[REJECT].dataType
    if not isinstance(kind, StringType):
        raise ColumnMismatch(
            f"the column {REJECT} that transform returns must hold the reason as a string",
            found=kind.simpleString(),
            expected="string",
            next_step="Return the reason, and NULL for a good row.",
        )
    return frame.withColumnRenamed(REJECT, COLUMN)


def without_reject(schema: pa.Schema) -> pa.Schema:
    """Return the schema of what is written."""
    return schema.remove(schema.names.index(COLUMN)) if COLUMN in schema.names else schema


def none_rejected(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return what is written.

    :raises RowsRefused: a row is rejected.
    """
    if COLUMN not in batch.schema.names:
        return batch
    if batch.column(batch.schema.names.index(COLUMN)).null_count < batch.num_rows:
        raise RowsRefused("transform has rejected a record", column=REJECT)
    return batch.drop_columns([COLUMN])
