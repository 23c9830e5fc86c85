"""The outputs of a transform: their writers, the checks of their rows, and the rows of each record.

Each computed row is kept with the record that it was made from, so that single records can be left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast

import pyarrow as pa

from offsetstore.errors import ColumnMismatch, ConfigurationError, FunctionFailed, RowsRefused, SinkError
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.handling import Handler, HandlerFailed, check_order
from offsetstore.processing.unit import UNNAMED, Coordinates
from offsetstore.protocol.letters import REJECT, LetterError, Payload, rejected
from offsetstore.protocol.ports import TableWriter, Work, Writer, declares
from offsetstore.runtime.functions import call
from offsetstore.store.claim import Claim
from offsetstore.writers.arrow.misfits import finds_misfits
from offsetstore.writers.into_table import IntoTable
from offsetstore.writers.table.conversions import RowMaker

REJECT_FIELDS: Final = ("code", "reason")
"""The fields of a struct in the column ``_reject``; a string is the reason alone."""

_FEW: Final = 64
"""Up to this many slices of a table are better than copying their rows."""

_WORDS: Final[Mapping[str, RowMaker]] = {"DataFrame": "spark", "RecordBatch": "pyarrow"}

_T = TypeVar("_T")

WhileHandling: TypeAlias = Callable[[], AbstractContextManager[object]]


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


class Batches(Protocol):
    """Record batches that can be read again and again."""

    num_rows: int
    nbytes: int

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Read the batches from the first one on."""
        ...


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """One output's rows; see `KeptRows`.

    :param handling: entered while the writer runs.
    """

    writer: Writer
    parts: Sequence[pa.RecordBatch | Batches]
    handling: WhileHandling = nullcontext

    @property
    def rows(self) -> int:
        return sum(part.num_rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return chain.from_iterable([part] if isinstance(part, pa.RecordBatch) else part for part in self.parts)

    def write(self, work: Work) -> int:
        with self.handling():
            return self.writer.write(work, self.batches())

    def joined(self, later: Sequence[ArrowRows]) -> ArrowRows:
        return ArrowRows(self.writer, [part for rows in (self, *later) for part in rows.parts], self.handling)


@dataclass(frozen=True, slots=True)
class RowsByRecord:
    """One output's rows, in the order of their records, which are numbered from 0.

    :param first: for each record number, the place of its first row, or where that would be; and one more at the end.
    :param handling: entered while the writer runs.
    """

    writer: Writer
    table: pa.Table
    first: array[int]
    handling: WhileHandling = nullcontext

    def has(self, number: int) -> bool:
        return self.first[number] < self.first[number + 1]

    def rows_of(self, numbers: Sequence[int]) -> ArrowRows:
        """The rows of these records, which are ascending."""
        return ArrowRows(self.writer, self._table_of(numbers).to_batches(), self.handling)

    def of(self, numbers: Sequence[int]) -> RowsByRecord:
        """The rows of these records, which are numbered anew from 0."""
        sizes = (self.first[number + 1] - self.first[number] for number in numbers)
        first = array("q", accumulate(sizes, initial=0))
        return RowsByRecord(self.writer, self._table_of(numbers), first, self.handling)

    def _table_of(self, numbers: Sequence[int]) -> pa.Table:
        runs: list[list[int]] = []
        for number in numbers:
            begin, end = self.first[number], self.first[number + 1]
            if runs and runs[-1][1] == begin:
                runs[-1][1] = end
            elif begin != end:
                runs.append([begin, end])
        if len(runs) > _FEW:
            rows = array("q", chain.from_iterable(range(*run) for run in runs))
            # Arrow can't take rows from columns of views or of runs: then slices do.
            with suppress(pa.ArrowNotImplementedError):
                return self.table.take(pa.array(rows, pa.int64()))
        slices = [self.table.slice(begin, end - begin) for begin, end in runs]
        return pa.concat_tables(slices) if slices else self.table.slice(0, 0)

    def nth(self, numbers: Sequence[int], row: int) -> int | None:
        """The record of a row, by the row's place among the rows of these records, from 0."""
        ends = [*accumulate(self.first[number + 1] - self.first[number] for number in numbers)]
        place = bisect_right(ends, row)
        return numbers[place] if place < len(numbers) else None

    def misfits(self, connection: Any) -> dict[int, RowsRefused]:
        """The records with a value that can never be stored. Only a `MisfitsWriter` reports them."""
        found: dict[int, RowsRefused] = {}
        writer, begin = self.writer, 0
        if not finds_misfits(writer):
            return found
        with self.handling():
            for batch in self.table.to_batches():
                for misfit in writer.misfits(connection, batch):
                    found.setdefault(bisect_right(self.first, begin + misfit.row) - 1, misfit.error)
                begin += batch.num_rows
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedPart(ABC):
    """A `CarefulPart` whose rows are in memory; a source adds `record` and `payloads`.

    :param failing: tries some records again, each alone, and returns those that fail.
    :param is_handled: whether a handler was called for each record, so that a record without rows is accepted, too.
    """

    numbers: Sequence[int]
    keys: Mapping[int, Hashable]
    rejected: Mapping[int, Rejected]
    failed: Mapping[int, FunctionFailed]
    replaces_in_order: bool
    outputs: Mapping[str, RowsByRecord] = field(repr=False)
    failing: Callable[[Sequence[int]], Mapping[int, FunctionFailed]] = field(repr=False, default=lambda _: {})
    is_handled: bool = False

    @property
    def with_rows(self) -> list[int]:
        outputs = self.outputs.values()
        return [n for n in self.numbers if n not in self.rejected and any(output.has(n) for output in outputs)]

    @property
    def accepted(self) -> list[int]:
        return [n for n in self.numbers if n not in self.rejected] if self.is_handled else self.with_rows

    def fail_again(self, numbers: Sequence[int]) -> Mapping[int, FunctionFailed]:
        failed = self.failing(numbers)
        # If a good record fails now, too, it is no record's fault; each retry asks one of them (decision 0048).
        for why in self.failing(self.with_rows[:1]).values() if failed else ():
            raise why from why.__cause__
        return failed

    def misfits(self, connection: object) -> dict[int, RowsRefused]:
        found: dict[int, RowsRefused] = {}
        for name, output in self.outputs.items():
            for number, error in output.misfits(connection).items():
                error.output = name
                found.setdefault(number, error)
        return found

    def rows_of(self, numbers: Sequence[int]) -> dict[str, ArrowRows]:
        return {name: output.rows_of(numbers) for name, output in self.outputs.items()}

    def hinted(self, refused: RowsRefused, numbers: Sequence[int]) -> int | None:
        output = None if refused.output is None else self.outputs.get(refused.output)
        return None if output is None or refused.row is None else output.nth(numbers, refused.row - 1)

    @abstractmethod
    def record(self, number: int) -> Coordinates: ...

    @abstractmethod
    def payloads(self, numbers: Sequence[int]) -> Mapping[int, Payload]: ...
