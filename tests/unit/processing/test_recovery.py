"""Recovery on a store in memory, without Spark: what becomes of records that a table refuses, and when."""

from __future__ import annotations

import ast
import logging
import re
import sys
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from math import inf
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from offsetstore import (
    BatchInfo,
    DeadLetter,
    DeadLetters,
    Failure,
    OffsetRange,
    Retries,
    Retry,
    Skip,
    Stop,
    Timeouts,
    TopicPartition,
    Transaction,
)
from offsetstore.errors import (
    ConfigurationError,
    ExitCode,
    FunctionFailed,
    LockTimeout,
    RecordsRejected,
    RowsRefused,
    SinkError,
    StoreUnavailable,
    TooManyLetters,
    TransactionLost,
    exit_code,
)
from offsetstore.processing import letters as module
from offsetstore.processing.blame import Halve, TimeIsUp, TooManyFailed, find_failing
from offsetstore.processing.dead_letters import Choice, as_record
from offsetstore.processing.letters import CAREFUL, Recovery
from offsetstore.processing.plan import BatchMetadata, GroupPaused
from offsetstore.processing.runner import with_replanning
from offsetstore.processing.unit import UNNAMED, PlanOutdated, Ranges, Stored, Written
from offsetstore.protocol.events import LettersWritten
from offsetstore.protocol.letters import Failed, Letter, LetterError, NewLetter, Payload, trace_id
from offsetstore.protocol.outbox import outbox_record
from offsetstore.runtime import failpoints
from offsetstore.runtime.failpoints import FailpointReached
from offsetstore.testing.memory import InMemoryOffsetStore
from offsetstore.testing.memory.session import MemorySession
from tests.support.careful_part import FakePart, Records, Row, written
from tests.support.clock import Clock
from tests.support.recorder import Recorder

P0, P1 = (TopicPartition("payments", number) for number in range(2))
AT_ONCE = DeadLetters(max_retries=0)
WAIT = Retries(attempts=2, shortest=0.0, longest=0.0)


def refusal(sqlstate: str = "23514") -> RowsRefused:
    return RowsRefused("the database refused rows", sqlstate=sqlstate, next_step="Correct the rows.")


def up_to(end: int, begin: int = 0, tp: TopicPartition = P0) -> dict[TopicPartition, OffsetRange]:
    return {tp: OffsetRange(begin, end)}


def rows(*offsets: int, partition: int = 0) -> list[Row]:
    return [(partition, offset) for offset in offsets]


def failed(name: str = "ValueError") -> FunctionFailed:
    return FunctionFailed(f"a function raised {name}", error_class=name, text="no number: 'canary'", traceback="at f")


@dataclass
class Job:
    """A job and its table, which refuses the rows in ``bad``.

    :param answers: what the next writes do, before the table is asked: raise, or nothing.
    :param waiting: called at each wait before another try.
    """

    store: InMemoryOffsetStore
    settings: DeadLetters = field(default_factory=lambda: AT_ONCE)
    bad: dict[Row, str] = field(default_factory=dict[Any, str])
    records: Records = field(default_factory=Records)
    answers: list[Exception | None] = field(default_factory=list[Any])
    waiting: Callable[[], object] = lambda: None
    too_many_rows: int = 1_000_000
    raises: dict[Row, str] = field(default_factory=dict[Any, str])
    """The records for which a function of transform raises, with the error's class."""
    metadata: Callable[[BatchInfo], object] | None = None
    propagate: Collection[str] = ()

    def __post_init__(self) -> None:
        self.written: list[list[Row]] = []
        """Each attempt to write rows, also of those that were rolled back."""
        self.parts: list[Mapping[TopicPartition, OffsetRange]] = []
        self.suspects: list[set[tuple[TopicPartition, int]]] = []
        self.waits: list[float] = []
        self.read_again: list[Row] = []
        self.stored_parts = Stored()
        self.restart()

    def restart(self) -> None:
        self.claim = self.store.claim("billing", topics=["payments"])
        self.recovery = Recovery(self.claim, self.settings, BatchMetadata(self.claim, self.metadata), self.propagate)

    def write(self, ranges: Ranges, number: int = 0) -> Written | None:
        """As the sink does."""
        self.stored_parts = Stored()
        return with_replanning(lambda: self.write_once(ranges, number), f"batch {number}")

    def write_each(self, batches: int, *, size: int = 1) -> None:
        """Write the first batches of so many records."""
        for number in range(batches):
            self.write(up_to(size * (number + 1), size * number), number)

    def write_once(self, ranges: Ranges, number: int = 0) -> Written | None:
        return written(self.recovery, number, ranges, self.compute, sleep=self.sleep, stored=self.stored_parts)

    @contextmanager
    def compute(self, ranges: Ranges, *, suspects: Collection[Any] = ()) -> Generator[FakePart]:
        self.parts.append(ranges)
        self.suspects.append({*suspects})
        if sum(one.size for one in ranges.values()) > self.too_many_rows:
            raise Halve(SinkError("the rows are too many"))
        yield FakePart(ranges, self.write_rows, self._records(ranges, suspects), read_again=self.read_again)

    def _records(self, ranges: Ranges, suspects: Collection[Any]) -> Records:
        """Those in Kafka; as `computing` finds it among those that are no suspects, some can't be computed."""
        there = {(tp.partition, at) for tp, one in ranges.items() for at in range(one.from_, one.until)}
        there.difference_update(self.records.missing)
        failing = self._failing()
        found = failing.keys() & there
        unknown = found - {(tp.partition, at) for tp, at in suspects}
        if found == there and len(unknown) >= 10:
            raise TooManyFailed("all 19 records tried failed", failing[min(found)])
        return replace(self.records, failing={row: failing[row] for row in found}, again=self._failing)

    def _failing(self) -> dict[Row, FunctionFailed]:
        return {row: failed(name) for row, name in self.raises.items()}

    def write_rows(self, work: Any, values: Sequence[Row]) -> None:
        self.written.append(list(values))
        if self.answers and (answer := self.answers.pop(0)) is not None:
            raise answer
        work.connection.extend("results", values)
        for row in work.connection.rows("results"):
            if row in self.bad:
                raise refusal(self.bad[row])

    def has_only(self, *offsets: int) -> Callable[[], None]:
        """Have the table refuse these records alone, from when the result is called."""

        def change() -> None:
            self.bad = dict.fromkeys(rows(*offsets), "23514")

        return change

    def sleep(self, seconds: float) -> None:
        if seconds:
            self.waits.append(seconds)
            self.waiting()

    @property
    def results(self) -> list[object]:
        return self.store.rows("results")

    @property
    def letters(self) -> dict[Row, Letter]:
        stored = self.store.memory.begin(name="letters").table("dead_letters").values()
        return {(one.topic_partition.partition, one.offset): one for one in stored}

    @property
    def failures(self) -> dict[Row, Failed]:
        found = self.claim.read(lambda session: session.failures("billing"))
        return {(tp.partition, offset): one for (tp, offset), one in found.items()}

    def attempts(self) -> dict[Row, int]:
        return {row: failed.attempts for row, failed in self.failures.items()}

    def stored(self, tp: TopicPartition = P0) -> int:
        return self.store.offsets("billing")[tp].next_offset


@pytest.fixture
def store(recorder: Recorder) -> Iterator[InMemoryOffsetStore]:
    with InMemoryOffsetStore(timeouts=Timeouts(lock=0.05), retries=WAIT, observers=[recorder]) as made:
        yield made


def waits(job: Job, *then: Callable[[], object]) -> None:
    """Have these happen at the waits, one each."""
    rest = list(then)
    job.waiting = lambda: rest.pop(0)() if rest else None


def retry(failure: Failure) -> Choice:
    return Retry(1.0) if failure.attempt < 4 else DeadLetter()


PATIENT = DeadLetters(strategy=retry)
"""Three retries, with waits that the tests see."""


# -- letters


BAD = (0, 2)
WHYS: dict[str, tuple[dict[str, Any], int, LetterError]] = {
    "refused": ({"bad": {BAD: "23514"}}, 4, LetterError("RowsRefused", "the database refused rows", "23514")),
    "raised": ({"raises": {BAD: "ValueError"}}, 4, LetterError("ValueError", "no number: 'canary'", traceback="at f")),
    "refused, as it can never fit": (
        {"records": Records(misfit={BAD: refusal("22003")})},
        1,
        LetterError("RowsRefused", "the database refused rows", "22003"),
    ),
    "rejected": (
        {"records": Records(rejects={BAD: "no amount"}, misfit={BAD: refusal()})},
        0,
        LetterError("Rejected", "no amount"),
    ),
}


@pytest.mark.behaviour("DLQ-1", "DLQ-3", "DLQ-12")
@pytest.mark.parametrize("why", WHYS)
def test_a_bad_record_is_a_letter_after_its_retries_if_any_and_its_neighbours_are_written(
    store: InMemoryOffsetStore, why: str
) -> None:
    given, attempts, error = WHYS[why]
    job = Job(store, DeadLetters(max_retries=3), **given)

    written = job.write(up_to(5))

    assert written is not None
    assert (written.rows, written.is_kept) == ({UNNAMED: 4}, False)
    assert (job.results, job.stored(), job.failures) == (rows(0, 1, 3, 4), 5, {})
    [letter] = job.letters.values()
    assert (letter.topic_partition, letter.offset, letter.cause) == (P0, 2, why.split(",", maxsplit=1)[0])
    assert (letter.attempts, letter.error) == (attempts, error)
    assert letter.payload is not None
    assert (letter.payload.value, job.read_again) == (b"(0, 2)", [BAD])
    if attempts < 2:
        assert (job.written, job.waits) == ([rows(0, 1, 3, 4)], [])


@pytest.mark.behaviour("DX-9")
def test_a_search_is_told_in_one_line_however_often_its_records_are_tried_again(
    store: InMemoryOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(store, DeadLetters(max_retries=3), bad={(0, 2): "23514", (0, 4): "23514"})
    caplog.clear()
    job.write(up_to(6))
    assert [letter.attempts for letter in job.letters.values()] == [4, 4]
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == [
        "batch 0: looking for the refused records: the database refused rows",
        "batch 0 of group 'billing': dead letters were written (2 refused)",
    ]


SOURCE: dict[str, bytes] = {
    "source_topic": b"payments",
    "source_partition": b"0",
    "source_consumer_group": b"billing",
}


@pytest.mark.behaviour("DLQ-9", "OUT-8")
def test_with_a_topic_each_letter_is_produced_too_with_where_it_is_from_in_the_letter_s_transaction(
    store: InMemoryOffsetStore,
) -> None:
    bad = Records(rejects={(0, 1): "no amount"}, misfit={(0, 3): refusal("22003")})
    job = Job(store, DeadLetters(max_retries=0, topic="payments-dlq"), records=bad)

    job.write(up_to(5))

    found = store.outbox()
    assert [(one.topic, one.key, one.value) for one in found] == [
        ("payments-dlq", one.payload and one.payload.key, one.payload and one.payload.value)
        for _, one in sorted(job.letters.items())
    ]
    assert [{**dict(one.headers or ())} for one in found] == [
        SOURCE | {"source_offset": b"1", "source_attempts": b"0", "source_error_class": b"Rejected"},
        SOURCE | {"source_offset": b"3", "source_attempts": b"1", "source_error_class": b"RowsRefused"},
    ]
    assert job.results == rows(0, 2, 4)


@pytest.mark.behaviour("DLQ-9", "OUT-8")
def test_a_record_s_own_headers_go_along_and_those_that_are_ours_are_replaced() -> None:
    """It may be from such a topic itself. Java's clients allow names that librdkafka cuts."""
    trace = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    headers = (("tenant", b"7"), ("tenant", None), ("source_topic", b"before"), ("traceparent", trace), ("a\0b", b""))
    payload = Payload(b"key", None, headers, None, None)
    letter = NewLetter(P0, 2**40, "raised", LetterError("Größe", "text"), 3, None, payload)

    record = as_record(letter, "payments-dlq", "billing")

    assert outbox_record(*record) == record
    assert record[:3] == ("payments-dlq", b"key", None)
    assert record.headers is not None
    assert record.headers[:4] == (("tenant", b"7"), ("tenant", None), ("traceparent", trace), ("a\ufffdb", b""))
    assert dict(record.headers[4:]) == SOURCE | {
        "source_offset": str(2**40).encode(),
        "source_attempts": b"3",
        "source_error_class": "Größe".encode(),
        "source_trace_id": b"4bf92f3577b34da6a3ce929d0e0e4736",
    }

    others = (("source_trace_id", b"forged"), ("source_topic\0", b"forged"), ("source_", b""), ("Source_topic", b""))
    record = as_record(replace(letter, payload=payload._replace(headers=others)), "payments-dlq", "billing")
    names = [name for name, _ in record.headers or ()]
    assert sorted(names) == sorted({"Source_topic", *SOURCE, "source_offset", "source_attempts", "source_error_class"})


@pytest.mark.parametrize(
    ("value", "trace"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what", None),
        ("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01what", None),
        ("ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
        ("00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", None),
        ("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", None),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g", None),
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\n", None),
        ("", None),
    ],
)
def test_a_traceparent_that_w3c_calls_invalid_is_none(value: str, trace: str | None) -> None:
    assert trace_id((("traceparent", value.encode()),)) == trace


@pytest.mark.behaviour("DLQ-9")
def test_a_topic_that_does_not_go_with_the_rest_is_refused(store: InMemoryOffsetStore) -> None:
    with pytest.raises(ConfigurationError, match="letters' topic is not valid"):
        DeadLetters(topic="no topic")
    with pytest.raises(ConfigurationError, match="without its record can't be produced"):
        DeadLetters(topic="payments-dlq", keep="coordinates")
    with pytest.raises(ConfigurationError, match=r"the job reads the topic.*found topic payments"):
        Job(store, DeadLetters(topic="payments"))


@pytest.mark.behaviour("CTX-1")
@pytest.mark.parametrize("keep", ["all", "coordinates"])
def test_a_letter_has_its_records_trace_if_that_is_named_or_all_headers_are_kept(
    store: InMemoryOffsetStore, keep: Any
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = (("traceparent", f"00-{trace}-00f067aa0ba902b7-01".encode()), ("tenant", b"a"))
    job = Job(
        store, replace(AT_ONCE, keep=keep), bad={(0, at): "23514" for at in (1, 3, 5)}, records=Records(headers=headers)
    )

    for number, job.propagate in enumerate((("tenant", "traceparent"), ("tenant",), ())):
        job.restart()
        job.write(up_to(2 * number + 2, 2 * number), number)

    left_out = keep == "coordinates"
    assert job.read_again == rows(1, 3, *[5] * (not left_out))
    assert {one.payload_state for one in job.letters.values()} == {"left out" if left_out else "kept"}
    assert [one.payload is None for one in job.letters.values()] == [left_out] * 3
    assert [job.letters[0, at].trace_id for at in (1, 3, 5)] == [trace, *[None if left_out else trace] * 2]


def test_observers_are_told_of_letters_once_they_are_committed_and_metadata_are_of_the_rows_that_are_written(
    store: InMemoryOffsetStore, recorder: Recorder
) -> None:
    infos: list[BatchInfo] = []
    bad = {(0, 1): "23514", (0, 2): "23514"}
    job = Job(store, bad=bad, records=Records(rejects={(0, 3): "bad"}), metadata=infos.append)

    job.write(up_to(5), number=7)

    assert infos[-1] == BatchInfo(7, up_to(5), {UNNAMED: 2})

    assert recorder.of(LettersWritten) == [
        LettersWritten(group="billing", batch=7, ranges=up_to(5), letters={"refused": 2, "rejected": 1})
    ]


@pytest.mark.behaviour("DLQ-2")
def test_if_letters_are_swallowed_nothing_is_written(
    store: InMemoryOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(store, bad={(0, 1): "23514"})
    monkeypatch.setattr(MemorySession, "write_letters", Mock(return_value=0))

    with pytest.raises(SinkError, match="not all dead letters"):
        job.write(up_to(3))

    assert (job.results, job.stored()) == ([], 0)


@pytest.mark.behaviour("DLQ-10", "DLQ-14")
def test_after_a_reset_a_record_that_passes_closes_its_letter_and_another_reopens_its_own(
    store: InMemoryOffsetStore,
) -> None:
    job = Job(store, bad={(0, 1): "23514", (0, 2): "23514"})
    job.write(up_to(3))
    store.reset("billing", {P0: 0}, reason="a test")
    del job.bad[0, 1]
    job.restart()

    job.write(up_to(3))

    assert {row: (one.state, one.times) for row, one in job.letters.items()} == {
        (0, 1): ("superseded", 1),
        (0, 2): ("dead", 2),
    }


# -- functions


@pytest.mark.behaviour("OPS-7")
@pytest.mark.parametrize("failing", [[2], range(64)], ids=["one record", "all records"])
def test_an_error_that_ends_the_batch_tells_a_functions_class_and_place_and_none_of_its_text(
    store: InMemoryOffsetStore, monkeypatch: pytest.MonkeyPatch, failing: Sequence[int]
) -> None:
    def parse(value: str) -> None:
        raise ValueError(f"no number: {value!r}")

    job, why, value = Job(store, DeadLetters(strategy=lambda _: Stop())), failed(), "".join("canary")
    with suppress(ValueError):
        try:
            parse(value)
        except ValueError as error:
            why.__cause__, why.traceback = error, "".join(traceback.format_exception(error))
            raise
    monkeypatch.setattr(job, "_failing", lambda: dict.fromkeys(rows(*failing), why))

    with pytest.raises((FunctionFailed, TooManyLetters)) as caught:
        job.write(up_to(64))

    assert (job.letters, job.stored()) == ({}, 2 if len(failing) == 1 else 0)
    told = caught.value if isinstance(caught.value, FunctionFailed) else caught.value.__cause__
    assert isinstance(told, FunctionFailed)
    assert (told.error_class, told.text, told.__cause__) == ("ValueError", "", None)
    assert "in parse" in str(told.traceback)
    assert value not in "".join([*traceback.format_exception(caught.value), str(told.traceback)])


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("has_made_rows", [False, True])
@pytest.mark.parametrize("is_rejected", [False, True])
def test_where_no_other_record_can_be_computed_the_query_ends_after_the_retries(
    store: InMemoryOffsetStore, *, is_rejected: bool, has_made_rows: bool
) -> None:
    """A reject may not have reached the function."""
    records = Records(rejects={(0, 0): "bad"}) if is_rejected else Records(rowless=rows(0))
    job = Job(store, DeadLetters(max_retries=2), records=records, raises={(0, 1): "NameError"})
    job.claim.has_made_rows = has_made_rows

    with pytest.raises(FunctionFailed, match="payments-0@1") as caught:
        job.write(up_to(2))

    assert "no other record was accepted" in str(caught.value)
    assert exit_code(caught.value) == (ExitCode.OTHER if has_made_rows else ExitCode.BUG)
    assert (len(job.waits), [*job.letters], job.stored()) == (0, rows(0) if is_rejected else [], 1)
    assert job.attempts()[0, 1] >= 2


@pytest.mark.behaviour("DLQ-15")
def test_while_a_function_fails_for_a_good_record_too_no_attempt_is_counted(store: InMemoryOffsetStore) -> None:
    class Down(Job):
        def _failing(self) -> dict[Row, FunctionFailed]:
            if self.waits:
                raise failed("ServiceError")  # of a record that could be computed before
            return super()._failing()

    job = Down(store, PATIENT, raises={(0, 1): "ValueError"})
    with pytest.raises(FunctionFailed, match="ServiceError"):
        job.write(up_to(3))

    assert (job.letters, job.attempts(), job.stored()) == ({}, {(0, 1): 1}, 0)


@pytest.mark.behaviour("DLQ-8", "DLQ-15")
@pytest.mark.parametrize("bad", [[0, 3, 7], [0, 1, 2, 18], [*range(9), 17]])
def test_a_bad_record_at_the_front_is_a_letter_where_each_search_has_no_time(
    store: InMemoryOffsetStore, bad: list[int]
) -> None:
    class Slow(Job):
        @contextmanager
        def compute(self, ranges: Ranges, *, suspects: Collection[Any] = ()) -> Generator[FakePart]:
            [(tp, range_)] = ranges.items()
            unknown = {at for at in bad if (tp, at) not in suspects}

            def try_(begin: int, end: int) -> FunctionFailed | int:
                tried = range(range_.from_ + begin, range_.from_ + end)
                return end - begin if unknown.isdisjoint(tried) else failed()

            if not isinstance(try_(0, range_.size), int):
                try:
                    find_failing(range_.size, try_, seconds=-inf)
                except TimeIsUp as up:
                    found = {(tp, range_.from_ + place): error for place, error in up.failed.items()}
                    raise Halve(failed(), place=up.place, suspects=found) from None
            with super().compute(ranges, suspects=suspects) as part:
                yield part

    job = Slow(store, raises={(0, at): "ValueError" for at in bad})
    job.write(up_to(20))

    assert ([*job.letters], job.stored()) == (rows(*bad), 20)


@pytest.mark.behaviour("DLQ-8", "DLQ-15")
def test_what_a_search_without_time_has_found_is_not_tried_again_unless_it_waits(
    store: InMemoryOffsetStore, caplog: pytest.LogCaptureFixture
) -> None:
    """Of two parts, the first is tried again after a wait: then it is not known whether records of the second fail."""
    told: list[dict[Any, bool]] = []

    class Slow(Job):
        @contextmanager
        def compute(self, ranges: Ranges, *, suspects: Collection[Any] = ()) -> Generator[FakePart]:
            if not told:
                told.append({})
                raise Halve(failed(), place=5, suspects={(P0, at): failed() for at in (2, 7)})
            told.append({at: why is not None for (_, at), why in cast("Any", suspects).items()})
            with super().compute(ranges, suspects=suspects) as part:
                yield part

    job = Slow(store, raises={(0, 2): "ValueError", (0, 7): "ValueError"})
    job.write(up_to(9))
    assert (told[1:], [*job.letters]) == ([{2: True, 7: True}] * 2, rows(2, 7))
    assert job.parts == [up_to(5), up_to(9, 5)]
    assert (job.results, job.stored()) == (rows(0, 1, 3, 4, 5, 6, 8), 9)
    [line] = [one.message for one in caplog.records if "could not be computed" in one.message]
    assert "2 records" in line
    assert "in Spark by mode PERMISSIVE, try_cast" in line
    assert "in a consumer by checking values before they are converted" in line

    told.clear()
    job.settings = DeadLetters(max_retries=1)
    store.reset("billing", {P0: 0}, reason="a test")
    job.restart()
    job.write(up_to(9))
    assert told[1:] == [{2: True, 7: True}, {2: False, 7: False}]


def parse_first(record: str) -> None:
    ast.parse(record)


def parse_aloud(record: str) -> None:
    raise ValueError(record)


def parse_in_a_language_of_its_own(record: str) -> None:
    raise SyntaxError("no rule", ("rules", 1, 1, record))


def parse_twice(record: str) -> None:
    try:
        int(record)
    except ValueError as error:
        raise KeyError(record) from error


def told_by(function: Callable[[str], None], record: str) -> str:
    """As a worker tells it."""
    try:
        function(record)
    except Exception:  # noqa: BLE001 - whatever it is
        return traceback.format_exc()
    raise AssertionError


@dataclass
class Failing(Job):
    """A job whose function fails for each record."""

    fails: FunctionFailed | None = None

    def _failing(self) -> dict[Row, FunctionFailed]:
        return {} if self.fails is None else {(0, 0): self.fails}


FORGED = 'canary\n  File "canary", line 1, in canary\n'
QUOTING = [
    FORGED,
    f"1 +\x0c  {FORGED}",
    f"f(\u2028{FORGED}",
    f"{3 * chr(39)}{FORGED}",
    f"Traceback (most recent call last):\n{FORGED}",
    FORGED.removeprefix("canary\n"),
    FORGED.replace("\n", "\x0c"),
]


@pytest.mark.behaviour("DLQ-16")
@pytest.mark.parametrize("keeps", ["text", "traceback"])
@pytest.mark.parametrize("record", QUOTING)
@pytest.mark.parametrize("function", [parse_first, parse_aloud, parse_in_a_language_of_its_own, parse_twice])
def test_where_a_function_fails_is_told_and_nothing_of_the_record(
    store: InMemoryOffsetStore, function: Callable[[str], None], record: str, keeps: str
) -> None:
    """An executor's error arrives as a text; that of an Execute has a traceback."""
    told: dict[str, Any] = {"text": "canary", keeps: told_by(function, record)}
    error = FunctionFailed("a function raised NameError", error_class="NameError", **told)
    job = Failing(store, fails=error)

    with pytest.raises(FunctionFailed) as caught:
        job.write(up_to(1))

    shown = "".join(traceback.format_exception(caught.value))
    places = caught.value.traceback or ""
    assert re.search(rf'recovery.py", line \d+, in {function.__name__}$', places, re.MULTILINE)
    assert places in shown
    assert "canary" not in shown + caught.value.text


@pytest.mark.behaviour("DLQ-12")
def test_records_that_a_function_names_are_letters_at_once_and_it_is_called_again_without_them(
    store: InMemoryOffsetStore,
) -> None:
    reasons = {(P0, 1): "no such customer", (P0, 3): "closed"}
    named = RecordsRejected("named", reasons=reasons, codes={(P0, 3): "customer"})
    job = Job(store, DeadLetters(max_retries=9), answers=[named])

    job.write(up_to(5))

    assert (job.written, job.waits) == ([rows(0, 1, 2, 3, 4), rows(0, 2, 4)], [])
    assert {row: (one.cause, one.error, one.attempts) for row, one in job.letters.items()} == {
        (0, 1): ("rejected", LetterError("Rejected", "no such customer"), 0),
        (0, 3): ("rejected", LetterError("customer", "closed"), 0),
    }


def test_a_function_can_name_only_records_that_it_was_given(store: InMemoryOffsetStore) -> None:
    again = RecordsRejected("named", reasons={(P0, 1): "no"})
    job = Job(store, answers=[again, again])

    with pytest.raises(SinkError, match="was not given") as caught:
        job.write(up_to(5))

    assert (caught.value.topic_partition, caught.value.found) == (P0, "offset 1")
    assert (job.results, job.letters, job.stored()) == ([], {}, 0)


@pytest.mark.behaviour("DLQ-12")
def test_a_record_that_is_named_only_in_the_search_is_a_letter_with_its_reason(store: InMemoryOffsetStore) -> None:
    job = Job(store, DeadLetters(max_retries=1), bad={(0, 1): "23514"})
    refused = job.write_rows

    def naming(work: Any, values: Sequence[Row]) -> None:
        refused(work, values)
        if (0, 2) in values and (0, 1) not in values:
            raise RecordsRejected("named", reasons={(P0, 2): "there is no record 1"})

    job.write_rows = naming  # type: ignore[method-assign]
    job.write(up_to(4))

    assert {row: (one.cause, one.error.text, one.attempts) for row, one in job.letters.items()} == {
        (0, 1): ("refused", "the database refused rows", 2),
        (0, 2): ("rejected", "there is no record 1", 0),
    }
    assert job.results == rows(0, 3)


# -- attempts


@pytest.mark.behaviour("DLQ-3")
@pytest.mark.parametrize("why", ["bad", "raises"])
def test_attempts_survive_a_restart(store: InMemoryOffsetStore, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    given: dict[str, Any] = {why: {(0, 1): "23514"}}
    job = Job(store, PATIENT, **given)
    monkeypatch.setenv(failpoints.VARIABLE, "failures_written:2:raise")
    with pytest.raises(FailpointReached):
        job.write(up_to(3))
    assert job.attempts() == {(0, 1): 2}

    monkeypatch.delenv(failpoints.VARIABLE)
    job.restart()
    assert job.recovery.is_careful(up_to(3))
    job.write(up_to(3))

    assert len(job.waits) == 2  # one before the end, and one after the restart
    assert (job.letters[0, 1].attempts, job.suspects, job.failures) == (4, [set(), {(P0, 1)}], {})
    job.restart()
    assert not job.recovery.is_careful(up_to(9))


@pytest.mark.behaviour("DLQ-3")
def test_attempts_at_other_partitions_make_no_batch_careful(store: InMemoryOffsetStore) -> None:
    job = Job(store, DeadLetters(strategy=lambda _: Stop() if job.waits else Retry(1.0)), bad={(0, 1): "23514"})
    with pytest.raises(RowsRefused):
        job.write(up_to(3))
    job.restart()
    assert job.recovery.is_careful({**up_to(3), **up_to(3, tp=P1)})
    assert not job.recovery.is_careful(up_to(3, tp=P1))


@pytest.mark.behaviour("DLQ-4")
def test_a_try_counts_once_for_its_partition_however_many_of_its_records_failed(store: InMemoryOffsetStore) -> None:
    bad = dict.fromkeys([(0, 1), (0, 2), (0, 4), (1, 3)], "23514")
    job = Job(store, PATIENT, bad=bad)
    counted: list[dict[Row, int]] = []
    waits(job, *[lambda: counted.append(job.attempts())] * 3)

    job.write({**up_to(5), **up_to(5, tp=P1)})

    assert counted == [dict.fromkeys(bad, tried) for tried in (1, 2, 3)]
    assert {row: one.attempts for row, one in job.letters.items()} == dict.fromkeys(bad, 4)


@pytest.mark.behaviour("DLQ-4")
def test_attempts_of_a_partition_add_up_until_it_moves_on(store: InMemoryOffsetStore) -> None:
    """First one record fails, then another: neither has been tried four times, the partition has."""
    job = Job(store, PATIENT, bad={(0, 1): "23514"})
    waits(job, lambda: None, job.has_only(2))
    job.write(up_to(4))
    assert job.letters.keys() == {(0, 2)}
    assert job.letters[0, 2].attempts == 2  # this record's own
    assert len(job.waits) == 3

    job.bad[0, 5] = "23514"
    job.write(up_to(8, 4), number=1)
    assert len(job.waits) == 6


@pytest.mark.behaviour("DLQ-4")
def test_attempts_at_a_record_that_cant_be_computed_are_not_those_of_one_that_is_refused(
    store: InMemoryOffsetStore,
) -> None:
    """The other heals at its second try."""
    job = Job(store, PATIENT, raises={(0, 0): "ValueError"}, bad={(0, 1): "23514"})
    waits(job, *[lambda: None] * 3, job.bad.clear)

    job.write(up_to(4))

    assert {row: one.attempts for row, one in job.letters.items()} == {(0, 0): 4}
    assert (job.results, len(job.waits)) == (rows(1, 2, 3), 4)


@pytest.mark.behaviour("DLQ-4", "DLQ-3")
def test_attempts_at_a_record_ahead_are_not_those_of_the_records_before_it(store: InMemoryOffsetStore) -> None:
    """The last start had large batches, this one has small ones."""
    job = Job(store, PATIENT, bad={(0, 9): "23514"})
    waits(job, lambda: None, lambda: None, Mock(side_effect=InterruptedError))
    with pytest.raises(InterruptedError):
        job.write(up_to(10))
    assert job.attempts() == {(0, 9): 3}

    job.restart()
    job.waits.clear()
    job.bad[0, 1] = "23514"
    waits(job, lambda: job.bad.pop((0, 1)))
    job.write(up_to(5))
    assert (job.results, job.letters, len(job.waits)) == (rows(*range(5)), {}, 1)
    job.write(up_to(10, 5), number=1)
    assert job.letters[0, 9].attempts == 4


@pytest.mark.behaviour("DLQ-4")
def test_independent_records_are_counted_one_by_one(store: InMemoryOffsetStore) -> None:
    job = Job(store, replace(PATIENT, independent=True), bad={(0, 1): "23514"})
    counted: list[dict[Row, int]] = []
    waits(job, lambda: None, job.has_only(1, 2), *[lambda: counted.append(job.attempts())] * 3)
    job.write(up_to(4))

    assert counted == [{(0, 1): 3, (0, 2): 1}, {(0, 1): 4, (0, 2): 2}, {(0, 1): 4, (0, 2): 3}]
    assert len(job.waits) == 5  # three for each, one of them for both
    assert {row: one.attempts for row, one in job.letters.items()} == {(0, 1): 4, (0, 2): 4}


@pytest.mark.behaviour("DLQ-4")
@pytest.mark.parametrize(("independent", "retries"), [(True, 6), (False, 3)])
def test_a_success_in_between_starts_again_with_independent_alone(
    store: InMemoryOffsetStore, *, independent: bool, retries: int
) -> None:
    """Record 1 fails twice, passes while record 2 fails, and fails from then on."""
    job = Job(store, replace(PATIENT, independent=independent), bad={(0, 1): "23514"})
    waits(job, lambda: None, job.has_only(2), job.has_only(1))
    job.write(up_to(4))

    assert (job.letters.keys(), len(job.waits)) == ({(0, 1)}, retries)


@pytest.mark.behaviour("DLQ-4")
@pytest.mark.parametrize("recovers", [True, False])
def test_a_function_that_fails_for_others_each_time_ends_the_batch(
    store: InMemoryOffsetStore, *, recovers: bool
) -> None:
    """Where fewer fail each time, as lookups of parents that arrive one by one, it goes on for as long as it takes."""
    size = 40
    always = DeadLetters(independent=True, strategy=lambda _: Retry(after=0.001))
    job = Job(store, always, raises={(0, 1): "ValueError"})
    if recovers:
        job.raises = {(0, record): "ValueError" for record in range(1, size)}

    def later() -> None:
        last = max(job.raises, default=(0, 0))
        job.raises.pop(last, None)
        if not recovers:
            job.raises[0, 3 - last[1]] = "ValueError"

    job.waiting = later
    if recovers:
        job.write(up_to(size))
        assert (len(job.results), job.letters) == (size, {})
        return
    with pytest.raises(SinkError, match=r"fails for other records each time, 21 times") as ended:
        job.write(up_to(size))
    assert "ValueError" in str(ended.value.found)
    assert (job.results, job.letters, job.stored()) == ([], {}, 0)


@pytest.mark.behaviour("DLQ-1")
def test_a_batch_that_is_cut_at_each_record_is_written(store: InMemoryOffsetStore) -> None:
    size = sys.getrecursionlimit() + 10
    job = Job(store)
    compute = job.compute

    @contextmanager
    def cut_short(ranges: Ranges, *, suspects: Collection[Any] = ()) -> Generator[FakePart]:
        if sum(one.size for one in ranges.values()) > 1:
            raise Halve(SinkError("the time is up"), place=1)
        with compute(ranges, suspects=suspects) as part:
            yield part

    job.compute = cut_short  # type: ignore[method-assign] - for this test
    job.write(up_to(size))
    assert job.stored() == size


# -- the strategy


@pytest.mark.behaviour("DLQ-5")
def test_a_strategy_is_told_of_each_failed_attempt_and_says_how_long_to_wait(store: InMemoryOffsetStore) -> None:
    told: list[Failure] = []

    def strategy(failure: Failure) -> Choice:
        told.append(failure)
        job.bad[0, 1] = "23503"
        return Retry(float(failure.attempt)) if failure.attempt < 3 else DeadLetter()

    job = Job(store, DeadLetters(strategy=strategy), bad={(0, 1): "23514"})
    job.write(up_to(3))

    assert job.waits == [1.0, 2.0]
    assert [(one.topic_partition, one.offset, one.attempt, one.errors) for one in told] == [
        (P0, 1, 1, {"23514": 1}),
        (P0, 1, 2, {"23514": 1, "23503": 1}),
        (P0, 1, 3, {"23514": 1, "23503": 2}),
    ]
    assert (told[-1].error.sqlstate, job.letters[0, 1].error.sqlstate) == ("23503", "23503")


@pytest.mark.behaviour("DLQ-5")
def test_a_skipped_record_has_no_letter_and_a_line_in_the_history_once_it_is_passed(
    store: InMemoryOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(store, DeadLetters(strategy=lambda _: Skip("known\0 duplicate")), bad={(0, 1): "23505"})
    monkeypatch.setenv(failpoints.VARIABLE, "before_commit:2:raise")  # the first is the partition's row
    with pytest.raises(FailpointReached):
        job.write(up_to(3))
    assert (job.results, store.history("billing", events=["skip"])) == ([], [])

    monkeypatch.delenv(failpoints.VARIABLE)
    job.write(up_to(3))

    assert (job.results, job.letters, job.read_again) == (rows(0, 2), {}, [])
    [line] = store.history("billing", events=["skip"])
    assert (line.topic_partition, line.from_offset, line.to_offset) == (P0, 1, 2)
    assert (line.token, line.reason) == (job.claim.token, "known duplicate")


def test_the_reason_of_a_skip_is_a_text() -> None:
    with pytest.raises(ConfigurationError, match="must be a text") as caught:
        Skip(cast("Any", ValueError("canary")))
    assert caught.value.found == "ValueError"


@pytest.mark.behaviour("DLQ-5")
@pytest.mark.parametrize("size", [4, 100])
def test_what_is_stored_before_a_stop_ends_at_the_first_record_that_is_not_decided_about(
    store: InMemoryOffsetStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Earlier parts and records of other partitions come first, and bad ones that were given up have letters."""
    monkeypatch.setattr(module, "PART", size)
    settings = DeadLetters(strategy=lambda one: {1: DeadLetter(), 3: Retry(1.0)}.get(one.offset, Stop()))
    job = Job(store, settings, bad=dict.fromkeys([(0, 1), (1, 1), (1, 3), (1, 4)], "23514"))

    with pytest.raises(RowsRefused) as stopped:
        job.write({**up_to(3), **up_to(6, tp=P1)})

    assert (stopped.value.topic_partition, stopped.value.offsets) == (P1, OffsetRange(4, 5))
    assert stopped.value.stored == job.stored_parts.ranges == {**up_to(3), **up_to(3, tp=P1)}
    assert (job.stored_parts.rows, job.results) == ({UNNAMED: 4}, [(0, 0), (0, 2), (1, 0), (1, 2)])
    assert job.letters.keys() == {(0, 1), (1, 1)}
    assert (job.stored(), job.stored(P1)) == (3, 3)
    assert job.attempts() == {(1, 3): 1, (1, 4): 1}


@dataclass
class Families(Job):
    """Record 1 is refused without record 7, its parent."""

    def write_rows(self, work: Any, values: Sequence[Row]) -> None:
        super().write_rows(work, values)
        if (0, 1) in (found := work.connection.rows("results")) and (0, 7) not in found:
            raise refusal("23503")


@pytest.mark.behaviour("DLQ-5", "DLQ-15")
def test_a_stop_makes_no_letter_of_a_record_that_needs_one_after_it(store: InMemoryOffsetStore) -> None:
    job = Families(store, DeadLetters(strategy=lambda _: Stop()), bad={(0, 5): "23514"})

    for attempt in (1, 2):
        with pytest.raises(RowsRefused, match="the strategy stops at record payments-0@5"):
            job.write(up_to(9, job.stored() if job.results else 0))
        assert (job.results, job.letters, job.stored()) == (rows(0), {}, 1)
        assert job.attempts() == {(0, 5): attempt}
        job.restart()


@pytest.mark.behaviour("DLQ-5", "DLQ-15")
@pytest.mark.parametrize("how", ["refused", "raised"])
@pytest.mark.parametrize("count", [1, 12])
def test_a_record_that_was_told_apart_by_later_ones_stays_a_letter_before_a_stop(
    store: InMemoryOffsetStore, how: str, count: int
) -> None:
    """Alone it would be doubtful, and ten would be too many."""
    job = Job(store, DeadLetters(strategy=lambda one: DeadLetter() if one.offset < count else Stop()))
    bad = rows(*range(count + 1))
    if how == "refused":
        job.bad = dict.fromkeys(bad, "42501")
    else:
        job.raises = dict.fromkeys(bad, "ValueError")

    for attempt in (1, 2):
        with pytest.raises(RowsRefused, match=f"the strategy stops at record payments-0@{count}"):
            job.write(up_to(count + 4, count if job.letters else 0))
        assert (job.results, [*job.letters], job.stored()) == ([], bad[:-1], count)
        assert job.attempts() == {bad[-1]: attempt}
        job.restart()


@pytest.mark.behaviour("DLQ-5")
@pytest.mark.parametrize("second", [refusal("42501"), RecordsRejected("named", reasons={(P0, 0): "no parent"})])
@pytest.mark.parametrize("found", [True, False])
def test_whatever_is_refused_before_a_stop_its_error_is_the_stop_s(
    store: InMemoryOffsetStore, second: Exception, *, found: bool
) -> None:
    class Fickle(Job):
        def write_rows(self, work: Any, values: Sequence[Row]) -> None:
            super().write_rows(work, values)
            if len(self.parts) > 1 and (found or (len(values) == 1 and len(self.written) % 2 == before % 2)):
                raise second

    def strategy(_: Failure) -> Choice:
        nonlocal before
        before = len(job.written) + 1
        return Stop()

    before = 0
    job = Fickle(store, DeadLetters(strategy=strategy), bad={(0, 1): "23514"})
    with pytest.raises(RowsRefused, match="the strategy stops at record payments-0@1"):
        job.write(up_to(4))
    assert (job.results, job.letters, job.stored()) == ([], {}, 0)
    assert job.attempts() == {(0, 1): 1}


@pytest.mark.behaviour("DLQ-6", "DLQ-5")
def test_an_outage_before_a_stop_is_told_as_it_is(store: InMemoryOffsetStore) -> None:
    def strategy(_: Failure) -> Choice:
        job.answers = [LockTimeout("locked")] * 9
        return Stop()

    job = Job(store, DeadLetters(strategy=strategy), bad={(0, 1): "23514"})
    with pytest.raises(LockTimeout):
        job.write(up_to(4))
    assert (job.results, job.letters, job.stored()) == ([], {}, 0)


@pytest.mark.behaviour("DLQ-3", "DLQ-5")
@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize("offset", [0, 2])
def test_starts_that_each_end_in_a_stop_are_one_attempt_after_the_other(
    store: InMemoryOffsetStore, *, independent: bool, offset: int
) -> None:
    attempts: list[int] = []

    def strategy(failure: Failure) -> Choice:
        attempts.append(failure.attempt)
        return Stop()

    job = Job(store, DeadLetters(strategy=strategy, independent=independent), bad={(0, offset): "23514"})
    for _ in range(3):
        with pytest.raises(RowsRefused):
            job.write(up_to(3, job.stored() if (0, 0) in job.results else 0))
        job.restart()

    assert (attempts, job.attempts()) == ([1, 2, 3], {(0, offset): 3})


@pytest.mark.behaviour("DLQ-5")
@pytest.mark.parametrize("decision", [None, "retry", Retry])
def test_a_strategy_that_does_not_decide_is_an_error_and_nothing_is_passed(
    store: InMemoryOffsetStore, decision: Any
) -> None:
    job = Job(store, DeadLetters(strategy=lambda _: decision), bad={(0, 1): "23514"})
    with pytest.raises(ConfigurationError, match="the strategy did not decide"):
        job.write(up_to(3))
    assert (job.results, job.letters, job.failures, job.stored()) == ([], {}, {}, 0)


@pytest.mark.behaviour("DLQ-5")
def test_while_others_are_tried_again_a_dead_record_is_left_alone(store: InMemoryOffsetStore) -> None:
    settings = DeadLetters(strategy=lambda one: DeadLetter() if one.offset == 1 else retry(one))
    job = Job(store, settings, bad={(0, 1): "23514", (0, 2): "23514"})
    waits(job, job.written.clear, lambda: job.bad.pop((0, 2)))

    job.write(up_to(4))

    assert (job.letters.keys(), job.results) == ({(0, 1)}, rows(0, 2, 3))
    assert not any((0, 1) in tried for tried in job.written)


def test_a_group_that_is_paused_while_a_record_waits_is_not_written(store: InMemoryOffsetStore) -> None:
    job = Job(store, PATIENT, bad={(0, 1): "23514"})

    def pause() -> None:
        job.written.clear()
        store.pause("billing", reason="maintenance")

    waits(job, pause)
    with pytest.raises(GroupPaused):
        job.write(up_to(3))
    assert (job.written, job.attempts()) == ([], {(0, 1): 1})

    store.resume("billing", reason="done")
    job.write(up_to(3))
    assert job.letters[0, 1].attempts == 4


# -- outages


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize(
    "outage", [LockTimeout("locked"), TransactionLost("lost"), StoreUnavailable("no disk")], ids=type
)
def test_an_outage_in_discovery_counts_for_no_record_and_the_search_begins_again(
    store: InMemoryOffsetStore, outage: Exception
) -> None:
    job = Job(store, DeadLetters(strategy=lambda one: DeadLetter() if one.attempt == 1 else Stop()))
    job.bad[0, 1] = "23514"
    job.answers = [None, None, outage]  # the batch, all of it in discovery, a half

    job.write(up_to(4))

    assert (len(job.parts), job.letters[0, 1].attempts, job.results) == (1, 1, rows(0, 2, 3))


@pytest.mark.behaviour("DLQ-6", "DLQ-20")
def test_an_outage_that_does_not_end_blames_no_record_and_is_told_as_it_is(store: InMemoryOffsetStore) -> None:
    job = Job(store, bad={(0, 1): "23514"})
    job.answers = [None, *[LockTimeout("locked")] * 20]

    with pytest.raises(LockTimeout, match="results' tables"):
        job.write(up_to(4))

    assert len(job.written) == 1 + WAIT.attempts
    assert (job.results, job.letters, job.failures, job.stored()) == ([], {}, {}, 0)


# -- who is to blame

STRANGE = ["42501", "45001", "50001", "55000", "0A000", "HV000", "28000", "XX000", "40001", "57014", "53100", "2200H"]


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("sqlstate", STRANGE)
def test_where_no_other_record_is_accepted_the_query_ends_after_the_retries(
    store: InMemoryOffsetStore, sqlstate: str, size: int
) -> None:
    job = Job(store, PATIENT, bad=dict.fromkeys(rows(*range(size)), sqlstate))

    with pytest.raises(RowsRefused, match="no other record was accepted") as ended:
        job.write(up_to(size))

    assert (ended.value.sqlstate, ended.value.topic_partition, ended.value.offsets) == (sqlstate, P0, OffsetRange(0, 1))
    assert len(job.waits) == 3
    assert (job.results, job.letters, job.stored()) == ([], {}, 0)
    assert job.attempts() == dict.fromkeys(rows(*range(size)), 4)

    job.restart()
    with pytest.raises(RowsRefused, match="no other record was accepted"):
        job.write(up_to(size))
    assert len(job.waits) == 3


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("why", ["refused", "can't be computed by Spark"])
@pytest.mark.parametrize("sqlstate", ["22018", "23505", "P0001", "42601"])
def test_a_single_record_is_a_letter_if_its_error_speaks_for_itself(
    store: InMemoryOffsetStore, sqlstate: str, why: str
) -> None:
    job = Failing(store, bad={(0, 0): sqlstate} if why == "refused" else {})
    if why != "refused":
        job.fails = FunctionFailed("Spark can't compute a row", error_class="CODE", sqlstate=sqlstate)
    is_letter = sqlstate != "42601"
    with nullcontext() if is_letter else pytest.raises(RowsRefused, match="payments-0@0"):
        job.write(up_to(1))
    assert [one.error.sqlstate for one in job.letters.values()] == [sqlstate] * is_letter


@pytest.mark.behaviour("DLQ-15")
def test_records_without_rows_are_not_accepted(store: InMemoryOffsetStore) -> None:
    job = Job(store, bad={(0, 1): "42501"}, records=Records(rowless=rows(0, 2, 3)))
    with pytest.raises(RowsRefused, match="no other record was accepted"):
        job.write(up_to(4))
    assert job.letters == {}


@pytest.mark.behaviour("DLQ-15")
def test_a_strategy_makes_no_letter_where_no_other_record_is_accepted_but_may_skip_it(
    store: InMemoryOffsetStore,
) -> None:
    job = Job(store, DeadLetters(strategy=lambda _: DeadLetter()), bad={(0, 0): "42501"})
    with pytest.raises(RowsRefused, match="no other record was accepted"):
        job.write(up_to(1))

    job.settings = DeadLetters(strategy=lambda _: Skip("our policy"))
    job.restart()
    job.write(up_to(1))
    assert (job.letters, job.stored()) == ({}, 1)


@pytest.mark.behaviour("DLQ-6")
def test_if_attempts_can_not_be_written_they_are_not_counted(store: InMemoryOffsetStore) -> None:
    blocker = store.memory.begin(name="another")

    def strategy(failure: Failure) -> Choice:
        if not job.waits and not job.letters and blocker._over is None:
            blocker.lock_partitions("billing", [P0])
        return retry(failure)

    job = Job(store, DeadLetters(strategy=strategy), bad={(0, 1): "23514"})
    with pytest.raises(LockTimeout):
        job.write(up_to(3))
    blocker.rollback()
    assert (job.waits, job.letters, job.failures) == ([], {}, {})

    counted: list[dict[Row, int]] = []
    waits(job, lambda: counted.append(job.attempts()))
    job.write(up_to(3))
    assert (counted, job.letters[0, 1].attempts) == ([{(0, 1): 1}], 4)


# -- too many


@pytest.mark.behaviour("DLQ-13")
def test_the_limit_is_one_for_all_parts_of_a_batch(store: InMemoryOffsetStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 4)
    job = Job(store, replace(AT_ONCE, limit=2), records=Records(rejects=dict.fromkeys(rows(0, 4, 8), "bad")))

    with pytest.raises(TooManyLetters, match="more bad records than the limit; found 3 in batch 0"):
        job.write(up_to(12))
    assert (job.letters.keys(), job.stored()) == ({(0, 0), (0, 4)}, 8)

    with pytest.raises(TooManyLetters):  # and for all its plans
        job.write(up_to(12))
    assert job.write(up_to(8), number=1) is None


@pytest.mark.behaviour("DLQ-13")
def test_skipped_records_leave_the_limit_to_the_letters(store: InMemoryOffsetStore) -> None:
    settings = DeadLetters(strategy=lambda one: Skip("known") if one.offset in {1, 2} else retry(one), limit=3)
    job = Job(store, settings, bad=dict.fromkeys(rows(1, 2, 3), "23514"))
    job.write(up_to(6))
    assert job.letters.keys() == {(0, 3)}


@pytest.mark.behaviour("DLQ-13")
@pytest.mark.parametrize("how", ["refused", "skipped", "raised"])
def test_ten_records_that_are_refused_in_a_row_over_many_batches_are_not_to_blame(
    store: InMemoryOffsetStore, how: str
) -> None:
    class Values(Job):
        def _failing(self) -> dict[Row, FunctionFailed]:
            cast_ = FunctionFailed("a cast", error_class="CAST", sqlstate="22018")
            return dict.fromkeys(rows(*range(20)), cast_) if how == "raised" else {}

    job = Values(store, DeadLetters(strategy=lambda _: Skip("known")) if how == "skipped" else AT_ONCE)
    if how != "raised":
        job.bad = dict.fromkeys(rows(*range(20)), "23514")
    with pytest.raises(TooManyLetters, match="all of the last 10 records were refused"):
        job.write_each(20)
    assert (job.letters.keys(), job.stored()) == ({*rows(*range(9))} if how != "skipped" else set(), 9)


@pytest.mark.behaviour("DLQ-13")
def test_a_record_that_is_accepted_ends_the_row_of_refused_ones(store: InMemoryOffsetStore) -> None:
    job = Job(store, bad=dict.fromkeys([row for row in rows(*range(40)) if row[1] % 9 != 8], "23514"))
    job.write_each(40)
    assert job.results == rows(8, 17, 26, 35)


@pytest.mark.behaviour("DLQ-1", "DLQ-13", "HAND-2")
@pytest.mark.parametrize("are_handled", [True, False])
def test_any_number_of_records_may_be_rejected_in_a_row_or_may_make_no_row(
    store: InMemoryOffsetStore, *, are_handled: bool
) -> None:
    """Those for which a handler returns nothing show that others are accepted."""
    bad = dict.fromkeys(rows(*range(0, 60, 3 if are_handled else 1)), "bad")
    job = Job(store, records=Records(rejects=bad, rowless=rows(*range(60)), are_handled=are_handled))
    job.write_each(60)
    assert [*job.letters] == [*bad]


@pytest.mark.behaviour("DLQ-13", "HAND-2")
def test_a_handler_that_fails_for_all_records_is_told_with_its_line_and_what_it_can_do(
    store: InMemoryOffsetStore,
) -> None:
    """There is no letter to look at, and a handler has no column `_reject`."""
    job = Job(store, records=Records(rejects=dict.fromkeys(rows(*range(20)), "canary"), are_handled=True))
    with pytest.raises(TooManyLetters, match="all of the last 20 records were refused") as caught:
        job.write(up_to(20))
    assert caught.value.what.endswith("the handler failed with ValueError at app.py:7 (attempts: 3)")
    assert "return no row for them" in caught.value.next_step
    assert "_reject" not in caught.value.next_step
    assert "canary" not in "".join(traceback.format_exception(caught.value))
    assert job.letters == {}


@pytest.mark.behaviour("DLQ-13")
def test_records_without_rows_don_t_show_that_others_are_accepted(store: InMemoryOffsetStore) -> None:
    """Of ten records each one makes a row."""
    places = rows(*range(0, 200, 10))
    job = Job(store, bad=dict.fromkeys(places, "23514"))
    job.records = Records(rowless=[row for row in rows(*range(200)) if row not in places])
    with pytest.raises(TooManyLetters, match="all of the last 10 records"):
        job.write_each(20, size=10)
    assert job.stored() == 90


@pytest.mark.behaviour("DLQ-13")
def test_if_ten_records_of_a_batch_can_all_never_fit_none_is_a_letter(store: InMemoryOffsetStore) -> None:
    job = Job(store, records=Records(misfit=dict.fromkeys(rows(*range(10)), refusal("22003"))))
    with pytest.raises(TooManyLetters):
        job.write(up_to(10))
    assert (job.letters, job.stored()) == ({}, 0)


# -- halving


@pytest.mark.behaviour("DLQ-8")
def test_if_the_time_is_up_the_part_is_halved_and_each_half_is_written_alone(
    store: InMemoryOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("offsetstore.processing.blame.time", SimpleNamespace(monotonic=clock))
    job = Job(store, replace(AT_ONCE, seconds=0.2), bad={(0, 5): "23514"})
    write_rows = job.write_rows

    def slowly(work: Any, values: Sequence[Row]) -> None:
        clock.now += 0.3 if len(values) > 2 else 0
        write_rows(work, values)

    job.write_rows = slowly
    written = job.write(up_to(8))

    assert written is not None
    assert written.rows == {UNNAMED: 7}
    assert job.parts == [up_to(8), up_to(4), up_to(8, 4), up_to(6, 4), up_to(8, 6)]
    assert (job.results, job.letters.keys()) == (rows(0, 1, 2, 3, 4, 6, 7), {(0, 5)})


@pytest.mark.behaviour("DLQ-8")
def test_what_the_transaction_refuses_although_discovery_accepts_it_is_halved(store: InMemoryOffsetStore) -> None:
    """A withdrawal before its deposit: they are accepted the other way round, and in one transaction in this."""
    job = Job(store)
    job.answers = [refusal(), None, refusal()]

    job.write(up_to(4))

    assert (job.parts, job.results, job.letters) == ([up_to(4), up_to(2), up_to(4, 2)], rows(0, 1, 2, 3), {})


@pytest.mark.behaviour("DLQ-8")
def test_a_single_record_that_is_accepted_and_refused_ends_in_its_error(store: InMemoryOffsetStore) -> None:
    job = Job(store)
    job.answers = [None, refusal(), None, refusal()]
    job.write(up_to(3))

    with pytest.raises(RowsRefused) as refused:
        job.write(up_to(4, 3), number=1)

    assert (refused.value.topic_partition, refused.value.offsets) == (P0, OffsetRange(3, 4))
    assert (job.letters, job.failures, job.stored()) == ({}, {}, 3)


@pytest.mark.behaviour("DLQ-8")
def test_a_single_record_that_the_driver_can_not_hold_ends_in_that_error(store: InMemoryOffsetStore) -> None:
    job = Job(store, too_many_rows=0)
    with pytest.raises(SinkError, match="the rows are too many"):
        job.write(up_to(1))


def test_halves_go_through_partitions_in_order_and_miss_no_offset(store: InMemoryOffsetStore) -> None:
    job = Job(store, bad={(0, 2): "23514", (1, 5): "23514"}, too_many_rows=2)
    job.records = Records(missing=[(0, 1), (1, 7)])
    job.write({P1: OffsetRange(5, 8), P0: OffsetRange(0, 3)})
    assert (job.results, job.letters.keys()) == ([(0, 0), (1, 6)], {(0, 2), (1, 5)})
    assert (job.stored(), job.stored(P1)) == (3, 8)


# -- a batch that is planned again


def test_what_is_stored_of_a_batch_counts_as_written_when_it_is_planned_again(
    store: InMemoryOffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART", 4)
    job = Job(store, bad={(0, 1): "23514", (0, 9): "23514"})
    compute, parts = job.compute, iter([False, True, False, False])

    @contextmanager
    def outdated(ranges: Ranges, *, suspects: Collection[Any] = ()) -> Generator[FakePart]:
        with compute(ranges, suspects=suspects) as part:
            if next(parts):
                raise PlanOutdated
            yield part

    job.compute = outdated  # pyright: ignore[reportAttributeAccessIssue]
    written = job.write(up_to(12))

    assert written is not None
    assert (written.rows, job.parts) == ({UNNAMED: 10}, [up_to(4), up_to(8, 4), up_to(8, 4), up_to(12, 8)])
    assert job.results == rows(0, *range(2, 9), 10, 11)


def test_records_that_are_stored_while_others_wait_are_not_written_again(store: InMemoryOffsetStore) -> None:
    """Their attempts, which are below the stored offset, no longer count for the partition."""
    job = Job(store, PATIENT, bad={(0, 1): "23514"})

    def store_two(tx: Transaction) -> None:
        tx.lock(up_to(2))
        tx.connection.extend("results", rows(0, 1))
        tx.advance(up_to(2))

    def by_hand() -> None:
        job.bad.clear()
        job.claim.run(store_two)
        job.has_only(3)()

    waits(job, by_hand)
    job.write(up_to(5))

    assert (job.results, job.letters.keys(), len(job.waits)) == (rows(0, 1, 2, 4), {(0, 3)}, 1 + 3)


# -- careful mode


def test_after_a_bad_record_twenty_batches_are_careful_and_another_one_among_them_begins_twenty_more(
    store: InMemoryOffsetStore,
) -> None:
    job = Job(store, DeadLetters(strategy=lambda _: Skip("known")), bad={(0, 0): "23514", (0, 15): "23514"})
    careful = 0
    assert not job.recovery.is_careful(up_to(1))
    job.write(up_to(1))
    while job.recovery.is_careful(up_to(careful + 2, careful + 1)):
        careful += 1
        job.write(up_to(careful + 1, careful), number=careful)
    assert careful == 15 + CAREFUL == 15 + 20


def test_a_batch_whose_records_were_all_accepted_in_the_end_is_followed_by_an_ordinary_one(
    store: InMemoryOffsetStore,
) -> None:
    job = Job(store, PATIENT, bad={(0, 1): "23514"})
    waits(job, job.bad.clear)
    job.write(up_to(3))
    assert (job.results, job.failures) == (rows(0, 1, 2), {})
    assert not job.recovery.is_careful(up_to(6, 3))
