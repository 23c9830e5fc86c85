"""Errors of a job's functions, and of Spark: which a record may have caused, and which not.

They are told apart by their classes, and by Spark's error class, along the chain of Java's causes; never by a text,
which may quote a record. A Python worker's error arrives as text: only the class before any text of the error is read,
so that no record can write it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from traceback import walk_tb
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError  # pyright: ignore[reportMissingTypeStubs] - it has none
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.logger import PySparkLogger

from offsetstore.errors import FunctionFailed, SinkError
from offsetstore.postgres.errors import DATABASE_ERRORS, driver_error
from offsetstore.runtime.functions import is_outage

_SPARK: Final = "org.apache.spark.SparkException"
_WORKER: Final = "org.apache.spark.api.python.PythonException"
_LOST_BLOCK: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
_CANCELLED: Final = "SPARK_JOB_CANCELLED"

# Spark's scheduler says so itself, in an error without a class and without a cause. No text of a task stands before it.
_OVER_LIMIT: Final = "Job aborted due to stage failure: Total size of serialized results of "

_OUTAGES: Final = frozenset(
    {
        "java.io.InterruptedIOException",
        "java.lang.ClassNotFoundException",
        "java.lang.InterruptedException",
        "java.lang.LinkageError",
        "java.lang.OutOfMemoryError",
        "java.net.SocketException",
        "java.net.UnknownHostException",
        "java.nio.channels.ClosedByInterruptException",
        "java.sql.SQLRecoverableException",
        "java.sql.SQLTransientException",
        "org.apache.kafka.common.KafkaException",
        "org.apache.spark.sql.kafka010.KafkaIllegalStateException",
    }
)
"""With their subclasses; also each class that `is_outage` knows by its name, like those of timeouts."""

_OUT_OF_RANGE: Final = frozenset({"java.lang.ArithmeticException", "java.time.DateTimeException"})
"""What a timestamp raises that Spark can't convert."""

_OF_A_RECORD: Final = "org.apache.kafka.common.errors.SerializationException"
"""The only one of Kafka's errors that a record causes: where a function of the JVM calls a deserializer."""
_MALFORMED: Final = "KAFKA_MALFORMED_RECORD_TIMESTAMP"

_TRACEBACK: Final = "Traceback (most recent call last):"

LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_unlogged: Final = set[int]()
"""The threads in which PySpark is kept from logging errors."""


@contextmanager
def told_by_us() -> Generator[None]:
    """Keep PySpark from logging the errors that it raises in this thread.

    PySpark writes each error to standard error when it makes it, with quoted values and Java's stack. But the error may
    be part of a search, and is reported at the end, in our own words.
    """
    for name in LOGGERS:
        PySparkLogger.getLogger(name).addFilter(_is_logged)  # once, however often
    thread = threading.get_ident()
    is_outermost = thread not in _unlogged
    _unlogged.add(thread)
    try:
        yield
    finally:
        if is_outermost:
            _unlogged.discard(thread)


def _is_logged(record: logging.LogRecord) -> bool:
    return record.thread not in _unlogged


_CLASS: Final = re.compile(r"(?:[\w<>]+\.)*([A-Za-z_]\w*)(?::.*)?")
_DEEPEST: Final = 32
"""Of Java's causes: a chain may be a circle."""


@dataclass(frozen=True, slots=True)
class JavaError:
    """One of Java's errors.

    :param classes: its class and superclasses.
    :param condition: Spark's error class.
    :param traceback: of a Python worker.
    """

    classes: tuple[str, ...]
    text: str
    condition: str | None = None
    sqlstate: str | None = None
    traceback: str | None = None

    @property
    def name(self) -> str:
        """Its class, without the package."""
        return self.classes[0].rpartition(".")[2].rpartition("$")[2]

    @property
    def is_outage(self) -> bool:
        """Whether no record is to blame for it."""
        if self.traceback is not None:
            return is_outage(raised(self.traceback) or "")
        simple = (name.rpartition(".")[2] for name in self.classes)
        if self.condition == _CANCELLED or any(map(is_outage, simple)):
            return True
        is_of_record = self.condition == _MALFORMED or _OF_A_RECORD in self.classes
        return not _OUTAGES.isdisjoint(self.classes) and not is_of_record


def function_failed(error: Exception, *, has_handler: bool = False) -> FunctionFailed | None:
    """Our error for one of a Spark job that a record may have caused.

    :param has_handler: whether a handler makes the rows. It raises none in Spark: only reading a record can fail.
    :return: ``None`` for what no record causes: an outage, a query that can't be planned, a job that was cancelled. For
        all other errors, only a trial tells (decision 0048).
    """
    if isinstance(error, AnalysisException):
        return None
    chain = causes(error)
    if not chain or any(cause.is_outage for cause in chain) or is_over_limit(error) or has_lost_block(error):
        return None
    if has_handler and not is_out_of_range(error):
        return None
    worker = next((cause for cause in chain if cause.traceback is not None), None)
    named = next((cause for cause in chain if cause.condition is not None), chain[-1])
    if worker is not None and worker.traceback is not None:
        name, state = raised(worker.traceback) or worker.name, None
        what, text = f"a function raised {name}", worker.traceback
    else:
        name, state = named.condition or named.name, named.sqlstate
        what = f"Spark can't compute a row: {name}" + (f" (SQLSTATE {state})" if state else "")
        text = "\n".join(f"{cause.name}: {cause.text}" for cause in chain[chain.index(named) :])
    failed = FunctionFailed(what, error_class=name, text=text, sqlstate=state)
    failed.__cause__ = error
    return failed


def typed(error: BaseException) -> BaseException:
    """Return our error for an unexplained one of Java's or a database's, without its text; any other error as it is.

    Anything else that a function of the job raises on the driver stays as it is, also if Spark can't analyse its query.
    """
    if is_of_java(error) and not isinstance(error, AnalysisException):
        classes = [type(error).__name__]
        with suppress(Py4JError, OSError):  # Java is gone
            classes = [_shown(cause) for cause in causes(error)] or classes
        ours = SinkError(
            "Spark failed while it computed or read the batch",
            found=", caused by ".join(dict.fromkeys(classes)),
            next_step="See the error's cause, and Spark's log.",
        )
    elif isinstance(error, DATABASE_ERRORS):
        inner = driver_error(error) or error
        state = getattr(inner, "sqlstate", None)
        ours = SinkError(
            "a function of the job failed with an error of a database",
            found=type(inner).__name__ + (f" (SQLSTATE {state})" if state else ""),
            next_step="See the error's cause, and correct the function; raise Outage where a database is down.",
        )
    else:
        return error
    ours.__cause__ = error
    return ours


def is_of_java(error: BaseException) -> bool:
    """Whether Spark has raised it, or py4j."""
    if isinstance(error, (Py4JError, CapturedException)):
        return True
    # Once Java is gone, py4j raises some errors of its connection as they are.
    *_, last = [None, *(frame for frame, _ in walk_tb(error.__traceback__))]
    is_of_py4j = last is not None and last.f_globals.get("__name__", "").startswith("py4j.")
    return is_of_py4j and isinstance(error, OSError)


def _shown(cause: JavaError) -> str:
    """The error's name, with the class that a Python worker has raised."""
    name = cause.condition or cause.name
    inner = None if cause.traceback is None else raised(cause.traceback)
    return name if inner is None else f"{name} ({inner})"


def is_of_function(failed: FunctionFailed) -> bool:
    """Whether Spark says that a function raised it: a Python worker's, or one of the JVM (SQLSTATE class 39)."""
    chain = causes(failed.__cause__) if failed.__cause__ is not None else []
    return any(cause.traceback is not None for cause in chain) or (failed.sqlstate or "").startswith("39")


def is_out_of_range(error: BaseException) -> bool:
    """Whether a number or a time was out of range: all that a record can do to the source (decision 0048)."""
    chain = causes(error)
    conditions = {cause.condition for cause in chain}
    # An error of an expression or a function has one of Spark's error classes somewhere in its chain.
    if conditions - {None}:
        return _MALFORMED in conditions
    return bool(chain) and not _OUT_OF_RANGE.isdisjoint(chain[-1].classes)


def is_over_limit(error: BaseException) -> bool:
    """Whether Spark has refused to collect rows only because of their size: spark.driver.maxResultSize."""
    last = next(reversed(causes(error)), None)
    return last is not None and last.classes[0] == _SPARK and not last.condition and last.text.startswith(_OVER_LIMIT)


def has_lost_block(error: BaseException) -> bool:
    """Whether executors have lost what was to be computed only once."""
    return any(cause.condition == _LOST_BLOCK for cause in causes(error))


def causes(error: BaseException) -> list[JavaError]:
    """Java's error and its causes; empty for an error that is not Java's."""
    thrown: Any = error
    java: Any = None
    if isinstance(error, Py4JJavaError):
        java = thrown.java_exception
    elif isinstance(error, CapturedException):
        java = thrown._origin  # noqa: SLF001 - there is no public way to it
    chain: list[JavaError] = []
    while java is not None and len(chain) < _DEEPEST:
        chain.append(_cause(java))
        java = java.getCause()
    return chain


def raised(told: str) -> str | None:
    """The class in a worker's traceback, without its module: on the first line that is not indented, after the header.

    For chained errors, this is the first one, unless Spark has left out all but the last, as for a UDF. Without a
    header (``hideTraceback``) it is on the first line.
    """
    first, *lines = told.lstrip("\n").splitlines() or [""]
    if first.rstrip() == _TRACEBACK:
        first = next((line for line in lines if line and not line.startswith(" ")), "")
    matched = _CLASS.fullmatch(first)
    return None if matched is None else matched[1]


def _cause(java: Any) -> JavaError:
    condition = sqlstate = traceback = None
    text = java.getMessage() or ""
    kind, classes = java.getClass(), list[str]()
    while kind is not None:
        classes.append(kind.getName())
        kind = kind.getSuperclass()
    with suppress(Py4JError):  # it is not one of Spark's
        condition, sqlstate = java.getCondition(), java.getSqlState()
    if _WORKER in classes:
        traceback = text
        with suppress(Py4JError):  # Spark 4.2 has what the worker told, without its own words
            traceback = java.getMessageParameters().get("traceback") or text
    return JavaError(tuple(classes), text, condition, sqlstate, traceback)
