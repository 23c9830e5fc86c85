"""What a transform's outputs are written with, and what is asked of its rows before that, whatever computes them."""

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
"""Those of a struct in the column ``_reject``; a string is the reason alone."""

_WORDS: Final[Mapping[str, RowMaker]] = {"DataFrame": "spark", "RecordBatch": "pyarrow"}

_T = TypeVar("_T")


class CheckedOutputs:
    """The writers of a transform's outputs.

    ``writers`` with a table are copies: another claim's database may have the table in another schema.

    :param takes: what a transform takes, for the error of one that is not a function.
    :param propagate: the names of the headers that follow a record; ``names`` has them if a writer takes headers.
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
        given: Mapping[str, Writer] = into if isinstance(into, Mapping) else {UNNAMED: into}
        if not given or not all(callable(getattr(one, "write", None)) for one in given.values()):
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
        self.writers: Mapping[str, Writer] = {
            name: copy(writer) if isinstance(writer, TableWriter) else writer for name, writer in given.items()
        }
        words = "schema" if isinstance(transform, Handler) else _WORDS[takes]
        for writer in self.writers.values():
            if isinstance(writer, IntoTable):
                writer.words = words
        takes_headers = any(declares(one, "takes_headers") for one in self.writers.values())
        self.names = propagate if takes_headers else ()
        self._ordered_by = transform if isinstance(transform, Handler) else None
        self._checked: dict[str, tuple[pa.Schema, bool]] = {}

    def by_name(self, result: object, kind: type[_T]) -> dict[str, _T]:
        """What the transform has returned for each output.

        :raises SinkError: the names are not the writers', or a value is of another kind.
        """
        made: Mapping[Any, Any] = cast("Any", result) if isinstance(result, Mapping) else {UNNAMED: result}
        if made.keys() != self.writers.keys() or not all(isinstance(one, kind) for one in made.values()):
            raise SinkError(
                "transform did not return what the writers expect",
                found=", ".join(f"{_labelled(name)}{type(one).__name__}" for name, one in made.items()),
                expected=", ".join(f"{_labelled(name) or 'one '}{kind.__name__}" for name in self.writers),
                next_step=f"Return a {kind.__name__}, or a mapping with the same names as into=.",
            )
        return dict(made)

    def check_tables(self, claim: Claim, schemas: Mapping[str, pa.Schema]) -> None:
        """Compare the columns with the tables', once for each schema.

        The writer sees later changes of a table, under the table's lock.

        :param schemas: without those of outputs that have neither rows nor columns: a transform may return such a one
            where there is nothing to write.
        :raises ColumnMismatch, KafkaColumnsMissing, UnsafeTarget: the rows don't fit the tables.
        :raises ConfigurationError: a handler has no order, and a writer needs one.
        """
        new = {name: one for name, one in schemas.items() if self._checked.get(name, (None,))[0] != one}
        if new:
            self._checked |= claim.read(
                lambda session: {name: (one, self._check(name, one, session.connection)) for name, one in new.items()}
            )

    def _check(self, name: str, schema: pa.Schema, connection: Any) -> bool:
        writer = self.writers[name]
        if isinstance(writer, TableWriter):
            writer.resolve_table(connection)  # now, before the writer is sent to executors
        call(writer.check, connection, schema)
        uses = call(writer.uses_kafka_column, schema)
        if self._ordered_by is not None:
            check_order(self._ordered_by, writer, uses_kafka=uses)
        return uses

    def uses_kafka(self, name: str) -> bool:
        """Whether the writer of that output uses ``_kafka``, after `check_tables`; not if nothing had columns."""
        return name in self._checked and self._checked[name][1]

    @property
    def replaces_in_order(self) -> bool:
        """Whether rows replace stored ones that are taken to be earlier, after `check_tables`."""
        return any(declares(one, "replaces_in_order") and self.uses_kafka(name) for name, one in self.writers.items())


def _labelled(name: object) -> str:
    return "" if name == UNNAMED else f"{name!r}: "


def check_reject_column(kind: _T, fields: Mapping[str, _T], is_text: Callable[[_T], bool], found: str) -> None:
    """Check the type of the column ``_reject``.

    :param fields: of a struct.
    :raises ColumnMismatch: it is neither of strings nor of structs of a code and a reason.
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
    """The error for a record that a handler has failed for."""
    error = why.error
    return HandlerFailed.of(
        error_class=error.error_class,
        text=error.text,
        traceback=error.traceback,
        attempts=why.attempts,
        shown=why.shown,
    )


def reject_of(given: str | Mapping[str, Any]) -> Rejected:
    """What a letter keeps of a value of ``_reject``, or of a handler's failure in its place."""
    if isinstance(given, str):
        return Rejected(rejected(given))
    if "error_class" in given:
        error = LetterError(given["error_class"], given["text"], traceback=given["traceback"])
        return Rejected(error, "raised", given["attempts"], given["shown"])
    return Rejected(rejected(given["reason"], given["code"]))
