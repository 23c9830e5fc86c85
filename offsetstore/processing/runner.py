"""Runs a source's deliveries: events, pauses, planning again, requested replays, flushes and idle work.

The runner knows neither Spark nor Kafka: a source hands over each `Delivery`, and a `Policy` writes it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Final, Protocol, cast

from offsetstore.errors import ClaimInUse, ConfigurationError, OffsetStoreError, PartitionLost, SinkError
from offsetstore.offsets import describe
from offsetstore.postgres.errors import strip_chain, stripped
from offsetstore.processing.between import Between, Flush, Tick
from offsetstore.processing.dead_letters import DeadLetters
from offsetstore.processing.delivery import ComputeLetters, Delivery
from offsetstore.processing.handling import Handler
from offsetstore.processing.letters import Recovery
from offsetstore.processing.plan import BatchMetadata, MetadataFunction, when_not_paused
from offsetstore.processing.policies import Buffered, Marked, Policy, Whole
from offsetstore.processing.put_back import ReplayRequests
from offsetstore.processing.unit import PlanOutdated, Ranges, Stored, Written
from offsetstore.protocol.context import check_propagate, propagated
from offsetstore.protocol.events import BatchEnded, BatchStarted, DrainChanged
from offsetstore.protocol.letters import Headers
from offsetstore.protocol.marking import Marking
from offsetstore.protocol.ports import Writer, declares
from offsetstore.runtime.functions import without_frames
from offsetstore.store.claim import Claim

LOOK: Final = 0.5
"""Seconds between two checks whether the source is being stopped."""

_LONG: Final = 30.0
"""Seconds after which a delivery that waits for work between deliveries logs a warning."""

_MAX_PLANS: Final = 5

_log = logging.getLogger("offsetstore")


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """What a job does besides writing rows; see `TransactionalSink`."""

    metadata: MetadataFunction | None = None
    marking: Marking = "automatic"
    flush: Flush | None = None
    tick: Tick | None = None
    dead_letters: DeadLetters | None = None
    propagate: Collection[str] = ()

    def __post_init__(self) -> None:
        check_propagate(self.propagate)

    @property
    def has_unstored(self) -> bool:
        """Whether the source may consider a delivery done before its offset is stored."""
        return self.marking == "manual" or self.flush is not None

    def check_dead_letters(self, writers: Iterable[Writer]) -> None:
        """Check that records can become letters.

        :raises ConfigurationError: ``dead_letters=`` does not go with another setting, or with a writer.
        """
        if self.dead_letters is None:
            return
        if not isinstance(cast("object", self.dead_letters), DeadLetters):
            raise ConfigurationError(
                "dead_letters must say how they are handled", found=repr(self.dead_letters), expected="DeadLetters()"
            )
        if self.has_unstored:
            raise ConfigurationError(
                "dead_letters= does not go with rows or records that wait in memory",
                found="dead_letters= and flush= or marking=",
                expected="one of them",
            )
        functions = [str(writer) for writer in writers if not declares(writer, "splittable", otherwise=True)]
        if functions:
            raise ConfigurationError(
                "dead_letters= needs writers that can be given the rows of single records, again and again",
                found=", ".join(functions),
                expected="Append, Upsert, or Execute(fn, splittable=True)",
            )

    def check_handler(self, handler: Handler | None) -> None:
        """Check that a handler, if given, goes with the dead letters.

        :raises ConfigurationError: they need a strategy or a sequence.
        """
        letters = self.dead_letters
        if handler is not None and letters is not None and (letters.strategy or letters.sequence):
            raise ConfigurationError(
                "a handler's failures are letters at once, and each record is called whatever became of others",
                found="a Handler and DeadLetters(strategy=...)" if letters.strategy else 'a Handler and sequence="key"',
                expected="DeadLetters() without strategy and sequence; Handler(retries=...)",
            )


@dataclass(frozen=True, slots=True)
class Taken:
    """A delivery that a source hands over.

    :param write: plans and writes it instead of the runner's policy.
    """

    delivery: Delivery
    write: Callable[[Stored], Written | None] | None = None


class DeliverySource(Protocol):
    """Where deliveries come from."""

    def is_running(self) -> bool:
        """Whether more deliveries will come. Any thread may call this, and it may raise."""
        ...

    def is_stopping(self, error: BaseException) -> bool:
        """Whether ``error`` only says that the source was stopped: the delivery is left to the next start."""
        ...

    def typed(self, error: BaseException) -> BaseException:
        """Translate an error of the source that is not yet one of ours; return any other unchanged."""
        ...


class Interrupted(Exception):
    """The source is being stopped: the delivery is left to the next start."""


class Runner:
    """Writes the deliveries of one source for one claim, one after the other.

    ``error`` is the error of the last delivery, if it failed. ``is_waiting``: a delivery waits because the group is
    paused; any thread may read it.

    :param while_working: a thread is in it while it holds the lock, and so whenever it computes users' data. It must
        not raise.
    """

    def __init__(
        self,
        claim: Claim,
        source: DeliverySource,
        settings: RunnerSettings,
        while_working: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.claim = claim
        self._source = source
        self._settings = settings
        self.error: BaseException | None = None
        self.metadata = BatchMetadata(claim, settings.metadata)
        letters = settings.dead_letters
        self.recovery = None if letters is None else Recovery(claim, letters, self.metadata, settings.propagate)
        self.requests = None if letters is None else ReplayRequests(claim, letters)
        if settings.marking == "manual":
            self.policy: Policy = Marked(claim)
        elif settings.flush is not None:
            self.policy = Buffered(claim, self.metadata, settings.flush)
        else:
            self.policy = Whole(claim, self.metadata, self.recovery)
        self._lock = RLock()  # for deliveries, and for the work between them
        self._while_working = while_working
        self._between: Between | None = None
        self.is_waiting = False
        self._ranges: Ranges = {}  # of the current delivery, for `BatchEnded`

    def begin(self) -> None:
        """Start the thread that works between deliveries.

        :raises ClaimInUse: with a flush or manual marking, the claim belongs to another runner.
        """
        # Only this runner knows how far it has come: another one on the claim would plan from other offsets.
        if self._settings.has_unstored:
            self.claim.reserve()
        buffered = self.policy if isinstance(self.policy, Buffered) else None
        flush, tick, requests = self._settings.flush, self._settings.tick, self.requests
        if tick is None and buffered is None and requests is None:
            return
        self._between = Between(
            self.claim,
            self._lock,
            self._while_working,
            tick=tick,
            buffered=buffered,
            seconds=flush.seconds if flush is not None else None,
            replay=None if requests is None else lambda: requests.look_while_idle(self._source.is_running),
        )

    def run(
        self,
        number: int,
        take: Callable[[], AbstractContextManager[Taken | None]],
        *,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Run one delivery. While the group is paused, it waits before it computes anything.

        :param take: hands the delivery over, or ``None`` if there is nothing to do; an error that it raises counts as
            the delivery's.
        :param check: raises if the source is being stopped; called while work between deliveries holds the lock.
        :raises Interrupted: the source was stopped.
        :raises Exception: the delivery's; see `TransactionalSink.__call__`.
        """
        warns_at = time.monotonic() + _LONG
        while not self._lock.acquire(timeout=LOOK):
            check()
            if time.monotonic() >= warns_at:
                _log.warning("batch %d waits for more than %g s: for a tick, or a replay of letters", number, _LONG)
                warns_at = math.inf
        try:
            with self._while_working():
                self._run(number, take)
        finally:
            self._lock.release()

    def _run(self, number: int, take: Callable[[], AbstractContextManager[Taken | None]]) -> None:
        self.error, self._ranges = None, {}
        stored, ended, taken = Stored(), None, None
        # What fails before there is a delivery is told like any other failure (decision 0066).
        try:
            self.claim.require_open()
            self.claim.require_log()
            try:
                with take() as taken:
                    ended = None if taken is None else self._write(taken, stored)
            finally:
                taken = None  # an error refers to this frame: it must not keep the delivery's records
                # After `take` has ended its block, whose events about the delivery come first.
                if ended is not None:
                    self.claim.observers.on(ended)
        # Raised below, outside of this block: so the database's error, which may quote rows, is not its context.
        except BaseException as error:  # noqa: BLE001
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
            without_frames(self.error)
            self.error = None
            claim.observers.on(unwell(outcome="interrupted"))
            raise Interrupted
        self.error = self._source.typed(self.error)
        # No event and no record: the run belongs to the other query, which goes on.
        if isinstance(self.error, ClaimInUse):
            raise self.error
        if ranges and isinstance(self.error, OffsetStoreError):
            self.error.while_(f"writing batch {number}: {describe(ranges)}")
        claim.observers.on(unwell(outcome="failed", error=self.error))
        claim.record_run()
        raise self.error

    def takes(self, ranges: Ranges) -> None:
        """Record the ranges of the delivery that is being taken, in case it fails before it is handed over."""
        self._ranges = ranges

    def _write(self, taken: Taken, stored: Stored) -> BatchEnded:
        delivery, own = taken.delivery, taken.write
        group, number = self.claim.group, delivery.number
        self._ranges = ranges = delivery.ranges
        names = self._settings.propagate

        def headers(limit: int) -> list[Headers]:
            return [propagated(record_headers, names) for record_headers in delivery.headers(limit)]

        self.claim.observers.on(
            BatchStarted(group=group, batch=number, ranges=ranges, headers=headers if names else None)
        )

        # It waits only while the group is paused, and `stop` does not wait for such a delivery (decision 0059).
        def sleep(seconds: float) -> None:
            self.is_waiting = seconds > 0
            try:
                delivery.sleep(seconds)
            finally:
                self.is_waiting = False

        def plan_and_write() -> Written | None:
            if own is not None:
                return own(stored)
            return self.policy.write(delivery, stored) if delivery.ranges else stored.written({})

        def write() -> Written | None:
            if self.requests is not None:
                self.requests.look(lambda: sleep(0))
            return with_replanning(plan_and_write, f"batch {number}")

        written = when_not_paused(self.claim, write, sleep)
        ended = partial(BatchEnded, group=group, batch=number, ranges=delivery.ranges)
        if written is None:
            return ended(outcome="skipped")
        self.claim.has_made_rows |= any(written.rows.values())
        outcome = "kept" if written.is_kept else "written"
        return ended(outcome=outcome, rows=written.rows, seconds=written.seconds)

    def stop(self, stop: Callable[[], None], *, timeout: float) -> None:
        """Stop the source between two deliveries.

        :param stop: stops the source; the next delivery, which waits for the lock, then notices it.
        :param timeout: seconds to wait for the delivery that is being written. A delivery that waits because the group
            is paused is not waited for.
        """
        # Whoever holds the lock knows that no delivery is being written, so no flag is needed (decision 0059).
        last, is_between = time.monotonic() + timeout, self._lock.acquire(blocking=False)
        while not is_between and not self.is_waiting and (left := last - time.monotonic()) > 0:
            is_between = self._lock.acquire(timeout=min(left, LOOK))
        try:
            with self._while_working() if is_between else nullcontext():
                stop()
        finally:
            if is_between:
                self._lock.release()

    def drain(self, compute: ComputeLetters) -> int:
        """Replay the requested dead letters while the source hands over nothing.

        :return: how many letters were replayed.
        :raises ConfigurationError: the job has no ``dead_letters=``.
        :raises OffsetStoreError: as for a delivery.
        """
        if self.requests is None:
            raise ConfigurationError("sink.drain was called on a sink without dead_letters=")
        self.claim.require_open()
        claim = self.claim
        claim.observers.on(DrainChanged(group=claim.group, is_running=True))
        try:
            with self._lock, self._while_working():
                return self.requests.drain(compute)
        finally:
            claim.observers.on(DrainChanged(group=claim.group, is_running=False))


def with_replanning(write: Callable[[], Written | None], name: str) -> Written | None:
    """Plan and write a delivery; if its plan is outdated, plan it again, up to five times in all.

    :param write: plans and writes; raises `PlanOutdated` or `PartitionLost` if it wrote nothing and the delivery must
        be planned again.
    :param name: the delivery's name, for the error.
    :return: what ``write`` returned; ``None`` if all of the delivery was in the results already.
    :raises SinkError: every plan was outdated.
    """
    reason = ""
    for _ in range(_MAX_PLANS):
        try:
            return write()
        # Planned again, the delivery no longer has the partitions that a member of a fleet has lost.
        except (PlanOutdated, PartitionLost) as outdated:
            reason = str(without_frames(outdated))
    raise SinkError(
        f"{_MAX_PLANS} plans of {name} were outdated before they could be written",
        found=reason,
        next_step="Start the job again: it reads from the stored offsets. If these have changed, the group's history "
        "tells who moved them.",
    )
