"""The seam through which events leave: log lines are the first observer, metrics can be another."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from offsetstore.errors import FunctionFailed, OffsetStoreError, as_raised
from offsetstore.protocol.events import (
    BatchEnded,
    ClaimEnded,
    ClaimTaken,
    CommitResolved,
    Event,
    FlushEnded,
    IdleWorkFailed,
    LettersReplayed,
    LettersWritten,
    MirrorTried,
    OutboxBlocked,
    OutboxRefused,
    OutboxWaits,
    PauseChanged,
    Retried,
)
from offsetstore.runtime.functions import call, without_frames
from offsetstore.text import describe_error

_log = logging.getLogger("offsetstore")


class Observer(Protocol):
    """Gets every event of a store and its claims, in the thread in which it happens: it must be quick."""

    def on(self, event: Event) -> None:
        """Handle an event. An exception is logged, once for each observer, and never harms the job."""
        ...


class Observers:
    """Passes each event on: to the log, then to the other observers in order."""

    def __init__(self, others: Iterable[Observer] = ()) -> None:
        self._observers: tuple[Observer, ...] = (LogObserver(), *others)
        self._failed: set[int] = set()

    def with_one(self, observer: Observer) -> Observers:
        more = Observers()
        more._observers = (*self._observers, observer)
        # Shared, so that an observer that fails is still logged once.
        more._failed = self._failed
        return more

    def on(self, event: Event) -> None:
        """Notify every observer, even if one of them raises. Errors of events lose their frames, except a batch's."""
        for number, observer in enumerate(self._observers):
            try:
                call(observer.on, event)
            except Exception as error:  # noqa: BLE001 - an observer never harms the job
                without_frames(error)
                if number not in self._failed:
                    self._failed.add(number)
                    _log.warning(
                        "the observer %s failed on %s with %s; this is logged once",
                        type(observer).__name__,
                        type(event).__name__,
                        type(as_raised(error)).__name__,
                    )
        error = getattr(event, "error", None)
        # A batch's error is raised next. Any other was dealt with, and an observer may keep it: with its frames, it
        # would keep the batch too (decision 0100).
        if isinstance(error, BaseException) and not isinstance(event, BatchEnded):
            without_frames(error)


class LogObserver:
    """Writes the log lines of a job."""

    def __init__(self) -> None:
        self._is_failing: set[str] = set()

    def on(self, event: Event) -> None:  # noqa: C901 - one case for each kind
        """Log what someone on call needs to know; a batch that is written is not logged."""
        match event:
            case Retried():
                name = type(event.error).__name__
                _log.warning("attempt %d failed (%s), retrying in %.2f s", event.attempt, name, event.wait)
            case BatchEnded() | FlushEnded() | IdleWorkFailed() if event.error is not None:
                _log_failure(event, event.error)
            case LettersWritten() | LettersReplayed():
                _log_letters(event)
            case PauseChanged(pause=None):
                _log.warning("group %r is no longer paused; the job goes on", event.group)
            case PauseChanged():
                _log.warning("group %r is %s; the job waits", event.group, event.pause)
            case CommitResolved(happened=True):
                tp = event.topic_partition
                _log.warning("the answer to COMMIT was lost; the rows show that it happened (%s)", tp)
            case ClaimTaken():
                _log_start(event)
            case ClaimEnded(outcome="fenced"):
                by = f": {event.by}" if event.by else ""
                _log.warning("the claim of group %r has been taken over%s", event.group, by)
            case MirrorTried():
                self._log_mirror(event)
            case OutboxBlocked() | OutboxRefused() | OutboxWaits():
                _log_relay(event)
            case _:
                pass

    def _log_mirror(self, event: MirrorTried) -> None:
        if event.outcome == "done":
            if event.group in self._is_failing:
                self._is_failing.discard(event.group)
                _log.warning("the offsets of group %r are copied to Kafka again", event.group)
        elif event.is_over:
            _log.warning("group %r is no longer copied to Kafka: %s", event.group, event.reason)
        # Once for each outage, not at each turn of the mirror.
        elif event.group not in self._is_failing:
            self._is_failing.add(event.group)
            _log.warning(
                "could not copy the offsets of group %r to Kafka; the job continues and will try again: %s",
                event.group,
                event.reason,
            )


def _log_failure(event: BatchEnded | FlushEnded | IdleWorkFailed, error: BaseException) -> None:
    # No one else reports it: it ends no query, and is only called again.
    if isinstance(event, IdleWorkFailed):
        _log.error("idle work failed, and is called again later", exc_info=error)
        return
    # Spark's own report of a batch is a hundred lines long; other texts may contain values of rows.
    text = f": {error}" if isinstance(error, OffsetStoreError) else ""
    what = "could not flush between batches"
    if isinstance(event, BatchEnded):
        what = f"batch {event.batch} failed"
        # One line: the error ends the job, and is then printed with all that it has. What a function raised was told
        # as the search for the record began.
        if isinstance(error, FunctionFailed):
            text = ""
        elif isinstance(error, OffsetStoreError):
            text = f": {describe_error(error)[0]}"
    _log.error("%s: %s%s", what, type(error).__name__, text)


def _log_letters(event: LettersWritten | LettersReplayed) -> None:
    if isinstance(event, LettersReplayed):
        empty = f" ({event.without_rows} of them make no row)" if event.without_rows else ""
        what = "group %r: dead letters were replayed: %d are in the results%s, %d are dead again"
        _log.warning(what, event.group, event.replayed, empty, event.failed)
        return
    causes = ", ".join(f"{count} {cause}" for cause, count in event.letters.items())
    what = "batch %d of group %r: dead letters were written (%s)"
    _log.warning(what, event.batch, event.group, causes)


def _log_relay(event: OutboxBlocked | OutboxRefused | OutboxWaits) -> None:
    if isinstance(event, OutboxWaits):
        _log.warning("the relay waits, for up to %.1f s: %s", event.wait, event.error)
        return
    if isinstance(event, OutboxBlocked):
        what = "row %d of the outbox blocks topic %s, whose rows wait; those of other topics are sent: %s"
        _log.warning(what, event.row, event.topic, event.error)
        return
    for row, why in event.errors.items():
        _log.warning("Kafka refuses row %d of the outbox, which is set aside: %s", row, why)


def _log_start(event: ClaimTaken) -> None:
    if event.fenced is not None:
        _log.warning("this start has fenced the owner of group %r, which was %s", event.group, event.fenced)
    for tp, start in event.starting.starts.items() if event.starting else ():
        if start.skipped:
            _log.warning("%s starts at %d and skips %s: %s", tp, start.offset, start.skipped, start.reason.value)
    if event.starting is not None and event.starting.warning is not None:
        _log.warning("%s", event.starting.warning)
