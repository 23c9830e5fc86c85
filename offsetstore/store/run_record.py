"""What one claim's job does and what it meets, for the tables ``job_runs`` and ``job_errors``."""

from __future__ import annotations

import logging
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from offsetstore.errors import OffsetStoreError
from offsetstore.offsets import Token, count_offsets, describe
from offsetstore.protocol.database import Session
from offsetstore.protocol.events import (
    BatchFailed,
    BatchInterrupted,
    BatchKept,
    BatchSkipped,
    BatchStarted,
    BatchWritten,
    BufferFlushed,
    ClaimLost,
    Event,
    FlushFailed,
    HeartbeatMissed,
    IdleWorkFailed,
    LettersReplayed,
    LettersWritten,
    MirrorCopied,
    MirrorFailed,
    Paused,
    QueryStarted,
    Resumed,
    Retried,
    SinkMade,
)
from offsetstore.protocol.runs import KEPT, Ending, JobError, NewRun, Phase, RunStatus, Source

_log = logging.getLogger(__name__)

_PACKAGES: Final = ("offsetstore", "pyspark", "psycopg", "sqlalchemy", "confluent_kafka")
_THEN: Final[dict[type, Phase]] = {Paused: "paused", Resumed: "batch", BatchInterrupted: "idle"}
_MOST: Final = 100
"""Different errors that are kept in memory between two heartbeats; those that come on top are only counted."""
_PATIENCE: Final = 5.0  # seconds
_LONGEST: Final = 4_000  # characters of an error's text


class _Place(NamedTuple):
    """Where an error came from, besides the error itself."""

    source: Source
    batch: int | None = None
    ranges: str | None = None


def new_run(owner: str, topics: Collection[str]) -> NewRun:
    """Describe this process, with the versions of what it has loaded."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        if package in sys.modules:
            try:
                versions[package] = version(package.replace("_", "-"))
            except PackageNotFoundError:
                continue
    return NewRun(owner, tuple(topics), versions)


class RunRecord:
    """An observer of one claim, which keeps the latest in memory until it is saved."""

    def __init__(self, group: str, token: Token) -> None:
        self._group = group
        self._token = token
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._counters: dict[str, int] = {}
        self._errors: dict[tuple[object, ...], JobError] = {}
        self._phase: Phase = "starting"
        self._since = time.monotonic()
        self._ended_well: float | None = None
        self._mirrored: float | None = None
        self._status = RunStatus()
        self._is_lost = False
        self._is_trimmed = False
        self._saved_end: Ending | None = None
        self._has_failed = False
        self._has_told = False

    def on(self, event: Event) -> None:
        """Record the event."""
        with self._lock:
            if isinstance(event, BatchFailed | BatchInterrupted) and event.stored:  # that stays
                self._count("offsets", count_offsets(event.stored))
                self._count("rows", sum(event.rows.values()))
            match event:
                case QueryStarted():
                    self._status = replace(
                        self._status,
                        query_id=UUID(event.query_id),
                        application_id=event.application_id,
                        ui_url=event.ui_url,
                    )
                case BatchStarted():
                    offsets = count_offsets(event.ranges)
                    self._status = replace(self._status, batch=event.batch, batch_offsets=offsets)
                    self._enter("batch")
                case BatchWritten() | BatchSkipped() | BatchKept():
                    self._end_well(event)
                case BatchFailed() | FlushFailed() | IdleWorkFailed() | Retried():
                    self._fail(event)
                case Paused() | Resumed() | BatchInterrupted():
                    self._enter(_THEN[type(event)])
                case MirrorCopied() | MirrorFailed():
                    self._mirror(event)
                case ClaimLost():
                    self._is_lost = True
                case SinkMade():
                    self._status = replace(self._status, replays_letters=event.replays_letters)
                case _:
                    self._count_others(event)

    def _count_others(self, event: Event) -> None:
        match event:
            case BufferFlushed():
                self._count("flushed")
                self._count_time(event.seconds)
                self._count("rows", sum(event.rows.values()))
            case LettersWritten():
                self._count("letters", sum(event.letters.values()))
            case LettersReplayed():
                self._count("replayed", event.replayed)
            case HeartbeatMissed():
                self._count("heartbeats_missed")
            case _:
                pass

    def end_with(self, error: Exception) -> None:
        """Record an error that left the block of the claim or the store, unless a batch has failed with it."""
        with self._lock:
            if self._phase != "failed":
                self._enter("failed")
                self._note(error, _Place("job"))

    def _enter(self, phase: Phase) -> None:
        self._phase, self._since = phase, time.monotonic()

    def _count(self, what: str, number: int = 1) -> None:
        self._counters[what] = self._counters.get(what, 0) + number

    def _end_well(self, event: BatchWritten | BatchSkipped | BatchKept) -> None:
        self._enter("idle")
        self._ended_well = time.monotonic()
        self._count({BatchWritten: "written", BatchSkipped: "skipped", BatchKept: "kept"}[type(event)])
        self._count("offsets", count_offsets(event.ranges))
        if not isinstance(event, BatchSkipped):
            self._count_time(event.seconds)
        if isinstance(event, BatchWritten):
            self._count("rows", sum(event.rows.values()))

    def _count_time(self, seconds: Mapping[str, float]) -> None:
        self._count("batch_milliseconds", round(sum(seconds.values()) * 1000))

    def _fail(self, event: BatchFailed | FlushFailed | IdleWorkFailed | Retried) -> None:
        match event:
            case BatchFailed():
                self._enter("failed")
                self._count("failed")
                self._note(event.error, _Place("batch", event.batch, describe(event.ranges)))
            case FlushFailed():
                self._note(event.error, _Place("flush"))
            case IdleWorkFailed():
                self._note(event.error, _Place("idle"))
            case Retried():
                self._count("retries")
                self._note(event.error, _Place("retry"))

    def _mirror(self, event: MirrorCopied | MirrorFailed) -> None:
        if isinstance(event, MirrorCopied):
            self._mirrored = time.monotonic()
            self._status = replace(self._status, mirror_error=None)
            return
        if self._status.mirror_error is None:  # once, until it succeeds again
            self._add(JobError(source="mirror", error_class=type(event).__name__, text=event.reason[:_LONGEST]))
        self._status = replace(self._status, mirror_error=event.reason[:_LONGEST])

    def _note(self, error: BaseException, place: _Place) -> None:
        ours = error if isinstance(error, OffsetStoreError) else None
        sqlstate = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
        self._add(
            JobError(
                source=place.source,
                error_class=type(error).__name__,
                text=None if ours is None else str(ours)[:_LONGEST],
                sqlstate=sqlstate if isinstance(sqlstate, str) else None,
                topic_partition=None if ours is None else ours.topic_partition,
                batch=place.batch,
                ranges=place.ranges,
            )
        )

    def _add(self, error: JobError) -> None:
        key = (error.source, error.error_class, error.sqlstate, error.topic_partition, error.batch)
        before = self._errors.pop(key, None)
        if before is None and len(self._errors) >= _MOST:
            self._count("errors_left_out")
            return
        self._errors[key] = replace(error, times=error.times + (before.times if before else 0))

    def save(self, transaction: Callable[[], AbstractContextManager[Session]], *, is_over: bool = False) -> None:
        """Write what is known to the database. A failure is logged once: the job does not depend on it.

        :param transaction: begins one, and commits it.
        :param is_over: the query has ended, or the claim is closed.
        """
        # One after the other: one that hangs with the database must not take the end back when it gets through.
        if not self._saving.acquire(timeout=_PATIENCE):
            return
        try:
            self._save(transaction, is_over=is_over)
        finally:
            self._saving.release()

    def _save(self, transaction: Callable[[], AbstractContextManager[Session]], *, is_over: bool) -> None:
        with self._lock:
            ending = self._ending() if is_over or self._is_lost or self._phase == "failed" else None
            if ending is not None and ending == self._saved_end and not self._errors:
                return
            errors, self._errors = self._errors, {}
            status = self._now()
        try:
            with transaction() as session:
                session.write_run(self._group, self._token, status, ending)
                session.append_errors(self._group, self._token, list(errors.values()))
                if errors or not self._is_trimmed:
                    session.trim_runs(self._group, KEPT)
                are_left = status.replays_letters is False and ending is None and session.has_requested(self._group)
        except Exception as error:  # noqa: BLE001 - the next heartbeat tries again
            with self._lock:
                later, self._errors = self._errors, errors
                for one in later.values():
                    self._add(one)
            if not self._has_failed:
                self._has_failed = True
                text = f": {error}" if isinstance(error, OffsetStoreError) else ""
                _log.warning("could not record what the job does (logged once): %s%s", type(error).__name__, text)
            return
        self._is_trimmed, self._saved_end = True, ending
        if are_left and not self._has_told:
            _log.warning(
                "dead letters of group %r are requested, and this job replays none: its sink has no dead_letters=",
                self._group,
            )
        self._has_told = are_left

    def _ending(self) -> Ending:
        return "fenced" if self._is_lost else "failed" if self._phase == "failed" else "closed"

    def _now(self) -> RunStatus:
        now = time.monotonic()
        return replace(
            self._status,
            phase=self._phase,
            phase_age=now - self._since,
            last_batch_age=None if self._ended_well is None else now - self._ended_well,
            mirror_age=None if self._mirrored is None else now - self._mirrored,
            counters=dict(self._counters),
            # The most that it ever had, in bytes, on macOS: the only system without /proc.
            memory=resident_bytes(os.getpid()) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        )


def resident_bytes(pid: int) -> int:
    """The memory of a process that is not swapped out, 0 where there is no ``/proc``."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
