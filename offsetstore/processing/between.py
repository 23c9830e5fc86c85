"""What a job does between its deliveries, in a separate thread: flush when the time is up, and idle work."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import Final, Literal, Protocol
from uuid import UUID

from offsetstore.errors import SinkError, StaleClaim
from offsetstore.postgres.errors import raise_stripped, refusals, strip_chain, stripped
from offsetstore.postgres.session import discard_at_end
from offsetstore.processing.plan import is_paused
from offsetstore.processing.unit import UNNAMED, PlanOutdated, Turn, Unit, commit
from offsetstore.protocol.arguments import check_seconds, check_whole
from offsetstore.protocol.events import FlushEnded, IdleWorkChanged, IdleWorkFailed
from offsetstore.protocol.ports import Work
from offsetstore.protocol.retries import may_pass
from offsetstore.runtime.background import Background
from offsetstore.runtime.functions import without_frames
from offsetstore.store.claim import Claim

_LONGEST: Final = 1.0  # seconds between two looks
_PATIENCE: Final = 60.0  # seconds to wait for a batch, or for idle work, at the end
# Turns are kept in `batch_marks`, under an id that no query has: that took no migration (decision 0092).
_TICK: Final = UUID("5b0a7a4e-6f0e-4d0b-9c53-0d6f7b1f8a11")

_log = logging.getLogger("offsetstore")


@dataclass(frozen=True, slots=True)
class Flush:
    """When a sink writes the batches that it keeps in memory: when the first of these limits is reached.

    It writes their rows and offsets in one transaction. After a crash the next start reads them again.

    :param rows: rows of all outputs.
    :param seconds: since the first of the batches was kept.
    :param bytes: of the rows as Arrow record batches.
    :raises ConfigurationError: a limit is not above 0, or not finite.
    """

    rows: int = 50_000
    seconds: float = 10.0
    bytes: int = 256 << 20

    def __post_init__(self) -> None:
        check_whole("Flush.rows", self.rows, "rows", least=1)
        check_seconds("Flush.seconds", self.seconds)
        check_whole("Flush.bytes", self.bytes, "bytes", least=1)


@dataclass(frozen=True, slots=True)
class Tick:
    """Work for a job that is idle.

    :param function: called with a transaction of the claim that has locked no partition: what it writes with
        ``work.connection`` is committed only if the claim still owns the group. An exception rolls it back and is
        logged with its traceback; the function is called again later. After an error that may pass (a lost connection,
        a deadlock, a lock timeout) it is called again at once. If the answer to COMMIT is lost, that is logged, and the
        work may have been done. Batches wait while the function runs, and so does ``claim.close()``. In a fleet, one
        member calls it at a time.
    :param every: seconds between two calls (in a fleet, by any member), and between the end of a batch and the next
        call.
    :raises ConfigurationError: ``every`` is not above 0, or not finite.
    """

    function: Callable[[Work], object]
    every: float = 5.0

    def __post_init__(self) -> None:
        check_seconds("every", self.every)

    def write(self, work: Work) -> int:
        """Call the function, as if it wrote the rows of an output."""
        discard_at_end(work.connection)
        with refusals(None, sql_of=repr(self)):
            self.function(work)
        return 0


@contextmanager
def at_work(claim: Claim, work: Literal["replay", "tick"]) -> Generator[None]:
    """Tell observers when this begins and ends: it may hang, and batches wait for it."""
    claim.observers.on(IdleWorkChanged(group=claim.group, work=work))
    try:
        yield
    finally:
        claim.observers.on(IdleWorkChanged(group=claim.group, work=None))


class Buffer(Protocol):
    """Keeps deliveries; see `offsetstore.processing.policies`."""

    @property
    def has_any(self) -> bool:
        """Whether it keeps any delivery."""
        ...

    @property
    def is_due(self) -> bool:
        """Whether to flush now."""
        ...

    def flush(self) -> None:
        """Write all that is kept."""
        ...

    def forget(self) -> None:
        """Drop all that is kept."""
        ...


class Between:
    """Flushes and ticks while no batch is being written.

    :param lock: the runner's: held while a batch is written, and while this thread works. A thread that holds it may
        take it again.
    :param while_working: see `Runner`.
    :param seconds: the buffer's time limit, ``None`` without one.
    :param replay: looks for requested dead letters if it is time to, and replays them.
    """

    def __init__(
        self,
        claim: Claim,
        lock: RLock,
        while_working: Callable[[], AbstractContextManager[object]],
        *,
        tick: Tick | None,
        buffered: Buffer | None,
        seconds: float | None,
        replay: Callable[[], object] | None = None,
    ) -> None:
        self._claim = claim
        self._lock = lock
        self._while_working = while_working
        self._tick = tick
        self._buffered = buffered
        self._replay = replay
        self._is_running: Callable[[], bool] = lambda: True
        self._last = time.monotonic()
        self._next_flush = 0.0
        self._is_ticking = False
        self._seconds = seconds or _LONGEST
        limits = [_LONGEST * 4, *([tick.every] if tick else []), *([seconds] if seconds else [])]
        # A quarter of the shortest limit, so that none is exceeded by more than that.
        interval = min(limits) / 4
        claim.at_close(self._close)
        self._background = Background("offsetstore-between-batches", self._turn, lambda: interval)
        self._background.start()

    def batch_ended(self, is_running: Callable[[], bool]) -> None:
        """Record that a batch was written, or has failed.

        :param is_running: whether the batch's query still runs; idle work ends with it.
        """
        self._is_running = is_running
        self._last = time.monotonic()
        self._next_flush = 0.0

    def _turn(self) -> bool:
        if self._claim.is_lost or self._claim.is_closed:
            return False
        # Asked before the lock is taken: Java may be slow to answer, and batches would wait.
        wants_tick = self._wants_tick()
        # Without waiting: a batch that holds the lock flushes by itself, and the job is not idle.
        if not self._lock.acquire(blocking=False):
            return True
        try:
            with self._while_working():
                self._flush_if_due()
                self._replay_requested()
                if wants_tick and self._tick is not None and not self._claim.is_closed:
                    self._is_ticking = True
                    self._run(self._tick)
                    self._is_ticking = False
                    self._last = time.monotonic()
                    # The tick has closed the claim. `_close` could not flush inside of the tick's transaction.
                    if self._claim.is_closed:
                        self._flush_at_end()
        finally:
            self._lock.release()
        return True

    def _wants_tick(self) -> bool:
        """Whether it is time for a tick, and the query runs."""
        if self._tick is None or time.monotonic() - self._last < self._tick.every:
            return False
        try:
            return self._is_running()
        except Exception as error:  # noqa: BLE001 - Java is gone, or busy: the claim has the last word
            without_frames(error)
            return True

    def _replay_requested(self) -> None:
        if self._replay is None or self._claim.is_closed:
            return
        try:
            self._replay()
        except (StaleClaim, PlanOutdated) as error:
            without_frames(error)  # the claim knows and has told it, or the query was stopped
        except Exception as error:  # noqa: BLE001 - the job goes on; what was not replayed is still requested
            self._tell(IdleWorkFailed, error)

    def _flush_if_due(self) -> None:
        if self._buffered is None or not self._buffered.is_due or time.monotonic() < self._next_flush:
            return
        try:
            if is_paused(self._claim):
                self._next_flush = time.monotonic() + _LONGEST
                return
            self._buffered.flush()
        except Exception as error:  # noqa: BLE001 - the next batch tries again, and raises it
            # What may pass is tried again here, too; anything else only by the next batch, or at the end.
            self._next_flush = time.monotonic() + (self._seconds if may_pass(error) else math.inf)
            self._tell(FlushEnded, error)

    def _flush_at_end(self) -> None:
        try:
            self._finish()
        except Exception as error:  # noqa: BLE001 - no one waits for it
            self._tell(FlushEnded, error)

    def _tell(self, event: type[FlushEnded | IdleWorkFailed], error: BaseException) -> None:
        strip_chain(error)
        self._claim.observers.on(event(group=self._claim.group, error=stripped(error)))

    def _run(self, tick: Tick) -> None:
        try:
            if is_paused(self._claim):
                return
        except Exception as error:  # noqa: BLE001 - the database is away: later, then
            without_frames(error)
            return
        turns = [Turn(_TICK, tick.every)] if self._claim.is_member else ()
        try:
            with at_work(self._claim, "tick"):
                commit(self._claim, Unit(rows={UNNAMED: tick}, along=turns))
        except (StaleClaim, PlanOutdated) as error:
            without_frames(error)  # the claim knows and has told it, or it is another member's turn
        except Exception as error:  # noqa: BLE001 - the user's own; the job goes on
            self._tell(IdleWorkFailed, error)

    def _close(self) -> None:
        """Write what is kept, unless another claim has taken over, the group is paused, or the database is away.

        The next start reads again what is not written.

        :raises SinkError: a batch is still being written.
        """
        self._background.stop(_PATIENCE)
        # A tick that closes the claim is still inside of its transaction: `_turn` flushes after that.
        if self._buffered is None or (self._is_ticking and self._background.is_current):
            return
        if not self._lock.acquire(timeout=_PATIENCE):
            raise SinkError(
                "the claim was closed while a batch is being written; what is kept in memory was not written",
                found=f"a batch, or idle work, that has taken longer than {_PATIENCE:g} s",
                next_step="Stop the query before closing the claim. The next start reads those records again.",
            )
        try:
            with self._while_working():
                self._finish()
        except BaseException as error:
            strip_chain(error)
            raise_stripped(error)
            raise
        finally:
            self._lock.release()

    def _finish(self) -> None:
        if self._buffered is None:
            return
        if self._buffered.has_any and not self._claim.is_lost:
            if self._may_write():
                self._buffered.flush()
            else:
                _log.warning("what group %r has in memory is read again by the next start", self._claim.group)
        self._buffered.forget()

    def _may_write(self) -> bool:
        """Whether the group is known not to be paused."""
        try:
            return not is_paused(self._claim)
        except Exception as error:  # noqa: BLE001 - as good as paused
            _log.warning("the database does not answer at the end of the claim: %s", type(error).__name__)
            return False
