"""Polled records as a delivery: their rows are computed by the transform, in this process.

What the transform returns is checked against the writers and their tables.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

import pyarrow as pa

from offsetstore.consumer.records import ConsumedRecord, batch_of
from offsetstore.errors import ColumnMismatch, ConfigurationError, FunctionFailed, RowsRefused, as_raised
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.processing.blame import find_failing
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.handled_rows import schemas_of
from offsetstore.processing.handling import Handler
from offsetstore.processing.outputs import (
    ArrowRows,
    CheckedOutputs,
    ComputedPart,
    RowsByRecord,
    WhileHandling,
    check_reject_column,
    reject_of,
)
from offsetstore.processing.unit import Coordinates, Ranges
from offsetstore.protocol.letters import REJECT, Headers, Letter, Payload, digest
from offsetstore.protocol.ports import Writer
from offsetstore.runtime.functions import as_texts, call, tells_of_outage, without_frames
from offsetstore.store.claim import Claim
from offsetstore.store.term import Term, Terms
from offsetstore.text import at_line
from offsetstore.writers.arrow.batches import shown

ArrowTransform: TypeAlias = Callable[[pa.RecordBatch], "pa.RecordBatch | Mapping[str, pa.RecordBatch]"]

_WITHOUT_RECORDS: Final[Mapping[str, Any]] = {
    "found": "a batch without records",
    "next_step": "Have it return its columns, without rows, where there are no records: a flush has none if all "
    "that was read belongs to transactions that were aborted.",
}
_PATIENCE: Final = 5.0  # seconds to find out whether a function makes the same rows again
_types: Any = pa.types  # its stubs leave the types of fields open
_EMPTY: Final = Payload(None, None, None, None, None)


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


def typed(error: BaseException) -> BaseException:
    """See `Source`: the transform's own exception is reported as it is."""
    return (error.__cause__ or error) if isinstance(error, TransformRaised) else error


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


@dataclass(frozen=True, slots=True)
class Polled:
    """The records of one partition, in the order of the log, and the range that they cover.

    :param range: ends where Kafka's client is: beyond the last record if control records, or records of aborted
        transactions, come after it.
    :param term: in which they were polled.
    """

    range: OffsetRange
    records: Sequence[ConsumedRecord]
    term: Term


@dataclass(frozen=True, slots=True)
class PolledRecords:
    """See `Delivery`. Partitions that the claim has lost since, even if it has them again, are no longer part of it.

    :param pause: sleeps, and raises if the consumer is being stopped.
    """

    number: int
    claim: Claim = field(repr=False)
    outputs: ConsumerOutputs = field(repr=False)
    polled: Mapping[TopicPartition, Polled] = field(repr=False)
    pause: Callable[[float], None] = field(repr=False)

    @property
    def ranges(self) -> dict[TopicPartition, OffsetRange]:
        """See `Delivery`."""
        terms = self.claim.terms
        polled = sorted(self.polled.items())
        return {tp: part.range for tp, part in polled if terms.get(tp) is part.term and part.range.size}

    @property
    def terms(self) -> Terms:
        """See `Delivery`."""
        return {tp: part.term for tp, part in self.polled.items()}

    def records(self, part: Ranges, without: Collection[Coordinates] = ()) -> list[ConsumedRecord]:
        """The records of these ranges, in order, without those at some coordinates."""
        chosen: list[ConsumedRecord] = []
        for tp, range_ in sorted(part.items()):
            records = self.polled[tp].records
            begin, end = (bisect_left(records, at, key=attrgetter("offset")) for at in (range_.from_, range_.until))
            chosen += records[begin:end]
        return [record for record in chosen if record.coordinates not in without] if without else chosen

    def rows(self, part: Ranges, without: Collection[Coordinates] = ()) -> dict[str, ArrowRows]:
        """See `Delivery`.

        :raises RowsRefused: transform has rejected a record.
        :raises TransformRaised: it has raised an error.
        """
        made = self.outputs.made(self.claim, self.records(part, without))
        rows: dict[str, ArrowRows] = {}
        for name, batch in made.items():
            good, reject = split(batch)
            if reject is not None:
                raise RowsRefused("transform has rejected a record")
            rows[name] = ArrowRows(self.outputs.writers[name], [good], self.outputs.handling)
        return rows

    @contextmanager
    def careful(
        self,
        part: Ranges,
        *,
        suspects: Mapping[Coordinates, FunctionFailed | None],
        has_sequences: bool,  # noqa: ARG002 - keys are always digests
        seconds: float,  # noqa: ARG002 - a search calls nothing but the transform
    ) -> Generator[ComputedRecords]:
        """See `Delivery`."""
        known = {place: why for place, why in suspects.items() if why is not None}
        yield Computation(self.claim, self.outputs, lambda: self.sleep(0)).of(self.records(part), known)

    def sleep(self, seconds: float) -> None:
        """See `Delivery`."""
        self.pause(seconds)
        self.claim.require_open()

    def failed(self, error: Exception) -> FunctionFailed | None:
        """See `Delivery`."""
        return error.failed() if isinstance(error, TransformRaised) else None

    def unreadable(self) -> str | None:
        """See `Delivery`: the records are in memory."""
        return None

    def headers(self, limit: int) -> list[Headers]:
        """See `Delivery`."""
        listed = chain.from_iterable(part.records for part in self.polled.values())
        return [record.payload.headers or () for record in islice(listed, limit)]

    def repeats(self) -> bool:
        """See `Delivery`: the transform is called twice, and its rows are compared."""
        return Computation(self.claim, self.outputs, lambda: self.sleep(0)).repeats(self.records(self.ranges))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedRecords(ComputedPart):
    """See `CarefulPart`: each record is computed alone, so its rows are known even without coordinates."""

    records: Sequence[ConsumedRecord]

    @classmethod
    def of(
        cls,
        records: Sequence[ConsumedRecord],
        outputs: ConsumerOutputs,
        by_record: Mapping[str, RowsByRecord],
        *,
        rejected: Mapping[int, Rejected],
        failed: Mapping[int, FunctionFailed] = MappingProxyType({}),
        failing: Callable[[Sequence[int]], Mapping[int, FunctionFailed]] = lambda _: {},
    ) -> ComputedRecords:
        """Make one of computed records, which are numbered in their order."""
        keys = {n: digest(record.topic_partition, record.payload.key) for n, record in enumerate(records)}
        return cls(
            numbers=range(len(records)),
            keys={n: key for n, key in keys.items() if key is not None},
            rejected=rejected,
            failed=failed,
            replaces_in_order=outputs.replaces_in_order,
            outputs=by_record,
            failing=failing,
            is_handled=outputs.handler is not None,
            records=records,
        )

    def record(self, number: int) -> Coordinates:
        """See `CarefulPart`."""
        return self.records[number].coordinates

    def payloads(self, numbers: Sequence[int]) -> dict[int, Payload]:
        """See `CarefulPart`."""
        return {n: self.records[n].payload for n in numbers}


class Computation:
    """Computes the rows of each record alone, so that the transform need not keep coordinates (decision 0091).

    :param check: called before each try; its exceptions pass.
    """

    def __init__(self, claim: Claim, outputs: ConsumerOutputs, check: Callable[[], None] = lambda: None) -> None:
        self._claim = claim
        self._outputs = outputs
        self._check = check

    def of(
        self, records: Sequence[ConsumedRecord], known: Mapping[Coordinates, FunctionFailed] | None = None
    ) -> ComputedRecords:
        """Compute the rows of all records that can be computed.

        :param known: records that have just failed, which are not tried again.
        :raises TooManyFailed: there are many records, and none can be computed.
        """
        failed = {
            n: known[record.coordinates] for n, record in enumerate(records) if known and record.coordinates in known
        }
        others = [n for n in range(len(records)) if n not in failed]
        with self._outputs.handling():  # once for all calls: each would tell of all partitions
            failed |= {others[at]: error for at, error in self._failing([records[n] for n in others]).items()}
            return self._one_by_one(records, failed)

    def repeats(self, records: Sequence[ConsumedRecord]) -> bool:
        """Whether two tries fail for the same records, and make the same rows of the others."""
        # With a time limit: if the search takes long, many records fail, and no single one is at fault.
        try:
            with self._outputs.handling():
                failing, again = (self._failing(records, seconds=_PATIENCE).keys() for _ in range(2))
                good = [record for n, record in enumerate(records) if n not in failing]
                rows, others = (self._outputs.made(self._claim, good) for _ in range(2))
        except Exception as error:  # noqa: BLE001 - not shown; the search meets it again at its next look
            without_frames(error)
            return False
        return (
            failing == again and rows.keys() == others.keys() and all(rows[name].equals(others[name]) for name in rows)
        )

    def _failing(self, records: Sequence[ConsumedRecord], seconds: float = math.inf) -> dict[int, FunctionFailed]:
        """The errors of the records that can't be computed, by their places.

        :raises TooManyFailed: there are many records, and none can be computed.
        :raises TimeIsUp: not all were found in ``seconds``.
        """

        def try_(begin: int, end: int) -> FunctionFailed | int:
            return self.tried(records[begin:end])

        if not isinstance(try_(0, len(records)), FunctionFailed):
            return {}
        return find_failing(len(records), try_, seconds=seconds, check=self._check)

    def tried(self, records: Sequence[ConsumedRecord]) -> FunctionFailed | int:
        """Compute these records together, and forget their rows; return the number of rows, or why it failed."""
        self._check()
        try:
            return sum(rows.num_rows for rows, reject in self._made(records).values() if reject is None)
        except TransformRaised as error:
            if (why := error.failed()) is None:
                raise
            without_frames(error)
            return why

    def _one_by_one(self, records: Sequence[ConsumedRecord], failed: Mapping[int, FunctionFailed]) -> ComputedRecords:
        outputs = self._outputs
        batches: dict[str, list[pa.RecordBatch]] = {name: [] for name in outputs.writers}
        firsts = {name: array("q", [0]) for name in outputs.writers}
        rejected: dict[int, Rejected] = {}
        for number, record in enumerate(records):
            made: Mapping[str, tuple[pa.RecordBatch, Rejected | None]] = {}
            if number not in failed:
                self._check()
                made = self._made([record])
            reject = next((reject for _, reject in made.values() if reject is not None), None)
            if reject is not None:
                rejected[number], made = reject, {}
            for name, (rows, _) in made.items():
                batches[name].append(rows)
            for name, first in firsts.items():
                first.append(first[-1] + (made[name][0].num_rows if made else 0))
        # Without a batch there would be no columns.
        if not any(batches.values()):
            try:
                batches = {name: [rows] for name, (rows, _) in self._made([]).items()}
            except TransformRaised as error:
                raise error.failed() or error from error.__cause__
        by_record: dict[str, RowsByRecord] = {}
        for name, parts in batches.items():
            by_record[name] = RowsByRecord(outputs.writers[name], _joined(parts), firsts[name], outputs.handling)

        def failing(numbers: Sequence[int]) -> dict[int, FunctionFailed]:
            with outputs.handling():
                tried = {n: self.tried([records[n]]) for n in numbers}
            return {n: why for n, why in tried.items() if isinstance(why, FunctionFailed)}

        return ComputedRecords.of(records, outputs, by_record, rejected=rejected, failed=failed, failing=failing)

    def _made(self, records: Sequence[ConsumedRecord]) -> dict[str, tuple[pa.RecordBatch, Rejected | None]]:
        made = self._outputs.made(self._claim, records)
        return {name: split(rows) for name, rows in made.items()}


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Join the rows of single records.

    :raises ColumnMismatch: the columns differ, or a value would change.
    """
    # Where the transform leaves types to Arrow, batches differ: a NULL alone has no type. Hence "permissive".
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    tables = [table for table in tables if table.num_rows or table.schema.names] or tables[:1]
    kinds = {str(table.schema): table.schema for table in tables}.values()
    try:
        joined = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
        if all(_stays(kind, joined.schema) for kind in kinds):
            return joined
    except pa.ArrowException as error:
        raise _incompatible(kinds) from error
    raise _incompatible(kinds)


def _stays(kind: pa.Schema, joined: pa.Schema) -> bool:
    """Whether all columns are there, and no value has lost digits: Arrow checks that for integers, not for decimals."""
    if {*kind.names} != {*joined.names}:
        return False
    schema: Any = joined
    types: list[tuple[Any, Any]] = [(column.type, schema.field(column.name).type) for column in cast("Any", kind)]
    return not any(
        _types.is_floating(after) if _types.is_decimal(before) else _types.is_float32(before) and before != after
        for before, after in types
    )


def _incompatible(kinds: Iterable[pa.Schema]) -> ColumnMismatch:
    return ColumnMismatch(
        "transform returned incompatible columns for different records",
        found="; ".join(str(kind).replace("\n", ", ") for kind in islice(kinds, 2)),
        expected="the same columns and types for each record, as in pa.array(values, pa.decimal128(12, 2))",
    )


def records_of(letters: Sequence[Letter]) -> list[ConsumedRecord]:
    return [ConsumedRecord(letter.topic_partition, letter.offset, letter.payload or _EMPTY) for letter in letters]
