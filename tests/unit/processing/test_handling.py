"""Calls of a handler: timeouts, what hangs, what is no row, and each call's own context."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn

import pytest

from offsetstore.errors import ConfigurationError, FunctionEnded, HandlerStuck, Outage, as_raised
from offsetstore.processing.handling import CallOutcome, Handler, Handling, Record, outage_of_call
from offsetstore.protocol.retries import Retries
from tests.support.waiting import wait_until
from tests.unit.processing.calling import both_ways, called, handled

FAST = Retries(attempts=3, shortest=0.001, longest=0.001)


def record(offset: int, key: bytes | None = None) -> Record:
    return Record("payments", 0, offset, key, str(offset).encode(), topic_id="t1")


async def waits() -> None:
    await asyncio.sleep(0)


class Hanging:
    """A function that hangs in the record at offset 0 until it is told to return."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def __call__(self, record: Record) -> dict[str, int]:
        if record.offset == 0:
            self.go_on.wait(20)
        return {"id": record.offset}


@pytest.mark.behaviour("HAND-4")
def test_a_thread_that_takes_too_long_fails_alone_and_its_key_waits_for_it() -> None:
    hanging = Hanging()
    handling = Handling(Handler(hanging, None, timeout=3, concurrency=2))
    handling.feed([record(0, b"a"), record(1, b"b"), record(2, b"a")])
    found = {one.record.offset: one for _ in range(2) for one in handling.finished(10)}
    assert sorted(found) == [0, 1]
    assert found[0].error is not None
    assert found[0].error.error_class == "HandlerTimeout"
    assert handling.finished(0.3) == []  # it waits for the earlier one of its key
    assert (handling.in_flight, handling.figures.timeouts) == (1, 1)
    hanging.go_on.set()
    assert [one.rows for one in handling.finished(10)] == [({"id": 2},)]
    handling.close()


@pytest.mark.behaviour("HAND-4")
def test_when_no_thread_returns_the_error_names_a_record() -> None:
    hanging = Hanging()
    handling = Handling(Handler(hanging, None, timeout=0.2, concurrency=1))
    handling.feed([record(0), record(1)])
    assert [one.record.offset for one in handling.finished(10)] == [0]
    with pytest.raises(HandlerStuck, match=r"1 of its calls.*payments-0 at offset 0"):
        handling.finished(10)
    hanging.go_on.set()
    handling.close()


@pytest.mark.behaviour("HAND-4")
def test_what_waits_for_a_late_call_is_not_stuck_by_a_time_in_which_the_process_did_not_run() -> None:
    hanging = Hanging()
    with closing(Handling(Handler(hanging, None, timeout=0.6, concurrency=1))) as handling:
        handling.feed([record(0), record(1)])
        assert [one.record.offset for one in handling.finished(10)] == [0]
        assert handling.finished(0.1) == []
        time.sleep(1)
        assert handling.finished(0.1) == []
        hanging.go_on.set()
        assert [one.rows for one in handling.finished(10)] == [({"id": 1},)]


@pytest.mark.behaviour("HAND-4", "HAND-8")
def test_blocking_code_in_an_async_function_is_named(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()

    async def blocks(record: Record) -> None:
        if record.offset == 1:
            go_on.wait(20)

    handling = Handling(Handler(blocks, None, timeout=2))
    handling.feed([record(0), record(1), record(2)])
    with caplog.at_level(logging.WARNING), pytest.raises(HandlerStuck, match="payments-0 at offset 1"):
        _ = [handling.finished(10) for _ in range(3)]
    assert "in a call for payments-0 at offset 1: blocking code" in caplog.text
    assert handling.figures.lag > 2
    go_on.set()
    handling.close()


@pytest.mark.behaviour("HAND-2")
def test_an_error_that_stays_is_the_records() -> None:
    def fails(record: Record) -> None:
        raise ValueError(f"bad {record.offset}")

    [one] = handled(Handler(fails, None, retries=FAST), [record(7)])
    assert one.error is not None
    assert (one.error.error_class, one.error.text, one.attempts) == ("ValueError", "bad 7", 3)
    assert "in fails" in (one.error.traceback or "")
    assert one.error.shown == f" at test_handling.py:{fails.__code__.co_firstlineno + 1}"


@pytest.mark.behaviour("HAND-2")
@pytest.mark.parametrize("error", [Outage("down"), ConnectionRefusedError("refused"), TimeoutError()])
@both_ways
def test_an_outage_is_no_records_fault(error: Exception, *, is_async: bool) -> None:
    calls: list[int] = []

    def fails(record: Record) -> None:
        calls.append(record.offset)
        raise error

    handling = Handling(Handler(called(fails, is_async=is_async), None, retries=FAST))
    handling.feed([record(0)])
    with pytest.raises(type(error)):
        handling.finished(10)
    handling.close()
    assert calls == [0, 0, 0]


def several(record: Record) -> Iterator[dict[str, int]]:
    yield from ({"id": number} for number in range(record.offset))


@pytest.mark.behaviour("HAND-3")
@pytest.mark.parametrize(
    ("returned", "rows"),
    [
        (None, ()),
        ({"id": 1}, ({"id": 1},)),
        (MappingProxyType({"id": 1}), ({"id": 1},)),
        ((1, 2), ((1, 2),)),
        ([], []),
        ([{"id": 1}, (2,)], [{"id": 1}, (2,)]),
        ((row for row in [{"id": 1}, (2,)]), [{"id": 1}, (2,)]),
    ],
)
def test_what_a_function_returns(returned: Any, rows: Any) -> None:
    [one] = handled(Handler(lambda _: returned, None), [record(0)])
    assert (one.rows, one.error) == (rows, None)


@pytest.mark.behaviour("HAND-3")
@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (7, "returned int; expected a row"),
        ("text", "returned str"),
        ([{"id": 1}, 7], "returned int"),
        (waits, "returned a coroutine: await it, or declare the handler with async def"),
    ],
)
def test_what_is_no_row_fails_at_once(returned: Any, said: str) -> None:
    [one] = handled(Handler(lambda _: returned() if callable(returned) else returned, None), [record(1)])
    assert one.error is not None
    assert said in one.error.text
    assert (one.error.error_class, one.attempts) == ("HandlerResult", 1)


@pytest.mark.behaviour("HAND-6")
@both_ways
def test_each_call_has_a_context_of_its_own(*, is_async: bool) -> None:
    inherited, own = contextvars.ContextVar[str]("inherited"), contextvars.ContextVar[int]("own", default=-1)
    inherited.set("job")
    seen: list[tuple[str, int, int]] = []

    def looks(record: Record) -> None:
        before = own.get()
        own.set(record.offset)
        seen.append((inherited.get(), before, own.get()))

    async def later(record: Record) -> None:
        looks(record)
        await asyncio.sleep(0.001)
        assert own.get() == record.offset

    found = handled(Handler(later if is_async else looks, None, concurrency=2), [*map(record, range(20))])
    assert all(one.error is None for one in found)
    assert sorted(seen) == [("job", -1, offset) for offset in range(20)]
    assert own.get() == -1


@pytest.mark.behaviour("HAND-5")
def test_the_id_of_a_record() -> None:
    assert record(17).id == "payments/t1/0/17"
    assert record(17).id != Record("payments", 0, 17, topic_id="t2").id
    timestamp = Record("payments", 0, 17, timestamp_ms=1_500).timestamp
    assert timestamp is not None
    assert timestamp.isoformat() == "1970-01-01T00:00:01.500000+00:00"


@pytest.mark.behaviour("HAND-1")
def test_a_slow_key_blocks_no_other() -> None:
    hanging = Hanging()
    handling = Handling(Handler(hanging, None, concurrency=2, timeout=15), enough=5)
    handling.feed([record(0, b"slow"), *(record(n, b"slow") for n in range(1, 4)), *map(record, range(4, 9))])
    assert sorted(one.record.offset for one in handling.finished(10)) == [4, 5, 6, 7, 8]
    hanging.go_on.set()
    found: list[int] = []
    while handling.outstanding:  # between two calls of the key none runs: what there is may be handed over
        found += [one.record.offset for one in handling.finished(10)]
    assert found == [0, 1, 2, 3]
    handling.close()


@pytest.mark.behaviour("HAND-4")
def test_closing_cancels_what_runs() -> None:
    begun, ended, threads = threading.Event(), threading.Event(), {*threading.enumerate()}

    async def waits(_: Record) -> None:
        try:
            begun.set()
            await asyncio.sleep(600)
        finally:
            ended.set()

    handling = Handling(Handler(waits, None, timeout=60))
    handling.feed([record(0), record(1)])
    assert begun.wait(60)
    assert handling.finished(0.2) == []
    before = time.monotonic()
    handling.close()
    assert ended.is_set()
    assert time.monotonic() - before < 30
    new = {*threading.enumerate()} - threads
    assert len([one for one in new if one.name == "handler-loop"]) <= 1  # instead of one that hung before


@pytest.mark.behaviour("HAND-2")
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
@both_ways
def test_what_ends_programs_ends_the_call_alone(error: BaseException, *, is_async: bool) -> None:
    def fails(record: Record) -> dict[str, int]:
        if record.offset == 0:
            raise error
        return {"id": record.offset}

    handler = Handler(called(fails, is_async=is_async), None, retries=Retries(attempts=1))
    assert [one.error is None for one in handled(handler, [record(0), record(1)])] == [False, True]


@dataclass(frozen=True, slots=True)
class Broken(Retries):
    """Retries that can't tell how long to wait."""

    error: type[BaseException] = ZeroDivisionError

    def wait(self, attempt: int) -> float:
        raise self.error(f"no wait after attempt {attempt}")


@pytest.mark.behaviour("HAND-2")
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
@both_ways
def test_an_error_of_the_engine_itself_ends_the_handling(error: type[BaseException], *, is_async: bool) -> None:
    def fails(record: Record) -> None:
        raise ValueError(record.offset)

    handling = Handling(Handler(called(fails, is_async=is_async), None, retries=Broken(error=error)))
    handling.feed([record(0)])
    with pytest.raises((ZeroDivisionError, FunctionEnded)) as raised:
        handling.finished(10)
    assert as_raised(raised.value).args == ("no wait after attempt 1",)
    handling.close()


class Odd:
    """A key that can't be compared."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise SystemExit


class Unnoted(Outage):
    def add_note(self, note: str) -> None:
        raise SystemExit(note)


@pytest.mark.behaviour("HAND-2", "CONS-15")
def test_what_a_users_objects_raise_in_our_own_code_leaves_it_as_an_error() -> None:
    def key(record: Record) -> NoReturn:
        raise Unnoted(record)

    def odd(_: Record) -> Odd:
        return Odd()

    for of_key in (odd, key):
        handling = Handling(Handler(lambda one: {"id": one.offset}, None, key=of_key))
        with pytest.raises(FunctionEnded):
            handling.feed([record(0), record(1)])
        handling.close()


@pytest.mark.behaviour("HAND-2", "HAND-11")
@pytest.mark.parametrize(
    "key", [lambda: [0], lambda: next(iter(())), lambda: sys.exit(1)], ids=["unhashable", "raises", "exits"]
)
def test_a_record_without_a_key_that_can_be_used_fails_alone(key: Callable[[], Any]) -> None:
    def of_first(record: Record) -> Any:
        return key() if record.offset == 0 else record.offset

    found = handled(Handler(lambda one: {"id": one.offset}, None, key=of_first), [record(0), record(1)])
    assert [one.error is None for one in found] == [False, True]
    assert found[0].attempts == 0


@pytest.mark.behaviour("HAND-11")
def test_an_outage_of_key_blames_no_record_and_names_its_own() -> None:
    calls = list[int]()

    def of_first(record: Record) -> int:
        if record.offset == 1:
            raise Outage("the key's service is down")
        return record.offset

    handling = Handling(Handler(lambda one: calls.append(one.offset), None, key=of_first))
    handling.feed(map(record, range(4)))
    assert handling.outstanding == 4
    with pytest.raises(Outage) as down:
        handling.finished(10)
    assert outage_of_call(down.value) == "Outage, in a call for payments-0 at offset 1"
    handling.close()
    assert calls == []


@pytest.mark.behaviour("HAND-11")
def test_a_key_that_hangs_ends_in_an_error_and_many_slow_ones_do_not() -> None:
    hanging = Hanging()

    def of_first(record: Record) -> object:
        return hanging(record)["id"]

    handling = Handling(Handler(lambda _: None, None, key=of_first, timeout=0.5))
    slow = threading.Event()

    def after_a_while(one: Record) -> int:
        slow.wait(0.2)
        return one.offset

    assert len(handled(replace(handling.handler, key=after_a_while), [*map(record, range(4))])) == 4
    handling.feed([record(3), record(0), record(2)])
    with pytest.raises(HandlerStuck, match=r"key= did not return within 0.5 s.*payments-0 at offset 0"):
        handling.finished(10)
    handling.close()
    hanging.go_on.set()


@pytest.mark.behaviour("HAND-1", "HAND-4")
@pytest.mark.parametrize("concurrency", [1, 4])
def test_calls_that_are_all_slow_are_late_one_by_one_and_nothing_is_stuck(concurrency: int) -> None:
    async def slow(record: Record) -> dict[str, int]:
        await asyncio.sleep(60 if record.offset < 4 else 0)
        return {"id": record.offset}

    before = time.monotonic()
    records = [record(offset, b"ab"[offset % 2 :]) for offset in range(6)]
    found = handled(Handler(slow, None, timeout=1.2, concurrency=concurrency), records)
    assert time.monotonic() - before < 30
    assert [one.error and one.error.error_class for one in found] == ["HandlerTimeout"] * 4 + [None] * 2
    assert {one.attempts for one in found} == {1}
    assert [one.rows for one in found[4:]] == [({"id": 4},), ({"id": 5},)]


@pytest.mark.behaviour("HAND-4")
def test_calls_that_never_return_are_bounded_however_many_batches_they_come_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("offsetstore.processing.handling._MOST_LEFT", 3)
    monkeypatch.setattr("offsetstore.processing.handling._left", {})
    hanging, before = Hanging(), {*threading.enumerate()}

    def threads() -> int:
        new = {*threading.enumerate()} - before
        return len([one for one in new if one.name.startswith("handler-")])

    def batch(timeout: float = 0.1) -> list[CallOutcome]:
        with closing(Handling(Handler(hanging, None, timeout=timeout, concurrency=1))) as handling:
            handling.feed([record(0)])
            return handling.finished(10)

    for _ in range(3):
        assert [one.error and one.error.error_class for one in batch()] == ["HandlerTimeout"]
    for _ in range(2):
        with pytest.raises(HandlerStuck, match=r"3 calls of earlier batches.*payments-0 at offset 0"):
            batch()
    wait_until(lambda: threads() == 3)

    hanging.go_on.set()
    wait_until(lambda: threads() == 0)
    assert [one.rows for one in batch(timeout=30)] == [({"id": 0},)]


@pytest.mark.behaviour("HAND-3")
def test_a_row_is_as_it_was_when_it_was_returned() -> None:
    kept = {"n": 0}

    def counts(_: Record) -> dict[str, int]:
        kept["n"] += 1
        return kept

    found = handled(Handler(counts, None, ordering="partition"), [*map(record, range(3))])
    assert [one.rows for one in found] == [({"n": 1},), ({"n": 2},), ({"n": 3},)]


@pytest.mark.behaviour("HAND-3")
def test_all_handlers_of_a_process_have_one_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are bound to the loop that they were made on."""
    monkeypatch.setattr("offsetstore.processing.handling._LAG", 60.0)  # one that answers late would be replaced
    loops = set[int]()

    async def tells(_: Record) -> None:
        loops.add(id(asyncio.get_running_loop()))

    for _ in range(3):
        handled(Handler(tells, None), [record(0)])
    assert len(loops) == 1


@pytest.mark.behaviour("HAND-3")
def test_functions_that_are_async() -> None:
    class Client:
        async def __call__(self, record: Record) -> dict[str, int]:
            return {"id": record.offset}

        async def method(self, record: Record, more: int = 0) -> dict[str, int]:
            return {"id": record.offset + more}

    for function in (Client(), Client().method, partial(Client().method, more=0)):
        assert Handler(function, None).is_async
        assert handled(Handler(function, None), [record(3)])[0].rows == ({"id": 3},)
    assert not Handler(several, None).is_async


async def ticks(record: Record) -> AsyncIterator[dict[str, int]]:
    yield {"id": record.offset}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"fn": 7}, "fn must be a function"),
        ({"fn": divmod}, "(?s)fn can't be called.*divmod.*of one argument"),
        ({"fn": ticks.__hash__}, "fn can't be called"),
        ({"fn": ticks}, "an async generator"),
        ({"retries": 5}, "retries must be Retries"),
        ({"concurrency": 0}, "concurrency must be 1 or more"),
        ({"concurrency": 1.5}, "concurrency must be"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"timeout": float("inf")}, "timeout must be"),
        ({"ordering": "keys"}, "ordering is unknown"),
        ({"key": "customer"}, "key must be a function"),
        ({"key": len, "ordering": "none"}, 'goes with ordering="key"'),
    ],
)
def test_arguments_that_make_no_sense(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Handler(arguments.pop("fn", several), None, **arguments)
