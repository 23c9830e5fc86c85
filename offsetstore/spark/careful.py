"""A part of a batch, computed with the record of each row known, so that the rows of single records can be left out.

The part's records are persisted first: transform, and the letters that are written later, read the same records, and
Kafka is read once. Rows are put in the order of their records: by topic, partition and offset.

If the rows can't be computed, `find_failing` finds the records that are to blame, each try a job over the persisted
records. Then all others are computed: so another record is always computed after those that failed.
"""

from __future__ import annotations

import math
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final, Protocol, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from offsetstore.errors import FunctionFailed
from offsetstore.processing.blame import Halve, TimeIsUp, find_failing
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.outputs import ComputedPart, RowsByRecord, reject_of
from offsetstore.processing.unit import Coordinates, PlanOutdated, Ranges
from offsetstore.protocol.letters import Letter, Payload
from offsetstore.runtime.functions import without_frames
from offsetstore.spark.columns import REJECT_COLUMN as REJECT
from offsetstore.spark.columns import (
    are_rejected,
    by_partition,
    count_accepted,
    headers_of,
    letters_frame,
    looked_up,
    raise_outage,
)
from offsetstore.spark.function_errors import function_failed, is_over_limit
from offsetstore.spark.outputs import SparkOutputs
from offsetstore.spark.plans.lineage import check_row_by_row
from offsetstore.spark.plans.sharing import computed_once
from offsetstore.writers.arrow.batches import KAFKA, shown

_NUMBER: Final = "_offsetstore_number"
_LEVEL: Final = StorageLevel.MEMORY_AND_DISK
_compute: Any = pc
_T = TypeVar("_T")


class Numbering(Protocol):
    """Numbers records from 0, in order of topic, partition and offset."""

    @property
    def size(self) -> int:
        """How many numbers there are."""
        ...

    def column(self, topic: Column, partition: Column, offset: Column) -> Column:
        """The number of a row's record."""
        ...

    def record(self, number: int) -> Coordinates:
        """The partition and the offset of a record."""
        ...


class OfRanges:
    """A `Numbering` of the offsets of ranges, also of offsets without a record."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = sorted(ranges.items())
        *self._begins, self.size = accumulate((range_.size for _, range_ in self._ranges), initial=0)

    def column(self, topic: Column, partition: Column, offset: Column) -> Column:
        ranges = zip(self._ranges, self._begins, strict=True)
        return by_partition({tp: begin - range_.from_ for (tp, range_), begin in ranges}, topic, partition) + offset

    def record(self, number: int) -> Coordinates:
        place = bisect_right(self._begins, number) - 1
        tp, range_ = self._ranges[place]
        return tp, range_.from_ + number - self._begins[place]


class OfRecords:
    """A `Numbering` of listed records, which are in order."""

    def __init__(self, records: Sequence[Coordinates]) -> None:
        self._records = records
        self.size = len(records)

    def column(self, topic: Column, partition: Column, offset: Column) -> Column:
        numbers = {f"{at}-{tp.partition}-{tp.topic}": number for number, (tp, at) in enumerate(self._records)}
        return looked_up(numbers, F.concat_ws("-", offset, partition, topic))

    def record(self, number: int) -> Coordinates:
        return self._records[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class Careful(ComputedPart):
    """See the module. Records have the numbers of the `Numbering`; those of one key are equal in ``keys``.

    :param _records: with the Kafka source's columns, and their numbers.
    """

    numbering: Numbering
    _records: DataFrame = field(repr=False)

    def record(self, number: int) -> Coordinates:
        return self.numbering.record(number)

    def payloads(self, numbers: Sequence[int]) -> dict[int, Payload]:
        """Read the records themselves.

        :raises PlanOutdated: they are no longer there: executors have lost them, and so has Kafka.
        """
        if not numbers:
            return {}
        chosen = self._records.where(f"{_NUMBER} IN ({', '.join(map(str, numbers))})")
        has_headers = "headers" in chosen.columns
        table = chosen.select(
            _NUMBER,
            "key",
            "value",
            *(["headers"] if has_headers else []),
            F.unix_millis("timestamp").alias("timestamp_ms"),
            "timestampType",
        ).toArrow()
        payloads = {
            row[_NUMBER]: Payload(
                row["key"],
                row["value"],
                headers_of(row["headers"]) if has_headers else None,
                row["timestamp_ms"],
                row["timestampType"],
            )
            for row in table.to_pylist()
        }
        # A block that executors have lost is read from Kafka again, where a record may be gone (decision 0036).
        if payloads.keys() != set(numbers):
            raise PlanOutdated("records that were read can't be read again")
        return payloads


@contextmanager
def computed_carefully(
    outputs: SparkOutputs,
    records: DataFrame,
    numbering: Numbering,
    *,
    has_sequences: bool = False,
    suspects: Mapping[Coordinates, FunctionFailed | None] | None = None,
    seconds: float = math.inf,
    check: Callable[[], None] = lambda: None,
) -> Generator[Careful]:
    """Compute the outputs of the records, and keep these until the block ends.

    :param records: with the columns of the Kafka source.
    :param has_sequences: name the keys by their `digest`, and not by a number that two of them may share.
    :param suspects: see `Compute`.
    :param seconds: how long to search for records that can't be computed.
    :param check: called before each try of the search; what it raises passes.
    :raises UnsupportedQuery, KafkaColumnsMissing: a row is not made from one record.
    :raises Halve: the rows, or letters that are read in the block, are too many bytes for the driver; or there was not
        enough time.
    :raises TooManyFailed: no record of many can be computed.
    :raises Exception: Spark's own.
    """
    place = (F.col("topic"), F.col("partition"), F.col("offset"))
    records = outputs.handled(records)
    records = records.withColumn(_NUMBER, numbering.column(*place))
    computation = _Computation(outputs, records, numbering)
    records.persist(_LEVEL)
    try:
        key = _digest(*place[:2]) if has_sequences else F.xxhash64("key")
        keys = records.select(_NUMBER, F.when(F.col("key").isNotNull(), key).alias("key")).toArrow()
        numbers = sorted(_values(keys, _NUMBER))
        by_record = {numbering.record(number): number for number in numbers} if suspects else {}
        suspected = {by_record[record]: why for record, why in sorted((suspects or {}).items()) if record in by_record}
        computed, failed = _computed_without_failing(computation, numbers, suspected, seconds, check)
        by_number = zip(_values(keys, _NUMBER), _values(keys, "key"), strict=True)
        rejected: dict[int, Rejected] = {}
        for name, table in computed.items():
            computed[name] = _without_rejects(table, rejected)
        yield Careful(
            numbers=numbers,
            keys={number: key for number, key in by_number if key is not None},
            rejected=rejected,
            failed=failed,
            replaces_in_order=outputs.replaces_in_order,
            outputs={name: _ordered(outputs, name, table, numbering.size) for name, table in computed.items()},
            failing=partial(computation.failing, check=check),
            is_handled=outputs.handler is not None,
            numbering=numbering,
            _records=records,
        )
    except Exception as error:
        # A half may stay below spark.driver.maxResultSize.
        if is_over_limit(error):
            raise Halve(error) from None
        raise
    finally:
        records.unpersist()


@contextmanager
def computed_letters(
    outputs: SparkOutputs, spark: SparkSession, letters: Sequence[Letter], columns: Collection[str] | None
) -> Generator[Careful]:
    """Compute the outputs of the letters' records, which are numbered in their order.

    :param columns: see `letters_frame`.
    :raises Halve: the rows are too many for the driver, or can't be computed.
    """
    records = OfRecords([(letter.topic_partition, letter.offset) for letter in letters])
    handled = outputs.handled_letters(letters_frame(spark, letters, columns), letters)
    with outputs.telling_calls(), computed_carefully(outputs, handled, records, has_sequences=True) as careful:
        yield careful


def _computed_without_failing(
    computation: _Computation,
    numbers: Sequence[int],
    suspects: Mapping[int, FunctionFailed | None],
    seconds: float,
    check: Callable[[], None],
) -> tuple[dict[str, pa.Table], dict[int, FunctionFailed]]:
    """Find the records that can't be computed, then compute all others."""
    deadline = time.monotonic() + seconds
    failed = {number: why for number, why in suspects.items() if why is not None}
    computed = computation.rows(without=[*failed])
    if not isinstance(computed, dict):
        # Suspects without an error are tried only now: the database alone may have refused them.
        others = [number for number in suspects if number not in failed]
        if failing := computation.failing(others, deadline=deadline, check=check):
            failed |= failing
            check()
            computed = computation.rows(without=[*failed])
    if not isinstance(computed, dict):
        known = [*failed]
        rest = [number for number in numbers if number not in failed]
        place: int | None = None
        try:
            places = find_failing(
                len(rest),
                lambda begin, end: computation.counted(rest[begin], rest[end - 1] + 1, without=known),
                seconds=deadline - time.monotonic(),
                check=check,
            )
        except TimeIsUp as up:
            places, place = up.failed, rest[up.place]
        failed |= {rest[at]: error for at, error in places.items()}
        if place is not None:
            by_record = {computation.numbering.record(number): error for number, error in failed.items()}
            # Cut behind what was found: halves of it would be searched again (decision 0048).
            raise Halve(computed, place=place, suspects=by_record)
        computed = computation.rows(without=[*failed])
        if not isinstance(computed, dict):  # no single record is to blame
            raise Halve(computed) from None
    return computed, failed


@dataclass(frozen=True, slots=True)
class _Computation:
    """Computes the rows of persisted records.

    :param records: with the Kafka source's columns, and their numbers.
    """

    outputs: SparkOutputs
    records: DataFrame = field(repr=False)
    numbering: Numbering

    def rows(self, without: Sequence[int]) -> dict[str, pa.Table] | FunctionFailed:
        def compute() -> dict[str, pa.Table]:
            given = self.outputs.given(self._records(without).drop(_NUMBER))
            made = self.outputs.transform(given, keep_kafka=True)
            for frame in made.values():
                check_row_by_row(given, frame, needed_by="dead_letters=")
            kafka = F.col(KAFKA)
            number = self.numbering.column(kafka["topic"], kafka["partition"], kafka["offset"])
            needed = {
                name: frame.withColumn(_NUMBER, number)
                if self.outputs.uses_kafka(name)
                else frame.withColumn(_NUMBER, number).drop(KAFKA)
                for name, frame in made.items()
            }
            with computed_once(given, _LEVEL) if len(needed) > 1 else nullcontext(dict) as share:
                return {name: frame.toArrow() for name, frame in share(needed).items()}

        return self._or_failed(compute)

    def _records(self, without: Sequence[int]) -> DataFrame:
        return self.records.where(~F.col(_NUMBER).isin([*without])) if without else self.records

    def counted(self, begin: int, end: int, *, without: Sequence[int] = ()) -> FunctionFailed | int:
        """Compute the records with these numbers, up to but excluding ``end``, and forget their rows.

        :return: how many rows they make that are not rejected.
        """
        # Bounds in maps are not part of the code that Spark generates: it is compiled once (decision 0048).
        zero = F.col(_NUMBER).isNull().cast("int")
        first, last = (F.create_map(F.lit(0), F.lit(bound))[zero] for bound in (begin, end))
        kept = self._records(without).where((F.col(_NUMBER) >= first) & (F.col(_NUMBER) < last))

        def count() -> int:
            made = self.outputs.transform(self.outputs.given(kept.drop(_NUMBER)), keep_kafka=True)
            return sum(map(count_accepted, made.values()))

        return self._or_failed(count)

    def _or_failed(self, compute: Callable[[], _T]) -> _T | FunctionFailed:
        try:
            return compute()
        except Exception as error:
            if (failed := function_failed(error, has_handler=self.outputs.handler is not None)) is None:
                raise
            # It is kept for as long as the search lasts, and its frames hold records.
            without_frames(error)
            return failed

    def fails(self, number: int) -> FunctionFailed | None:
        made = self.counted(number, number + 1)
        return made if isinstance(made, FunctionFailed) else None

    def failing(
        self, numbers: Sequence[int], *, deadline: float = math.inf, check: Callable[[], None] = lambda: None
    ) -> dict[int, FunctionFailed]:
        """Try each record alone, until the time is up."""
        failed: dict[int, FunctionFailed] = {}
        for number in numbers:
            check()
            if time.monotonic() >= deadline:
                break
            if (why := self.fails(number)) is not None:
                failed[number] = why
        return failed


def _digest(topic: Column, partition: Column) -> Column:
    """The same as `offsetstore.protocol.letters.digest`."""
    place = F.concat(topic, F.lit("\0"), partition.cast("string"), F.lit("\0"))
    return F.unhex(F.sha2(F.concat(F.encode(place, "UTF-8"), F.col("key")), 256))


def _without_rejects(table: pa.Table, rejected: dict[int, Rejected]) -> pa.Table:
    """Drop the column, and add its reasons to ``rejected``."""
    if REJECT not in table.column_names:
        return table
    bad = table.filter(are_rejected(table.column(REJECT)))
    # An outage is handed on as a reject, and blames no record (decision 0086).
    raise_outage(bad.column(REJECT).combine_chunks())
    for number, reject in zip(_values(bad, _NUMBER), shown(bad.column(REJECT)), strict=True):
        rejected.setdefault(number, reject_of(reject))
    return table.drop_columns([REJECT])


def _ordered(outputs: SparkOutputs, name: str, table: pa.Table, size: int) -> RowsByRecord:
    listed = _values(table, _NUMBER)
    if any(number > next_ for number, next_ in pairwise(listed)):
        table = table.take(_compute.sort_indices(table.column(_NUMBER)))
    counts = array("q", bytes(8 * size))
    for number in listed:
        counts[number] += 1
    first = array("q", accumulate(counts, initial=0))
    return RowsByRecord(outputs.writers[name], table.drop_columns([_NUMBER]), first)


def _values(table: pa.Table, column: str) -> list[Any]:
    return cast("list[Any]", table.column(column).to_pylist())
