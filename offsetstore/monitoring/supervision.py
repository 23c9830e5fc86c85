"""Watches a job in its own process: collects the facts about its health, tells systemd, and ends what hangs."""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, NoReturn

from offsetstore.errors import ExitCode
from offsetstore.monitoring.health import Code, Facts, Limits, Verdict
from offsetstore.protocol.events import ClaimTaken, Event, SinkMade
from offsetstore.protocol.job_state import JobStates
from offsetstore.runtime.background import Background
from offsetstore.store.heartbeat import resident_bytes

OnDead = Literal["exit"]

INTERVAL: Final = 1.0
"""Seconds between two judgements."""

LOOKS: Final = 3
"""Looks at a query within `Limits.jvm`."""

_LONGEST: Final = 2.0  # seconds that count, from one reading of the clock to the next
_STDERR: Final = 2
_DUMP_SECONDS: Final = 5.0  # in which the reasons and the stacks are written


class RunningClock:
    """Seconds for which this process has run.

    It is read at least once a second. A longer gap means that the process, or its machine, was stopped: nothing could
    answer then, and a job that is continued must not be dead for it (decision 0038).
    """

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._guard = threading.Lock()
        self._last = read()
        self._now = 0.0

    def __call__(self) -> float:
        with self._guard:
            read = self._read()
            self._now += min(read - self._last, _LONGEST)
            self._last = read
            return self._now


class FactCollector:
    """Keeps the facts about a process and its claims. Any thread may call it."""

    def __init__(self, clock: Callable[[], float], limits: Limits) -> None:
        self._interval = limits.jvm / LOOKS
        self._guard = threading.Lock()
        self._began = clock()
        self._has_claimed = False
        self._jobs = JobStates(clock, unreachable=limits.unreachable)
        self._looks: dict[str, Background] = {}

    def facts(self) -> Facts:
        groups = self._jobs.now()
        pids = {os.getpid(), *(job.pid for job in groups if job.pid is not None)}
        rss = sum(resident_bytes(pid) for pid in pids)
        return Facts(began=self._began, has_claimed=self._has_claimed, rss=rss or None, groups=groups)

    def close(self) -> None:
        """Stop looking at queries."""
        for group in [*self._looks]:
            self._look_at(group, None)

    def on(self, event: Event) -> None:
        before, after = self._jobs.on(event)
        if isinstance(event, SinkMade):
            if event.token == after.token:
                self._look_at(event.group, event)
        elif before.token is not None and (after.is_closed or after.token != before.token):
            self._look_at(event.group, None)
        self._has_claimed = self._has_claimed or isinstance(event, ClaimTaken)

    def _look_at(self, group: str, sink: SinkMade | None) -> None:
        """Look at this sink's query from now on, or at none."""
        with self._guard:
            if (before := self._looks.pop(group, None)) is not None:
                # It may wait for Java, so don't wait for it.
                before.stop(0)
            if sink is not None:
                # In a thread of its own, since a look at Java may hang: another judges its silence (decision 0038).
                looks = Background("offsetstore-health-query", lambda: self._look(sink), lambda: self._interval)
                self._looks[group] = looks
                looks.start()

    def _look(self, sink: SinkMade) -> bool:
        # Java is gone; its silence shows it.
        with suppress(Exception):
            self._jobs.see(sink.group, sink.token, sink.query.status())
        return True


class Supervision:
    """Judges the job once a second, in a daemon thread.

    While the job is live, systemd is told so, if it has started the process with ``Type=notify``. A process that is not
    live is ended, if that is wanted.

    :param judge: returns the verdict.
    :param clock: the clock that it judges by.
    :param exit_after: seconds from when liveness fails to the end of the process; ``None``: it is not ended.
    """

    def __init__(self, judge: Callable[[], Verdict], clock: Callable[[], float], exit_after: float | None) -> None:
        self._judge = judge
        self._clock = clock
        self._exit_after = exit_after
        self._dead_since: float | None = None
        self._was_ready = False
        self._told = ""
        self._turns = Background("offsetstore-health", self._turn, lambda: INTERVAL)
        self._turns.start()

    def close(self) -> None:
        self._turns.stop()

    def _turn(self) -> bool:
        verdict = self._judge()
        self._tell_systemd(verdict)
        if verdict.is_live:
            self._dead_since = None
            return True
        if self._dead_since is None:
            self._dead_since = self._clock()
        if self._exit_after is not None and self._clock() - self._dead_since >= self._exit_after:
            end_process(verdict)
        return True

    def _tell_systemd(self, verdict: Verdict) -> None:
        status = f"STATUS={', '.join(verdict.codes) or 'ok'}"
        lines = [status] if status != self._told else []
        if verdict.is_live:
            lines.append("WATCHDOG=1")
            if verdict.is_ready and not self._was_ready:
                self._was_ready = True
                lines.append("READY=1")
        if lines:
            self._told = status
            notify("\n".join(lines))


def notify(state: str) -> None:
    """Send a state to systemd, as sd_notify(3) does; do nothing without ``NOTIFY_SOCKET``, or if nobody listens."""
    # The libraries for it are as long as these lines (decision 0038).
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto(state.encode(), socket.MSG_DONTWAIT, address)


def end_process(verdict: Verdict) -> NoReturn:
    """Write the reasons and the stacks of all threads to standard error, and end the process at once.

    Nothing is closed: what hangs would hang here too. The exit code is that of a fenced job, or of a dead one.
    """
    # Not 75 for a fenced job: a supervisor that starts it again takes the group back (decision 0038).
    code = ExitCode.FENCED if verdict.codes[0] is Code.CLAIM_LOST else ExitCode.DEAD
    # A pipe may be full, or a hung thread hold the lock of standard error.
    late = threading.Timer(_DUMP_SECONDS, os._exit, (code,))
    late.daemon = True
    late.start()
    with suppress(Exception):
        reasons = "\n".join(f"  {finding.code}: {finding.text}" for finding in verdict.findings)
        sys.stderr.flush()
        os.write(_STDERR, f"offsetstore: the job is not live, and ends with exit code {code}\n{reasons}\n".encode())
        faulthandler.dump_traceback(_STDERR, all_threads=True)
    os._exit(code)
