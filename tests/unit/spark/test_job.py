"""How a job ends, what it prints then, and what it shows before; without Spark."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pytest
from py4j.protocol import Py4JError  # pyright: ignore[reportMissingTypeStubs]
from pyspark import SparkContext
from pyspark.errors import AnalysisException, StreamingQueryException

import offsetstore.spark
from offsetstore import OffsetRange, Pause, TopicPartition, errors
from offsetstore.protocol.events import BatchEnded, FlushEnded, LettersWritten, PauseChanged, QueryStarted
from offsetstore.runtime.process import StopRequests
from offsetstore.spark import run_job as module
from offsetstore.spark.plans import query as queries
from offsetstore.spark.plans.admission import check_connector
from offsetstore.text import ERROR_LINES, TRACE

P0, P1 = TopicPartition("payments", 0), TopicPartition("payments", 1)
MANY = "\n".join(f"line {number}" for number in range(40))
SPARKS = "[UNRESOLVED_COLUMN] `kee` cannot be resolved.\n" + "\n".join(f"\tat org.apache.Spark({n})" for n in range(60))


def raised(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def end(work: Callable[[], object]) -> object:
    """The exit code of a job that does this."""
    with pytest.raises(SystemExit) as ended, offsetstore.spark.job():
        work()
    return ended.value.code


@pytest.mark.behaviour("DX-1")
@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (errors.StaleClaim("taken over", topic_partition=P0, found=MANY, expected=MANY), 6, "Error: payments-0: taken"),
        (errors.GroupBusy("the group has a live owner", found=MANY), 1, "  found:     line 0"),
        (
            errors.ConfigurationError("no", expected="yes", doing="while starting", next_step="Go."),
            2,
            "Error: no, while starting",
        ),
        (errors.BrokerUnavailable("no answer", found="x" * 50_000), 4, "  next step: Check bootstrap.servers"),
        (psycopg.errors.UndefinedTable(MANY), 70, "Error: UndefinedTable: line 0"),
        (psycopg.OperationalError(MANY), 3, "  found: "),
        (AnalysisException(SPARKS), 70, "Error: AnalysisException: [UNRESOLVED_COLUMN]"),
        (ZeroDivisionError(MANY), 70, "test_job.py:"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_an_error_is_told_in_a_few_lines_and_becomes_the_exit_code(
    error: Exception, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end(raised(error)) == code
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) <= ERROR_LINES
    assert "next step:" in said
    assert "at org.apache" not in said
    assert "Traceback" not in said
    assert len(said) < 20_000


@pytest.mark.behaviour("DX-1")
def test_an_unset_variable_is_named_with_the_job_s_own_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OFFSETSTORE_BOOTSTRAP_SERVERS", raising=False)
    assert end(lambda: os.environ["OFFSETSTORE_BOOTSTRAP_SERVERS"]) == 70
    said = capsys.readouterr().err
    assert "Error: the environment variable OFFSETSTORE_BOOTSTRAP_SERVERS is not set" in said
    assert "test_job.py:" in said
    assert "next step: Set it; " in said


@pytest.mark.behaviour("DX-1", "HAND-2")
def test_who_asks_for_the_trace_gets_it_also_that_of_a_handler_s_call_which_is_known_by_its_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = 'Traceback (most recent call last):\n  File "scores.py", line 7, in fetch\nValueError: no s3cret\n'
    failed = errors.FunctionFailed("the handler failed with ValueError", traceback=trace, is_of_call=True)
    assert end(raised(failed)) == 70
    assert "s3cret" not in capsys.readouterr().err
    monkeypatch.setenv(TRACE, "1")
    assert end(raised(failed)) == 70
    assert trace in capsys.readouterr().err
    assert end(raised(errors.GroupBusy("the group has a live owner"))) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "Error: the group has a live owner" in said


def test_a_good_end_and_a_job_s_own_exit_code_pass_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with offsetstore.spark.job():
        pass
    assert end(raised(SystemExit(7))) == 7
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_before_the_query_a_signal_ends_the_block(sent: signal.Signals, code: int) -> None:
    before = signal.getsignal(sent)

    def work() -> None:
        os.kill(os.getpid(), sent)
        time.sleep(5)
        pytest.fail("the signal was ignored")

    assert end(work) == code
    assert signal.getsignal(sent) is before


@pytest.mark.behaviour("DX-9")
def test_ctrl_c_while_spark_starts_is_neither_taken_by_spark_nor_logged_by_its_bridge(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    spark: Any = sys.modules[SparkContext.__module__]
    own = spark.signal

    def work() -> None:
        spark.signal.signal(spark.signal.SIGINT, signal.SIG_IGN)  # as a SparkContext sets its own
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            logging.exception("KeyboardInterrupt while sending command.")  # noqa: LOG015 - as py4j does it
            try:
                raised(BrokenPipeError())()  # Java has had the signal, too
            except BrokenPipeError:
                logging.getLogger("py4j.clientserver").exception("shutting down")
            raise
        pytest.fail("the signal was ignored")

    assert end(work) == 130
    assert capsys.readouterr().err == "Interrupted.\n"
    assert caplog.records == []
    assert spark.signal is own
    logging.error("of another kind")  # noqa: LOG015 - as above
    try:
        raised(BrokenPipeError())()
    except BrokenPipeError:
        logging.getLogger("py4j.clientserver").exception("without a signal")
    assert [one.message for one in caplog.records] == ["of another kind", "without a signal"]


@pytest.mark.behaviour("DX-9")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_java_starts_ends_it_too(sent: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on without Python, and write a trace."""
    started: list[subprocess.Popen[bytes]] = []

    def launch() -> None:
        proc = subprocess.Popen(["sleep", "60"])
        started.append(proc)
        os.kill(os.getpid(), sent)
        time.sleep(5)
        pytest.fail("the signal was ignored")

    monkeypatch.setattr(module, "launch_gateway", launch)
    assert end(launch) == (130 if sent == signal.SIGINT else 0)
    assert started[0].wait(10) == -signal.SIGKILL


def test_the_line_at_the_terminal_says_what_is_stored_and_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    class Java:
        def __init__(self, document: object) -> None:
            self._document = document

        def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
            return None if self._document is None else self

        def json(self) -> str:
            return json.dumps({"sources": self._document})

    class Query:
        def __init__(self, document: object) -> None:
            self._jsq = Java(document)

    progress = module._Progress("billing")
    query: Any = Query(None)
    progress.show(query)
    progress.on(QueryStarted(group="billing", query_id="q", run_id="r", application_id="a", ui_url=None))
    ranges = {P0: OffsetRange(1_000, 2_000), P1: OffsetRange(0, 234)}
    progress.on(BatchEnded(outcome="written", group="billing", batch=7, ranges=ranges, rows={"": 997}, seconds={}))
    progress.on(LettersWritten(group="billing", batch=0, ranges=ranges, letters={"refused": 2, "rejected": 1}))
    until, latest = {"payments": {"0": 2000, "1": 234}}, {"payments": {"0": 5000, "1": 234, "2": 9}}
    query = Query([{"latestOffset": latest, "endOffset": until}, {"latestOffset": None, "endOffset": None}])
    progress.show(query)
    progress.on(PauseChanged(group="billing", pause=Pause(datetime.now(UTC), None, "ticket 17")))
    progress.show(query)
    progress.on(FlushEnded(group="billing", batches=(8, 9), ranges={P0: OffsetRange(2_000, 2_001)}, rows={"": 1}))
    progress.on(FlushEnded(group="billing", error=TimeoutError()))
    progress.end()

    said = capsys.readouterr().err.split("\r\033[K")[1:]
    first, of_batch, second, third, end_ = (one.removesuffix("\r") for one in said)  # logs begin at the line's start
    assert first == "billing: starting, 0 records, 0/s"
    assert of_batch == "billing: batch 7: 997 rows\n", "only the first one has a line that stays"
    assert second.startswith("billing: 1,234 records, ")
    assert second.endswith("/s, 3,000 behind, 3 dead letters")
    assert third.startswith("billing: paused, 1,234 records")
    assert end_ == "billing: 1,235 records in 3 batches, 3 dead letters\n", "also what came after the last look"


@pytest.mark.behaviour("DX-1")
def test_where_spark_has_no_connector_that_is_what_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark says that it has no data source of that name."""

    class Java:
        def __getattr__(self, name: str) -> Any:
            return self

        def __call__(self, *_: object) -> Any:
            return self

        def lookupDataSource(self, *_: object) -> Any:  # noqa: N802 - Spark's name
            raise AnalysisException("no")

    class Session:
        version = "4.2.0"
        _jvm = _jsparkSession = Java()  # noqa: N815 - Spark's name

        @classmethod
        def getActiveSession(cls) -> Any:  # noqa: N802 - Spark's name
            return cls()

    monkeypatch.setattr(module, "SparkSession", Session)
    assert end(raised(AnalysisException("Failed to find data source: kafka."))) == 2
    said = capsys.readouterr().err
    assert "Error: Spark has no Kafka connector" in said
    assert "--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 job.py" in said


# -- a query, and what ends it


class Claim:
    """Notes whether it was closed as a whole, during which SIGTERM may come."""

    group = "billing"

    def __init__(self, *, sent: signal.Signals | None = None) -> None:
        self._sent = sent
        self.is_closed = False

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        if self._sent is not None:
            os.kill(os.getpid(), self._sent)
        time.sleep(0.01)
        self.is_closed = True


class Sink:
    """Notes what `Job.run` asks for."""

    def __init__(self, *, error: Exception | None = None, gap: Exception | None = None) -> None:
        self.claim = Claim()
        self.error = error
        self.gap = gap
        self.looks = 0
        self.was_stopped = False

    def check_start(self, _query: object) -> bool:
        self.looks += 1
        if self.gap is not None:
            raise self.gap
        return True

    def stop(self, _query: object) -> None:
        self.was_stopped = True


class Query:
    """Its answers, one for each time that it is waited for."""

    isActive = False  # noqa: N815 - Spark's name

    def __init__(self, *answers: bool | signal.Signals | Exception) -> None:
        self._answers = [*answers]

    def awaitTermination(self, _seconds: float) -> bool:  # noqa: N802 - Spark's name
        match self._answers.pop(0):
            case signal.Signals() as sent:
                os.kill(os.getpid(), sent)
                return self.awaitTermination(_seconds) if self._answers else False
            case Exception() as error:
                raise error
            case answer:
                return bool(answer)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Query, Sink], object]:
    """Run a job, and return its exit code."""

    def leave(_query: object) -> None: ...

    monkeypatch.setattr(module, "_silence", leave)

    def run(query: Any, sink: Any) -> object:
        try:
            with offsetstore.spark.job() as job:
                job.run(query, sink)
        except SystemExit as ended:
            return ended.code
        return 0

    return run


@pytest.mark.behaviour("START-30")
@pytest.mark.parametrize("answers", [(True,), (False, False, True)], ids=["has ended", "runs"])
def test_where_a_query_starts_is_compared_once_also_if_it_has_ended_before_the_first_look(
    run: Callable[[Query, Sink], object], answers: tuple[bool, ...]
) -> None:
    """One that begins at the topic's end, with ``availableNow``, ends at once, and would have read nothing."""
    sink = Sink()
    assert run(Query(*answers), sink) == 0
    assert sink.looks == 1
    assert run(Query(*answers), Sink(gap=errors.OffsetGap("the query starts above the stored offset"))) == 5


@pytest.mark.behaviour("DX-1")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_leaves_the_batch_to_the_sink_and_then_closes_the_claim(
    run: Callable[[Query, Sink], object], sent: signal.Signals, code: int
) -> None:
    sink = Sink()
    assert run(Query(sent), sink) == code
    assert sink.was_stopped
    assert sink.claim.is_closed


@pytest.mark.behaviour("DX-1")
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_come_together_are_one_and_another_one_ends_the_process_at_once(
    run: Callable[[Query, Sink], object], first: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`timeout` signals the job and its group."""
    sink = Sink()
    assert run(Query(first, first, first), sink) == (0 if first == signal.SIGTERM else 130)
    assert sink.was_stopped

    now, sent = [100.0], list[int]()
    monkeypatch.setattr(module, "StopRequests", lambda: StopRequests(lambda: now[0]))
    job: Any = offsetstore.spark.job()
    job._is_running = True

    def kill(_: int, number: int) -> None:
        sent.append(number)

    def keep(number: int, handler: object) -> None: ...

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(signal, "signal", keep)
    for seconds in (0, 0.05, 0.9):
        now[0] = 100 + seconds
        job._on_signal(first, None)
    assert sent == []
    now[0] = 101
    job._on_signal(first, None)
    assert sent == [first]


@pytest.mark.behaviour("DX-1")
@pytest.mark.parametrize("error", [None, errors.RowsRefused("refused")], ids=["well", "failed"])
def test_a_signal_while_the_claim_is_being_closed_cuts_nothing_and_hides_no_error(
    run: Callable[[Query, Sink], object], error: Exception | None, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = Sink(error=error)
    sink.claim = Claim(sent=signal.SIGTERM)
    query = Query(True if error is None else StreamingQueryException("[STREAM_FAILED] ..."))
    assert run(query, sink) == (0 if error is None else 5)
    assert sink.claim.is_closed
    assert ("Error: refused" in capsys.readouterr().err) is (error is not None)


@pytest.mark.behaviour("DX-1")
def test_what_spark_says_when_the_signal_has_ended_it_is_no_failure(
    run: Callable[[Query, Sink], object], java_is_gone: OSError
) -> None:
    """A supervisor sends SIGTERM to Java, too; the batch is left to the next start."""
    for gone in (Py4JError("Java has ended"), java_is_gone):
        assert run(Query(signal.SIGTERM, gone), Sink(error=gone)) == 0
        assert run(Query(gone), Sink(error=gone)) == 5
        assert run(Query(signal.SIGTERM, gone), Sink(error=errors.StaleClaim("taken over"))) == 6
    own = OSError("no space left on the device")
    assert run(Query(signal.SIGTERM, own), Sink()) == 70


# -- the session


def test_a_thread_that_did_not_make_the_session_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's source asks for it where a query starts; without it, no table is checked either."""
    of_thread: list[object] = []
    java = SimpleNamespace(setActiveSession=of_thread.append)
    made = SimpleNamespace(
        _jvm=None, _jsparkSession="the session", _get_j_spark_session_class=MagicMock(return_value=java)
    )
    sessions = SimpleNamespace(active=lambda: made, getActiveSession=lambda: made if of_thread else None)
    monkeypatch.setattr(queries, "SparkSession", sessions)

    assert queries.session_of_thread() is made
    assert queries.session_of_thread() is made
    assert of_thread == ["the session"]


# -- the connector


@pytest.mark.parametrize(
    ("title", "version", "is_refused"),
    [
        ("Kafka 0.10+ Source for Structured Streaming", "4.2.0", False),
        ("Kafka 0.10+ Source for Structured Streaming", "4.1.1", True),
        ("billing", "1.0.3", False),
        (None, None, False),
    ],
)
def test_a_connector_is_known_by_its_own_jar(title: str | None, version: str | None, *, is_refused: bool) -> None:
    """In an application's jar with all that it needs, the version is the application's."""
    package = SimpleNamespace(getImplementationTitle=lambda: title, getImplementationVersion=lambda: version)
    source = SimpleNamespace(getPackage=lambda: package)
    sources = SimpleNamespace(lookupDataSource=MagicMock(return_value=source))
    of_spark = SimpleNamespace(
        sql=SimpleNamespace(execution=SimpleNamespace(datasources=SimpleNamespace(DataSource=sources)))
    )
    scala = SimpleNamespace(util=SimpleNamespace(Properties=SimpleNamespace(versionNumberString=lambda: "2.13.17")))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(spark=of_spark)), scala=scala)
    state = SimpleNamespace(sessionState=lambda: SimpleNamespace(conf=lambda: None))
    session: Any = SimpleNamespace(version="4.2.1", _jvm=jvm, _jsparkSession=state)
    with pytest.raises(errors.MissingDependency) if is_refused else nullcontext():
        check_connector(session)
