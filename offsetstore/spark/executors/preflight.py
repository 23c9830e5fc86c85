"""Check, with a small job before the first batch, that Spark's executors have the packages that a write needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4
from weakref import WeakSet

from py4j.protocol import Py4JJavaError  # pyright: ignore[reportMissingTypeStubs] - it has none
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from offsetstore.errors import ExecutorEnvironment

PACKAGES: Final = ("offsetstore", "cryptography", "psycopg", "pgpq", "pyarrow", "sqlalchemy")
"""What executors must import, in the driver's versions."""

_TASKS_PER_CORE: Final = 2
_checked: WeakSet[SparkContext] = WeakSet()
_SHOWN: Final = 3

# What Spark says if a Python worker can't even start.
_WORKER_FAILURES: Final = (
    "Python in worker has different version",
    "Cannot run program",
    "ModuleNotFoundError",
    "ImportError",
    "Error from python worker",
)


@dataclass(frozen=True, slots=True)
class PythonOnHost:
    """A Python on an executor. If a package can't be imported, ``versions`` has the reason, in brackets."""

    host: str
    executable: str
    python: str
    versions: Mapping[str, str]

    def differs(self, expected: Mapping[str, str]) -> list[str]:
        """The packages that are missing or have another version, in words."""
        return [f"{name} {version}" for name, version in self.versions.items() if version != expected[name]]


def check_executors(session: SparkSession, *, timeout: float = 300.0) -> list[PythonOnHost]:
    """Run a job of tiny tasks on all cores, which import the packages that a write needs.

    :param timeout: seconds until the job is cancelled, including the time in which Spark gets its executors.
    :return: each Python that was found.
    :raises ExecutorEnvironment: an executor lacks a package, or has another version of it or of Python.
    """
    look = looking_for(PACKAGES)
    driver, *_ = [PythonOnHost(*report) for report in look(())]
    distinct = {str(report): PythonOnHost(*report) for report in _run(session, look, timeout)}
    pythons = [python for _, python in sorted(distinct.items())]
    wrong = [(python, differs) for python in pythons if (differs := python.differs(driver.versions))]
    if wrong:
        shown = [
            f"on {python.host}, {python.executable} (Python {python.python}): {', '.join(differs)}"
            for python, differs in wrong[:_SHOWN]
        ]
        raise ExecutorEnvironment(
            f"{len(wrong)} of {len(pythons)} Pythons on the executors can't write to the database",
            found="; ".join([*shown, *(["..."] if len(wrong) > _SHOWN else [])]),
            expected=", ".join(f"{name} {version}" for name, version in driver.versions.items()),
        )
    return pythons


def check_once(session: SparkSession) -> None:
    """As `check_executors`, but once for each Spark application, until `check_again`: it takes 0.2 s.

    :raises ExecutorEnvironment: as there.
    """
    if session.sparkContext not in _checked:
        check_executors(session)
        _checked.add(session.sparkContext)


def check_again(context: SparkContext) -> None:
    """Have the next `check_once` check: a job has failed, perhaps on an executor that is new."""
    _checked.discard(context)


def looking_for(packages: Sequence[str]) -> Callable[[Iterable[Any]], list[tuple[str, str, str, dict[str, str]]]]:
    """Return a function that looks for packages where it runs, using only the standard library.

    It is an inner function because these are pickled with their code: an executor without offsetstore could not load
    a function pickled by name.
    """

    def look(_: Iterable[Any]) -> list[tuple[str, str, str, dict[str, str]]]:
        import importlib  # noqa: PLC0415 - on the executor
        import importlib.metadata  # noqa: PLC0415
        import platform  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import sys  # noqa: PLC0415

        versions: dict[str, str] = {}
        for package in packages:
            try:
                importlib.import_module(package)
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                versions[package] = "(no version: its dist-info is missing)"
            except ModuleNotFoundError as error:
                versions[package] = "(not installed)" if error.name == package else f"(needs {error.name})"
            except Exception as error:  # noqa: BLE001 - a missing system library, a broken wheel
                versions[package] = f"({type(error).__name__}: {str(error).strip()[:200]})"
        return [(socket.gethostname(), sys.executable, platform.python_version(), versions)]

    return look


def _run(session: SparkSession, look: Callable[[Iterable[Any]], Any], timeout: float) -> list[Any]:
    context = session.sparkContext
    tag = f"offsetstore-preflight-{uuid4().hex[:8]}"
    given_up, has_ended = threading.Event(), threading.Event()

    def give_up() -> None:
        given_up.set()
        context.cancelJobsWithTag(tag)
        while not has_ended.wait(1.0):  # the job may not have been there yet
            context.cancelJobsWithTag(tag)

    tasks = _TASKS_PER_CORE * max(1, context.defaultParallelism)
    timer = threading.Timer(timeout, give_up)
    timer.daemon = True
    context.addJobTag(tag)  # not a job group: a streaming query cancels its jobs by group
    timer.start()
    try:
        return context.parallelize(range(tasks), tasks).mapPartitions(look).collect()
    except (Py4JJavaError, PySparkException) as error:
        if given_up.is_set():
            raise ExecutorEnvironment(
                "could not check the executors' packages",
                found=f"no answer within {timeout:g} s",
                next_step="Check that the cluster gives this application an executor, and that its Python starts "
                "there.",
            ) from error
        if (reason := _worker_failure(error)) is not None:
            raise ExecutorEnvironment(
                "Python does not start on the executors",
                found=reason,
                expected=f"Python {context.pythonVer}",
            ) from error
        raise
    finally:
        has_ended.set()
        timer.cancel()
        context.removeJobTag(tag)


def _worker_failure(error: Exception) -> str | None:
    """The part of Spark's message that tells why a worker did not start, ``None`` if it is another error."""
    lines = str(error).splitlines()
    for sign in _WORKER_FAILURES:
        for line in lines:
            if sign in line:
                return line[line.index(sign) :].strip()
    return None
