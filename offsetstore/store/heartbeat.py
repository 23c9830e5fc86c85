"""A claim's heartbeat, and the record of its run, which is saved after each heartbeat.

The next claim checks the heartbeat for ``takeover="wait"`` and ``"refuse"``. The record tells what the job does and
meets: for ``job_runs`` or ``member_runs``, and ``job_errors``.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Callable, Collection, Generator
from concurrent.futures import wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from uuid import UUID

from offsetstore.errors import (
    ConnectionLost,
    GroupBusy,
    GroupRenamed,
    LockTimeout,
    OffsetStoreError,
    StoreUnavailable,
    TransactionLost,
)
from offsetstore.offsets import Token, describe
from offsetstore.protocol.database import Database, Session
from offsetstore.protocol.events import (
    BatchEnded,
    Event,
    FlushEnded,
    IdleWorkFailed,
    MirrorTried,
    QueryStarted,
    Retried,
)
from offsetstore.protocol.job_state import JobState
from offsetstore.protocol.runs import Ending, ErrorSource, JobError, NewRun, RunStatus
from offsetstore.runtime.background import Background, meanwhile
from offsetstore.runtime.functions import dropped, without_frames
from offsetstore.store.identity import name_prefix
from offsetstore.store.sessions import Connected, transaction
from offsetstore.text import logger

# A third of the time for which a heartbeat counts (`LIVE`, decision 0026).
INTERVAL = 5.0
"""Seconds between two heartbeats, and how long one may wait for a lock."""

_log = logger(__name__)


class Heartbeat:
    """Renews the claim's heartbeat until it is stopped or the claim is fenced, except while its query has ended.

    After each heartbeat it saves the record of the run.

    :param beat: renews it; ``False`` if the claim was fenced.
    :param end: removes it.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        *,
        beat: Callable[[Session], bool],
        end: Callable[[Session], None],
        on_lost: Callable[[], None],
        on_asked: Callable[[Exception | None], None],
        run: RunRecord,
    ) -> None:
        self._database = database
        self._name = name
        self._renew = beat
        self._end = end
        self._on_lost = on_lost
        self._on_asked = on_asked
        self._run = run
        self._query: Callable[[], bool] | None = None
        self._ended: Callable[[], bool] | None = None
        self._watch: Background | None = None
        self._beats = Background("offsetstore-heartbeat", self._beat, lambda: INTERVAL)
        self._beats.start()

    def follow(self, is_active: Callable[[], bool]) -> None:
        """Skip the heartbeats while ``is_active`` returns ``False``: the query has ended, although the process lives.

        It is called in a thread of its own. If it fails or hangs, that says nothing about the query, and the heartbeats
        continue.
        """
        # Asked again and again, because Spark's listener bus drops events (decision 0026).
        self._query = is_active
        if self._watch is None:
            self._watch = Background("offsetstore-query-watch", self._check_query, lambda: INTERVAL)
            self._watch.start()

    def _check_query(self) -> bool:
        query = self._query
        assert query is not None
        try:
            is_active = query()
        except Exception as error:  # noqa: BLE001 - an error does not mean that the query has ended
            _log.debug("could not check whether the query is active: %s", type(without_frames(error)).__name__)
            is_active = True
        self._ended = None if is_active else query
        return not self._beats.is_stopping

    def _has_ended(self) -> bool:
        """Whether the current query has ended: an answer about an earlier one does not count."""
        return self._ended is not None and self._ended is self._query

    def record_run(self) -> None:
        """Save the record of the run now, not with the next heartbeat. Wait at most `INTERVAL`; raise nothing."""
        # In a thread, so that the limit holds whatever the driver and the network do (decision 0058).
        wait([meanwhile("offsetstore-run-record", lambda: self._run.save(self._transaction))], INTERVAL)

    def stop(self) -> None:
        """Stop, and remove the heartbeat from the database, so that the next claim need not wait."""
        if self._beats.is_stopping:
            return
        # Don't wait longer for a heartbeat that hangs with the database: it can't restore the removed row. The watch
        # ends by itself: it may have been started since, and it may be the thread that stops us.
        self._beats.stop(2 * INTERVAL)
        try:
            with self._transaction() as session:
                self._end(session)
        except Exception as error:  # noqa: BLE001 - closing must not fail; the next claim waits a little longer
            _log.warning("could not remove the claim's last heartbeat: %s", type(without_frames(error)).__name__)
            return
        self._run.save(self._transaction, is_over=True)

    def _beat(self) -> bool:
        has_ended = self._has_ended()
        try:
            with self._transaction() as session:
                if has_ended:
                    session.now()  # no heartbeat; but observers are told whether the database answers
                is_ours = has_ended or self._renew(session)
        except Exception as error:  # noqa: BLE001 - the next one may succeed
            # The job's own transactions report an unavailable database.
            _log.debug("could not send a heartbeat: %s", type(error).__name__)
            self._on_asked(error)
            return True
        self._on_asked(None)
        if not is_ours and not self._beats.is_stopping:
            self._on_lost()
        # In a transaction of its own: a missing grant or locked table must not make the job look dead (decision 0041).
        if not self._beats.is_stopping:
            self._run.save(self._transaction, is_over=has_ended)
        return is_ours

    def _transaction(self) -> AbstractContextManager[Session]:
        return transaction(self._database, name=self._name, lock_timeout=INTERVAL, dedicated=True)


_PACKAGES: Final = ("offsetstore", "pyspark", "psycopg", "sqlalchemy", "confluent_kafka")
_MOST: Final = 100
"""Different errors that are kept in memory between two heartbeats; further ones are only counted."""
# Seconds. A process may be about to end, and its error must not wait for the database (decision 0058).
_PATIENCE: Final = 5.0
_LONGEST: Final = 4_000  # characters of an error's text
_UNRECORDED: Final = (GroupBusy, GroupRenamed, StoreUnavailable, ConnectionLost, TransactionLost, LockTimeout)
"""Refusals of a start: the group is live, or has another name, or the database does not answer."""


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
    """An observer of one claim, which keeps the latest in memory until it is saved.

    :param of_member: whether the claim is a fleet's member.
    """

    def __init__(self, group: str, token: Token, *, of_member: bool = False) -> None:
        self._group = group
        self._token = token
        self._of_member = of_member
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._query_id: UUID | None = None
        self._errors: dict[tuple[object, ...], JobError] = {}
        self._left_out = 0
        self._state = JobState.claimed_at(time.monotonic(), group, token)
        self._is_trimmed = False
        self._saved_end: Ending | None = None
        self._has_failed = False
        self._has_told = False

    def on(self, event: Event) -> None:
        """Record the event."""
        with self._lock:
            before, self._state = self._state, self._state.after(event, time.monotonic())
            match event:
                case BatchEnded(error=BaseException() as error):
                    self._note(error, "batch", event.batch, describe(event.ranges))
                case FlushEnded(error=BaseException() as error):
                    self._note(error, "flush")
                case IdleWorkFailed():
                    self._note(event.error, "idle")
                case Retried():
                    self._note(event.error, "retry")
                case QueryStarted():
                    self._query_id = UUID(event.query_id)
                case MirrorTried(reason=str() as reason) if before.mirror_error is None:  # once, until it succeeds
                    self.add(JobError(source="mirror", error_class="MirrorFailed", text=reason[:_LONGEST]))
                case _:
                    pass

    def end_with(self, error: Exception) -> None:
        """Record an error that left the block of the claim or the store, unless a batch has failed with it."""
        with self._lock:
            if self._state.phase != "failed":
                self._state = self._state.entering("failed", time.monotonic())
                self._note(error, "job")

    def _note(
        self, error: BaseException, source: ErrorSource, batch: int | None = None, ranges: str | None = None
    ) -> None:
        self.add(replace(job_error(error, source), batch=batch, ranges=ranges))

    def add(self, error: JobError) -> None:
        """Keep an error until the next `save`; one that is like an earlier one only adds to its count."""
        key = (error.source, error.error_class, error.sqlstate, error.topic_partition, error.batch)
        before = self._errors.pop(key, None)
        if before is None and len(self._errors) >= _MOST:
            self._left_out += 1
            return
        self._errors[key] = replace(error, times=error.times + (before.times if before else 0))

    def save(self, transaction: Callable[[], AbstractContextManager[Session]], *, is_over: bool = False) -> None:
        """Write what is known to the database. A failure is logged once: the job does not depend on it.

        :param transaction: begins one, and commits it.
        :param is_over: the query has ended, or the claim is closed.
        """
        # One at a time: a save that hangs with the database must not take the recorded end back when it gets through.
        if not self._saving.acquire(timeout=_PATIENCE):
            return
        try:
            self._save(transaction, is_over=is_over)
        finally:
            self._saving.release()

    def _save(self, transaction: Callable[[], AbstractContextManager[Session]], *, is_over: bool) -> None:
        with self._lock:
            has_failed = self._state.phase == "failed"
            ending: Ending | None = (
                "fenced" if self._state.is_lost else "failed" if has_failed else "closed" if is_over else None
            )
            if ending is not None and ending == self._saved_end and not self._errors:
                return
            status = self._now()
            errors, self._errors = self._errors, {}
        try:
            with transaction() as session:
                session.write_run(self._group, self._token, status, ending, of_member=self._of_member)
                if errors or not self._is_trimmed:
                    session.append_errors(self._group, self._token, list(errors.values()))
                are_left = status.replays_letters is False and ending is None and session.has_requested(self._group)
        except Exception as error:  # noqa: BLE001 - the next heartbeat tries again
            without_frames(error)
            with self._lock:
                # The next heartbeat tries again, with what has come since behind it (decision 0041).
                later, self._errors = self._errors, errors
                for added in later.values():
                    self.add(added)
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

    def _now(self) -> RunStatus:
        now, state, query = time.monotonic(), self._state, self._state.query
        return RunStatus(
            phase=state.phase,
            phase_age=now - state.phase_since,
            batch=state.batch,
            batch_offsets=state.batch_offsets,
            last_batch_age=None if state.ended_well is None else now - state.ended_well,
            counters={**state.counters, **({"errors_left_out": self._left_out} if self._left_out else {})},
            # macOS, the only system without /proc, tells the most that the process ever had, in bytes.
            memory=resident_bytes(os.getpid()) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            mirror_age=None if state.mirrored is None else now - state.mirrored,
            mirror_error=None if state.mirror_error is None else state.mirror_error[:_LONGEST],
            query_id=self._query_id,
            application_id=None if query is None else query.application_id,
            ui_url=None if query is None else query.ui_url,
            replays_letters=state.replays_letters,
        )


def job_error(error: BaseException, source: ErrorSource) -> JobError:
    """What is kept of an error. Only our own errors keep their text: others may quote the values of rows."""
    ours = error if isinstance(error, OffsetStoreError) else None
    sqlstate = getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)
    return JobError(
        source=source,
        error_class=type(error).__name__,
        text=None if ours is None else str(ours)[:_LONGEST],
        sqlstate=sqlstate if isinstance(sqlstate, str) else None,
        topic_partition=None if ours is None else ours.topic_partition,
    )


@contextmanager
def recording_refusals(store: Connected, group: str) -> Generator[None]:
    """Record the error that refuses a start, if the store knows the group; the error itself passes unchanged.

    The database gets five seconds for it.
    """
    # A refused start leaves no run, and its log may be out of reach.
    try:
        yield
    except OffsetStoreError as error:
        if not isinstance(error, _UNRECORDED):
            refusal = job_error(error, "start")
            wait([meanwhile("offsetstore-refused-start", lambda: _record_refusal(store, group, refusal))], _PATIENCE)
        raise


def _record_refusal(store: Connected, group: str, error: JobError) -> None:
    with (
        dropped(OffsetStoreError),
        transaction(store.database, name=f"{name_prefix(group)}refused", lock_timeout=_PATIENCE, dedicated=True) as tx,
    ):
        if (owner := tx.group(group)) is not None:
            tx.append_errors(group, owner.token, [error])


def resident_bytes(pid: int) -> int:
    """The memory of a process that is not swapped out, 0 where there is no ``/proc``."""
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
