"""Which of Spark's errors a record can cause: told by classes, never by words that a record may hold."""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest
from py4j.protocol import Py4JError, Py4JJavaError  # pyright: ignore[reportMissingTypeStubs] - it has none
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger

from offsetstore import DeadLetters, OffsetRange, TopicPartition, Transaction, Work
from offsetstore.errors import FunctionFailed, Outage, RowsRefused, SinkError
from offsetstore.local.servers import free_port
from offsetstore.processing.blame import unreadable
from offsetstore.processing.letters import Recovery
from offsetstore.processing.plan import BatchMetadata
from offsetstore.processing.policies import Whole
from offsetstore.processing.unit import Stored
from offsetstore.protocol.letters import LetterError, NewLetter, digest
from offsetstore.spark import collecting, function_errors
from offsetstore.spark.function_errors import function_failed, has_lost_block, is_over_limit, told_by_us, typed
from offsetstore.spark.micro_batch import MicroBatch
from offsetstore.spark.stateful import among
from offsetstore.testing.memory import InMemoryOffsetStore

KAFKA = "org.apache.kafka.common.errors"
KAFKA_EXCEPTION = "org.apache.kafka.common.KafkaException"
SPARK = "org.apache.spark.SparkException"
IO = "java.io.IOException"
VIRTUAL_MACHINE = "java.lang.VirtualMachineError"
MALFORMED = "KAFKA_MALFORMED_RECORD_TIMESTAMP"
LIMIT = "Job aborted due to stage failure: Total size of serialized results of 1 tasks (9.9 KiB) is bigger than "
HEADER = "Traceback (most recent call last):"
FRAMES = f"""{HEADER}
  File "/job/transform.py", line 3, in parse
    return int(value)
           ^^^^^^^^^^
"""
NEXT = f'\n\n{HEADER}\n  File "/job/transform.py", line 9, in retry\n'
WHILE = f"\n\nDuring handling of the above exception, another exception occurred:{NEXT}"
FROM = f"\n\nThe above exception was the direct cause of the following exception:{NEXT}"
UNUSED: Any = None
GROUP = f'  + Exception Group {HEADER}\n  |   File "/job/transform.py"\n  | ExceptionGroup: canary (1 sub-exception)\n'


class ServiceDown(Outage):
    """A user's own."""


class Kind:
    """A class of Java's."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def getName(self) -> str:  # noqa: N802 - Java's name
        return self.names[0]

    def getSuperclass(self) -> Kind | None:  # noqa: N802 - as above
        return Kind(*self.names[1:]) if self.names[1:] else None


class Thrown:
    """An error of Java's."""

    def __init__(
        self,
        *names: str,
        text: str | None = None,
        cause: Thrown | None = None,
        condition: str | None = None,
        state: str | None = None,
        parameters: dict[str, str] | None = None,
    ) -> None:
        self.kind = Kind(*names, "java.lang.Exception", "java.lang.Throwable", "java.lang.Object")
        self.text, self.cause, self.condition, self.state, self.parameters = text, cause, condition, state, parameters

    def getClass(self) -> Kind:  # noqa: N802 - as above
        return self.kind

    def getMessage(self) -> str | None:  # noqa: N802 - as above
        return self.text

    def getCause(self) -> Thrown | None:  # noqa: N802 - as above
        return self.cause

    def getCondition(self) -> str | None:  # noqa: N802 - as above
        return self._of_spark(self.condition)

    def getSqlState(self) -> str | None:  # noqa: N802 - as above
        return self._of_spark(self.state)

    def getMessageParameters(self) -> dict[str, str]:  # noqa: N802 - as above
        return self._of_spark(self.parameters or {})

    def _of_spark(self, value: Any) -> Any:
        if not self.kind.names[0].startswith("org.apache.spark."):
            raise Py4JError("Method does not exist")
        return value


def java_error(thrown: Thrown) -> Py4JJavaError:
    """As py4j raises it."""
    error = Py4JJavaError.__new__(Py4JJavaError)
    error.java_exception = thrown
    return error


def awaited(cause: Thrown) -> Py4JJavaError:
    """As a DataFrame's job raises it."""
    return java_error(Thrown(SPARK, text="Exception thrown in awaitResult: ", cause=cause))


def worker(told: str, *, version: str = "4.2") -> Py4JJavaError:
    name = "org.apache.spark.api.python.PythonException"
    if version == "4.0":
        return awaited(Thrown(name, text=told))
    parameters = {"msg": "An exception was thrown from the Python worker", "traceback": told}
    text = f"[PYTHON_EXCEPTION] {parameters['msg']}: {told} SQLSTATE: 38000"
    return awaited(Thrown(name, text=text, condition="PYTHON_EXCEPTION", state="38000", parameters=parameters))


@pytest.mark.behaviour("DLQ-1", "DLQ-15", "DLQ-16")
@pytest.mark.parametrize("version", ["4.0", "4.2"])
@pytest.mark.parametrize(
    ("told", "name"),
    [
        (f"{FRAMES}ValueError: canary", "ValueError"),
        (f"{FRAMES}job.errors.NoCustomer: canary", "NoCustomer"),
        (f"{FRAMES}KeyError", "KeyError"),
        (f"{FRAMES}job.parse.<locals>.Bad: canary", "Bad"),
        (f"{FRAMES}ValueError: one{WHILE}ConnectionError: canary", "ValueError"),
        (f"{FRAMES}ValueError: one{FROM}offsetstore.errors.Outage: canary", "ValueError"),
        (f"{FRAMES}pydantic.ValidationError: 1 error\namount\n  Input should be a number", "ValidationError"),
        (f"{FRAMES}ValueError: the record is:\nConnectionError: canary\nOutage", "ValueError"),
        (f"{FRAMES}ValueError: {FRAMES}ConnectionError: canary", "ValueError"),
        (f"{FRAMES}ValueError: \n{FRAMES}ConnectionError: canary{WHILE}offsetstore.errors.Outage", "ValueError"),
        (f"ValueError: {HEADER}\nConnectionError: canary", "ValueError"),
        (f"ValueError: canary\n{FRAMES}ConnectionError: canary", "ValueError"),
        (f"{GROUP}  +-+---------------- 1 ----------------\n{FRAMES}ConnectionError: canary", "PythonException"),
    ],
)
def test_a_functions_error_is_told_by_the_first_class_alone(told: str, name: str, version: str) -> None:
    error = worker(f"{told}\n", version=version)
    failed = function_failed(error)
    assert failed is not None
    assert (failed.error_class, failed.sqlstate) == (name, None)
    assert "canary" not in str(failed)
    assert failed.text == f"{told}\n"
    assert failed.__cause__ is error


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize("version", ["4.0", "4.2"])
@pytest.mark.parametrize(
    "told",
    [
        "MemoryError",
        "ModuleNotFoundError: No module named 'rates'",
        "ConnectionRefusedError: [Errno 111]",
        "requests.exceptions.ConnectionError: rates.example",
        "offsetstore.errors.Outage: the service for rates is down",
        f"offsetstore.errors.Outage: down{WHILE}KeyError: 1",
        f"ConnectionResetError: down{FROM}ValueError: 1",
        "tests.unit.ServiceDown: a subclass",
        "httpx.ReadTimeout: canary",
        "urllib.error.URLError: canary",
    ],
)
def test_an_outage_is_no_records(told: str, version: str) -> None:
    for traceback in (f"{FRAMES}{told}\n", told):  # with hideTraceback there is nothing before the class
        error = worker(traceback, version=version)
        assert function_failed(error) is None


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize(
    ("thrown", "name"),
    [
        (Thrown(SPARK, condition="MALFORMED_RECORD", state="22023", cause=Thrown("com.json.EOF")), "MALFORMED_RECORD"),
        (Thrown(SPARK, condition="FAILED_UDF", state="39000", cause=Thrown("job.Parser$Bad")), "FAILED_UDF"),
        (Thrown(SPARK, text="Task 0 failed", cause=Thrown("x.Wrapper", cause=Thrown("job.Parser$Bad"))), "Bad"),
        (Thrown("java.lang.ArithmeticException", text="long overflow"), "ArithmeticException"),
        (Thrown("java.lang.StackOverflowError", VIRTUAL_MACHINE, "java.lang.Error"), "StackOverflowError"),
    ],
)
def test_whatever_ends_a_job_may_be_a_records(thrown: Thrown, name: str) -> None:
    for error in (java_error(thrown), awaited(thrown)):
        failed = function_failed(error)
        assert failed is not None
        assert failed.error_class == name
        assert failed.sqlstate == thrown.state


@pytest.mark.behaviour("SINK-25", "OPS-7")
@pytest.mark.parametrize(
    ("error", "found"),
    [
        (awaited(Thrown("java.io.IOException", text="canary")), "SparkException, caused by IOException"),
        (awaited(Thrown(SPARK, condition="CANNOT_LOAD_STATE_STORE")), "SparkException, caused by CANNOT_LOAD_STATE_S"),
        (Py4JError("canary"), "Py4JError"),
        (psycopg.errors.UndefinedTable('relation "canary" does not exist'), "UndefinedTable (SQLSTATE 42P01)"),
        (psycopg.errors.InvalidTextRepresentation('invalid input: "canary"'), "InvalidTextRepresentation (SQLSTATE 22"),
        (psycopg.OperationalError("canary"), "OperationalError"),
    ],
)
def test_what_nothing_has_explained_leaves_the_sink_as_our_error_with_its_cause(error: Exception, found: str) -> None:
    ours = typed(error)
    assert isinstance(ours, SinkError)
    assert str(ours.found).startswith(found)
    assert ours.__cause__ is error
    assert "canary" not in str(ours)


@pytest.mark.behaviour("SINK-25")
def test_a_java_that_does_not_answer_is_told_as_our_error(java_is_gone: OSError) -> None:
    """py4j raises an error of its connection as it is if it has to make a new one."""
    ours = typed(java_is_gone)
    assert isinstance(ours, SinkError)
    assert (ours.found, ours.__cause__) == ("ConnectionRefusedError", java_is_gone)
    with pytest.raises(OSError, match="refused") as caught:
        socket.create_connection(("127.0.0.1", free_port()))
    assert typed(caught.value) is caught.value


@pytest.mark.parametrize(
    "error", [ValueError("its own"), AnalysisException("no column"), RowsRefused("ours"), KeyboardInterrupt()], ids=repr
)
def test_what_a_function_raises_and_what_is_ours_stay_as_they_are(error: BaseException) -> None:
    assert typed(error) is error


P0 = TopicPartition("payments", 0)


def batch_of(frame: Any, ranges: Any) -> MicroBatch:
    """A batch whose query is never stopped."""
    query: Any = SimpleNamespace(sleep=abs)
    claim: Any = SimpleNamespace(require_open=lambda: None)
    return MicroBatch(frame, 0, query, ranges, claim, UNUSED)


STATEFUL = batch_of(UNUSED, {P0: OffsetRange(10, 20)})


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize(
    "thrown",
    [
        Thrown("java.io.FileNotFoundException", IO),
        Thrown(SPARK, condition="CANNOT_LOAD_STATE_STORE.UNCATEGORIZED", state="58030"),
        Thrown(SPARK, text="Job aborted due to stage failure: ExecutorLostFailure"),
        Thrown(SPARK, text="Task 0 failed", cause=Thrown("java.io.IOException", text="No space left on device")),
    ],
)
def test_what_may_be_no_records_is_spark_s_own_error_where_there_is_no_trial(thrown: Thrown) -> None:
    error = awaited(thrown)
    failed = function_failed(error)
    assert failed is not None
    with pytest.raises(Py4JJavaError) as raised:
        raise among(failed, STATEFUL)
    assert raised.value is error


@pytest.mark.behaviour("DLQ-15", "SINK-6")
@pytest.mark.parametrize(
    "error",
    [
        worker(f"{FRAMES}ValueError: canary"),
        worker(f"{FRAMES}ValueError: canary", version="4.0"),
        *(
            awaited(Thrown(SPARK, condition=condition, state=state))
            for condition, state in (("FAILED_EXECUTE_UDF", "39000"), ("CAST_INVALID_INPUT", "22018"))
        ),
        awaited(Thrown(SPARK, condition="USER_RAISED_EXCEPTION", state="P0001")),
    ],
)
def test_a_function_s_error_and_a_bad_value_name_the_batch_where_there_is_no_trial(error: Any) -> None:
    failed = function_failed(error)
    assert failed is not None
    named = among(failed, STATEFUL)
    assert "the batch is payments-0" in str(named)
    assert named.stored == {}
    assert "canary" not in str(named)


class Failing(MicroBatch):
    """A batch of which the bad records can't be computed; others make a row each."""

    def rows(self, part: Any, without: Collection[Any] = ()) -> Any:
        records = [
            (tp, at) for tp, one in part.items() for at in range(one.from_, one.until) if (tp, at) not in without
        ]
        if not BAD.isdisjoint(records):
            raise worker(f"{FRAMES}ValueError: canary")
        return {"": Rows(records)}

    def unreadable(self) -> None: ...

    def repeats(self) -> bool:
        return True


P1 = TopicPartition("payments", 1)


@dataclass(frozen=True)
class Rows:
    """A row of each record; what is of partition 1 may be refused when it is written."""

    records: list[Any]

    @property
    def rows(self) -> int:
        return len(self.records)

    def write(self, work: Work) -> int:
        PARTITIONS.add(len({tp for tp, _ in self.records}))
        work.connection.extend("results", self.records)
        if REFUSED and any(tp == P1 for tp, _ in self.records):
            raise RowsRefused("refused")
        return len(self.records)


REFUSED: list[bool] = []
PARTITIONS: set[int] = set()
"""How many were written at once."""
BAD: set[tuple[TopicPartition, int]] = set()
LOOKS: list[MicroBatch] = []


class Lost(Failing):
    """A batch that Spark can read, and can't compute carefully; it tells how often it was asked."""

    def careful(self, *_: Any, **__: Any) -> Any:
        frame: Any = self.frame
        raise frame

    def unreadable(self) -> None:
        LOOKS.append(self)


@pytest.mark.behaviour("DLQ-11", "DLQ-15")
@pytest.mark.parametrize("bad", [(), (5,)], ids=["alone", "beside a bad record"])
@pytest.mark.parametrize("is_first", [True, False], ids=["careful at once", "after a failure"])
def test_a_failure_of_spark_s_in_a_careful_batch_is_spark_s_own_error(bad: tuple[int, ...], *, is_first: bool) -> None:
    BAD.clear()
    BAD.update((P0, offset) for offset in bad)
    lost = awaited(Thrown(SPARK, text="Job aborted due to stage failure: ExecutorLostFailure"))
    LOOKS.clear()
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        letter = NewLetter(P0, 0, "rejected", LetterError("Rejected", "bad"), 0, digest(P0, b"k"), None)

        def write(tx: Transaction) -> None:
            tx.lock({P0: OffsetRange(0, 1)}, in_sequence=True)
            tx.letters.write([letter])
            tx.finish({P0: OffsetRange(0, 1)}, {})

        claim.run(write)
        metadata = BatchMetadata(claim, None)
        whole = Whole(claim, metadata, Recovery(claim, DeadLetters(sequence="key"), metadata))
        query: Any = SimpleNamespace(sleep=abs)
        batch = Lost(cast("Any", lost), 0, query, {P0: OffsetRange(1, 8)}, claim, UNUSED)
        with pytest.raises(Py4JJavaError) as raised:
            (whole.write if is_first else whole.write_carefully)(batch, Stored())
        assert raised.value is lost
        assert claim.offsets()[P0].next_offset == 1
        assert store.rows("results") == []
        [stored] = store.dead_letters("billing")
        assert stored.is_in_sequence
    assert len(LOOKS) == 1


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize(
    "thrown",
    [
        Thrown(SPARK, condition="SPARK_JOB_CANCELLED"),
        Thrown("java.lang.InterruptedException"),
        Thrown("java.net.SocketTimeoutException", "java.io.InterruptedIOException"),
        Thrown("java.net.ConnectException", "java.net.SocketException", IO),
        Thrown("org.apache.kafka.common.errors.TimeoutException"),
        Thrown(f"{KAFKA}.TopicAuthorizationException", f"{KAFKA}.ApiException", KAFKA_EXCEPTION),
        Thrown("org.apache.spark.sql.kafka010.KafkaIllegalStateException", condition="KAFKA_DATA_LOSS.PARTITIONS"),
        Thrown("java.lang.OutOfMemoryError", VIRTUAL_MACHINE, "java.lang.Error"),
        Thrown("java.lang.NoClassDefFoundError", "java.lang.LinkageError", "java.lang.Error"),
        Thrown(SPARK, condition="FAILED_EXECUTE_UDF", cause=Thrown("java.net.UnknownHostException")),
    ],
)
def test_an_outage_of_java_is_told_by_its_class(thrown: Thrown) -> None:
    assert function_failed(awaited(thrown)) is None


@pytest.mark.behaviour("DLQ-15")
def test_what_a_deserializer_of_kafkas_refuses_may_be_a_record_s() -> None:
    names, away = (
        (f"{KAFKA}.SerializationException", KAFKA_EXCEPTION),
        Thrown("java.net.ConnectException", "java.net.SocketException", IO),
    )
    refused = Thrown(*names, text="Unknown magic byte!")
    assert function_failed(awaited(Thrown(SPARK, condition="FAILED_EXECUTE_UDF", cause=refused)))
    assert function_failed(awaited(Thrown(*names, cause=away))) is None  # the registry is down


class Unreadable:
    """The frame of a batch that Spark can't read."""

    def __init__(self, thrown: Thrown) -> None:
        self.error = awaited(thrown)
        self._jdf = self

    def queryExecution(self) -> Unreadable:  # noqa: N802 - as above
        return self

    def toRdd(self) -> Unreadable:  # noqa: N802 - as above
        return self

    def count(self) -> int:
        raise self.error


def name_record(frame: Unreadable, failed: FunctionFailed) -> RowsRefused | None:
    """Tell whether the record in a batch of one can be read."""
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        batch = batch_of(frame, {TopicPartition("payments", 0): OffsetRange(7, 8)})
        return unreadable(failed, batch, batch.ranges, claim)


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize(
    "thrown",
    [
        Thrown("java.lang.ArithmeticException", text="long overflow"),
        Thrown("java.time.DateTimeException"),
        Thrown("org.apache.spark.sql.kafka010.KafkaIllegalStateException", condition=MALFORMED, state="22008"),
        Thrown(SPARK, text="Job aborted", cause=Thrown("java.lang.ArithmeticException")),
    ],
)
def test_a_record_whose_timestamp_is_out_of_range_is_named_with_the_command_that_skips_it(thrown: Thrown) -> None:
    assert function_failed(awaited(thrown)) is not None
    named = name_record(Unreadable(thrown), FunctionFailed("Spark can't compute a row"))
    assert named is not None
    assert named.offsets == OffsetRange(7, 8)
    assert "--from-offset 7 --to-offset 8" in str(named)


@pytest.mark.behaviour("DLQ-15", "DLQ-6")
@pytest.mark.parametrize(
    "thrown",
    [
        Thrown(f"{KAFKA}.TopicAuthorizationException", f"{KAFKA}.AuthorizationException"),
        Thrown(f"{KAFKA}.SaslAuthenticationException", f"{KAFKA}.AuthenticationException"),
        Thrown(f"{KAFKA}.SslAuthenticationException", f"{KAFKA}.AuthenticationException"),
        Thrown(KAFKA_EXCEPTION, text="Failed to construct kafka consumer"),
        Thrown(SPARK, condition="KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE", state="22000"),
        Thrown("java.io.IOException", text="No space left on device"),
        Thrown("java.io.IOException", cause=Thrown("java.nio.file.FileSystemException")),
        Thrown("java.lang.ArithmeticException", cause=Thrown(f"{KAFKA}.TopicAuthorizationException")),
        Thrown("java.net.SocketException"),
        Thrown("org.apache.spark.SparkArithmeticException", "java.lang.ArithmeticException", condition="DIVIDE"),
        Thrown(
            "org.apache.spark.SparkDateTimeException", "java.time.DateTimeException", condition="CAST_INVALID_INPUT"
        ),
        Thrown(SPARK, condition="FAILED_EXECUTE_UDF", cause=Thrown("java.lang.ArithmeticException", text="/ by zero")),
    ],
)
def test_where_the_source_fails_for_a_reason_that_is_in_no_record_its_error_passes(thrown: Thrown) -> None:
    """A transform has failed too, perhaps: that tells nothing while the records can't be read."""
    frame = Unreadable(thrown)
    with pytest.raises(Py4JJavaError) as told:
        name_record(frame, FunctionFailed("a function raised ValueError", error_class="ValueError"))
    assert told.value is frame.error


@pytest.mark.behaviour("DLQ-15", "SINK-1")
@pytest.mark.parametrize("by_partition", [True, False])
@pytest.mark.parametrize("refused", [True, False])
def test_what_comes_before_a_record_that_cant_be_computed_is_stored_as_the_way_stores_it(
    *, by_partition: bool, refused: bool
) -> None:
    """By partition: an `Execute` that is not splittable is given no more than one of them at once."""
    at_once = 0 if by_partition else 500
    REFUSED[:] = [True] * refused
    PARTITIONS.clear()
    BAD.clear()
    BAD.add((P1, 5))
    accepted = {P0: OffsetRange(0, 7), P1: OffsetRange(0, 5)}
    with InMemoryOffsetStore() as memory:
        claim = memory.claim("billing", topics=["payments"])
        query: Any = SimpleNamespace(sleep=abs)
        batch = Failing(UNUSED, 0, query, {P0: OffsetRange(0, 7), P1: OffsetRange(0, 9)}, claim, UNUSED)
        stored = Stored()
        with pytest.raises(RowsRefused) as raised:
            Whole(claim, BatchMetadata(claim, None), at_once=at_once).write(batch, stored)
        assert raised.value.stored == stored.ranges == ({P0: accepted[P0]} if refused else accepted)
        assert f"first refused at record payments-1@{0 if refused else 5}" in str(raised.value)
        assert ("--from-offset 5" in str(raised.value)) is not refused
        rows: list[Any] = memory.rows("results")
        written = Counter(tp for tp, _ in rows)
        assert written == {tp: range_.size for tp, range_ in stored.ranges.items()}
        assert (max(PARTITIONS) == 1) is by_partition


@pytest.mark.behaviour("DLQ-16")
def test_words_in_a_text_are_no_sign_of_the_limit_or_of_a_lost_block() -> None:
    words = f"{LIMIT}spark.driver.maxResultSize, CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND, java.net.ConnectException"
    for text in (words, f"the record is: {words}"):
        raised = Thrown("java.lang.Exception", text=text)
        errors = [
            worker(f"{FRAMES}ValueError: {text}"),
            awaited(Thrown("org.apache.spark.SparkRuntimeException", text=text, condition="USER_RAISED_EXCEPTION")),
            awaited(raised),
            awaited(Thrown(SPARK, text=f"Job aborted due to stage failure: Task 0: {text}", cause=raised)),
        ]
        for error in errors:
            assert not is_over_limit(error)
            assert not has_lost_block(error)
            assert function_failed(error) is not None


@pytest.mark.behaviour("DLQ-16")
def test_the_limit_and_a_lost_block_are_told_by_what_spark_says_itself() -> None:
    limit = awaited(Thrown(SPARK, text=f"{LIMIT}spark.driver.maxResultSize (1.0 KiB)"))
    lost = awaited(Thrown(SPARK, text="Checkpoint block not found", condition="CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"))
    assert (is_over_limit(limit), has_lost_block(limit)) == (True, False)
    assert (is_over_limit(lost), has_lost_block(lost)) == (False, True)
    assert function_failed(limit) is function_failed(lost) is None


def test_a_circle_of_causes_ends() -> None:
    one = Thrown("job.Bad")
    one.cause = one
    assert len(function_errors.causes(java_error(one))) > 1


@pytest.mark.behaviour("DX-1", "OPS-7")
@pytest.mark.parametrize("name", ["SQLQueryContextLogger", "DataFrameQueryContextLogger"])
def test_pyspark_logs_no_error_of_a_thread_in_which_we_tell_it(name: str) -> None:
    logger = PySparkLogger.getLogger(name)
    written: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: written.append(record.getMessage())
    logger.addHandler(handler)
    try:
        with told_by_us():
            with told_by_us():
                logger.error("within")
            logger.error("after the inner one")
            other = threading.Thread(target=logger.error, args=["another query's"])
            other.start()
            other.join()
        logger.error("after it")
    finally:
        logger.removeHandler(handler)
    assert written == ["another query's", "after it"]


class Keeping:
    """Rows that executors compute, and keep if they are told to: that may fail, or the computation does."""

    def __init__(self, thrown: Thrown, *, can_compute: bool) -> None:
        self.thrown, self.can_compute = thrown, can_compute
        self.is_kept = False

    def persist(self, _: object) -> None:
        self.is_kept = True

    def unpersist(self, _: bool) -> None:  # noqa: FBT001 - Java's
        self.is_kept = False

    def count(self) -> int:
        if self.is_kept or not self.can_compute:
            raise java_error(self.thrown)
        return 4


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize("can_compute", [True, False], ids=["a full disk", "a record"])
def test_rows_that_executors_can_compute_and_not_keep_are_no_records_fault(
    monkeypatch: pytest.MonkeyPatch, *, can_compute: bool
) -> None:
    """A full disk raises a plain java.io.IOException, as a decoder may: where it happened tells them apart."""
    full = Thrown(SPARK, text="Job aborted", cause=Thrown("java.io.IOException", text="canary"))
    rows = Keeping(full, can_compute=can_compute)
    parts = SimpleNamespace(rdd=rows, context=SimpleNamespace(_getJavaStorageLevel=repr))
    frame: Any = object()
    monkeypatch.setattr(collecting, "Parts", SimpleNamespace(of={frame: parts}.get))
    with pytest.raises((SinkError, Py4JJavaError)) as raised:
        collecting.collect_by_partition(frame)
    assert not rows.is_kept
    if can_compute:
        assert isinstance(raised.value, SinkError)
        assert "IOException" in str(raised.value)
        for way in ("If a function fails now and then", "space", "maxOffsetsPerTrigger"):
            assert way in raised.value.next_step
        assert "canary" not in str(raised.value)
        assert function_failed(raised.value) is None
    else:
        assert function_failed(raised.value) is not None
