"""A Python job as a child process: start it, read its events, kill it, wait for it. For the demo and for tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Thread
from types import TracebackType
from typing import IO, Any, Self

from offsetstore.local import cache_directory
from offsetstore.local.servers import end_process, is_process_of, tail
from offsetstore.protocol import events
from offsetstore.protocol.events import BatchEnded, BatchStarted, FlushEnded

_FAILPOINT = re.compile(r"offsetstore failpoint (\w+): (\w+) \(pid (\d+)\)")
_END_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line of a job's output. ``at`` is in seconds of the monotonic clock, which all processes of a machine share."""

    kind: str
    at: float
    what: dict[str, Any] = field(default_factory=dict[str, Any])


def print_event(kind: str, **what: Any) -> None:
    """Print an event, in the job; ``jvm=`` is the process id of its Java."""
    line = json.dumps({"job": kind, "at": time.monotonic(), **what})
    print(f"{line}\n", end="", flush=True)  # noqa: T201 - this is the output; threads print, so it is one write


def parse_event(line: str) -> OutputLine | None:
    """Read the event in a line of a job's output, if there is one. A failpoint's line is the event ``reached``."""
    if line.startswith('{"job": '):
        what = json.loads(line)
        return OutputLine(what.pop("job"), what.pop("at"), what)
    if point := _FAILPOINT.search(line):
        return OutputLine("reached", time.monotonic(), {"point": point[1], "action": point[2], "pid": int(point[3])})
    return None


class BatchPrinter:
    """An observer for a job's store: prints ``begun`` and ``done`` for each micro-batch, its id, ranges and process.

    Kept batches are done when they are flushed, under the id of the last of them.
    """

    def on(self, event: events.Event) -> None:
        """Print the event if it is a batch's start or end."""
        match event:
            case BatchStarted(batch=batch):
                kind = "begun"
            case BatchEnded(outcome="written" | "skipped", batch=batch):
                kind = "done"
            case FlushEnded(batches=(_, batch)):
                kind = "done"
            case _:
                return
        ranges = {str(tp): (range_.from_, range_.until) for tp, range_ in event.ranges.items()}
        print_event(kind, batch=batch, ranges=ranges, pid=os.getpid())


class JobProcess:
    """A job in a process group of its own, so that Ctrl-C does not reach it.

    A context manager that kills what still runs at the end of the block.

    :param arguments: Python's, such as ``["-m", "package.job"]``.
    :param log: the file to which its output is appended.
    :param environment: variables on top of this process's.
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.log = log
        log.touch()  # before a thread does: it may be read at once
        self.events: list[OutputLine] = []
        self._changed = Condition()
        self._process = subprocess.Popen(  # noqa: S603 - our own jobs
            [sys.executable, *arguments],
            cwd=cwd,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        streams = (self._process.stdout, self._process.stderr)
        self._readers = [Thread(target=self._read, args=(stream,), daemon=True) for stream in streams]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        """Python's process, and its group."""
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """As in `subprocess`: minus the signal; ``None`` while it runs."""
        return self._process.poll()

    @property
    def jvm(self) -> int:
        """The process id of its Java; 0 if it has printed none."""
        return next((event.what["jvm"] for event in self.events if "jvm" in event.what), 0)

    @property
    def jvm_runs(self) -> bool:
        # Its command line names our jars; a process id alone may be another process's by now.
        return bool(self.jvm) and is_process_of(self.jvm, cache_directory())

    @property
    def end_of_log(self) -> str:
        return tail(self.log, lines=30)

    def write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait_for_more(self, seen: int, seconds: float) -> None:
        """Wait until there are more than ``seen`` events, for at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.events) > seen, seconds)

    def wait_for(self, kind: str, *, count: int = 1, since: int = 0, timeout: float = 60) -> OutputLine:
        """Wait for the ``count``th event of a kind from event ``since`` on.

        :param timeout: in seconds.
        :raises AssertionError: it does not come, or the process ends without it; the text has the end of the log.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                matching = [event for event in self.events[since:] if event.kind == kind]
                if len(matching) >= count:
                    return matching[count - 1]
                left = deadline - time.monotonic()
                # The output of a process that has ended is read to its end first: the event may be in it.
                if left <= 0 or (
                    self.exit_status is not None and not any(reader.is_alive() for reader in self._readers)
                ):
                    others = [event.kind for event in self.events[since:]][-12:]
                    raise AssertionError(
                        f"no {kind!r} within {timeout:.0f} s (exit status {self.exit_status}; events: {others})\n"
                        f"{self.end_of_log}"
                    )
                self._changed.wait(min(left, 0.5))

    def kill(self, *, group: bool = True) -> int:
        """Send SIGKILL to the group, Java among it, or to Python alone; return Python's exit status."""
        (os.killpg if group else os.kill)(self.pid, signal.SIGKILL)
        return self._process.wait()

    def finish_reading(self) -> None:
        """Wait until all output of a process that has ended is read."""
        for reader in self._readers:
            reader.join(_END_SECONDS)

    def end(self) -> None:
        """Kill what still runs."""
        if self.exit_status is None:
            self.kill()
        if self.jvm_runs:
            end_process(self.jvm, seconds=_END_SECONDS)
        self.finish_reading()
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def _read(self, stream: IO[str]) -> None:
        with stream, self.log.open("a", encoding="utf-8") as log:
            for line in stream:
                log.write(line)
                log.flush()
                if event := parse_event(line):
                    with self._changed:
                        self.events.append(event)
                        self._changed.notify_all()
