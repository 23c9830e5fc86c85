"""What the user's transform returns, checked against the writers and their tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa

from offsetstore.consumer.records import ConsumedRecord, batch_of
from offsetstore.errors import ConfigurationError, FunctionFailed, as_raised
from offsetstore.processing.by_record import WhileHandling
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.handled_rows import schemas_of
from offsetstore.processing.handling import Handler
from offsetstore.processing.outputs import CheckedOutputs, check_reject_column, reject_of
from offsetstore.protocol.letters import REJECT
from offsetstore.protocol.ports import Writer
from offsetstore.runtime.functions import as_texts, call, tells_of_outage
from offsetstore.store.claim import Claim
from offsetstore.text import at_line
from offsetstore.writers.arrow.batches import shown

ArrowTransform: TypeAlias = Callable[[pa.RecordBatch], "pa.RecordBatch | Mapping[str, pa.RecordBatch]"]

_WITHOUT_RECORDS: Final[Mapping[str, Any]] = {
    "found": "a batch without records",
    "next_step": "Have it return its columns, without rows, where there are no records: a flush has none if all "
    "that was read belongs to transactions that were aborted.",
}
_types: Any = pa.types  # its stubs leave the types of fields open


class TransformRaised(Exception):
    """The transform has raised the cause, for a batch of ``records`` records."""

    def __init__(self, records: int) -> None:
        super().__init__(records)
        self.records = records

    def failed(self) -> FunctionFailed | None:
        """Our error for it; ``None`` for an outage, for which no record is at fault."""
        cause = as_raised(self.__cause__ or self)
        if tells_of_outage(cause):
            return None
        name, (text, trace) = type(cause).__name__, as_texts(cause)
        failed = FunctionFailed(
            f"transform raised {name}{at_line(cause)}",
            error_class=name,
            text=text,
            traceback=trace,
            **({} if self.records else _WITHOUT_RECORDS),
        )
        failed.__cause__ = cause
        return failed


class ConsumerOutputs(CheckedOutputs):
    """The transform and its writers; see `CheckedOutputs`.

    With a `Handler` in place of the transform, ``schemas`` are those of its rows. ``handling`` is entered while the
    handler, the transform or a writer runs; calls within these enter it again.

    :param propagate: the names of the headers that follow a record, into a handler's calls and to writers that take
        them.
    :raises ConfigurationError: ``into`` has no writer, ``transform`` is not a function, or its schema is invalid.
    """

    def __init__(
        self, transform: ArrowTransform | Handler, into: Writer | Mapping[str, Writer], propagate: Collection[str] = ()
    ) -> None:
        super().__init__(transform, into, takes="RecordBatch", propagate=propagate)
        self.propagate = propagate
        self.handler = transform if isinstance(transform, Handler) else None
        self.schemas: Mapping[str, pa.Schema] = {}
        if self.handler is not None:
            self.schemas = schemas_of(self.handler)
            if self.schemas.keys() != self.writers.keys():
                raise ConfigurationError(
                    "the handler's schema and into= must have the same outputs",
                    found=", ".join(map(repr, self.schemas)),
                    expected=", ".join(map(repr, self.writers)),
                )
        self._transform = cast("ArrowTransform", transform)
        self.handling: WhileHandling = nullcontext

    def given(self, records: Sequence[ConsumedRecord]) -> pa.RecordBatch:
        """What the transform gets: the records with their coordinates."""
        return batch_of(records, self.names)

    def made(self, claim: Claim, records: Sequence[ConsumedRecord]) -> dict[str, pa.RecordBatch]:
        """Call the transform with records, and check what it returns. Rejected rows stay in the result.

        :raises TransformRaised: it has raised an error.
        :raises SinkError: the names are not the writers', or a value is not a record batch.
        :raises ColumnMismatch, KafkaColumnsMissing, UnsafeTarget: the rows don't fit the tables.
        """
        with self.handling():
            batch = self.given(records)
            try:
                result = call(self._transform, batch)
            except Exception as error:
                raise TransformRaised(len(records)) from error
        made = self.by_name(result, pa.RecordBatch)
        filled = {name: rows for name, rows in made.items() if rows.num_rows or rows.schema.names}
        self.check_tables(claim, {name: without_reject(rows.schema) for name, rows in filled.items()})
        return made


def without_reject(schema: pa.Schema) -> pa.Schema:
    """Return the schema that is written.

    :raises ColumnMismatch: ``_reject`` is neither of strings nor of structs of a code and a reason.
    """
    if REJECT not in schema.names:
        return schema
    kind = cast("Any", schema).field(REJECT).type
    fields = {field.name: field.type for field in kind.fields} if _types.is_struct(kind) else {}
    check_reject_column(kind, fields, _is_text, str(kind))
    return schema.remove(schema.get_field_index(REJECT))


def _is_text(kind: pa.DataType) -> bool:
    return bool(_types.is_string(kind) or _types.is_null(kind))


def split(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Rejected | None]:
    """Return the rows without the column ``_reject``, and the first reason in it, if there is one."""
    if REJECT not in rows.schema.names:
        return rows, None
    column = cast("Any", rows).column(REJECT)
    for reject in shown(column.drop_null()):
        # In a good row, a struct's code and reason are both NULL.
        if isinstance(reject, str) or any(value is not None for value in reject.values()):
            return rows.drop_columns([REJECT]), reject_of(reject)
    return rows.drop_columns([REJECT]), None
