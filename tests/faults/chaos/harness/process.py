"""Job processes, seen from outside: started ahead of their use, listened to, signalled."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Condition, RLock, Thread
from typing import TYPE_CHECKING, Any, Literal

import psutil

from offsetstore.local.spark.launch import spark_environment
from tests.faults.chaos.harness.clusters import Clusters
from tests.support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.faults.chaos.harness.clusters import Kind
    from tests.faults.chaos.harness.job import Work

Target = Literal["python", "jvm", "both"]

ROOT = Path(__file__).parents[4]
_FAILPOINT = re.compile(r"offsetstore failpoint (\w+): (\w+) \(pid (\d+)\)")
_READY_SECONDS = 240
_END_SECONDS = 15


@dataclass(frozen=True, slots=True)
class Event:
    """What a job has told. ``at`` is of the clock that all processes of this machine share, in seconds."""

    kind: str
    at: float
    what: dict[str, Any] = field(default_factory=dict[str, Any])


class JobProcess:
    """One process, which does one piece of work after the other."""

    def __init__(self, log: Path, kind: Kind = "local", environment: Mapping[str, str] | None = None) -> None:
        self.log = log
        self.kind = kind
        self.events: list[Event] = []
        self.work_done = 0
        self.changed = Condition()
        self._log = log.open("w", encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.chaos.harness.job"],
            cwd=ROOT,
            env={
                **os.environ,
                **spark_environment(),
                "PYTHONPATH": str(ROOT),
                "PYTHONUNBUFFERED": "1",
                **(environment or {}),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for us
        )
        self._listeners = [Thread(target=self._listen, args=(one,), daemon=True) for one in self._streams()]
        for listener in self._listeners:
            listener.start()
        self.jvm = 0
        self._java: psutil.Process | None = None

    @property
    def pid(self) -> int:
        """Python's process id."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """Whether both Python and Java run."""
        return self.process.poll() is None and (self._java is None or _runs(self._java))

    def wait_until_ready(self) -> None:
        """Wait until Spark runs."""
        found = self.wait_for("ready", timeout=_READY_SECONDS)
        if self._java is None:
            self.jvm = found.what["jvm"]
            self._java = psutil.Process(self.jvm)  # knows it from another process that gets the same id later

    def send(self, work: Work) -> None:
        """Give it work."""
        self.work_done += 1
        self._write(json.dumps(asdict(work)))

    def ask(self, word: str) -> None:
        """Ask something of the work under way: to ``stop`` in order, or to ``measure`` what it uses."""
        with suppress(OSError):
            self._write(word)

    def wait_for(self, kind: str, *, count: int = 1, since: int = 0, timeout: float = 60) -> Event:
        """Wait for the ``count``th event of a kind from event ``since`` on.

        :raises AssertionError: it does not come; with the end of the log.
        """
        deadline = time.monotonic() + timeout * PATIENCE
        with self.changed:
            while True:
                found = [event for event in self.events[since:] if event.kind == kind]
                if len(found) >= count:
                    return found[count - 1]
                left = deadline - time.monotonic()
                gone = self.process.poll() is not None and not any(one.is_alive() for one in self._listeners)
                told = [event.kind for event in self.events[since:]]
                assert left > 0 and not gone, (  # noqa: PT018 - one message for both
                    f"no {kind!r} within {timeout:.0f} s (exit status {self.process.poll()}; told: {told[-12:]})\n"
                    f"{self.end_of_log()}"
                )
                self.changed.wait(min(left, 0.5))

    def end_of_log(self) -> str:
        """What it has said last."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-3000:]

    def signal(self, target: Target, number: signal.Signals) -> None:
        """Send a signal to Python, to Java, or to both."""
        if target in {"jvm", "both"} and self._java is not None:
            with suppress(psutil.NoSuchProcess):
                self._java.send_signal(number)
        if target in {"python", "both"} and self.process.poll() is None:
            os.kill(self.pid, number)
        if number == signal.SIGKILL and target in {"python", "both"}:
            self.process.wait(_END_SECONDS)

    def end(self) -> None:
        """Leave nothing of it behind."""
        with suppress(psutil.NoSuchProcess):
            family = [*psutil.Process(self.pid).children(recursive=True)] if self.process.poll() is None else []
            if self._java is not None and _runs(self._java):
                family += [self._java, *self._java.children(recursive=True)]
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(_END_SECONDS)
        for listener in self._listeners:
            listener.join(_END_SECONDS)
        with suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        self._log.close()

    def _streams(self) -> list[Any]:
        return [self.process.stdout, self.process.stderr]

    def _write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def _listen(self, stream: Any) -> None:
        with stream:
            for line in stream:
                self._log.write(line)
                self._log.flush()
                event = _parse(line)
                if event is not None:
                    with self.changed:
                        self.events.append(event)
                        self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()


def _parse(line: str) -> Event | None:
    if line.startswith('{"job": '):
        found = json.loads(line)
        return Event(found.pop("job"), found.pop("at"), found)
    if point := _FAILPOINT.search(line):
        return Event("reached", time.monotonic(), {"point": point[1], "action": point[2], "pid": int(point[3])})
    return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class JobPool:
    """Processes that are ready before they are needed: a restart then costs no start of Java.

    :param spares: how many are kept ready.
    """

    def __init__(self, directory: Path, *, spares: int = 1) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._spares = spares
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
        chosen.wait_until_ready()
        return chosen

    def give_back(self, process: JobProcess) -> None:
        """Keep one that has ended its work in order, for the next."""
        with self._guard:
            if process.is_alive and process.work_done < self.most_work:
                self._ready.append(process)
            else:
                process.end()
                self._all.remove(process)
            self.fill()

    def discard(self, process: JobProcess) -> None:
        """End one that nobody shall use again."""
        with self._guard:
            process.end()
            self._all.remove(process)
            self.fill()

    def fill(self) -> None:
        """Have as many in reserve as are wanted, and one of them fresh."""
        with self._guard:
            for dead in [one for one in self._ready if not one.is_alive]:
                self._ready.remove(dead)
                dead.end()
                self._all.remove(dead)
            while len(spare := self._local()) < self._spares or not any(one.work_done == 0 for one in spare):
                self._ready.append(self._start("local"))

    def _local(self) -> list[JobProcess]:
        return [one for one in self._ready if one.kind == "local"]

    def close(self) -> None:
        """End all of them."""
        for one in self._all:
            one.end()
        self._all.clear()
        self._ready.clear()
        self._clusters.close()

    def _start(self, kind: Kind) -> JobProcess:
        log = self._directory / f"job-{len(list(self._directory.iterdir())) + 1}.log"
        process = JobProcess(log, kind, self._clusters.environment(kind))
        self._all.append(process)
        return process
