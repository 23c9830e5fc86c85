"""Collects what a job's health is judged by: from its events, and from looks at its query."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from offsetstore.errors import BrokerUnavailable, ConnectionLost, OffsetStoreError, StoreUnavailable
from offsetstore.monitoring.health import Facts, GroupFacts, Limits
from offsetstore.offsets import Token
from offsetstore.protocol.background import Background
from offsetstore.protocol.events import (
    BatchFailed,
    BatchInterrupted,
    BatchKept,
    BatchSkipped,
    BatchStarted,
    BatchWritten,
    ClaimClosed,
    ClaimLost,
    ClaimTaken,
    DatabaseAnswered,
    DrainEnded,
    DrainStarted,
    Event,
    HeartbeatMissed,
    MirrorCopied,
    MirrorFailed,
    Paused,
    Resumed,
    SinkMade,
)
from offsetstore.protocol.query_status import QueryStatus, WatchedQuery
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


@dataclass(slots=True)
class _Watched:
    token: Token
    facts: GroupFacts
    trigger: int | None = None
    pid: int | None = None
    looks: Background | None = None

    def change(self, **values: Any) -> None:
        self.facts = replace(self.facts, **values)

    def end(self) -> None:
        if self.looks is not None:
            self.looks.stop(0)  # it may wait for Java, so don't wait for it


class FactCollector:
    """Keeps the facts about a process and its claims. Any thread may call it."""

    def __init__(self, clock: Callable[[], float], limits: Limits) -> None:
        self._clock = clock
        self._limits = limits
        self._guard = threading.RLock()
        self._began = clock()
        self._has_claimed = False
        self._groups: dict[str, _Watched] = {}

    def facts(self) -> Facts:
        """What is known now."""
        with self._guard:
            groups = tuple(one.facts for one in self._groups.values())
            pids = {os.getpid(), *(one.pid for one in self._groups.values() if one.pid is not None)}
        rss = sum(resident_bytes(pid) for pid in pids)
        return Facts(began=self._began, has_claimed=self._has_claimed, rss=rss or None, groups=groups)

    def close(self) -> None:
        """Look at no query any more."""
        with self._guard:
            for watched in self._groups.values():
                watched.end()

    def on(self, event: Event) -> None:
        """Record the event."""
        with self._guard:
            if isinstance(event, ClaimTaken):
                self._claim(event)
            elif (watched := self._groups.get(event.group)) is not None:
                self._note(watched, event)

    def _claim(self, event: ClaimTaken) -> None:
        self._forget(event.group)
        now = self._clock()
        facts = GroupFacts(group=event.group, claimed=now, database_answered=now, kafka_answered=now)
        self._groups[event.group] = _Watched(event.token, facts)
        self._has_claimed = True

    def _forget(self, group: str) -> None:
        watched = self._groups.pop(group, None)
        if watched is not None:
            watched.end()

    def _note(self, watched: _Watched, event: Event) -> None:
        match event:
            case ClaimClosed() | ClaimLost() | SinkMade():
                if event.token == watched.token:  # else it is about a claim that this one has replaced
                    self._note_of_claim(watched, event)
            case DatabaseAnswered():
                self._database(watched, has_answered=True)
            case HeartbeatMissed():
                self._database(watched, has_answered=not _is_unreachable(event.error))
            case MirrorCopied():
                self._kafka(watched, has_answered=True)
            case MirrorFailed():
                self._kafka(watched, has_answered=not isinstance(event.error, BrokerUnavailable))
            case _:
                self._note_of_work(watched, event)

    def _note_of_work(self, watched: _Watched, event: Event) -> None:
        now = self._clock()
        match event:
            case BatchStarted() | Resumed():
                watched.change(batch_since=now, is_paused=False)
                if watched.facts.is_active is None:  # where Spark can't be read
                    watched.change(is_active=True, active_since=now)
            case Paused():
                watched.change(is_paused=True)
            case BatchWritten() | BatchSkipped() | BatchKept() | BatchFailed() | BatchInterrupted():
                watched.change(batch_since=None, is_paused=False, triggered=now)
            case DrainStarted() | DrainEnded():  # the query has its time after that
                watched.change(is_draining=isinstance(event, DrainStarted), claimed=now, active_since=now)
            case _:
                pass

    def _note_of_claim(self, watched: _Watched, event: ClaimClosed | ClaimLost | SinkMade) -> None:
        match event:
            case ClaimClosed():
                self._forget(event.group)
            case ClaimLost():
                watched.change(is_lost=True)
            case SinkMade():
                watched.end()
                watched.change(has_sink=True, java_answered=self._clock())
                interval = self._limits.jvm / LOOKS
                watched.looks = Background(
                    "offsetstore-health-query", lambda: self._look(watched, event.query), lambda: interval
                )
                watched.looks.start()

    def _look(self, watched: _Watched, query: WatchedQuery) -> bool:
        with suppress(Exception):  # Java is gone: its silence shows it
            status = query.status()
            with self._guard:
                self._note_status(watched, status)
        return True

    def _note_status(self, watched: _Watched, status: QueryStatus) -> None:
        now, before = self._clock(), watched.facts
        watched.pid = status.pid or watched.pid
        watched.change(java_answered=now, interval=status.interval)
        if status.trigger is not None and status.trigger != watched.trigger:
            watched.trigger = status.trigger
            watched.change(triggered=now)
        if before.is_active is None and status.is_active is False:
            return  # it has not begun
        is_active = before.is_active is not False if status.is_active is None else status.is_active
        if is_active is not before.is_active:
            watched.change(is_active=is_active, active_since=now)
        watched.change(has_ended_well=status.has_failed is False)
        if not is_active:  # perhaps stopped in the middle of a batch
            watched.change(batch_since=None, is_paused=False)

    def _database(self, watched: _Watched, *, has_answered: bool) -> None:
        if not has_answered:
            watched.change(is_database_failing=True)
            return
        now, before = self._clock(), watched.facts
        if now - before.database_answered > self._limits.unreachable:
            watched.change(outage_ended=now)
        watched.change(database_answered=now, is_database_failing=False)

    def _kafka(self, watched: _Watched, *, has_answered: bool) -> None:
        if not has_answered:
            watched.change(is_kafka_failing=True)
            return
        now = self._clock()
        if watched.facts.is_kafka_failing:
            watched.change(outage_ended=now)
        watched.change(kafka_answered=now, is_kafka_failing=False)


def _is_unreachable(error: Exception) -> bool:
    """Whether the database did not answer; one that has no lock or refuses the heartbeat did."""
    return not isinstance(error, OffsetStoreError) or isinstance(error, (StoreUnavailable, ConnectionLost))
