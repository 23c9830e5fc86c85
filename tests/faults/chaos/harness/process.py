"""Job processes, seen from outside: started ahead of their use, listened to, signalled."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import RLock
from typing import Final, Literal

import psutil

from offsetstore.local.spark import spark_environment
from offsetstore.testing import job_process
from offsetstore.testing.job_process import OutputLine
from tests.faults.chaos.harness.clusters import Clusters, Kind
from tests.faults.chaos.harness.job import Work
from tests.support.waiting import PATIENCE

Target = Literal["python", "jvm", "both"]
TARGETS: Final[tuple[Target, ...]] = ("python", "jvm", "both")

ROOT = Path(__file__).parents[4]
_READY_SECONDS = 240


class JobProcess(job_process.JobProcess):
    """One process, which does one piece of work after the other."""

    def __init__(self, log: Path, kind: Kind = "local", environment: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self.work_done = 0
        given = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **(environment or {})}
        super().__init__(
            ["-m", "tests.faults.chaos.harness.job"], log, environment={**spark_environment(), **given}, cwd=ROOT
        )

    @property
    def is_alive(self) -> bool:
        return self.exit_status is None and (not self.jvm or self.jvm_runs)

    def send(self, work: Work) -> None:
        self.work_done += 1
        self.write(json.dumps(asdict(work)))

    def ask(self, word: str) -> None:
        """Ask something of the work under way: to ``stop`` in order, or to ``measure`` what it uses."""
        with suppress(OSError):
            self.write(word)

    def wait_for(self, kind: str, *, count: int = 1, since: int = 0, timeout: float = 60) -> OutputLine:
        """The same with `PATIENCE`."""
        return super().wait_for(kind, count=count, since=since, timeout=timeout * PATIENCE)

    def signal(self, target: Target, number: signal.Signals) -> None:
        if target in {"jvm", "both"} and self.jvm_runs:
            with suppress(ProcessLookupError):
                os.kill(self.jvm, number)
        if target in {"python", "both"} and self.exit_status is None:
            if number == signal.SIGKILL:
                self.kill(group=False)
            else:
                os.kill(self.pid, number)

    def end(self) -> None:
        family: list[psutil.Process] = []
        for pid in (self.pid if self.exit_status is None else 0, self.jvm if self.jvm_runs else 0):
            with suppress(psutil.NoSuchProcess):
                family += psutil.Process(pid).children(recursive=True) if pid else []
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        super().end()


class JobPool:
    """Processes that are ready before they are needed: a restart then costs no start of Java."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.most_work = 15
        self._ready: list[JobProcess] = []
        self._all: list[JobProcess] = []
        self._clusters = Clusters(directory.with_name("clusters"))
        self._guard = RLock()  # two supervisors are two threads

    def take(self, *, fresh: bool = False, kind: Kind = "local") -> JobProcess:
        """Return one that is ready.

        :param kind: whether its executors are processes of their own; such a one is started where it is asked for.
        :param fresh: it has not worked before; a failpoint counts from the start of its process, and of its workers.
        """
        with self._guard:
            usable = [one for one in self._ready if one.is_alive and one.kind == kind and not (fresh and one.work_done)]
            chosen = max(usable, key=lambda one: one.work_done) if usable else self._start(kind)
            if chosen in self._ready:
                self._ready.remove(chosen)
            self.fill()
        chosen.wait_for("ready", timeout=_READY_SECONDS)
        return chosen

    def give_back(self, process: JobProcess) -> None:
        with self._guard:
            if process.is_alive and process.work_done < self.most_work:
                self._ready.append(process)
            else:
                self._end(process)
            self.fill()

    def discard(self, process: JobProcess) -> None:
        with self._guard:
            self._end(process)
            self.fill()

    def fill(self) -> None:
        with self._guard:
            for dead in [one for one in self._ready if not one.is_alive]:
                self._ready.remove(dead)
                self._end(dead)
            while not any(one.work_done == 0 for one in self._ready if one.kind == "local"):
                self._ready.append(self._start("local"))

    def _end(self, process: JobProcess) -> None:
        process.end()
        self._all.remove(process)

    def close(self) -> None:
        for one in self._all:
            one.end()
        self._clusters.close()

    def _start(self, kind: Kind) -> JobProcess:
        log = self._directory / f"job-{len(list(self._directory.iterdir())) + 1}.log"
        process = JobProcess(log, kind, self._clusters.environment(kind))
        self._all.append(process)
        return process
