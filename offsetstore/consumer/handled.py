"""A `Handler` as the transform: each delivery is a window, and the handler is called once for each of its records."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any, Final, cast

import pyarrow as pa

from offsetstore.consumer.delivery import Computation, ComputedRecords, ConsumerOutputs, PolledRecords, records_of
from offsetstore.consumer.records import ConsumedRecord, as_given
from offsetstore.errors import FunctionFailed, HandlerStuck
from offsetstore.offsets import TopicPartition
from offsetstore.processing import handling
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.handled_rows import arrow_rows, as_failed, columns_of
from offsetstore.processing.handling import (
    CallOutcome,
    Figures,
    Handler,
    HandlerFailed,
    Handling,
    NoRows,
    outage_of_call,
    service_unavailable,
)
from offsetstore.processing.outputs import ArrowRows, RowsByRecord, handler_failed, reject_of
from offsetstore.processing.unit import Coordinates, PlanOutdated, Ranges
from offsetstore.protocol.events import HandlerCalled
from offsetstore.protocol.letters import Letter
from offsetstore.protocol.log_evidence import known_ids
from offsetstore.store.claim import Claim
from offsetstore.writers.arrow.batches import KAFKA

_ENOUGH: Final = 256
"""How many records are handed over at a time, and how many outcomes are waited for."""
_LOOK: Final = 0.5
"""Seconds between two looks at whether the calls are still wanted."""

_TELL: Final = 5.0
"""Seconds after which observers are told of further calls: a window that takes long is still alive."""


@dataclass(slots=True)
class _HandledRecords:
    """What the handler has made of a delivery's records, which are numbered in their order.

    :param numbers: of the records that were called.
    :param failed: why some records have no rows, by number.
    """

    numbers: Mapping[Coordinates, int] = field(default_factory=dict[Coordinates, int])
    outputs: Mapping[str, RowsByRecord] = field(default_factory=dict[str, RowsByRecord])
    failed: Mapping[int, Rejected] = field(default_factory=dict[int, Rejected])


@dataclass(frozen=True, slots=True)
class HandledRecords(PolledRecords):
    """See `PolledRecords`. Each record's outcome is kept, so no plan and no search calls it again (decision 0092).

    :param topic_ids: see `topic_ids_of`.
    """

    topic_ids: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    _kept: _HandledRecords = field(default_factory=_HandledRecords, repr=False)

    def rows(self, part: Ranges, without: Collection[Coordinates] = ()) -> dict[str, ArrowRows]:
        """See `Delivery`.

        :raises HandlerFailed: the handler has failed for a record.
        :raises HandlerStuck, SinkError: see `handled`.
        """
        numbers = self._numbers(self.records(part, without))
        for number in numbers:
            if (why := self._kept.failed.get(number)) is not None:
                raise handler_failed(why)
        return {name: rows.rows_of(numbers) for name, rows in self._kept.outputs.items()}

    @contextmanager
    def careful(
        self,
        part: Ranges,
        *,
        suspects: Mapping[Coordinates, FunctionFailed | None],  # noqa: ARG002 - nothing is tried again
        has_sequences: bool,  # noqa: ARG002 - keys are always digests
        seconds: float,  # noqa: ARG002 - nothing is searched
    ) -> Generator[ComputedRecords]:
        """See `Delivery`."""
        records = self.records(part)
        numbers = self._numbers(records)
        outputs, failed = {name: rows.of(numbers) for name, rows in self._kept.outputs.items()}, self._kept.failed
        rejected = {at: failed[number] for at, number in enumerate(numbers) if number in failed}
        yield ComputedRecords.of(records, self.outputs, outputs, rejected=rejected)

    def repeats(self) -> bool:
        """See `Delivery`: calls have effects, so none is made to find out."""
        return False

    def failed(self, error: Exception) -> FunctionFailed | None:
        """See `Delivery`."""
        return error.failed if isinstance(error, HandlerFailed) else None

    def _numbers(self, records: Sequence[ConsumedRecord]) -> list[int]:
        """Return the numbers of these records, once all of them were called.

        :raises PlanOutdated: a partition or the group was lost before that.
        """
        kept = self._kept
        if not kept.outputs or not all(record.coordinates in kept.numbers for record in records):
            ids = topic_ids_of(self.claim, self.topic_ids, records)
            given = [(record, ids.get(record.topic_partition.topic, "")) for record in records]
            kept.outputs, kept.failed, lost = handled(self.outputs, self.claim, given, self._is_wanted)
            kept.numbers = {record.coordinates: n for n, record in enumerate(records) if n not in lost}
            if lost:
                raise PlanOutdated("a partition was lost while its records were handled")
        return [kept.numbers[record.coordinates] for record in records]

    def _is_wanted(self, tp: TopicPartition) -> bool:
        """Whether records of a partition are still to be called."""
        return self.claim.term(tp) is self.polled[tp].term and not self.claim.is_lost


def topic_ids_of(claim: Claim, known: dict[str, str], records: Sequence[ConsumedRecord]) -> Mapping[str, str]:
    """Kafka's ids of the records' topics, for `offsetstore.Record.id`; ``known`` keeps the ids read before."""
    topics = {record.topic_partition.topic for record in records}
    if not topics <= known.keys():
        known |= {**dict.fromkeys(topics, ""), **known_ids(claim.offsets())}
    return known


def handled(
    outputs: ConsumerOutputs,
    claim: Claim,
    records: Sequence[tuple[ConsumedRecord, str]],
    is_wanted: Callable[[TopicPartition], bool],
) -> tuple[Mapping[str, RowsByRecord], Mapping[int, Rejected], Collection[int]]:
    """Call the handler for each record.

    :param records: with the ids of their topics.
    :param is_wanted: asked before each call, also from other threads.
    :return: the rows of each output; why some records have none, by their numbers; and the numbers of records that were
        no longer wanted, and so not called.
    :raises HandlerStuck: no more calls can be made.
    :raises SinkError: a service is down.
    :raises ProtocolMisuse: the claim was closed meanwhile.
    :raises ColumnMismatch, KafkaColumnsMissing, UnsafeTarget, ConfigurationError: see `CheckedOutputs.check_tables`.
    """
    assert outputs.handler is not None
    coordinates = cast("Any", outputs.given([])).schema.field(KAFKA)
    outputs.check_tables(
        claim,
        {name: pa.schema([*cast("Any", columns_of(schema)), coordinates]) for name, schema in outputs.schemas.items()},
    )
    outcomes, at, unwanted = dict[int, CallOutcome](), dict[int, int](), set[int]()

    def may_call(record: handling.Record) -> None:
        number = at[id(record)]
        if not is_wanted(records[number][0].topic_partition):
            unwanted.add(number)
            raise NoRows("the partition was lost")

    given = iter(records)
    fed, told, told_at = 0, Figures(), time.monotonic()
    with (
        outputs.handling(),
        closing(
            Handling(_guarded(outputs.handler, may_call), enough=_ENOUGH, propagate=outputs.propagate)
        ) as handling_,
    ):

        def tell() -> None:
            nonlocal told, told_at
            now, told_at = replace(handling_.figures), time.monotonic()
            if (new := now.since(told)) != Figures(lag=now.lag):
                claim.observers.on(HandlerCalled(group=claim.group, **asdict(new)))
                told = now

        try:
            while True:
                if time.monotonic() - told_at >= _TELL:
                    tell()
                while handling_.has_room and (some := [as_given(*pair) for pair in islice(given, _ENOUGH)]):
                    at.update((id(record), fed + number) for number, record in enumerate(some))
                    fed += len(some)
                    handling_.feed(some)
                if not handling_.outstanding:
                    break
                claim.require_open()
                outcomes.update((at.pop(id(outcome.record)), outcome) for outcome in _finished(handling_))
        finally:
            tell()
    with outputs.handling():
        by_record, failed = _as_rows(
            outputs, [record for record, _ in records], [outcomes[n] for n in range(len(records))]
        )
    return by_record, failed, unwanted


def _guarded(handler: Handler, may_call: Callable[[handling.Record], None]) -> Handler:
    """The handler with a check before each call: by then, a record may have waited for long."""
    fn = handler.fn

    def call(record: handling.Record) -> Any:
        may_call(record)
        return fn(record)

    async def call_later(record: handling.Record) -> Any:
        may_call(record)
        return await fn(record)

    return replace(handler, fn=call_later if handler.is_async else call)


def _finished(handling_: Handling) -> Sequence[CallOutcome]:
    """Wait briefly for outcomes.

    :raises SinkError: no more records can be handled.
    """
    try:
        return handling_.finished(_LOOK)
    except HandlerStuck:
        raise
    except Exception as error:
        raise service_unavailable(outage_of_call(error)) from error


def _as_rows(
    outputs: ConsumerOutputs, records: Sequence[ConsumedRecord], outcomes: Sequence[CallOutcome]
) -> tuple[dict[str, RowsByRecord], dict[int, Rejected]]:
    """The rows of each output, and why records have none."""
    column: Any
    column, outcomes = arrow_rows(outcomes, outputs.schemas)
    by_record: dict[str, RowsByRecord] = {}
    for number, (name, schema) in enumerate(outputs.schemas.items()):
        lists = column.field(number)
        first = array("q", lists.offsets.to_pylist())
        arrow: Any = pa
        table = arrow.Table.from_batches([arrow.RecordBatch.from_struct_array(lists.values)]).cast(columns_of(schema))
        if outputs.uses_kafka(name):
            of_rows = [n for n in range(len(records)) for _ in range(first[n], first[n + 1])]
            places = cast("Any", outputs.given(records)).column(KAFKA)
            table = table.append_column(KAFKA, places.take(pa.array(of_rows, pa.int64())))
        by_record[name] = RowsByRecord(outputs.writers[name], table, first, outputs.handling)
    failed: dict[int, Rejected] = {}
    for number, outcome in enumerate(outcomes):
        if (why := outcome.error) is not None:
            failed[number] = reject_of(as_failed(why, outcome.attempts))
    return by_record, failed


@contextmanager
def computed_letters(
    outputs: ConsumerOutputs, claim: Claim, letters: Sequence[Letter], is_running: Callable[[], bool] = lambda: True
) -> Generator[ComputedRecords]:
    """Compute the rows of letters' records; see `ComputeLetters`.

    :param is_running: whether the consumer runs, asked before each call: a stop waits for one call, not for a replay.
    :raises PlanOutdated: the consumer is being stopped, or has lost a partition: the replay is left for later.
    """
    records, terms = records_of(letters), claim.terms

    def check() -> None:
        claim.require_open()
        if not is_running():
            raise PlanOutdated("the consumer is being stopped")

    if outputs.handler is None:
        yield Computation(claim, outputs, check).of(records)
        return
    given = [(record, letter.topic_id) for record, letter in zip(records, letters, strict=True)]

    def is_wanted(tp: TopicPartition) -> bool:
        return is_running() and tp in terms and claim.term(tp) is terms[tp]

    by_record, failed, unwanted = handled(outputs, claim, given, is_wanted)
    if unwanted:
        raise PlanOutdated("a partition was lost, or the consumer is being stopped")
    yield ComputedRecords.of(records, outputs, by_record, rejected=failed)
