"""A job around its query: reports its end in a few lines and by the exit code; SIGTERM stops it between batches."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from types import FrameType, SimpleNamespace, TracebackType
from typing import Any, Final, Self, cast

from py4j.protocol import Py4JError, Py4JJavaError  # pyright: ignore[reportMissingTypeStubs]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway  # pyright: ignore[reportUnknownVariableType]
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from offsetstore.errors import ExitCode, OffsetStoreError, exit_code
from offsetstore.postgres.errors import of_store
from offsetstore.protocol.events import BatchEnded, Event, FlushEnded, LettersWritten, PauseChanged, QueryStarted
from offsetstore.runtime.functions import InterruptSignal, TermSignal
from offsetstore.runtime.process import StopRequests
from offsetstore.spark.function_errors import is_of_java, told_by_us, typed
from offsetstore.spark.plans.admission import check_connector
from offsetstore.spark.plans.query import parse_offsets
from offsetstore.spark.sink import TransactionalSink
from offsetstore.text import TRACE, counted, describe_error, describe_other, error_text, print_trace

_LOOK: Final = 0.5  # seconds between two looks at the query
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
# They log what ends a query, each with Java's whole stack (decision 0059).
_LOUD: Final = ("org.apache.spark.executor.Executor", "org.apache.spark.scheduler.TaskSetManager")
# Files below these directories are not the job's code.
_OTHERS: Final = tuple(str(Path(sys.modules[name].__file__ or name).parent) for name in ("pyspark", "py4j"))
_RATE_SECONDS: Final = 10.0


def job() -> Job:
    """Return the context of a whole job, from its claim to its end.

    ::

        with offsetstore.spark.job() as job, OffsetStore.connect() as store:
            claim = store.claim(...)
            sink = TransactionalSink(claim, ...)
            job.run(spark.readStream. ... .foreachBatch(sink). ... .start(), sink)

    An error that leaves the block is printed in at most 15 lines (with OFFSETSTORE_TRACE=1 in the environment, with
    the traces of Python and Java), and becomes the process's exit code: see docs/supervise.md.

    SIGTERM and Ctrl-C stop the query after the batch that is being written, see `TransactionalSink.stop`; another
    signal, a second or more later, ends the process at once. Before `Job.run` they end the block. In threads other than
    the main one they are left alone. The exit code is 0 after SIGTERM, and 130 after Ctrl-C.
    """
    return Job()


class Job:
    """What `job` returns."""

    def __init__(self) -> None:
        self._is_running = False
        self._signal: int | None = None
        self._requests = StopRequests()
        self._before: dict[int, Any] = {}
        self._quiet = ExitStack()

    def __enter__(self) -> Self:
        self._listen()
        if threading.current_thread() is threading.main_thread():
            self._quiet.enter_context(_keeping_handler())
        if not os.environ.get(TRACE):
            self._quiet.enter_context(_without_interrupts())
            self._quiet.enter_context(told_by_us())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._quiet.close()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if error is None or isinstance(error, (SystemExit, GeneratorExit)):
            return
        reported = _told(error)
        _tell(reported)
        raise SystemExit(int(exit_code(reported))) from None

    def run(self, query: StreamingQuery, sink: TransactionalSink) -> None:
        """Wait until the query ends, or stop it when a signal asks for it; then close the sink's claim.

        At a terminal it shows how far the job has got.

        :raises OffsetStoreError: what ended the query. `OffsetGap` already at its first trigger, if it starts above the
            stored offsets.
        :raises StreamingQueryException: an error of Spark's own ended it.
        """
        # Again: Spark has set its own handler for Ctrl-C if the query was made outside of the block (decision 0059).
        self._listen()
        _silence(query)
        claim = sink.claim
        progress = _Progress(claim.group) if sys.stderr.isatty() else None
        if progress is not None:
            claim.observers = claim.observers.with_one(progress)
        # From here until the claim is closed, a first signal is only noted: else a flush would be cut (decision 0059).
        self._is_running = True
        try:
            with claim:
                try:
                    self._wait(query, sink, progress)
                except (PySparkException, Py4JError, OSError) as ended:
                    error = sink.error or ended
                    is_of_spark = isinstance(error, PySparkException)
                    if self._signal is None or not (is_of_spark or is_of_java(error)):
                        reported = error if is_of_spark else typed(error)
                        raise reported from reported.__cause__  # not from `ended`, whose text is Java's
                    # Else Spark was ended by the signal, too.
                finally:
                    with suppress(Py4JError, OSError):
                        if query.isActive:
                            query.stop()
        finally:
            self._is_running = False
            if progress is not None:
                progress.end()  # after the claim's last flush
        # Exit code 130, so that a shell's && does not go on (decision 0059).
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt

    def _wait(self, query: StreamingQuery, sink: TransactionalSink, progress: _Progress | None) -> None:
        is_checked = False
        while not query.awaitTermination(_LOOK):  # pyright: ignore[reportArgumentType] - any number of seconds
            if self._signal is not None:
                sink.stop(query)
                return
            is_checked = is_checked or sink.check_start(query)
            if progress is not None:
                progress.show(query)
        if not is_checked:  # the query has ended before the first look
            sink.check_start(query)

    def _listen(self) -> None:
        # Python allows signal handlers only in the main thread.
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            self._before.setdefault(number, signal.signal(number, self._on_signal))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._requests.add():
            return
        is_first, self._signal = self._signal is None, number
        # A second signal has its default action: nothing that hangs can delay it (decision 0059).
        if not is_first:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not self._is_running:  # else `run` stops the query
            _end_starting_java(frame)
            # 0 after SIGTERM: the job has done what it was told (decision 0059).
            raise InterruptSignal if number == signal.SIGINT else TermSignal(ExitCode.OK)


@contextmanager
def _keeping_handler() -> Generator[None]:
    """Keep Spark from setting its own handler for Ctrl-C as it starts.

    That handler calls Java in the middle of another call, which py4j logs with two traces.
    """
    module: Any = sys.modules[SparkContext.__module__]
    original = module.signal
    # There is no other way to prevent it, and setting ours again comes too late (decision 0059).
    module.signal = SimpleNamespace(**{**vars(signal), "signal": _ignore})
    try:
        yield
    finally:
        module.signal = original


def _end_starting_java(frame: FrameType | None) -> None:
    """End the Java that PySpark waits for: it would go on without Python, and end with a trace."""
    while frame is not None:
        if frame.f_code is launch_gateway.__code__ and isinstance(java := frame.f_locals.get("proc"), Popen):
            cast("Popen[bytes]", java).kill()
        frame = frame.f_back


def _ignore(*_: object) -> None: ...


@contextmanager
def _without_interrupts() -> Generator[None]:
    """Keep py4j from logging a trace for each Ctrl-C that interrupts a call to Java.

    The same for what fails as it then closes the connection: at a terminal, Java gets the signal too.
    """
    logs = [logging.getLogger(name) for name in (None, "py4j.clientserver", "py4j.java_gateway")]
    for log in logs:
        log.addFilter(_is_no_interrupt)
    try:
        yield
    finally:
        for log in logs:
            log.removeFilter(_is_no_interrupt)


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    while error is not None and not isinstance(error, InterruptSignal):
        error = error.__context__
    return error is None


class _Progress:
    """A line at the terminal that says how far the job has got. The sink's thread reports what is written.

    The first batch that is written has a line of its own, and the end one with all that was done.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._records = self._letters = self._batches = 0
        self._state = "starting"
        self._samples: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def on(self, event: Event) -> None:
        """Count what is stored."""
        match event:
            case BatchEnded(outcome="written") | FlushEnded(outcome="written"):
                if not self._batches:
                    self._write_line(_of_first(event))
                first, last = event.batches or (0, 0) if isinstance(event, FlushEnded) else (0, 0)
                self._batches += last - first + 1
                self._records += sum(range_.until - range_.from_ for range_ in event.ranges.values())
            case LettersWritten():
                self._letters += sum(event.letters.values())
            case PauseChanged():
                self._state = "paused" if event.pause else ""
            case QueryStarted():
                self._state = ""
            case _:
                pass

    def show(self, query: StreamingQuery) -> None:
        """Rewrite the line."""
        now = time.monotonic()
        self._samples.append((now, self._records))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_SECONDS:  # noqa: PLR2004 - one is now's
            self._samples.popleft()
        (since, before), behind = self._samples[0], _behind(query)
        parts = [
            self._state,
            f"{self._records:,} records",
            f"{(self._records - before) / max(now - since, _LOOK):,.0f}/s",
            "" if behind is None else f"{behind:,} behind",
            f"{self._letters:,} dead letters" if self._letters else "",
        ]
        self._write_line(", ".join(part for part in parts if part), end="\r")  # logs overwrite it

    def end(self) -> None:
        """Write what the job has done, also since the last look."""
        batches = f"{self._batches:,} {'batch' if self._batches == 1 else 'batches'}"
        letters = f", {self._letters:,} dead letters" if self._letters else ""
        self._write_line(f"{self._records:,} records in {batches}{letters}")

    def _write_line(self, text: str, *, end: str = "\n") -> None:
        _write(f"\r\033[K{self._group}: {text}{end}")


def _of_first(event: BatchEnded | FlushEnded) -> str:
    rows = counted(sum(event.rows.values()), "row")
    return f"batch {event.batch}: {rows}" if isinstance(event, BatchEnded) else f"flushed {rows}"


def _behind(query: StreamingQuery) -> int | None:
    """The number of offsets beyond the last batch, as of its trigger; ``None`` before the first batch."""
    java: Any = query
    progress = java._jsq.lastProgress()  # noqa: SLF001 - the JSON of all versions of Spark
    if progress is None:
        return None
    sources = json.loads(progress.json())["sources"]
    latest, end = (
        {tp: at for source in sources for tp, at in parse_offsets(json.dumps(source[key] or {})).items()}
        for key in ("latestOffset", "endOffset")
    )
    return sum(max(0, at - end.get(tp, at)) for tp, at in latest.items())


def _silence(query: StreamingQuery) -> None:
    """Keep Java from logging what `job` prints."""
    if os.environ.get(TRACE):
        return
    java: Any = query
    session: Any = SparkSession.active()
    with suppress(Py4JError):  # a log of another kind
        log = session._jvm.org.apache.logging.log4j  # noqa: SLF001 - py4j's gateway
        for name in (java._jsq.streamingQuery().getClass().getName(), *_LOUD):  # noqa: SLF001
            log.core.config.Configurator.setLevel(name, log.Level.OFF)


def _told(error: BaseException) -> BaseException:
    """Return the error to report instead, if it is the database's, or follows from a missing connector."""
    if isinstance(error, (PySparkException, Py4JJavaError)):
        try:
            if (session := SparkSession.getActiveSession()) is not None:
                check_connector(session)
        except OffsetStoreError as missing:
            missing.__cause__ = error
            return missing
        except (Py4JError, OSError):  # Java has ended
            pass
    return of_store(error) or error


def _tell(error: BaseException) -> None:
    print_trace(error)
    if isinstance(error, KeyboardInterrupt):
        _write("Interrupted.\n")
    elif isinstance(error, OffsetStoreError):
        _write(f"{error_text(*describe_error(error))}\n")
    else:
        _write(f"{error_text(*describe_other(error, others=_OTHERS))}\n")


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
