"""The writers of a transform's outputs, and the checks of its rows, whatever computes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from typing import Any, Final, Literal, TypeVar, cast

import pyarrow as pa

from offsetstore.errors import ColumnMismatch, ConfigurationError, SinkError
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.handling import Handler, HandlerFailed, check_order
from offsetstore.processing.unit import UNNAMED
from offsetstore.protocol.letters import REJECT, LetterError, rejected
from offsetstore.protocol.ports import TableWriter, Writer, declares
from offsetstore.runtime.functions import call
from offsetstore.store.claim import Claim
from offsetstore.writers.into_table import IntoTable
from offsetstore.writers.table.conversions import RowMaker

REJECT_FIELDS: Final = ("code", "reason")
"""The fields of a struct in the column ``_reject``; a string is the reason alone."""

_WORDS: Final[Mapping[str, RowMaker]] = {"DataFrame": "spark", "RecordBatch": "pyarrow"}

_T = TypeVar("_T")


class CheckedOutputs:
    """The writers of a transform's outputs. Each writer with a table is a copy.

    :param takes: what a transform takes, for the error of one that is not a function.
    :param propagate: the names of the headers that follow a record. ``names`` has them if a writer takes headers.
    :raises ConfigurationError: ``into`` has no writer, or ``transform`` is not a function.
    """

    def __init__(
        self,
        transform: object,
        into: Writer | Mapping[str, Writer],
        *,
        takes: Literal["DataFrame", "RecordBatch"],
        propagate: Collection[str],
    ) -> None:
        writers: Mapping[str, Writer] = into if isinstance(into, Mapping) else {UNNAMED: into}
        if not writers or not all(callable(getattr(writer, "write", None)) for writer in writers.values()):
            raise ConfigurationError(
                "into must be a writer, or a mapping of names to writers",
                found=repr(into),
                expected='Append("table"), Upsert(...) or Execute(...)',
            )
        if not isinstance(transform, Handler) and not callable(transform):
            raise ConfigurationError(
                "transform must be a function",
                found=repr(transform),
                expected=f"a function of a {takes}, or Handler(...), which calls one for each record",
            )
        # A copy, since it keeps the table that it resolves: another claim's database may have it in another schema.
        self.writers: Mapping[str, Writer] = {
            name: copy(writer) if isinstance(writer, TableWriter) else writer for name, writer in writers.items()
        }
        words = "schema" if isinstance(transform, Handler) else _WORDS[takes]
        for writer in self.writers.values():
            if isinstance(writer, IntoTable):
                writer.words = words
        takes_headers = any(declares(writer, "takes_headers") for writer in self.writers.values())
        self.names = propagate if takes_headers else ()
        self._ordered_by = transform if isinstance(transform, Handler) else None
        self._checked: dict[str, tuple[pa.Schema, bool]] = {}

    def by_name(self, result: object, kind: type[_T]) -> dict[str, _T]:
        """What the transform returned for each output.

        :raises SinkError: the names are not the writers', or a value is of another kind.
        """
        made: Mapping[Any, Any] = cast("Any", result) if isinstance(result, Mapping) else {UNNAMED: result}
        if made.keys() != self.writers.keys() or not all(isinstance(rows, kind) for rows in made.values()):
            raise SinkError(
                "transform did not return what the writers expect",
                found=", ".join(f"{_labelled(name)}{type(rows).__name__}" for name, rows in made.items()),
                expected=", ".join(f"{_labelled(name) or 'one '}{kind.__name__}" for name in self.writers),
                next_step=f"Return a {kind.__name__}, or a mapping with the same names as into=.",
            )
        return dict(made)

    def check_tables(self, claim: Claim, schemas: Mapping[str, pa.Schema]) -> None:
        """Compare the columns with those of the tables, once for each schema.

        :param schemas: of the outputs that have rows or columns: a transform may return an output with neither where
            there is nothing to write.
        :raises ColumnMismatch, KafkaColumnsMissing, UnsafeTarget: the rows don't fit the tables.
        :raises ConfigurationError: a handler has no order, and a writer needs one.
        """
        # Once is enough: the writer sees later changes of a table, under the table's lock.
        new = {name: schema for name, schema in schemas.items() if self._checked.get(name, (None,))[0] != schema}
        if new:
            self._checked |= claim.read(
                lambda session: {
                    name: (schema, self._check(name, schema, session.connection)) for name, schema in new.items()
                }
            )

    def _check(self, name: str, schema: pa.Schema, connection: Any) -> bool:
        writer = self.writers[name]
        if isinstance(writer, TableWriter):
            # Here, on the driver: the writer is sent to executors later.
            writer.resolve_table(connection)
        call(writer.check, connection, schema)
        uses = call(writer.uses_kafka_column, schema)
        if self._ordered_by is not None:
            check_order(self._ordered_by, writer, uses_kafka=uses)
        return uses

    def uses_kafka(self, name: str) -> bool:
        """Whether the output's writer uses ``_kafka``; known after `check_tables`, and false without any columns."""
        return name in self._checked and self._checked[name][1]

    @property
    def replaces_in_order(self) -> bool:
        """Whether rows replace stored ones, which are assumed to be older; known after `check_tables`."""
        return any(
            declares(writer, "replaces_in_order") and self.uses_kafka(name) for name, writer in self.writers.items()
        )


def _labelled(name: object) -> str:
    return "" if name == UNNAMED else f"{name!r}: "


def check_reject_column(kind: _T, fields: Mapping[str, _T], is_text: Callable[[_T], bool], found: str) -> None:
    """Check the type of the column ``_reject``.

    :param fields: the fields of ``kind``, if it is a struct.
    :raises ColumnMismatch: the column holds neither strings nor structs of a code and a reason.
    """
    texts = [*fields.values()] if sorted(fields) == [*REJECT_FIELDS] else [kind]
    if not all(map(is_text, texts)):
        raise ColumnMismatch(
            f"the column {REJECT} that transform returns must hold the reason as a string, or a code and a reason",
            found=found,
            expected="string, or struct<code: string, reason: string>",
            next_step="Return the reason, and NULL for a good row.",
        )


def handler_failed(why: Rejected) -> HandlerFailed:
    error = why.error
    return HandlerFailed.of(
        error_class=error.error_class,
        text=error.text,
        traceback=error.traceback,
        attempts=why.attempts,
        shown=why.shown,
    )


def reject_of(given: str | Mapping[str, Any]) -> Rejected:
    """What a letter keeps of a value of ``_reject``, or of a handler's failure (see `as_failed`)."""
    if isinstance(given, str):
        return Rejected(rejected(given))
    if "error_class" in given:
        error = LetterError(given["error_class"], given["text"], traceback=given["traceback"])
        return Rejected(error, "raised", given["attempts"], given["shown"])
    return Rejected(rejected(given["reason"], given["code"]))
