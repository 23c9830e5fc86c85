"""The column ``_reject``, by which a transform rejects a record: its text is the reason, NULL for a good row.

Or it is a struct of a ``code``, which lists show, and a ``reason``; a good row has NULL, or NULL in both.

A handler's failure is a struct of another kind in the same column: a `Handler` is a transform that rejects, too.

While a batch is computed the column has a name of its own, which no table has. The ordinary ways to write only look
whether any row is rejected; if so, nothing is written, and the batch is computed again carefully.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import StringType, StructType

from offsetstore.errors import HandlerStuck, Outage, RowsRefused
from offsetstore.processing.handling import HandlerFailed, service_unavailable
from offsetstore.processing.outputs import REJECT_FIELDS, check_reject_column
from offsetstore.protocol.letters import REJECT
from offsetstore.spark.plans import execution

COLUMN: Final = "_offsetstore_reject"
_compute: Any = pc


def rename(frame: DataFrame) -> DataFrame:
    """Give the column the name that it has while the batch is computed.

    :raises ColumnMismatch: it is neither of strings nor of structs of a code and a reason.
    """
    if REJECT not in frame.columns:
        return frame
    kind = frame.schema[REJECT].dataType
    fields = {field.name: field.dataType for field in kind.fields} if isinstance(kind, StructType) else {}
    check_reject_column(kind, fields, lambda field_type: isinstance(field_type, StringType), kind.simpleString())
    return frame.withColumnRenamed(REJECT, COLUMN)


def count_accepted(frame: DataFrame) -> int:
    """Compute all columns of a frame, and count the rows that are not rejected."""
    if COLUMN not in frame.columns:
        # The frame's own count() would leave out columns.
        return execution(frame).toRdd().count()
    reject = F.col(COLUMN)
    kind = frame.schema[COLUMN].dataType
    has_code = isinstance(kind, StructType) and sorted(kind.names) == [*REJECT_FIELDS]
    reasons = [reject[name] for name in REJECT_FIELDS] if has_code else [reject]
    # Observed, and not filtered: a filter would leave out what fails for rejected rows.
    observed = execution(frame.observe(COLUMN, F.count_if(F.coalesce(*reasons).isNull())))
    observed.toRdd().count()
    return observed.observedMetrics().apply(COLUMN).getLong(0)


def without_reject(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.names.index(COLUMN)) if COLUMN in schema.names else schema


def none_rejected(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch without the column.

    :raises RowsRefused: a row is rejected.
    :raises HandlerFailed: a handler has failed.
    """
    if COLUMN not in batch.schema.names:
        return batch
    untyped: Any = batch
    column = untyped.column(COLUMN)
    rejected = are_rejected(column)
    if _compute.any(rejected).as_py():
        if not _is_failure(column.type):
            raise RowsRefused("transform has rejected a record", column=REJECT)
        raise_outage(column.filter(rejected))
        first = _compute.filter(column, rejected)[0].as_py()
        del first["is_outage"]
        raise HandlerFailed.of(**first)
    return batch.drop_columns([COLUMN])


def are_rejected(column: Any) -> Any:
    """A mask of the rejected rows."""
    if not pa.types.is_struct(column.type) or _is_failure(column.type):
        return _compute.is_valid(column)
    code, reason = (_compute.is_valid(_compute.struct_field(column, name)) for name in REJECT_FIELDS)
    return _compute.or_(code, reason)


def raise_outage(failed: Any) -> None:
    """Raise a handler's outage, if there is one among these failures.

    :raises HandlerStuck: no call of a handler returns any more.
    :raises SinkError: a service is down.
    """
    if not _is_failure(failed.type):
        return
    outages = failed.filter(_compute.struct_field(failed, "is_outage"))
    if not len(outages):
        return
    outage = outages[0].as_py()
    if outage["error_class"] == HandlerStuck.__name__:
        raise HandlerStuck("calls of the handler hang", found=outage["text"])
    error = service_unavailable(outage["error_class"])
    raise error from Outage(outage["traceback"] or outage["text"])


def _is_failure(kind: pa.DataType) -> bool:
    return pa.types.is_struct(kind) and kind.get_field_index("error_class") >= 0
