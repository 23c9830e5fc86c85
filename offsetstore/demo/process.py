"""A job as its own process, in its own process group: started, listened to, and killed."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import time
from threading import Thread
from typing import TYPE_CHECKING, Self

from offsetstore.demo.events import Event, parse_event
from offsetstore.local.cache import cache_directory
from offsetstore.local.logs import tail
from offsetstore.local.processes import end_process, is_process_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import IO

    from offsetstore.demo.kills import Target

_FAILPOINT = re.compile(r"offsetstore failpoint (\w+): hang ")
_LOOK_SECONDS = 0.05
_JVM_SECONDS = 15.0
_END_SECONDS = 10.0
_LISTEN_SECONDS = 2.0


class JobProcess:
    """One run of a job.

    A context manager that leaves nothing behind, however the block ends: Python and Spark's Java process are killed if
    they still run.

    :param module: what ``python -m`` runs.
    :param log: the file for what the job prints.
    """

    def __init__(self, module: str, environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self.jvm = 0
        self._events: queue.Queue[Event] = queue.Queue()
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", module],
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # a group of its own; and Ctrl-C is for us
        )
        self._listeners: list[Thread] = []
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            self._listeners.append(Thread(target=self._listen, args=(stream,), daemon=True))
            self._listeners[-1].start()

    @property
    def pid(self) -> int:
        """Python's process, and its group."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """As in `subprocess`: minus the signal; ``None`` while it runs."""
        return self._process.poll()

    def next_event(self, seconds: float) -> Event | None:
        """Wait for the job's next event."""
        try:
            event = self._events.get(timeout=max(seconds, 0))
        except queue.Empty:
            return None
        if event.kind == "started":
            self.jvm = event.jvm
        return event

    def remaining_events(self) -> list[Event]:
        """The events that are not yet taken, once all its processes have ended."""
        for listener in self._listeners:
            listener.join(_LISTEN_SECONDS)
        events: list[Event] = []
        while event := self.next_event(0):
            events.append(event)
        return events

    def kill(self, target: Target) -> int:
        """Send SIGKILL, and return the exit status of the process that it has ended."""
        if target == "process group":
            os.killpg(self.pid, signal.SIGKILL)
        else:
            os.kill(self.pid, signal.SIGKILL)
        return self._process.wait()

    def await_jvm(self) -> tuple[float, bool]:
        """Wait until Spark's Java process has ended too, as it does when Python is gone; end it if it does not.

        :return: seconds that it took, and whether it had to be ended.
        """
        begin = time.monotonic()
        while self._jvm_runs():
            if time.monotonic() - begin > _JVM_SECONDS:
                end_process(self.jvm, seconds=_END_SECONDS)
                return time.monotonic() - begin, True
            time.sleep(_LOOK_SECONDS)
        return time.monotonic() - begin, False

    def last_words(self) -> str:
        """The end of its log."""
        return tail(self.log)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.exit_status is None:
            self.kill("process group")
        if self._jvm_runs():
            end_process(self.jvm, seconds=_END_SECONDS)

    def _jvm_runs(self) -> bool:
        # Its command line names our jars; a process id alone may be another process's by now.
        return bool(self.jvm) and is_process_of(self.jvm, cache_directory())

    def _listen(self, stream: IO[str]) -> None:
        with stream, self.log.open("a") as log:
            for line in stream:
                log.write(line)
                log.flush()
                if event := parse_event(line):
                    self._events.put(event)
                elif found := _FAILPOINT.match(line):
                    self._events.put(Event("reached", point=found[1]))
