"""A source of records in memory: the engine on PostgreSQL, without Spark and Kafka. Also a job as its own process.

A record's value is the number that its row gets. A value that is no number can't be computed, one with a question mark
is rejected, and what else is bad the table refuses.

``python -m tests.support.memory_source URL GROUP [flush|letters|replay]``, from the top of the checkout, writes `LOG`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from offsetstore import Append, Claim, DeadLetters, Flush, OffsetRange, OffsetStore, Retries, TopicPartition
from offsetstore.errors import FunctionFailed, RowsRefused
from offsetstore.offsets import count_offsets
from offsetstore.processing.blame import find_failing
from offsetstore.processing.delivery import Rejected
from offsetstore.processing.runner import Runner, RunnerSettings, Taken
from offsetstore.processing.unit import UNNAMED, Coordinates, Ranges
from offsetstore.protocol.letters import Headers, Letter, Payload, digest, rejected
from offsetstore.protocol.ports import Work, Writer
from offsetstore.store.term import Term, Terms
from offsetstore.writers.arrow.misfits import finds_misfits

P0, P1 = (TopicPartition("payments", number) for number in range(2))
LOG = {P0: [b"0", b"1", b"13", b"3", b"bad", b"5", b"?", b"7"], P1: [b"20", b"21", b"22", b"23", b"24", b"25"]}
GOOD = [0, 1, 3, 5, 7, 20, 21, 22, 23, 24, 25]
SIZE = 3
"""How many records of each partition are handed over at once."""


Log: TypeAlias = "Mapping[TopicPartition, Sequence[bytes]]"


class Stopped(Exception):
    """The source was stopped."""


class CantCompute(Exception):
    """The function has failed for a record."""


def parse(value: bytes | None) -> int:
    """Make a record's row."""
    try:
        return int(value or b"")
    except ValueError as error:
        raise CantCompute from error


def batch_of(numbers: Sequence[int]) -> pa.RecordBatch:
    """Make rows as a writer takes them."""
    column: Any = pa.array(numbers, pa.int64())
    return pa.record_batch({"record": column})


@dataclass(frozen=True)
class Numbers:
    """Rows of an output; see `KeptRows`."""

    writer: Writer
    numbers: Sequence[int]

    @property
    def rows(self) -> int:
        return len(self.numbers)

    @property
    def bytes(self) -> int:
        return 8 * len(self.numbers)

    def write(self, work: Work) -> int:
        return self.writer.write(work, [batch_of(self.numbers)] if self.numbers else [])

    def joined(self, later: Sequence[Numbers]) -> Numbers:
        return Numbers(self.writer, [number for each in (self, *later) for number in each.numbers])


@dataclass
class Results:
    """A writer into memory, and its table, which refuses some numbers."""

    refused: set[int] = field(default_factory=set[int])
    transactions: list[list[int]] = field(default_factory=list[list[int]])

    def uses_kafka_column(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def check(self, connection: Any, schema: Any) -> None: ...

    def write(self, work: Any, batches: Iterable[Any]) -> int:
        numbers = [number for batch in batches for number in batch.column("record").to_pylist()]
        self.transactions.append(numbers)
        work.connection.extend("results", numbers)
        if self.refused.intersection(numbers):
            raise RowsRefused("the database refused rows", sqlstate="23514")
        return len(numbers)


@dataclass(frozen=True)
class Part:
    """See `CarefulPart`: records with their rows, or with why they have none."""

    writer: Writer
    places: Sequence[Coordinates]
    values: Mapping[int, bytes | None]
    failed: Mapping[int, FunctionFailed]
    replaces_in_order: bool = False
    is_handled: bool = False

    @property
    def numbers(self) -> list[int]:
        return list(self.values)

    @property
    def accepted(self) -> list[int]:
        return self.with_rows

    @property
    def rejected(self) -> dict[int, Rejected]:
        return {n: Rejected(rejected("a question")) for n, value in self.values.items() if value == b"?"}

    @property
    def with_rows(self) -> list[int]:
        return [n for n in self.values if n not in self.failed and n not in self.rejected]

    @property
    def keys(self) -> dict[int, bytes]:
        return {n: digest(self.places[n][0], b"key") or b"" for n in self.values}

    def fail_again(self, numbers: Sequence[int]) -> dict[int, FunctionFailed]:
        return {n: self.failed[n] for n in numbers}

    def record(self, number: int) -> Coordinates:
        return self.places[number]

    def misfits(self, connection: Any) -> dict[int, RowsRefused]:
        numbers, writer = self.with_rows, self.writer
        if not finds_misfits(writer):
            return {}
        found = writer.misfits(connection, batch_of([parse(self.values[n]) for n in numbers]))
        return {numbers[one.row]: one.error for one in found}

    def rows_of(self, numbers: Sequence[int]) -> dict[str, Numbers]:
        having = set(self.with_rows)
        return {UNNAMED: Numbers(self.writer, [parse(self.values[n]) for n in numbers if n in having])}

    def hinted(self, refused: RowsRefused, numbers: Sequence[int]) -> int | None:
        return None if refused.row is None else numbers[refused.row - 1]

    def payloads(self, numbers: Sequence[int]) -> dict[int, Payload]:
        return {n: Payload(b"key", self.values[n], None, 0, 0) for n in numbers}


def part_of(writer: Writer, places: Sequence[Coordinates], values: Mapping[int, bytes | None]) -> Part:
    def try_(begin: int, end: int) -> FunctionFailed | int:
        try:
            return len([parse(values[n]) for n in range(begin, end) if values[n] != b"?"])
        except CantCompute as error:
            return failure(error)

    made = try_(0, len(places))
    return Part(writer, places, values, find_failing(len(places), try_) if isinstance(made, FunctionFailed) else {})


def failure(error: CantCompute) -> FunctionFailed:
    return FunctionFailed("a function raised ValueError", error_class="ValueError", text=str(error.__cause__))


@dataclass(frozen=True)
class Batch:
    """See `Delivery`."""

    source: MemorySource = field(repr=False)
    number: int
    ranges: Ranges
    terms: Terms = field(default_factory=dict[TopicPartition, Term], repr=False)

    def _values(self, part: Ranges, without: Collection[Coordinates] = ()) -> Iterator[tuple[Coordinates, bytes]]:
        for tp, range_ in sorted(part.items()):
            for offset in range(range_.from_, range_.until):
                if (tp, offset) not in without:
                    yield (tp, offset), self.source.log[tp][offset]

    def rows(self, part: Ranges, without: Collection[Coordinates] = ()) -> dict[str, Numbers]:
        values = [value for _, value in self._values(part, without)]
        if b"?" in values:
            raise RowsRefused("transform has rejected a record")
        return {UNNAMED: Numbers(self.source.writer, [parse(value) for value in values])}

    @contextmanager
    def careful(self, part: Ranges, **_: Any) -> Generator[Part]:
        found = list(self._values(part))
        yield part_of(self.source.writer, [place for place, _ in found], dict(enumerate(value for _, value in found)))

    def sleep(self, seconds: float) -> None:
        if self.source.stopping.wait(min(seconds, 0.05)):
            raise Stopped
        self.source.runner.claim.require_open()

    def failed(self, error: Exception) -> FunctionFailed | None:
        return failure(error) if isinstance(error, CantCompute) else None

    def unreadable(self) -> str | None:
        return None

    def headers(self, limit: int) -> list[Headers]:
        return [self.source.headers] * min(limit, count_offsets(self.ranges))

    def repeats(self) -> bool:
        return self.source.repeats


class MemorySource:
    """Hands a log over, from where the claim's job begins; a sort of `Source` with a runner."""

    def __init__(
        self,
        claim: Claim,
        writer: Writer,
        settings: RunnerSettings,
        log: Mapping[TopicPartition, Sequence[bytes]],
        while_working: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.log = log
        self.repeats = True
        self.headers: Headers = ()
        """Those of each record."""
        self.writer = writer
        self.stopping = threading.Event()
        self.runner = Runner(claim, self, settings, while_working)
        self.runner.begin()
        if self.runner.requests is not None:
            self.runner.requests.compute = self.compute
        self._next = {tp: row.next_offset for tp, row in claim.offsets().items()}
        self._number = 0

    def is_running(self) -> bool:
        return not self.stopping.is_set()

    def is_stopping(self, error: BaseException) -> bool:
        return isinstance(error, Stopped)

    def typed(self, error: BaseException) -> BaseException:
        return error

    @contextmanager
    def compute(self, letters: Sequence[Letter]) -> Generator[Part]:
        places = [(letter.topic_partition, letter.offset) for letter in letters]
        values = {n: letter.payload.value for n, letter in enumerate(letters) if letter.payload is not None}
        yield part_of(self.writer, places, values)

    def poll(self) -> bool:
        """Hand the next records over; return whether there were any."""
        ranges: dict[TopicPartition, OffsetRange] = {}
        for tp, records in self.log.items():
            begin = self._next.get(tp, 0)
            if begin < len(records):
                ranges[tp] = OffsetRange(begin, min(len(records), begin + SIZE))

        @contextmanager
        def take() -> Generator[Taken | None]:
            yield Taken(Batch(self, self._number, ranges)) if ranges else None

        self.runner.run(self._number, take)
        self._number += 1
        self._next |= {tp: range_.until for tp, range_ in ranges.items()}
        return count_offsets(ranges) > 0

    def drain_log(self) -> None:
        """Hand all over."""
        while self.poll():
            pass


SETTINGS: Mapping[str, Callable[[], RunnerSettings]] = {
    "letters": lambda: RunnerSettings(dead_letters=DeadLetters(max_retries=1, topic="payments-dlq")),
    "flush": lambda: RunnerSettings(flush=Flush(rows=1000)),
    "replay": lambda: RunnerSettings(dead_letters=DeadLetters()),
}


def _main(url: str, group: str, kind: str) -> None:
    log = LOG if kind != "flush" else {P1: LOG[P1]}
    connected = OffsetStore.connect(url, retries=Retries(shortest=0.001))
    with connected as store, store.claim(group, topics=["payments"]) as claim:
        source = MemorySource(claim, Append("results"), SETTINGS[kind](), log)
        source.drain_log()
        if kind == "replay":
            source.runner.drain(source.compute)
    sys.stdout.write(",".join(name for name in ("pyspark", "confluent_kafka", "py4j") if name in sys.modules))


if __name__ == "__main__":
    _main(*sys.argv[1:])
