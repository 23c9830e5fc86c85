"""What a member of a fleet has polled, on PostgreSQL, without Kafka: written once, whatever it has lost meanwhile."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Any, Protocol, cast

import pyarrow as pa
import pytest

from offsetstore import (
    Append,
    BatchInfo,
    DeadLetters,
    Execute,
    Handler,
    LetterFilter,
    OffsetRange,
    OffsetStore,
    Outbox,
    Retries,
    StartPolicy,
    Tick,
    Timeouts,
    TopicPartition,
    Upsert,
)
from offsetstore.consumer.delivery import ArrowTransform, ConsumerOutputs, Polled, PolledRecords
from offsetstore.consumer.handled import HandledRecords, computed_letters
from offsetstore.consumer.records import ConsumedRecord
from offsetstore.errors import (
    ColumnMismatch,
    CommitUnknown,
    ConfigurationError,
    ExitCode,
    FunctionEnded,
    FunctionFailed,
    PartitionLost,
    ProtocolMisuse,
    RowsRefused,
    SinkError,
    StaleClaim,
    TooManyLetters,
    as_raised,
    exit_code,
)
from offsetstore.postgres.letters import read_headers
from offsetstore.processing import handling
from offsetstore.processing.put_back import ReplayRequests
from offsetstore.processing.runner import Runner, RunnerSettings, Taken
from offsetstore.protocol.events import BatchEnded, CommitResolved, HandlerCalled, IdleWorkFailed
from offsetstore.protocol.letters import Headers, Payload
from offsetstore.protocol.ports import Work, Writer
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import Member, join
from offsetstore.store.term import Term
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.store.committing import BOTH
from tests.support import arrow_types
from tests.support.proxy import CommitProxy, Lost
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

P0, P1 = (TopicPartition("payments", number) for number in range(2))
ROWS = "SELECT record FROM results ORDER BY record"
LETTERS = "SELECT partition, record_offset, cause, state, error_class FROM dead_letters ORDER BY 1, 2"


@pytest.fixture(autouse=True)
def _table(query: Query) -> None:
    query("CREATE TABLE results (record bigint CONSTRAINT unlucky CHECK (record <> 13))")


@pytest.fixture
def store(offsetstore_database: str, recorder: Recorder) -> Iterator[OffsetStore]:
    with OffsetStore.connect(offsetstore_database, observers=[recorder]) as connected:
        yield connected


@pytest.fixture
def joins(store: OffsetStore) -> Iterator[Callable[[], Member]]:
    members: list[Member] = []

    def joins_it() -> Member:
        members.append(join(store, request()))
        return members[-1]

    yield joins_it
    for member in members:
        member.close()


def request() -> ClaimRequest:
    broker = StaticBroker.with_topics({"payments": 2}, end=1000)
    return ClaimRequest("billing", broker, ("payments",), StartPolicy(), "refuse", 5.0, "billing")


def values_of(records: Any) -> list[bytes]:
    return records.column("value").to_pylist()


def parse(records: pa.RecordBatch) -> pa.RecordBatch:
    """Numbers are rows; a question mark is rejected, and what is no number can't be computed."""
    values = values_of(records)
    numbers = [None if value == b"?" else int(value) for value in values]
    why = pa.array(["a question" if value == b"?" else None for value in values], pa.string())
    made: Any = pa.record_batch({"record": pa.array(numbers, pa.int64()), "_reject": why})
    return made


class Polling:
    """Hands records over for a member, as the consumer does."""

    def __init__(
        self,
        member: Member,
        transform: ArrowTransform | Handler = parse,
        into: Writer | Mapping[str, Writer] | None = None,
        **settings: Any,
    ) -> None:
        self.member = member
        self.outputs = ConsumerOutputs(transform, into or Append("results"), settings.get("propagate", ()))
        self.runner = Runner(member, self, RunnerSettings(**settings))
        self.runner.begin()
        self.number = 0

    def polled(
        self,
        values: Mapping[TopicPartition, Sequence[str]],
        begin: int = 0,
        beyond: int = 0,
        headers: Headers = (),
    ) -> PolledRecords:
        polled = {
            tp: Polled(
                OffsetRange(begin, begin + len(given) + beyond),
                [
                    ConsumedRecord(tp, begin + n, Payload(b"k", one.encode(), headers, 0, 0))
                    for n, one in enumerate(given)
                ],
                self.member.terms.get(tp) or Term(),
            )
            for tp, given in values.items()
        }
        self.number += 1
        made = PolledRecords if self.outputs.handler is None else HandledRecords
        return made(self.number, self.member, self.outputs, polled, lambda _: None)

    def write(self, delivery: PolledRecords) -> None:
        @contextmanager
        def take() -> Generator[Taken]:
            yield Taken(delivery)

        self.runner.run(delivery.number, take)

    def replay(self, **given: Any) -> None:
        """Replay the letters that are requested, as the consumer does between two flushes."""
        requests = ReplayRequests(self.member, DeadLetters())
        requests.compute = partial(computed_letters, self.outputs, self.member, **given)
        requests.look(lambda: None)

    def is_running(self) -> bool:
        return True

    def is_stopping(self, error: BaseException) -> bool:  # noqa: ARG002 - the Source's
        return False

    def typed(self, error: BaseException) -> BaseException:
        return error


class Polls(Protocol):
    def __call__(
        self,
        transform: ArrowTransform | Handler = parse,
        into: Writer | Mapping[str, Writer] | None = None,
        **settings: Any,
    ) -> Polling: ...


@pytest.fixture
def polls(joins: Callable[[], Member]) -> Polls:
    """Make `Polling` with these arguments, of one member that has both partitions."""
    member = joins()
    member.assign([P0, P1])
    return partial(Polling, member)


class Calls:
    """A handler's function, which does what the record says, and counts its calls.

    :param now: what "now" calls.
    """

    def __init__(self, now: Callable[[], object] = lambda: None) -> None:
        self.of = Counter[str]()
        self.records = list[handling.Record]()
        self._now = now
        self._lock = threading.Lock()

    def handler(self, schema: Any = "record long", *, is_async: bool = False, **arguments: Any) -> Handler:
        async def later(record: handling.Record) -> Any:
            await asyncio.sleep(0)
            return self.handle(record)

        retries = Retries(attempts=2, shortest=0.001, longest=0.001)
        return Handler(later if is_async else self.handle, schema, retries=retries, **arguments)

    def handle(self, record: handling.Record) -> Any:
        value = (record.value or b"").decode()
        with self._lock:
            self.of[value] += 1
            self.records.append(record)
        match value:
            case "none":
                return None
            case "twice":
                return [(1,), {"record": 2}]
            case "outage":
                raise ConnectionRefusedError
            case "unfit":
                return {"record": "text"}
            case "now":
                self._now()
                return None
            case _:
                return (int(value),)


def numbers(query: Query) -> list[int]:
    return [number for (number,) in query(ROWS)]


def stored(store: OffsetStore) -> dict[TopicPartition, int]:
    return {tp: row.next_offset for tp, row in store.offsets("billing").items()}


@pytest.mark.behaviour("CONS-1", "DX-9")
def test_rows_letters_offsets_and_metadata_are_written_together_also_where_only_gaps_are_left(
    store: OffsetStore, polls: Polls, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    def note(info: BatchInfo) -> object:
        return {"rows": dict(info.rows or {})}

    polling = polls(metadata=note, dead_letters=DeadLetters(max_retries=0))
    caplog.clear()
    polling.write(polling.polled({P0: ["1", "13", "bad", "?", "5"], P1: ["20", "worse", "22"]}, beyond=2))
    assert len([one for one in caplog.records if one.levelno >= logging.WARNING]) <= 4, caplog.text
    assert numbers(query) == [1, 5, 20, 22]
    assert query(LETTERS) == [
        (0, 1, "refused", "dead", "RowsRefused"),
        (0, 2, "raised", "dead", "ValueError"),
        (0, 3, "rejected", "dead", "Rejected"),
        (1, 1, "raised", "dead", "ValueError"),
    ]
    assert store.letter("billing", P0, 3).payload == Payload(b"k", b"?", (), 0, 0)
    assert stored(store) == {P0: 7, P1: 5}
    polling.write(polling.polled({P1: []}, begin=5, beyond=3))
    assert stored(store) == {P0: 7, P1: 8}
    assert store.metadata("billing") == {P0: {"rows": {"": 4}}, P1: {"rows": {"": 0}}}


def without_columns(records: Any) -> Any:
    """Numbers are rows, but for 0; where there is none, a batch without rows or columns."""
    found = [{"record": int(value)} for value in values_of(records) if value != b"0"]
    return pa.RecordBatch.from_pylist(found)


def ignoring(work: Work, batches: Iterable[pa.RecordBatch]) -> None: ...


@pytest.mark.behaviour("CONS-1", "DX-9")
@pytest.mark.parametrize("into", [Append("results"), Execute(ignoring)])
def test_a_transform_may_return_no_columns_where_it_returns_no_rows(
    store: OffsetStore, polls: Polls, query: Query, into: Writer
) -> None:
    polling = polls(without_columns, into, dead_letters=DeadLetters(max_retries=0))
    polling.write(polling.polled({P0: ["0", "0"]}))
    assert stored(store)[P0] == 2
    polling.write(polling.polled({P0: ["0", "7", "x", "0"]}, begin=2))  # one by one, since one can't be computed
    polling.write(polling.polled({P0: ["0"]}, begin=6))
    assert numbers(query) == ([7] if isinstance(into, Append) else [])
    assert stored(store)[P0] == 7
    assert [one.offset for one in store.letters("billing").letters] == [4]


@pytest.mark.behaviour("CONS-3")
def test_what_another_member_has_taken_is_left_out_and_the_rest_is_written(
    store: OffsetStore, joins: Callable[[], Member], query: Query, recorder: Recorder
) -> None:
    late, other = joins(), joins()
    late.assign([P0, P1])
    polling, taking = Polling(late), Polling(other)
    delivery = polling.polled({P0: ["1", "2"], P1: ["20", "21"]})
    other.assign([P0])
    taking.write(taking.polled({P0: ["1"]}))
    polling.write(delivery)
    taking.write(taking.polled({P0: ["2"]}, begin=1))
    assert numbers(query) == [1, 2, 20, 21]
    assert stored(store) == {P0: 2, P1: 2}
    assert [one.ranges for one in recorder.of(BatchEnded, "written")][1] == {P1: OffsetRange(0, 2)}
    assert (late.partitions, late.is_lost) == ({P1}, False)
    delivery = polling.polled({P1: ["22"]}, begin=2)
    other.assign([P1])
    polling.write(delivery)  # of which nothing is left
    assert (numbers(query), stored(store)[P1]) == ([1, 2, 20, 21], 2)
    assert len(recorder.of(BatchEnded, "skipped")) == 1
    with pytest.raises(PartitionLost), store.transaction(late) as tx:
        tx.lock({P1: OffsetRange(2, 3)})


@pytest.mark.behaviour("CONS-2", "TX-17")
@pytest.mark.parametrize(
    ("bad", "chance"),
    [("x", False), ("13", False), ("?", False), ("13", True)],
    ids=["not computed", "refused", "rejected", "by chance"],
)
def test_the_error_gives_the_command_that_skips_the_record_if_the_same_rows_are_made_each_time(
    store: OffsetStore, polls: Polls, query: Query, bad: str, *, chance: bool
) -> None:
    calls = count()

    def by_chance(records: Any) -> Any:
        rows = parse(records)
        column = pa.array([next(calls) for _ in range(rows.num_rows)], pa.int64())
        return rows.append_column("by_chance", column)

    query("ALTER TABLE results ADD by_chance bigint")
    polling = polls(by_chance if chance else parse)
    with pytest.raises(RowsRefused, match="first refused at record payments-0@2") as refused:
        polling.write(polling.polled({P0: ["1", "2", bad, "4"]}))
    skips = "offsetstore reset -g billing -t payments:0 --from-offset 2 --to-offset 3" in refused.value.next_step
    assert skips is not chance
    assert (numbers(query), stored(store)[P0]) == ([1, 2], 2)


@pytest.mark.behaviour("CONS-3", "CONS-6")
def test_what_was_polled_before_a_partition_came_back_is_left_out(
    store: OffsetStore, joins: Callable[[], Member], query: Query
) -> None:
    member, other = joins(), joins()
    member.assign([P0, P1])
    polling, taking = Polling(member), Polling(other)
    early = polling.polled({P0: ["1", "2"], P1: ["20"]})
    other.assign([P0])
    taking.write(taking.polled({P0: ["1"]}))
    assert member.assign([P0]).offsets == {P0: 1}
    polling.write(early)
    assert (numbers(query), stored(store)) == ([1, 20], {P0: 1, P1: 1})
    polling.write(polling.polled({P0: ["2"]}, begin=1))
    assert numbers(query) == [1, 2, 20]


@pytest.mark.behaviour("CONS-3", "TX-11")
@BOTH
def test_a_commit_whose_outcome_is_unknown_ends_no_member_where_others_have_gone_on(
    offsetstore_database: str, store: OffsetStore, joins: Callable[[], Member], query: Query, lost: Lost
) -> None:
    told, other = Recorder(), joins()
    taking = Polling(other)
    with (
        CommitProxy(offsetstore_database) as proxy,
        OffsetStore.connect(proxy.url, observers=[told], timeouts=Timeouts(commit=5)) as behind,
        join(behind, request()) as late,
    ):

        def go_on() -> None:
            starts = other.assign([P0, P1]).offsets
            assert set(starts.values()) == {2 if lost is Lost.ANSWER else 0}
            records = {P0: ["1", "2", "3"], P1: ["20", "21", "22"]}
            begin = starts[P0]
            taking.write(taking.polled({tp: values[begin:] for tp, values in records.items()}, begin=begin))
            assert late.assign([P1]).offsets == {P1: 3}

        late.assign([P0, P1])
        polling = Polling(late)
        with proxy.losing(lost, then=go_on):
            polling.write(polling.polled({P0: ["1", "2"], P1: ["20", "21"]}))

        assert [one.happened for one in told.of(CommitResolved)] == [None]
        assert len(told.of(BatchEnded, "skipped")) == 1
        assert (late.partitions, late.is_lost) == ({P1}, False)
        polling.write(polling.polled({P1: ["23"]}, begin=3))
    taking.write(taking.polled({P0: ["4"]}, begin=3))
    assert numbers(query) == [1, 2, 3, 4, 20, 21, 22, 23]
    assert stored(store) == {P0: 4, P1: 4}


@pytest.mark.behaviour("TX-11")
def test_a_commit_stays_unknown_where_no_other_member_has_gone_on(
    offsetstore_database: str, store: OffsetStore, query: Query
) -> None:
    with (
        CommitProxy(offsetstore_database) as proxy,
        OffsetStore.connect(proxy.url, timeouts=Timeouts(commit=5)) as behind,
        join(behind, request()) as late,
    ):

        def go_on() -> None:
            with behind.transaction(late) as tx:
                tx.advance({P0: tx.lock({P0: OffsetRange(0, 5)})[P0].remaining})

        late.assign([P0])
        polling = Polling(late)
        with proxy.losing(Lost.COMMIT, then=go_on), pytest.raises(CommitUnknown, match="moved or removed since"):
            polling.write(polling.polled({P0: ["1", "2"]}))
    assert (numbers(query), stored(store)[P0]) == ([], 5)


@pytest.mark.behaviour("CONS-1", "MARK-1")
def test_a_function_that_marks_is_told_what_to_do_in_a_consumer(polls: Polls, query: Query) -> None:
    def write(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        assert [*batches]
        work.mark(P0, 1)

    polling = polls(into=Execute(write))
    with pytest.raises(ProtocolMisuse, match=r"A consumer stores the end of each flush.*a table of your own"):
        polling.write(polling.polled({P0: ["1", "2"]}))
    assert numbers(query) == []


class Leaves(BaseException):
    """No error to Python."""


ENDS: list[BaseException] = [
    SystemExit(1),
    KeyboardInterrupt(),
    GeneratorExit(),
    asyncio.CancelledError(),
    Leaves(),
    BaseExceptionGroup("several", [Leaves()]),
]
"""What a function may raise that would end a thread, or the process."""


def leaving(value: str) -> int:
    """The number that a text is; for "leave 2" what is raised instead."""
    if value.startswith("leave"):
        raise ENDS[int(value[5:])]
    return int(value)


def leaving_transform(records: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"record": pa.array([leaving(one.decode()) for one in values_of(records)], pa.int64())})


def leaving_writer(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        for value in values_of(batch):
            work.connection.exec_driver_sql("INSERT INTO results VALUES (%s)", (leaving(value.decode()),))


async def leaving_handler(record: handling.Record) -> tuple[int]:
    return (leaving((record.value or b"").decode()),)


def functions() -> dict[str, tuple[ArrowTransform | Handler, Writer]]:
    """The transform and the writer with a function of the user's that calls `leaving`, by the name of that."""
    table = Append("results")
    return {
        "transform": (leaving_transform, table),
        "handler": (Handler(leaving_handler, "record long", retries=Retries(attempts=1)), table),
        "Execute": (lambda records: records.select(["value"]), Execute(leaving_writer, splittable=True)),
    }


@pytest.fixture
def _in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a consumer: in the main thread, a `KeyboardInterrupt` may be that of Ctrl-C."""
    monkeypatch.setattr("offsetstore.runtime.functions._has_pythons_handler", lambda: False)


@pytest.mark.usefixtures("_in_another_thread")
@pytest.mark.behaviour("CONS-15", "DLQ-1")
@pytest.mark.parametrize("function", functions())
def test_whatever_a_function_raises_is_its_records_also_in_a_replay_or_a_bug_if_all_meet_it(
    store: OffsetStore, polls: Polls, query: Query, function: str
) -> None:
    polling = polls(*functions()[function], dead_letters=DeadLetters(max_retries=0))
    polling.write(polling.polled({P0: ["100", *(f"leave {n}" for n in range(len(ENDS))), "101"]}))
    assert numbers(query) == [100, 101]
    expected = [(0, 1 + n, "raised", "dead", type(one).__name__) for n, one in enumerate(ENDS)]
    assert query(LETTERS) == expected
    assert stored(store)[P0] == 2 + len(ENDS)

    store.request_replay("billing", LetterFilter(), reason="another try")
    polling.replay()
    assert query(LETTERS) == expected

    begin = stored(store)[P0]
    polling = polls(*functions()[function])
    for bad, code in ((range(len(ENDS)), ExitCode.BUG), ([2], ExitCode.OTHER)):
        values = [f"leave {n}" if n in bad else f"20{n}" for n in range(len(ENDS))]
        with pytest.raises(FunctionFailed) as failed:
            polling.write(polling.polled({P0: values}, begin=begin))
        assert failed.value.error_class == type(ENDS[bad[0]]).__name__
        assert exit_code(failed.value) == code


@pytest.mark.usefixtures("_in_another_thread")
@pytest.mark.behaviour("CONS-15")
@pytest.mark.parametrize("function", ["metadata", "strategy", "writer", "tick"])
def test_no_function_ends_the_process(store: OffsetStore, polls: Polls, recorder: Recorder, function: str) -> None:
    ends = iter(ENDS)

    def leave(*_: object) -> Any:
        raise next(ends, Leaves())

    settings: dict[str, dict[str, Any]] = {
        "metadata": {"metadata": leave},
        "strategy": {"dead_letters": DeadLetters(strategy=leave)},
        "writer": {"into": Execute(leave)},
        "tick": {"tick": Tick(leave, every=0.05)},
    }
    polling, found = polls(**settings[function]), list[BaseException]()
    if function == "tick":
        wait_until(lambda: len(recorder.of(IdleWorkFailed)) > len(ENDS))
        found = [one.error for one in recorder.of(IdleWorkFailed)]
    for _ in ENDS if function != "tick" else ():
        with pytest.raises(FunctionEnded) as ended:
            polling.write(polling.polled({P0: ["1", "bad"] if function == "strategy" else ["1"]}))
        found.append(ended.value)
        assert exit_code(ended.value) == ExitCode.BUG
    assert [type(as_raised(one)) for one in found[: len(ENDS)]] == [type(one) for one in ENDS]
    assert stored(store)[P0] == 0


@pytest.mark.behaviour("CONS-1", "OPS-6")
def test_a_tick_is_called_once_a_group_however_many_members_there_are(
    joins: Callable[[], Member], query: Query
) -> None:
    query("CREATE TABLE ticks (began timestamptz)")

    def tick(work: Work) -> None:
        work.connection.exec_driver_sql("INSERT INTO ticks SELECT updated_at FROM batch_marks, pg_sleep(0.2)")

    for _ in range(3):
        Polling(joins(), tick=Tick(tick, every=0.5))
    wait_until(lambda: query("SELECT count(*) FROM ticks")[0][0] >= 6, timeout=60.0)
    gaps = query("SELECT extract(epoch FROM began - lag(began) OVER (ORDER BY began))::float FROM ticks")
    assert min(gap for (gap,) in gaps if gap is not None) >= 0.5


@pytest.mark.behaviour("CONS-1", "DX-1")
def test_a_transform_that_can_do_nothing_without_records_is_told_so_only_where_there_are_none(
    store: OffsetStore, polls: Polls, query: Query
) -> None:
    def needs_one(records: pa.RecordBatch) -> pa.RecordBatch:
        assert values_of(records)[0] is not None
        return parse(records)

    polling = polls(needs_one, dead_letters=DeadLetters(max_retries=0))
    polling.write(polling.polled({P0: ["1", "bad", "3"]}))
    assert (numbers(query), stored(store)[P0]) == ([1, 3], 3)
    for values in ([], ["worse"]):
        with pytest.raises(FunctionFailed, match=r"transform raised IndexError.*; found a batch without records"):
            polling.write(polling.polled({P0: values}, begin=3, beyond=3))
    assert stored(store)[P0] == 3


@pytest.mark.behaviour("CONS-1", "HAND-2", "HAND-3", "HAND-5", "HAND-9")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_s_rows_are_written_and_records_that_fail_become_letters(
    store: OffsetStore, polls: Polls, query: Query, recorder: Recorder, *, is_async: bool
) -> None:
    def counted(batch: BatchInfo) -> str:
        return str(dict(batch.rows or {})[""])

    calls = Calls()
    polling = polls(calls.handler(is_async=is_async), dead_letters=DeadLetters(max_retries=0), metadata=counted)
    polling.write(polling.polled({P0: ["10", "bad", "none", "13", "unfit"], P1: ["twice"]}, beyond=2))
    assert numbers(query) == [1, 2, 10]
    assert query(LETTERS) == [
        (0, 1, "raised", "dead", "ValueError"),
        (0, 3, "refused", "dead", "RowsRefused"),
        (0, 4, "raised", "dead", "HandlerResult"),
    ]
    assert stored(store) == {P0: 7, P1: 3}
    assert calls.of == {"10": 1, "bad": 2, "none": 1, "13": 1, "unfit": 1, "twice": 1}
    [topic_id] = {row.topic_id for row in store.offsets("billing").values()}
    assert {one.id for one in calls.records if one.partition} == {f"payments/{topic_id}/1/0"}
    told = recorder.of(HandlerCalled)
    assert (sum(one.calls for one in told), sum(one.retries for one in told)) == (7, 1)
    assert recorder.events.index(told[-1]) < recorder.events.index(recorder.of(BatchEnded)[0])
    polling.write(polling.polled({P0: []}, begin=7, beyond=3))
    assert (stored(store)[P0], polling.member.metadata(P0, cache=False)) == (10, "0")


@pytest.mark.behaviour("OUT-1")
def test_the_function_in_the_outbox_page_writes_to_the_table_and_to_the_outbox(polls: Polls, query: Query) -> None:
    query("CREATE TABLE payments (payment text)")
    page = (Path(__file__).parents[3] / "docs" / "outbox.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^ *```python\n( *import pyarrow as pa\n.*?)^ *```$", page, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"Append": Append, "Outbox": Outbox}
    exec(compile(dedent(block), "docs/outbox.md", "exec"), names)  # noqa: S102 - the page's own words
    polling = polls(names["book_batch"], names["outputs"])
    polling.write(polling.polled({P0: ["0.99"]}))
    assert query("SELECT payment FROM payments") == [("0.99",)]
    assert query("SELECT topic, key, value FROM outbox") == [("payment-events", b"k", b"0.99")]


@pytest.mark.behaviour("HAND-2", "HAND-3", "CONS-15")
@pytest.mark.parametrize(
    ("bad", "error", "what"),
    [
        ("bad", FunctionFailed, "the handler failed with ValueError at test_deliveries.py:"),
        ("unfit", FunctionFailed, "the handler failed with HandlerResult: the column record (bigint): a value of"),
        ("13", RowsRefused, ""),
    ],
)
def test_without_dead_letters_the_first_record_that_fails_is_named_and_none_is_called_again(
    polls: Polls, query: Query, bad: str, error: type[FunctionFailed | RowsRefused], what: str
) -> None:
    calls = Calls()
    polling = polls(calls.handler())
    with pytest.raises(error, match="first refused at record payments-0@2") as caught:
        polling.write(polling.polled({P0: ["1", "2", bad, "4"]}))
    assert caught.value.what.startswith(what)
    assert caught.value.offsets is not None
    assert (caught.value.offsets.from_, exit_code(caught.value)) == (2, ExitCode.OTHER)
    assert ("--from-offset 2 --to-offset 3" in caught.value.next_step) is (error is FunctionFailed)
    assert numbers(query) == [1, 2]
    assert calls.of == {"1": 1, "2": 1, bad: 2 if bad == "bad" else 1, "4": 1}


@pytest.mark.behaviour("HAND-7", "CONS-3")
def test_what_is_planned_again_calls_no_handler_again_and_lost_records_are_not_called(
    store: OffsetStore, polls: Polls, query: Query, recorder: Recorder
) -> None:
    calls = Calls(now=lambda: polling.member.assign([P1]))  # anew: what was polled before is not its any more
    polling = polls(calls.handler(concurrency=1))
    many = [str(number) for number in range(100, 1000)]
    polling.write(polling.polled({P0: ["1", "now", "3"], P1: many}))
    assert numbers(query) == [1, 3]
    assert stored(store) == {P0: 3, P1: 0}
    assert max(calls.of.values()) == 1
    assert len(calls.of) < 10
    assert recorder.of(BatchEnded, "written")[-1].ranges == {P0: OffsetRange(0, 3)}


@pytest.mark.behaviour("META-10")
def test_a_delivery_s_note_is_that_of_the_record_below_its_end_whichever_finished_last(
    store: OffsetStore, polls: Polls
) -> None:
    """The records finish in reverse. One that fails ends the second delivery before it."""
    finished: list[int] = []
    last = 3

    def handle(record: handling.Record) -> tuple[int]:
        wait_until(lambda: record.offset == last or record.offset + 1 in finished)
        finished.append(record.offset)
        if record.value == b"bad":
            raise ValueError
        return (record.offset,)

    def of_the_record_below(info: BatchInfo) -> object:
        return {tp: f"record {range_.until - 1}, of {len(finished)}" for tp, range_ in info.ranges.items()}

    handler = Handler(handle, "record long", ordering="none", retries=Retries(attempts=1))
    polling = polls(handler, metadata=of_the_record_below)
    polling.write(polling.polled({P0: ["a", "b", "c", "d"]}))
    assert finished == [3, 2, 1, 0]
    assert polling.member.metadata(P0, cache=False) == "record 3, of 4"

    last = 7
    with pytest.raises(FunctionFailed, match="payments-0@6"):
        polling.write(polling.polled({P0: ["e", "f", "bad", "g"]}, begin=4))
    assert finished[4:8] == [7, 6, 5, 4]
    assert stored(store)[P0] == 6
    assert str(polling.member.metadata(P0, cache=False)).startswith("record 5, of ")


@pytest.mark.behaviour("HAND-7", "CONS-3")
def test_what_another_member_has_taken_during_the_calls_calls_no_handler_again(
    joins: Callable[[], Member], query: Query
) -> None:
    late, other = joins(), joins()
    late.assign([P0, P1])
    calls = Calls(now=lambda: other.assign([P0]))
    polling = Polling(late, calls.handler())
    polling.write(polling.polled({P0: ["1", "now"], P1: ["20", "21"]}))
    assert numbers(query) == [20, 21]
    assert calls.of == {"1": 1, "now": 1, "20": 1, "21": 1}


@pytest.mark.behaviour("HAND-2", "DLQ-1")
def test_bad_records_among_many_for_which_a_handler_returns_nothing(
    store: OffsetStore, polls: Polls, query: Query
) -> None:
    polling = polls(Calls().handler(), dead_letters=DeadLetters())
    polling.write(polling.polled({P0: [*["none"] * 5, *["bad"] * 12]}))
    assert len(query(LETTERS)) == 12
    assert stored(store)[P0] == 17


@pytest.mark.behaviour("HAND-4", "CONS-4", "CONS-8")
@pytest.mark.parametrize("closed", [False, True])
def test_calls_end_with_the_claim(store: OffsetStore, polls: Polls, query: Query, *, closed: bool) -> None:
    def end() -> None:
        if closed:
            polling.member.close()
        else:
            store.claim("billing", request().broker, topics=["payments"], takeover="fence").close()
            polling.member.lose()

    class Slowly(Calls):
        def handle(self, record: handling.Record) -> Any:
            time.sleep(0.01)  # else all are over before the end of the claim is noticed
            return super().handle(record)

    calls = Slowly(now=end)
    polling = polls(calls.handler(concurrency=1))
    many = [str(number) for number in range(900)]
    with pytest.raises(ProtocolMisuse if closed else StaleClaim):
        polling.write(polling.polled({P0: ["now", *many]}))
    if closed:  # of 901: it is noticed when outcomes are fetched
        assert len(calls.of) < 600
    else:
        assert calls.of == {"now": 1}
    assert numbers(query) == []


@pytest.mark.behaviour("HAND-2", "HAND-4", "MARK-5")
def test_an_outage_and_a_handler_that_always_fails_end_the_consumer(
    store: OffsetStore, polls: Polls, query: Query
) -> None:
    calls = Calls()
    polling = polls(calls.handler(), dead_letters=DeadLetters())
    with pytest.raises(SinkError, match="ConnectionRefusedError, in a call for payments-0 at offset 1") as down:
        polling.write(polling.polled({P0: ["1", "outage"]}))
    assert isinstance(down.value.__cause__, ConnectionRefusedError)
    with pytest.raises(TooManyLetters, match=r"the handler failed with ValueError at test_deliveries\.py:\d+"):
        polling.write(polling.polled({P0: ["bad"] * 20}))
    assert (numbers(query), stored(store)[P0]) == ([], 0)


@pytest.mark.behaviour("CONS-1", "HAND-9")
@pytest.mark.parametrize("has_handler", [False, True])
def test_the_rows_of_several_outputs_and_of_an_upsert_are_in_the_order_of_offsets(
    polls: Polls, query: Query, *, has_handler: bool
) -> None:
    query("CREATE TABLE latest (id bigint PRIMARY KEY, value text)")

    def handle(record: handling.Record) -> dict[str, Any]:
        one: Any = json.loads(record.value or b"")
        return {"all": {"record": one["id"]}, "latest": [] if one["id"] > 1 else (one["id"], one["value"])}

    def transform(records: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
        made: list[Any] = [json.loads(value) for value in values_of(records)]
        places = cast("Any", records["_kafka"]).to_pylist()
        few: list[dict[str, Any]] = [{**one, "_kafka": at} for one, at in zip(made, places, strict=True)]
        return {
            "all": pa.RecordBatch.from_pylist([{"record": one["id"]} for one in made]),
            "latest": pa.RecordBatch.from_pylist([one for one in few if one["id"] <= 1]),
        }

    schemas = {"all": pa.schema([("record", pa.int64())]), "latest": "id bigint not null, value string"}
    writers = {"all": Append("results"), "latest": Upsert("latest", key=["id"])}
    polling = polls(Handler(handle, schemas) if has_handler else transform, writers)
    polling.write(polling.polled({P0: [json.dumps({"id": n % 3, "value": str(n)}) for n in range(8)]}))
    assert query("SELECT id, value FROM latest ORDER BY id") == [(0, "6"), (1, "7")]
    assert numbers(query) == [0, 0, 0, 1, 1, 1, 2, 2]


@pytest.mark.behaviour("HAND-10", "SINK-26")
def test_each_type_of_arrow_is_stored_by_value(polls: Polls, query: Query) -> None:
    query(arrow_types.TABLE)
    handler = Handler(lambda _: arrow_types.row(), arrow_types.schema())

    def make(_: pa.RecordBatch) -> pa.RecordBatch:
        return arrow_types.batch().slice(0, 1)

    transforms: list[ArrowTransform | Handler] = [handler, make]
    for number, transform in enumerate(transforms):
        polling = polls(transform, Append("kinds"))
        polling.write(polling.polled({P0: ["1"]}, begin=number))
        assert query(arrow_types.differing(handled=transform is handler)) == [([],)]
        query("TRUNCATE kinds")


@pytest.mark.behaviour("HAND-3", "HAND-8")
def test_tables_are_compared_before_any_call(polls: Polls, query: Query) -> None:
    query("CREATE TABLE latest (id bigint PRIMARY KEY, record bigint)")
    calls = Calls()
    other = polls(calls.handler("another long"))
    with pytest.raises(ColumnMismatch):
        other.write(other.polled({P0: ["1"]}))
    unordered = polls(calls.handler("id long, record long", ordering="none"), Upsert("latest", key=["id"]))
    with pytest.raises(ConfigurationError, match="ordering"):
        unordered.write(unordered.polled({P0: ["1"]}))
    assert not calls.of


@pytest.mark.behaviour("CONS-1", "DLQ-7")
@pytest.mark.parametrize("has_handler", [False, True])
def test_a_letter_is_replayed_by_the_member_that_has_its_partition(
    store: OffsetStore, joins: Callable[[], Member], query: Query, *, has_handler: bool
) -> None:
    members, calls, pollings = {P0: joins(), P1: joins()}, Calls(), list[Polling]()
    for tp, member in members.items():
        member.assign([tp])
        transform = calls.handler(ordering="partition") if has_handler else parse
        pollings.append(polling := Polling(member, transform, dead_letters=DeadLetters(max_retries=0)))
        polling.write(polling.polled({tp: ["1", "13", "5"]}))
        assert polling.runner.requests is not None
    query("ALTER TABLE results DROP CONSTRAINT unlucky")
    store.request_replay("billing", LetterFilter(), reason="the constraint is gone")
    pollings[0].replay()
    assert query(LETTERS) == [
        (0, 1, "refused", "replayed", "RowsRefused"),
        (1, 1, "refused", "requested", "RowsRefused"),
    ]
    members[P1].release([P1])
    pollings[1].replay()  # its row still has the token
    assert query(LETTERS)[1][3] == "requested"
    members[P1].assign([P1])
    pollings[1].replay(is_running=lambda: False)  # the consumer is being stopped
    assert query(LETTERS)[1][3] == "requested"
    pollings[1].replay()
    assert query(LETTERS)[1][3] == "replayed"
    assert numbers(query) == [1, 1, 5, 5, 13, 13]
    assert calls.of["13"] == (4 if has_handler else 0)  # not for the partition that was given back


@pytest.mark.behaviour("CTX-1")
@pytest.mark.parametrize("has_handler", [False, True])
def test_named_headers_follow_a_record_into_the_outbox_also_when_its_letter_is_replayed(
    store: OffsetStore, polls: Polls, query: Query, *, has_handler: bool
) -> None:
    bad = {b"bad"}

    def handle(record: handling.Record) -> dict[str, Any]:
        if record.value in bad:
            raise ValueError
        return {"value": record.value}

    def choose(records: pa.RecordBatch) -> pa.RecordBatch:
        why = pa.array(["bad" if value in bad else None for value in values_of(records)], pa.string())
        made: Any = records.select(["value", "_kafka"]).append_column("_reject", why)
        return made

    transform = Handler(handle, "value binary") if has_handler else choose
    letters = DeadLetters(max_retries=0)
    polling = polls(transform, Outbox("events"), dead_letters=letters, propagate=("trace", "tenant"))
    sent = (("trace", b"7f"), ("secret", b"s"), ("tenant", None), ("trace", b""))
    polling.write(polling.polled({P0: ["good", "bad"]}, headers=sent))
    bad.clear()
    store.request_replay("billing", LetterFilter(), reason="it is good now")
    polling.replay()

    found = query("SELECT value, headers FROM outbox ORDER BY id")
    followed = (("trace", b"7f"), ("tenant", None), ("trace", b""))
    assert [(value, read_headers(headers)) for value, headers in found] == [(b"good", followed), (b"bad", followed)]
