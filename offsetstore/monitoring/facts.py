"""Collects what a job's health is judged by: from its events, and from looks at its query."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from offsetstore.monitoring.health import Facts, Limits
from offsetstore.protocol.background import Background
from offsetstore.protocol.events import ClaimTaken, Event, SinkMade
from offsetstore.protocol.job_state import JobStates
from offsetstore.store.run_record import resident_bytes

LOOKS: Final = 3
"""Looks at a query within `Limits.jvm`."""

_LONGEST: Final = 2.0


class RunningClock:
    """Seconds for which this process has run.

    It is read at least once a second. A longer gap means that the process, or its machine, was stopped: then nothing
    could answer, and that time does not count.
    """

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        self._read = read
        self._guard = threading.Lock()
        self._last = read()
        self._now = 0.0

    def __call__(self) -> float:
        """The seconds until now."""
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
        """What is known now."""
        groups = self._jobs.now()
        pids = {os.getpid(), *(one.pid for one in groups if one.pid is not None)}
        rss = sum(resident_bytes(pid) for pid in pids)
        return Facts(began=self._began, has_claimed=self._has_claimed, rss=rss or None, groups=groups)

    def close(self) -> None:
        """Look at no query any more."""
        for group in [*self._looks]:
            self._look_at(group, None)

    def on(self, event: Event) -> None:
        """Record the event."""
        before, after = self._jobs.on(event)
        if isinstance(event, SinkMade):
            if event.token == after.token:
                self._look_at(event.group, event)
        elif before.token is not None and (after.is_closed or after.token != before.token):
            self._look_at(event.group, None)
        self._has_claimed = self._has_claimed or isinstance(event, ClaimTaken)

    def _look_at(self, group: str, sink: SinkMade | None) -> None:
        """Look at the query of that sink from now on, or at none."""
        with self._guard:
            if (before := self._looks.pop(group, None)) is not None:
                before.stop(0)  # it may wait for Java, so don't wait for it
            if sink is not None:
                looks = Background("offsetstore-health-query", lambda: self._look(sink), lambda: self._interval)
                self._looks[group] = looks
                looks.start()

    def _look(self, sink: SinkMade) -> bool:
        with suppress(Exception):  # Java is gone: its silence shows it
            self._jobs.see(sink.group, sink.token, sink.query.status())
        return True
