"""Spark with executors in processes of their own (``local-cluster``), driven by a process of its own.

A process can have one SparkContext, and that of the tests is on ``local[2]``. So a cluster's driver is another process,
to which a test sends functions: ``cluster.run(job, topic="payments")`` calls ``job(session, topic="payments")`` there,
and returns what it returned or raises what it raised. A job is a function at the top level of any module of the tests;
what goes in and out must pickle.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import psutil
from pyspark.sql import SparkSession

from offsetstore.local.java import QUICK
from offsetstore.local.spark import local_session, spark_conf, spark_environment, stop_session
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SECONDS = 300
"""No job of a test takes as long as this."""

# Not as the main module: what it raises would be of classes that the test does not have.
_DRIVER = "import sys; from tests.support.cluster import serve; serve(int(sys.argv[1]))"
_EXECUTOR = "CoarseGrainedExecutorBackend"
_DAEMON = "pyspark.daemon"
# The second compiler costs more than it gives in runs of some seconds.


class JobFailed(Exception):
    """A job ended with an error that does not pickle; this is its text."""


class Running:
    """A job under way. One at a time runs on a cluster."""

    def __init__(self, connection: Connection, log: Path) -> None:
        self._connection = connection
        self._log = log

    def result(self, *, timeout: float = SECONDS) -> Any:
        """Wait for the job, and return what it returned.

        :raises Exception: what the job raised, with the traceback of its process as a note.
        """
        assert self._connection.poll(timeout), f"the job did not end:\n{_end_of(self._log)}"
        try:
            value, error, account = cast("tuple[Any, BaseException | None, str]", self._connection.recv())
        except (EOFError, ConnectionError):
            raise AssertionError(f"the cluster's driver has ended:\n{_end_of(self._log)}") from None
        if error is not None:
            error.add_note(account)
            raise error
        return value


@dataclass
class Cluster:
    """Use it as a context manager.

    :param directory: where Spark's files of this run go: the executors' logs under ``work``.
    :param conf: on top of what a small cluster needs.
    :param environment: on top of this process's, for the driver and so for its executors.
    :param pythonpath: what the executors' Python finds beside its packages; by default the tests.
    :param size: how many executors it has.
    """

    directory: Path
    conf: Mapping[str, str] = field(default_factory=dict[str, str])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    pythonpath: str = str(ROOT)
    size: int = 2

    def __enter__(self) -> Self:
        home = spark_home(self.directory)
        ours, theirs = socket.socketpair()
        with theirs, self.log.open("wb") as log:
            self._driver = psutil.Popen(
                [sys.executable, "-c", _DRIVER, str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, **spark_environment(), "SPARK_HOME": str(home), **self.environment},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._connection = Connection(ours.detach())
        self._connection.send((f"local-cluster[{self.size},1,900]", self._conf()))
        return self

    @property
    def log(self) -> Path:
        """What the driver has printed, Spark's own messages included."""
        return self.directory / "driver.log"

    def run(self, job: Callable[..., Any], /, **settings: Any) -> Any:
        """Run a job to its end; see `Running.result`."""
        return self.start(job, **settings).result()

    def start(self, job: Callable[..., Any], /, **settings: Any) -> Running:
        """Start a job, and do something to it meanwhile."""
        self._connection.send((job.__module__, job.__name__, settings))
        return Running(self._connection, self.log)

    def executors(self) -> list[int]:
        """The process ids of the executors that run now."""
        return executors_below(self._driver)

    def wait_for_executors(self, count: int = 2) -> list[int]:
        """Wait until so many executors run, after a kill for example, and return them."""
        return wait_until(lambda: found if len(found := self.executors()) == count else [], timeout=120)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        processes = self._driver.children(recursive=True)
        self._connection.close()  # at which the driver stops Spark and ends
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._driver.wait(30)
        for process in [*processes, self._driver]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._driver.wait(10)
        psutil.wait_procs(processes, timeout=10)

    def _conf(self) -> dict[str, str]:
        return {**cluster_conf(self.directory, pythonpath=self.pythonpath), **self.conf}


def spark_home(directory: Path) -> Path:
    """Spark's programs, by links: executors' working directories are made in Spark's home."""
    import pyspark  # noqa: PLC0415

    home = directory / "spark"
    home.mkdir(parents=True)
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    return home


def cluster_conf(directory: Path, *, pythonpath: str = str(ROOT)) -> dict[str, str]:
    """Return what a driver with small executors on this machine needs."""
    conf = spark_conf()
    return {
        **conf,
        # By path, since they are on this machine, rather than copied to each executor.
        "spark.jars": "",
        "spark.driver.extraClassPath": conf["spark.jars"].replace(",", os.pathsep),
        "spark.executor.extraClassPath": conf["spark.jars"].replace(",", os.pathsep),
        "spark.driver.extraJavaOptions": f"{conf['spark.driver.extraJavaOptions']} {QUICK}",
        "spark.executor.extraJavaOptions": QUICK,
        "spark.executor.memory": "900m",
        "spark.executorEnv.PYTHONPATH": pythonpath,
        # Both executors have their part in the first job already.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.locality.wait": "0",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": (directory / "warehouse").as_uri(),
    }


def executors_below(process: psutil.Process) -> list[int]:
    """The process ids of the executors that a driver, or the Java of one, has started and that run now."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child.pid for child in process.children(recursive=True) if _EXECUTOR in _command(child)]
    return []


def python_workers(executor: int) -> list[int]:
    """The process ids of an executor's Python workers, which its daemons have forked."""
    with contextlib.suppress(psutil.NoSuchProcess):
        daemons = [child for child in psutil.Process(executor).children() if _DAEMON in _command(child)]
        return [worker.pid for daemon in daemons for worker in daemon.children()]
    return []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def _end_of(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-4000:]


def serve(descriptor: int) -> None:
    """Be the driver: run the jobs that come, until the test closes the connection."""
    connection = Connection(descriptor)
    session: SparkSession | None = None
    with contextlib.suppress(EOFError):
        master, conf = connection.recv()
        session = local_session("offsetstore-cluster", master=master, extra_conf=conf)
        while True:
            module, name, settings = connection.recv()
            connection.send(_outcome(session, module, name, settings))
    if session is not None:
        stop_session(session)


def _outcome(session: SparkSession, module: str, name: str, settings: dict[str, Any]) -> tuple[Any, Any, str]:
    try:
        return getattr(import_module(module), name)(session, **settings), None, ""
    except Exception as error:  # noqa: BLE001 - whatever it is, the test wants it
        account = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))  # noqa: S301 - made in the same line
        except Exception:  # noqa: BLE001 - as many do, Spark's among them
            return None, JobFailed(account), ""
        return None, error, account
