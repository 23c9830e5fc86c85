"""What the user's transform returns, checked against the writers and their tables."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa

from offsetstore.consumer.records import Record, batch_of
from offsetstore.errors import ColumnMismatch, ConfigurationError, FunctionFailed, SinkError
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.handled_rows import schema_of
from offsetstore.processing.handling import Handler, check_order
from offsetstore.processing.unit import UNNAMED
from offsetstore.protocol.letters import rejected
from offsetstore.protocol.outages import tells_of_outage
from offsetstore.protocol.ports import TableWriter, Writer, declares
from offsetstore.store.claim import Claim

Transform: TypeAlias = Callable[[pa.RecordBatch], "pa.RecordBatch | Mapping[str, pa.RecordBatch]"]

REJECT: Final = "_reject"
_FIELDS: Final = ["code", "reason"]
_WITHOUT_RECORDS: Final[Mapping[str, Any]] = {
    "found": "a batch without records",
    "next_step": "Have it return its columns, without rows, where there are no records: a flush has none if all "
    "that was read belongs to transactions that were aborted.",
}
_types: Any = pa.types  # its stubs leave the types of fields open


class TransformRaised(Exception):
    """The transform has raised its cause, for so many records."""

    def __init__(self, records: int) -> None:
        super().__init__(records)
        self.records = records

    def failed(self) -> FunctionFailed | None:
        """Our error for it, ``None`` if no record is to blame."""
        cause = self.__cause__ or self
        if tells_of_outage(cause):
            return None
        name = type(cause).__name__
        failed = FunctionFailed(
            f"transform raised {name}{place_in(cause)}",
            error_class=name,
            text=str(cause),
            traceback="".join(traceback.format_exception(cause)),
            **({} if self.records else _WITHOUT_RECORDS),
        )
        failed.__cause__ = cause
        return failed


def place_in(error: BaseException) -> str:
    """The line of the user's own file that the error comes through last; without values of a record."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is ours
    if not frames:
        return ""
    last = [one for one in frames if one.filename == frames[0].filename][-1]
    return f" at {Path(last.filename).name}:{last.lineno}"


class Outputs:
    """The transform and its writers.

    ``writers`` with a table are copies: another database may have the table in another schema. With a `Handler` in
    place of the transform, ``schemas`` are those of its rows.

    :param propagate: the names of the headers that follow a record, into a handler's calls and to writers that take
        them.
    :raises ConfigurationError: ``into`` has no writer, or ``transform`` is not a function, or its schema is none.
    """

    def __init__(
        self, transform: Transform | Handler, into: Writer | Mapping[str, Writer], propagate: Collection[str] = ()
    ) -> None:
        self.propagate = propagate
        self.handler = transform if isinstance(transform, Handler) else None
        if self.handler is None and not callable(transform):
            raise ConfigurationError(
                "transform must be a function",
                found=repr(transform),
                expected="a function of a RecordBatch, or Handler(...), which calls one for each record",
            )
        given: Mapping[str, Writer] = into if isinstance(into, Mapping) else {UNNAMED: into}
        if not given or not all(callable(getattr(one, "write", None)) for one in given.values()):
            raise ConfigurationError(
                "into must be a writer, or a mapping of names to writers",
                found=repr(into),
                expected='Append("table"), Upsert(...) or Execute(...)',
            )
        self.writers: Mapping[str, Writer] = {
            name: copy(writer) if isinstance(writer, TableWriter) else writer for name, writer in given.items()
        }
        takes_headers = any(declares(one, "takes_headers") for one in self.writers.values())
        self._names = propagate if takes_headers else ()
        self.schemas: Mapping[str, pa.Schema] = {}
        if self.handler is not None:
            listed: object = self.handler.schema
            of_outputs = cast("Mapping[str, object]", listed) if isinstance(listed, Mapping) else {UNNAMED: listed}
            self.schemas = {name: schema_of(one) for name, one in of_outputs.items()}
            if self.schemas.keys() != self.writers.keys():
                raise ConfigurationError(
                    "the handler's schema and into= must have the same outputs",
                    found=", ".join(map(repr, self.schemas)),
                    expected=", ".join(map(repr, self.writers)),
                )
        self._transform = cast("Transform", transform)
        self._checked: dict[str, tuple[pa.Schema, bool]] = {}

    def given(self, records: Sequence[Record]) -> pa.RecordBatch:
        """What the transform takes: the records with their coordinates."""
        return batch_of(records, self._names)

    def made(self, claim: Claim, records: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
        """Call the transform, and check what it returns. Rejected rows are still in it.

        :raises TransformRaised: it has raised an error.
        :raises SinkError: the names are not the writers', or a value is not a record batch.
        :raises ColumnMismatch, KafkaColumnsMissing, UnsafeTarget: the rows don't fit the tables.
        """
        try:
            result = self._transform(records)
        except Exception as error:
            raise TransformRaised(records.num_rows) from error
        made: Mapping[Any, Any] = cast("Any", result) if isinstance(result, Mapping) else {UNNAMED: result}
        if made.keys() != self.writers.keys() or not all(isinstance(one, pa.RecordBatch) for one in made.values()):
            raise SinkError(
                "transform did not return what the writers expect",
                found=", ".join(f"{name!r}: {type(one).__name__}" for name, one in made.items())
                if isinstance(result, Mapping)
                else type(result).__name__,
                expected=", ".join(f"{name!r}: RecordBatch" for name in self.writers)
                if UNNAMED not in self.writers
                else "one RecordBatch",
                next_step="Return a pyarrow.RecordBatch, or a mapping with the same names as into=.",
            )
        self.check(claim, {name: without_reject(one.schema) for name, one in made.items()})
        return dict(made)

    def uses_kafka(self, name: str) -> bool:
        """Whether the writer of that output orders rows by ``_kafka``, after its first rows were `made`."""
        return self._checked[name][1]

    def check(self, claim: Claim, schemas: Mapping[str, pa.Schema]) -> None:
        """Compare the columns with the tables', once for each schema.

        :raises ColumnMismatch, KafkaColumnsMissing, UnsafeTarget: the rows don't fit the tables.
        :raises ConfigurationError: a handler has no order, and a writer needs one.
        """
        new = {name: one for name, one in schemas.items() if self._checked.get(name, (None,))[0] != one}
        if not new:
            return

        def check(connection: Any) -> dict[str, tuple[pa.Schema, bool]]:
            for name, schema in new.items():
                writer = self.writers[name]
                if isinstance(writer, TableWriter):
                    writer.resolve_table(connection)
                writer.check(connection, schema)
                if self.handler is not None:
                    check_order(self.handler, writer, uses_kafka=writer.uses_kafka_column(schema))
            return {name: (schema, self.writers[name].uses_kafka_column(schema)) for name, schema in new.items()}

        self._checked |= claim.read(lambda session: check(session.connection))


def without_reject(schema: pa.Schema) -> pa.Schema:
    """Return the schema of what is written.

    :raises ColumnMismatch: ``_reject`` is neither of strings nor of structs of a code and a reason.
    """
    if REJECT not in schema.names:
        return schema
    kind = cast("Any", schema).field(REJECT).type
    texts: list[Any] = [kind]
    if _types.is_struct(kind) and sorted(field.name for field in kind.fields) == _FIELDS:
        texts = [field.type for field in kind.fields]
    if not all(map(_is_text, texts)):
        raise ColumnMismatch(
            f"the column {REJECT} that transform returns must hold the reason as a string, or a code and a reason",
            found=str(kind),
            expected="string, or struct<code: string, reason: string>",
            next_step="Return the reason, and null for a good row.",
        )
    return schema.remove(schema.get_field_index(REJECT))


def _is_text(kind: pa.DataType) -> bool:
    return bool(_types.is_string(kind) or _types.is_null(kind))


def split(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Rejected | None]:
    """Return the rows of one or several records without ``_reject``, and the first reason that is in it."""
    if REJECT not in rows.schema.names:
        return rows, None
    column = cast("Any", rows).column(REJECT)
    values: list[Any] = [] if column.null_count == len(column) else column.to_pylist()
    for given in values:
        code, reason = (given["code"], given["reason"]) if _types.is_struct(column.type) and given else (None, given)
        if code is not None or reason is not None:
            return rows.drop_columns([REJECT]), Rejected(rejected(reason, code))
    return rows.drop_columns([REJECT]), None
