"""Calls of a `Handler`: many at once, in order within a key, each record retried alone. It knows no Spark and no Kafka.

Records are fed, and their outcomes are fetched as they finish. A record waits only for earlier ones of its key; a
record that waits for its retry leaves its slot to others. Whoever fetches also watches over the calls (their timeouts,
the delays of retries), so there is one place for both ways of calling: `_Threads` and `_Loop`.

A thread can't be ended, and a coroutine may ignore that it is cancelled. So a call that takes too long fails at once,
and holds its slot and its key until it returns. If it has not returned when all else is done, it is abandoned; with too
many abandoned calls the process makes no more.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import inspect
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count, takewhile
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

from offsetstore.errors import (
    ConfigurationError,
    FunctionEnded,
    FunctionFailed,
    HandlerStuck,
    MissingDependency,
    SinkError,
    as_raised,
)
from offsetstore.lazy import find
from offsetstore.protocol.arguments import check_seconds, check_whole
from offsetstore.protocol.context import as_current, propagated
from offsetstore.protocol.letters import Headers
from offsetstore.protocol.ports import Writer, declares
from offsetstore.protocol.retries import Retries
from offsetstore.runtime.background import meanwhile
from offsetstore.runtime.functions import as_texts, call, tells_of_outage, without_frames
from offsetstore.text import at_line

Ordering: TypeAlias = Literal["key", "partition", "none"]
HandlerRow: TypeAlias = "Mapping[str, Any] | tuple[Any, ...]"

ORDERINGS: Final = ("key", "partition", "none")
TIMEOUT: Final = "HandlerTimeout"
"""The error class of a call that takes too long."""
RESULT: Final = "HandlerResult"
"""The error class of a call that returned something that can't be rows."""

_CALL_FOR: Final = "in a call for "
_NEXT_STEPS: Final = {
    TIMEOUT: "Give the calls more time (timeout=)",
    RESULT: "Correct what the function returns, or the handler's schema",
}
_CORRECT: Final = "Correct the function"
_KEEP: Final = ", or keep such records as dead letters: dead_letters=DeadLetters()."

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RETRIES: Final = Retries(attempts=3, shortest=0.05, longest=1.0)
_LOOK: Final = 0.05
"""Seconds between two looks at timeouts and delays."""
_LAG: Final = 1.0
"""Seconds without an answer after which the event loop is worth a warning."""
# Each may keep a thread, and each batch could leave some: only a new process frees them (decision 0086).
_MOST_LEFT: Final = 64
"""The most abandoned calls of this process, or as many as run at once if that is more."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Record:
    """One of Kafka's records, as a handler gets it.

    :param topic_id: Kafka's id of the topic, which differs if the topic was created again.
    :param timestamp_ms: milliseconds since 1970, in UTC.
    :param headers: in order; names may repeat. Empty if the reader did not read them.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None = None
    value: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int | None = None
    topic_id: str = ""

    @property
    def id(self) -> str:
        """An idempotency key: the same each time the record is handled, and different for each record."""
        return f"{self.topic}/{self.topic_id}/{self.partition}/{self.offset}"

    @property
    def timestamp(self) -> datetime | None:
        """When the record was produced, or appended to the log."""
        return None if self.timestamp_ms is None else _EPOCH + timedelta(milliseconds=self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class Handler:
    """A function to call for each record, with many calls at once: for work that waits for other services.

    Rows are written exactly once; calls are made at least once: after a crash, records whose rows were not stored are
    handled again. What ``fn`` does in other systems should be idempotent, with `Record.id` as the key.

    :param fn: takes a `Record`, and returns its row, several rows, or ``None``. A row is a mapping of names to values,
        or a tuple in the schema's order; return several as a list or a generator. A plain function is called in
        threads, an ``async def`` on an event loop.
    :param schema: of the rows: a pyarrow schema, or Spark's DDL text (``"id long, score double"``).
    :param concurrency: the most calls at once, in each of Spark's tasks or in the consumer's process.
    :param ordering: ``"key"``: records with the same key are handled one after the other, in order; records without a
        key at any time. ``"partition"``: all records of a partition are handled in order. ``"none"``: in any order.
    :param key: computes a record's key, instead of Kafka's own. It must be quick, since all records wait for it. A
        record for which it fails is not retried; if a call exceeds ``timeout``, the job ends with `HandlerStuck`.
    :param timeout: seconds for one call. After that the record fails, and is not retried.
    :param retries: of a record that failed; meanwhile only its own key waits.
    :raises ConfigurationError: an argument is invalid.
    """

    fn: Callable[[Record], Any]
    schema: Any
    concurrency: int = 64
    ordering: Ordering = "key"
    key: Callable[[Record], Hashable] | None = None
    timeout: float = 30.0
    retries: Retries = _RETRIES

    def __post_init__(self) -> None:
        for name, function in (("fn", self.fn), ("key", self.key)):
            if not callable(function) and (name == "fn" or function is not None):
                raise ConfigurationError(f"{name} must be a function of a record", found=repr(function))
        if inspect.isasyncgenfunction(self.fn) or not _takes_one(self.fn):
            raise ConfigurationError(
                "fn can't be called as a handler is",
                found=f"{_shown(self.fn)}, an async generator" if _takes_one(self.fn) else _shown(self.fn),
                expected="a function, or an async function, of one argument: the record",
            )
        if not isinstance(cast("object", self.retries), Retries):
            raise ConfigurationError(
                "retries must be Retries", found=repr(self.retries), expected="Retries(attempts=3)"
            )
        check_whole("concurrency", self.concurrency, "calls", least=1)
        check_seconds("timeout", self.timeout)
        if self.ordering not in ORDERINGS:
            raise ConfigurationError(
                "ordering is unknown", found=repr(self.ordering), expected=", ".join(map(repr, ORDERINGS))
            )
        if self.key is not None and self.ordering != "key":
            raise ConfigurationError(f'key= goes with ordering="key", not with {self.ordering!r}')

    @property
    def is_async(self) -> bool:
        """Whether ``fn`` is called on an event loop."""
        return inspect.iscoroutinefunction(self.fn) or inspect.iscoroutinefunction(getattr(self.fn, "__call__", None))  # noqa: B004 - an object's own

    def rows_of(self, returned: object) -> Sequence[Any]:
        """The rows that a call returned, copied; with several outputs, mappings of their names to rows.

        :raises NoRows: the call returned something else.
        """
        rows = rows_of(returned)
        schema: object = self.schema
        if not isinstance(schema, Mapping):
            return rows
        found: list[dict[str, Sequence[HandlerRow]]] = []
        for row in rows:
            if not isinstance(row, Mapping):
                raise NoRows(f"the handler returned {type(row).__name__}; expected a mapping of outputs to their rows")
            outputs = cast("Mapping[str, object]", schema)
            if unknown := row.keys() - outputs.keys():
                raise NoRows(
                    f"there is no output {', '.join(sorted(map(repr, unknown)))}",
                    shown=f"the handler returned an output that its schema does not have; it has {', '.join(outputs)}",
                )
            found.append({name: rows_of(of_output) for name, of_output in row.items()})
        return found

    def key_of(self, record: Record) -> Hashable:
        """Records with equal keys are handled in order; with ``None`` at any time.

        :raises Exception: the user's function's own, or the key is not hashable.
        """
        match self.ordering:
            case "none":
                return None
            case "partition":
                return (record.topic, record.partition)
            case _:
                key = record.key if self.key is None else self.key(record)
                try:
                    hash(key)
                except TypeError as error:
                    raise TypeError(
                        f"key= returned what can't be hashed: {error}; return bytes, a text, a number or a tuple"
                    ) from None
                return None if key is None else (record.topic, record.partition, key)


def check_order(handler: Handler, writer: Writer, *, uses_kafka: bool) -> None:
    """Check that the writer accepts rows in the handler's order.

    :param uses_kafka: whether the writer compares the places of rows in Kafka.
    :raises ConfigurationError: the handler has no order, and the writer assumes that later rows are newer.
    """
    if handler.ordering == "none" and uses_kafka and declares(writer, "replaces_in_order"):
        raise ConfigurationError(
            'with ordering="none" a later record of a key may be handled first, and the Upsert replaces columns',
            found=str(writer),
            expected='ordering="key", or an Upsert with version=',
        )


@dataclass(frozen=True, slots=True)
class HandlerError:
    """Why a record has no rows.

    :param text: the exception's text, which may quote the record.
    :param shown: follows the class where no value may be shown: where it was raised, or what does not fit.
    """

    error_class: str
    text: str
    traceback: str | None = None
    shown: str = ""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What became of a record.

    :param attempts: how often it was tried.
    """

    record: Record
    rows: Sequence[HandlerRow] = ()
    error: HandlerError | None = None
    attempts: int = 1


@dataclass(slots=True)
class Figures:
    """Counts of the calls so far.

    :param seconds: spent in all calls together.
    :param lag: the most seconds for which the event loop did not answer.
    """

    calls: int = 0
    retries: int = 0
    timeouts: int = 0
    seconds: float = 0.0
    lag: float = 0.0

    def since(self, earlier: Figures) -> Figures:
        """The difference to an earlier count, except for ``lag``."""
        return Figures(
            self.calls - earlier.calls,
            self.retries - earlier.retries,
            self.timeouts - earlier.timeouts,
            self.seconds - earlier.seconds,
            self.lag,
        )

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.calls + other.calls,
            self.retries + other.retries,
            self.timeouts + other.timeouts,
            self.seconds + other.seconds,
            max(self.lag, other.lag),
        )


@dataclass(slots=True, eq=False)
class _Task:
    """A record, and the attempts at it so far."""

    record: Record
    key: Hashable
    attempts: int = 0


@dataclass(slots=True, eq=False)
class _Call:
    """One call. ``cancel`` cancels it, where that is possible."""

    task: _Task
    since: float
    cancel: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class _Failure:
    """How a call failed.

    :param is_final: whether calling again would not help.
    :param outage: the exception, if no record is to blame for it.
    """

    error: HandlerError
    is_final: bool = False
    outage: BaseException | None = None


_T = TypeVar("_T")


class Queues(Generic[_T]):
    """Queues of items, of which those with the same key are done one after the other; ``ready`` may be done now."""

    def __init__(self) -> None:
        self.ready = deque[_T]()
        self._behind: dict[Hashable, deque[_T] | None] = {}  # of each key that is ready or being done

    def add(self, key: Hashable, item: _T) -> None:
        """Add an item behind all others of its key; with ``None`` as the key it is ready at once."""
        if key is None:
            self.ready.append(item)
        elif key not in self._behind:
            self._behind[key] = None
            self.ready.append(item)
        else:
            waiting = self._behind[key]
            if waiting is None:
                waiting = self._behind[key] = deque()
            waiting.append(item)

    def done(self, key: Hashable) -> None:
        """Make the next item of the key ready."""
        if key is None:
            return
        waiting = self._behind[key]
        if waiting:
            self.ready.append(waiting.popleft())
        else:
            del self._behind[key]


class _Caller(Protocol):
    """A way to make the calls."""

    def wake(self) -> None:
        """Begin the calls that may begin. Call this without the lock."""
        ...

    def lag(self) -> float | None:
        """Seconds for which no call can have made progress; ``None`` if not known yet."""
        ...

    def running(self) -> Record | None:
        """The record whose call keeps the others from making progress, if known."""
        ...

    def close(self) -> None:
        """Cancel what can be cancelled, and wait up to the handler's timeout. Call this without the lock."""
        ...


_SpanOfCall: TypeAlias = Callable[[Record, Headers], AbstractContextManager[None]]


def _spans() -> _SpanOfCall:
    """Makes a span for each call; makes none without OpenTelemetry."""
    try:
        return find("offsetstore.processing.spans", "span_of_call", what="a span for a call", extra="opentelemetry")
    except MissingDependency:
        return lambda record, headers: nullcontext()  # noqa: ARG005 - as the other takes them


_left: Final = dict["_Call", None]()
"""Abandoned calls: their `Handling` is closed, and they have not returned since. As a dict, to keep the order."""


class Handling:
    """Calls a handler for the records that it is fed, until it is closed. One thread feeds and fetches.

    :param enough: how many outcomes `finished` waits for while the most calls run.
    :param propagate: the names of the headers that follow a record into its calls' context.
    """

    def __init__(self, handler: Handler, *, enough: int = 1, propagate: Collection[str] = ()) -> None:
        self.handler = handler
        self._propagate = propagate
        self._span_of_call = _spans() if propagate else None
        self.figures = Figures()
        self.outstanding = 0
        self.is_closed = False
        self.lock = threading.Lock()
        self.may_begin = threading.Condition(self.lock)
        self._has_finished = threading.Condition(self.lock)
        self._queues = Queues[_Task]()
        self._delayed: list[tuple[float, int, _Task]] = []
        self._numbers = count()
        # In the order in which they began, so that the first ones are the first to be late.
        self._running: dict[_Call, None] = {}
        self._late: dict[_Call, None] = {}
        self._finished: list[CallOutcome] = []
        self._outage: BaseException | None = None
        self._enough = enough
        self._has_warned = False
        self._looked = time.monotonic()
        self._most_away = max(4 * _LOOK, min(_LAG, handler.timeout / 2))
        """After more seconds than this between two looks, the process did not run, and its calls are not late."""
        self._waits_since: float | None = None
        self._caller: _Caller = _Loop(self) if handler.is_async else _Threads(self)

    def feed(self, records: Iterable[Record]) -> None:
        """Hand over records; records of the same key in order."""
        tasks, without_key = list[_Task](), list[CallOutcome]()
        for record, key in self._with_keys([*records]):
            if isinstance(key, _Failure):
                without_key.append(CallOutcome(record, (), key.error, 0))
            else:
                tasks.append(_Task(record, key))
        with self.lock:
            call(self._enqueue, tasks)  # keys may be the user's objects, which compare as they like
            self._finished += without_key
            self.outstanding += len(tasks) + len(without_key)
            if len(left := [*_left]) >= max(_MOST_LEFT, self.handler.concurrency):
                what = f"{len(left)} calls of earlier batches have not returned"
                self._outage = self._outage or _stuck(what, left[0].task.record)
        self._caller.wake()

    def _enqueue(self, tasks: Iterable[_Task]) -> None:
        for task in tasks:
            self._queues.add(task.key, task)

    def _with_keys(self, records: Sequence[Record]) -> Sequence[tuple[Record, Hashable | _Failure]]:
        """The records, each with its key, or with the reason why it has none."""
        if self.handler.key is None:
            return [*zip(records, map(self.handler.key_of, records), strict=True)]
        # All records wait for `key=`: so it is not retried, and called in a thread, since it may hang (decision 0099).
        found: list[tuple[Record, Hashable | _Failure]] = []

        def compute() -> None:
            for record in records:
                if self.is_closed:
                    return
                try:
                    found.append((record, self.handler.key_of(record)))
                except BaseException as error:  # noqa: BLE001 - the user's own function
                    failure = _failure(error)
                    found.append((record, failure))
                    if self._ended_by(failure, record):
                        return

        if (late := self._await_keys(meanwhile("handler-key", compute), found)) is not None:
            self._outage = _stuck(f"key= did not return within {self.handler.timeout:g} s", records[late])
        return found if self._outage is None else [(record, None) for record in records]

    def _await_keys(self, computed: Future[None], found: Sequence[object]) -> int | None:
        """Wait for all keys; return the number of the record whose key takes too long, if any does."""
        count, since = 0, time.monotonic()
        looked = since
        while not wait([computed], timeout=_LOOK).done:
            now = time.monotonic()
            # The time limit is for each key; time in which the process did not run does not count.
            if len(found) > count or now - looked > self._most_away:
                count, since = len(found), now
            if now - since >= self.handler.timeout:
                return len(found)
            looked = now
        return computed.result()

    def _ended_by(self, failure: _Failure, record: Record) -> bool:
        """If no record is to blame for the failure, end the handling; return whether it ends."""
        if failure.outage is None:
            return False
        call(failure.outage.add_note, f"{_CALL_FOR}{_place(record)}")
        self._outage = failure.outage
        return True

    def finished(self, seconds: float = float("inf")) -> list[CallOutcome]:
        """Wait for outcomes, and take them; none if nothing is outstanding, or after ``seconds``.

        :raises Exception: the handler's own, if it tells of an outage: no record is to blame.
        :raises HandlerStuck: no call can be made any more.
        """
        deadline = time.monotonic() + seconds
        while True:
            self._look()
            with self.lock:
                if isinstance(self._outage, Exception):
                    raise self._outage
                # What is no Exception, such as SystemExit, ends its call, not the process (decision 0099).
                if self._outage is not None:
                    raise FunctionEnded(f"it raised {type(self._outage).__name__}") from self._outage
                if self._has_enough() or time.monotonic() >= deadline:
                    outcomes, self._finished = self._finished, []
                    self.outstanding -= len(outcomes)
                    return outcomes
                self._has_finished.wait(max(0.0, min(_LOOK, deadline - time.monotonic())))

    def close(self) -> None:
        """End what can be ended; abandon the calls that can't."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
            self.may_begin.notify_all()
        self._caller.close()
        del self._caller  # it has this object, and so all records
        with self.lock:
            self._outage = None  # it was raised from a frame of ours
            _left.update(self._running | self._late)

    @property
    def in_flight(self) -> int:
        return len(self._running) + len(self._late)

    @property
    def late(self) -> int:
        """The number of calls that took too long and have not returned."""
        return len(self._late)

    @property
    def has_room(self) -> bool:
        """Whether more records are needed, so that the most calls can run."""
        return len(self._queues.ready) < self.handler.concurrency

    def context_of(self, record: Record) -> AbstractContextManager[None]:
        """The context of a call for the record: the headers that follow it, and a span of its trace."""
        return nullcontext() if self._span_of_call is None else self._following(record, self._span_of_call)

    @contextmanager
    def _following(self, record: Record, span: _SpanOfCall) -> Generator[None]:
        headers = propagated(record.headers, self._propagate)
        with as_current(headers), span(record, headers):
            yield

    def next_call(self) -> _Call | None:
        """Begin a call, if one may begin. Call this with the lock."""
        has_ended = self.is_closed or self._outage is not None
        if has_ended or not self._queues.ready or self.in_flight >= self.handler.concurrency:
            return None
        task = self._queues.ready.popleft()
        task.attempts += 1
        self.figures.calls += 1
        call = _Call(task, time.monotonic())
        self._running[call] = None
        return call

    def returned(self, call: _Call, rows: Sequence[Any], failure: _Failure | None) -> None:
        """Take the outcome of a call. Afterwards at most one more call may begin. Call this with the lock."""
        try:
            self._take(call, rows, failure)
        except BaseException as error:  # noqa: BLE001 - a bug of ours; whoever waits must hear of it
            self._outage = error
            self._has_finished.notify()

    def _take(self, call: _Call, rows: Sequence[Any], failure: _Failure | None) -> None:
        task, now = call.task, time.monotonic()
        _left.pop(call, None)
        self.figures.seconds += now - call.since
        # Its record has failed already; only now may the next one of its key begin.
        if call in self._late:
            del self._late[call]
            self._queues.done(task.key)
            return
        del self._running[call]
        retries = self.handler.retries
        if failure is None:
            self._finish(task, rows, None)
        elif task.attempts < retries.attempts and not failure.is_final:
            self.figures.retries += 1
            if failure.outage is not None:
                without_frames(failure.outage)
            heapq.heappush(self._delayed, (now + retries.wait(task.attempts), next(self._numbers), task))
            return  # its key waits
        elif self._ended_by(failure, task.record):
            self._has_finished.notify()
        else:
            self._finish(task, (), failure.error)
        self._queues.done(task.key)

    def _finish(self, task: _Task, rows: Sequence[Any], error: HandlerError | None) -> None:
        self._finished.append(CallOutcome(task.record, rows, error, task.attempts))
        if self._has_enough():
            self._has_finished.notify()

    def _has_enough(self) -> bool:
        """Whether to hand over outcomes: one by one only if more calls could run."""
        wanted = self._enough if self.in_flight + 1 >= self.handler.concurrency else 1
        return len(self._finished) >= min(wanted, self.outstanding)

    def _look(self) -> None:
        """Fail calls that take too long, and requeue records whose delay before a retry is over.

        :raises HandlerStuck: no call can be made any more.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK:
            return
        was_away, self._looked = now - self._looked > self._most_away, now
        late: list[_Call] = []
        with self.lock:
            # If the process was away, or the loop is blocked, a call is not to blame for being late.
            if not was_away and self._goes_on():
                late += takewhile(lambda call: now - call.since >= self.handler.timeout, self._running)
            for call in late:
                del self._running[call]
                self._late[call] = None
                self.figures.timeouts += 1
                text = f"the call did not return within {self.handler.timeout:g} s"
                self._finish(call.task, (), HandlerError(TIMEOUT, text, shown=f": {text}"))
            has_due = False
            while self._delayed and self._delayed[0][0] <= now:
                self._queues.ready.appendleft(heapq.heappop(self._delayed)[2])
                has_due = True
        for call in late:
            if call.cancel is not None:
                call.cancel()
        if has_due:
            self._caller.wake()
        with self.lock:
            if was_away:
                self._waits_since = None
            self._check_late(now)

    def _check_late(self, now: float) -> None:
        """Check whether only late calls are left.

        :raises HandlerStuck: everything else has waited for them as long as a call may take.
        """
        waits = self._late and not self._running and not self._delayed and self.outstanding > len(self._finished)
        if not waits:
            self._waits_since = None
            return
        self._waits_since = self._waits_since or now
        if now - self._waits_since >= self.handler.timeout:
            raise _stuck(
                f"all that is left to do waits for {len(self._late)} of its calls", next(iter(self._late)).task.record
            )

    def _goes_on(self) -> bool:
        """Whether calls make progress: blocking code in an async function stops all of them.

        :raises HandlerStuck: it has done so for longer than a call may take.
        """
        lag, limit = self._caller.lag(), self.handler.timeout
        if lag is None:
            return False
        self.figures.lag = max(self.figures.lag, lag)
        if lag <= min(_LAG, limit / 2):
            return True
        record = self._caller.running()
        if lag > limit:
            raise _stuck(f"its event loop has not answered for {lag:.1f} s", record)
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the handler's event loop has not answered for %.1f s%s: blocking code in an async function stops all "
                "other calls; await instead, or use a plain function, which is called in threads",
                lag,
                "" if record is None else f", in a call for {_place(record)}",
            )
        return False


class _Threads:
    """Calls a plain function in threads, which are started as they are needed."""

    def __init__(self, handling: Handling) -> None:
        self._handling = handling
        self._context = contextvars.copy_context()
        self._threads: list[threading.Thread] = []

    def wake(self) -> None:
        handling = self._handling
        with handling.lock:
            handling.may_begin.notify_all()
            # A late call still occupies its thread, although its record is done.
            missing = min(handling.handler.concurrency, handling.outstanding + handling.late) - len(self._threads)
        for _ in range(missing):
            # A daemon: a call that never returns must not keep the process from ending.
            thread = threading.Thread(target=self._work, name=f"handler-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def lag(self) -> float | None:
        return 0.0

    def running(self) -> Record | None:
        return None

    def close(self) -> None:
        deadline = time.monotonic() + self._handling.handler.timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        handling = self._handling
        while True:
            with handling.lock:
                while (call := handling.next_call()) is None:
                    if handling.is_closed:
                        return
                    handling.may_begin.wait()
            rows, failure = self._context.copy().run(self._call, call.task.record)
            with handling.lock:
                handling.returned(call, rows, failure)
            # This thread may wait for long: a record may be large, and an outage's frames lead to this one.
            del call, rows, failure

    def _call(self, record: Record) -> tuple[Sequence[Any], _Failure | None]:
        handler = self._handling.handler
        try:
            with self._handling.context_of(record):
                return handler.rows_of(handler.fn(record)), None
        except BaseException as error:  # noqa: BLE001 - the user's own function
            return (), _failure(error)


class _LoopThread:
    """An event loop in a separate thread, for all handlers of the process: clients are bound to a loop."""

    _current: _LoopThread | None = None

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="handler-loop", daemon=True)
        self._thread.start()

    @classmethod
    def get(cls) -> _LoopThread:
        """The process's loop; a new one if that has ended, or does not answer."""
        current = cls._current
        if current is None or not current.answers():
            current = cls._current = cls()
        return current

    def answers(self) -> bool:
        """Whether the loop makes progress."""
        # A fork has the object without its thread.
        if self._pid != os.getpid() or not self._thread.is_alive():
            return False
        answered = threading.Event()
        # A machine may be this busy; and a client that users' calls have made does not work on another loop.
        return self.call(answered.set) and answered.wait(5 * _LAG)

    def call(self, function: Callable[..., object], *arguments: object) -> bool:
        """Have the loop call a function soon; return whether the loop still runs."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the user's code has ended it
            return False
        return True

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()


class _Loop:
    """Calls an async function on the process's event loop."""

    def __init__(self, handling: Handling) -> None:
        self._handling = handling
        self._context = contextvars.copy_context()
        self._thread = _LoopThread.get()
        self._tasks: dict[_Call, asyncio.Task[None]] = {}
        self._asked: float | None = None  # when the loop was asked, while it has not answered
        self._was_answered = False
        self._has_ended = threading.Event()

    def wake(self) -> None:
        self._ask(self._begin)

    def lag(self) -> float | None:
        asked, now = self._asked, time.monotonic()
        if asked is not None:
            return now - asked
        known, self._was_answered, self._asked = self._was_answered, False, now
        self._ask(self._answer)
        return 0.0 if known else None

    def running(self) -> Record | None:
        current = asyncio.current_task(self._thread.loop)
        return next((call.task.record for call, task in [*self._tasks.items()] if task is current), None)

    def close(self) -> None:
        if self._thread.call(self._cancel):
            self._has_ended.wait(self._handling.handler.timeout)

    def _ask(self, function: Callable[[], None]) -> None:
        if not self._thread.call(function):
            raise _stuck("its event loop was ended by code that it has called", None)

    def _answer(self) -> None:
        self._asked, self._was_answered = None, True

    def _begin(self) -> None:
        handling = self._handling
        while True:
            with handling.lock:
                call = handling.next_call()
            if call is None:
                return
            self._start(call)

    def _start(self, call: _Call) -> None:
        # Not the loop's own kind of task: it may be one that begins at once.
        task = asyncio.Task(self._call(call), loop=self._thread.loop, context=self._context.copy())
        self._tasks[call] = task
        call.cancel = partial(self._thread.call, task.cancel)

    async def _call(self, call: _Call) -> None:
        handling, handler = self._handling, self._handling.handler
        rows: Sequence[Any] = ()
        failure: _Failure | None = None
        try:
            with handling.context_of(call.task.record):
                rows = handler.rows_of(await handler.fn(call.task.record))
        except BaseException as error:  # noqa: BLE001 - the user's own function
            failure = _failure(error)
        with handling.lock:
            handling.returned(call, rows, failure)
            failure = None  # an outage's frames include this one: a circle
            following = handling.next_call()
        del self._tasks[call]
        if following is not None:
            self._start(following)

    def _cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        ended = asyncio.gather(*self._tasks.values(), return_exceptions=True)
        ended.add_done_callback(lambda _: self._has_ended.set())


class HandlerFailed(Exception):
    """A handler failed for a record. The caller knows the record, and decides whether it becomes a letter.

    :param failed: our error for it, without the record.
    """

    def __init__(self, failed: FunctionFailed) -> None:
        super().__init__(failed)
        self.failed = failed

    @classmethod
    def of(cls, *, error_class: str, text: str, traceback: str | None, attempts: int, shown: str) -> HandlerFailed:
        """Make one from what the last attempt raised."""
        failed = FunctionFailed(
            f"the handler failed with {error_class}{shown} (attempts: {attempts})",
            error_class=error_class,
            text=text,
            traceback=traceback,
            is_of_call=True,
            next_step=_NEXT_STEPS.get(error_class, _CORRECT) + _KEEP,
        )
        return cls(failed)


def outage_of_call(error: BaseException) -> str:
    """The class of an outage, and the record for which the call was made."""
    error = as_raised(error)
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(_CALL_FOR)]
    return ", ".join([type(error).__name__, *notes[-1:]])


def service_unavailable(found: str) -> SinkError:
    """The error that ends a job whose handler has met an outage. Raise it from the handler's own error.

    :param found: see `outage_of_call`.
    """
    return SinkError(
        "a call of the handler failed since a service is unavailable, and no record is to blame",
        found=found,
        next_step="See the error's cause; start the job again when the service is back. If it is the same record each "
        "time, have the function raise another error for it, not from this one: then the record can become a letter.",
    )


class NoRows(Exception):
    """What a function returned can't be rows; calling it again would not help.

    ``shown`` is the text without names and values that the function chose: these may be a record's.
    """

    def __init__(self, text: str, *, shown: str | None = None) -> None:
        super().__init__(text)
        self.shown = text if shown is None else shown


def rows_of(returned: object) -> Sequence[HandlerRow]:
    """The rows that a handler returned, copied.

    :raises NoRows: it returned something else.
    """
    match returned:
        # Most rows are dicts: to recognize another kind of mapping takes longer.
        case dict():
            return ({**cast("dict[str, Any]", returned)},)
        case None:
            return ()
        case Mapping() | tuple():
            return (_row(cast("object", returned)),)
        case list() | Iterator():
            return [*map(_row, cast("Iterable[object]", returned))]
        case _:
            raise NoRows(_expected(returned))


def _row(given: object) -> HandlerRow:
    # A copy, since the function may use the mapping again for the next row.
    if isinstance(given, Mapping):
        return {**cast("Mapping[str, Any]", given)}
    if not isinstance(given, tuple):
        raise NoRows(_expected(given))
    return cast("tuple[Any, ...]", given)


def _expected(found: object) -> str:
    if inspect.isawaitable(found):
        if inspect.iscoroutine(found):
            found.close()  # or Python warns that it was never awaited
        return "the handler returned a coroutine: await it, or declare the handler with async def"
    return (
        f"the handler returned {type(found).__name__}; expected a row (a mapping or a tuple), a list of rows, or None"
    )


def described(error: BaseException) -> HandlerError:
    """What is kept of an exception, in a letter."""
    text, trace = as_texts(error)
    return HandlerError(type(error).__name__, text, trace, at_line(as_raised(error)))


def unfit(error: NoRows) -> HandlerError:
    return HandlerError(RESULT, str(error), shown=f": {error.shown}")


def _failure(error: BaseException) -> _Failure:
    if isinstance(error, NoRows):
        return _Failure(unfit(error), is_final=True)
    found = described(error)
    if tells_of_outage(error):
        return _Failure(found, outage=error)
    without_frames(error)
    return _Failure(found)


def _place(record: Record) -> str:
    return f"{record.topic}-{record.partition} at offset {record.offset}"


def _stuck(what: str, record: Record | None) -> HandlerStuck:
    return HandlerStuck(
        f"the handler hangs: {what}",
        found="a call that did not return" if record is None else f"a call for {_place(record)} that did not return",
    )


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether the function can be called with one argument, as far as is known."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # the signature of some functions in C is unknown
        return True
    return True


def _shown(function: object) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        return f"{name}{inspect.signature(cast('Callable[..., Any]', function))}"
    except (TypeError, ValueError):
        return name
