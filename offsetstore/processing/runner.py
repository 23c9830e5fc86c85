"""What is done with a source's deliveries: events, pauses, planning again, requested replays, flushes and idle work.

It knows neither Spark nor Kafka: a source hands over each `Delivery`, and a `Policy` writes it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from offsetstore.errors import ConfigurationError, OffsetStoreError, SinkError
from offsetstore.offsets import describe
from offsetstore.postgres.errors import strip_chain, stripped
from offsetstore.processing.between import Between, Flush, Tick
from offsetstore.processing.dead_letters import DeadLetters
from offsetstore.processing.delivery import ComputeLetters, Delivery
from offsetstore.processing.letters import Recovery, Requests
from offsetstore.processing.pause import when_not_paused
from offsetstore.processing.plan import BatchMetadata, MetadataFunction
from offsetstore.processing.policies import Buffered, Marked, Policy, Whole
from offsetstore.processing.unit import PlanOutdated, Ranges, Stored, Written
from offsetstore.protocol.events import BatchEnded, BatchStarted, DrainChanged
from offsetstore.protocol.marking import Marking
from offsetstore.store.claim import Claim

LOOK: Final = 0.5
"""Seconds between two looks at whether the source is being stopped."""

_MAX_PLANS: Final = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """What a job does besides writing rows; see `TransactionalSink`."""

    metadata: MetadataFunction | None = None
    marking: Marking = "automatic"
    flush: Flush | None = None
    tick: Tick | None = None
    dead_letters: DeadLetters | None = None

    @property
    def has_unstored(self) -> bool:
        """Whether the source may take a delivery for done before its offset is stored."""
        return self.marking == "manual" or self.flush is not None


@dataclass(frozen=True, slots=True)
class Taken:
    """A delivery that is handed over.

    :param write: plans and writes it, in place of the runner's policy.
    """

    delivery: Delivery
    write: Callable[[Stored], Written | None] | None = None


class Source(Protocol):
    """Where deliveries come from."""

    def is_running(self) -> bool:
        """Whether there will be more; any thread may call this, and it may raise."""
        ...

    def is_stopping(self, error: BaseException) -> bool:
        """Whether the source was stopped, and ``error`` only says so: the delivery is left to the next start."""
        ...

    def typed(self, error: BaseException) -> BaseException:
        """Our error for one of the source that nothing has explained; else the error."""
        ...


class Interrupted(Exception):
    """The source is being stopped: the delivery is left to the next start."""


class Runner:
    """Does the deliveries of one source, one after the other, for one claim.

    ``error`` is the error of the last one, if it has failed.
    """

    def __init__(self, claim: Claim, source: Source, settings: Settings) -> None:
        self.claim = claim
        self._source = source
        self._settings = settings
        self.error: BaseException | None = None
        self.metadata = BatchMetadata(claim, settings.metadata)
        letters = settings.dead_letters
        self.recovery = None if letters is None else Recovery(claim, letters, self.metadata)
        self.requests = None if letters is None else Requests(claim, letters)
        self.policy = self._policy()
        self._lock = threading.RLock()  # for deliveries, and for what is done between them
        self._between: Between | None = None
        self._is_waiting = False  # a delivery, because the group is paused
        self._ranges: Ranges = {}  # the delivery's, for `BatchEnded`

    def begin(self) -> None:
        """Work between deliveries from now on, in a thread.

        :raises ClaimInUse: with a flush or manual marking, the claim belongs to another runner.
        """
        if self._settings.has_unstored:
            self.claim.reserve()
        buffered = self.policy if isinstance(self.policy, Buffered) else None
        flush, tick, requests = self._settings.flush, self._settings.tick, self.requests
        if tick is None and buffered is None and requests is None:
            return
        self._between = Between(
            self.claim,
            self._lock,
            tick=tick,
            buffered=buffered,
            seconds=flush.seconds if flush is not None else None,
            replay=None if requests is None else lambda: requests.look_while_idle(self._source.is_running),
        )

    def _policy(self) -> Policy:
        settings = self._settings
        if settings.marking == "manual":
            return Marked(self.claim)
        if settings.flush is not None:
            return Buffered(self.claim, self.metadata, settings.flush)
        return Whole(self.claim, self.metadata, self.recovery)

    def run(
        self,
        number: int,
        take: Callable[[], AbstractContextManager[Taken | None]],
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Do one delivery. While the group is paused, it waits before it computes anything.

        :param take: hands the delivery over, or ``None`` if there is nothing to do; what it raises is a failure, too.
        :param check: raises if the source is being stopped; called while something is being done between deliveries.
        :raises Interrupted: the source was stopped.
        :raises Exception: the delivery's; see `TransactionalSink.__call__`.
        """
        while not self._lock.acquire(timeout=LOOK):
            check()
        try:
            self._run(number, take)
        finally:
            self._lock.release()

    def _run(self, number: int, take: Callable[[], AbstractContextManager[Taken | None]]) -> None:
        self.error, stored = None, Stored()
        self.takes({})
        try:
            self.claim.require_open()
            self.claim.require_log()
            self._take(take, stored)
        except BaseException as error:  # noqa: BLE001 - raised below, without the database's error as its context
            strip_chain(error)
            self.error = stripped(error)
        if self._between is not None:
            self._between.batch_ended(self._source.is_running)
        claim, ranges = self.claim, self._ranges
        if self.error is None:
            return
        unwell = partial(
            BatchEnded, group=claim.group, batch=number, ranges=ranges, stored=stored.ranges, rows=stored.rows
        )
        if self._source.is_stopping(self.error):
            self.error = None
            claim.observers.on(unwell(outcome="interrupted"))
            raise Interrupted
        self.error = self._source.typed(self.error)
        if ranges and isinstance(self.error, OffsetStoreError):
            self.error.while_(f"writing batch {number}: {describe(ranges)}")
        claim.observers.on(unwell(outcome="failed", error=self.error))
        claim.record_run()
        raise self.error

    def _take(self, take: Callable[[], AbstractContextManager[Taken | None]], stored: Stored) -> None:
        ended: BatchEnded | None = None
        try:
            with take() as taken:
                if taken is not None:
                    self._ranges = taken.delivery.ranges
                    ended = self._write(taken, stored)
        finally:
            if ended is not None:  # what is told of the delivery comes before
                self.claim.observers.on(ended)

    def takes(self, ranges: Ranges) -> None:
        """Record the ranges of the delivery that is being taken, for the event of a failure."""
        self._ranges = ranges

    def _write(self, taken: Taken, stored: Stored) -> BatchEnded:
        delivery, own = taken.delivery, taken.write
        group, number, ranges = self.claim.group, delivery.number, delivery.ranges
        self.claim.observers.on(BatchStarted(group=group, batch=number, ranges=ranges))

        def sleep(seconds: float) -> None:
            self._is_waiting = seconds > 0
            try:
                delivery.sleep(seconds)
            finally:
                self._is_waiting = False

        def plan_and_write() -> Written | None:
            return self.policy.write(delivery, stored) if own is None else own(stored)

        def write() -> Written | None:
            if self.requests is not None:
                self.requests.look(lambda: sleep(0))
            return with_replanning(plan_and_write, f"batch {number}")

        written = when_not_paused(self.claim, write, sleep)
        ended = partial(BatchEnded, group=group, batch=number, ranges=ranges)
        if written is None:
            return ended(outcome="skipped")
        outcome = "kept" if written.is_kept else "written"
        return ended(outcome=outcome, rows=written.rows, seconds=written.seconds)

    def stop(self, stop: Callable[[], None], *, timeout: float) -> None:
        """Stop the source between two deliveries.

        :param stop: stops it; the next delivery waits for the lock, and notices it there.
        :param timeout: seconds to wait for the delivery that is being written. One that waits because the group is
            paused is not waited for.
        """
        last, is_between = time.monotonic() + timeout, self._lock.acquire(blocking=False)
        while not is_between and not self._is_waiting and (left := last - time.monotonic()) > 0:
            is_between = self._lock.acquire(timeout=min(left, LOOK))
        try:
            stop()
        finally:
            if is_between:
                self._lock.release()

    def drain(self, compute: ComputeLetters) -> int:
        """Replay the dead letters that are requested, while the source hands over nothing.

        :return: how many letters are in the results now.
        :raises ConfigurationError: the job has no dead letters.
        :raises OffsetStoreError: as for a delivery.
        """
        if self.requests is None:
            raise ConfigurationError("sink.drain was called on a sink without dead_letters=")
        self.claim.require_open()
        claim = self.claim
        claim.observers.on(DrainChanged(group=claim.group, is_running=True))
        try:
            with self._lock:
                return self.requests.drain(compute)
        finally:
            claim.observers.on(DrainChanged(group=claim.group, is_running=False))


def with_replanning(write: Callable[[], Written | None], name: str) -> Written | None:
    """Plan and write a delivery; if its plan is outdated, plan it again, up to five times in all.

    :param write: plans and writes; raises `PlanOutdated` if it wrote nothing and the delivery must be planned again.
    :param name: the delivery's name, for the error.
    :return: what ``write`` returned: ``None`` if all of it was in the results already.
    :raises SinkError: every plan was outdated.
    """
    reason = ""
    for _ in range(_MAX_PLANS):
        try:
            return write()
        except PlanOutdated as outdated:
            reason = str(outdated)
    raise SinkError(
        f"{_MAX_PLANS} plans of {name} were outdated before they could be written",
        found=reason,
        next_step="Check the group's history for another writer.",
    )
