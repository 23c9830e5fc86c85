"""What a sink does between batches, in a thread of its own: flush when the time is up, and idle work."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from offsetstore.errors import ConfigurationError, OffsetStoreError
from offsetstore.postgres.errors import refusals, strip_chain, stripped
from offsetstore.postgres.session import discard_at_end
from offsetstore.protocol.background import Background
from offsetstore.protocol.events import IdleWorkFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import RLock

    from offsetstore.protocol.work import Work
    from offsetstore.store.claim import Claim
    from offsetstore.store.transaction import Transaction

_LONGEST: Final = 1.0  # seconds between two looks

_log = logging.getLogger("offsetstore")


@dataclass(frozen=True, slots=True)
class Tick:
    """Work for a job that is idle.

    :param function: called with a transaction of the claim that has locked no partition: what it writes with
        ``work.connection`` is committed only if the claim is still the group's. An exception rolls it back, and is
        logged; it is called again later. If the answer to COMMIT is lost, that is logged too, and the work is not
        repeated, so it should do no harm twice. Statements that fail because of the connection are repeated.
    :param every: seconds between two calls, and between the end of a batch and the next call.
    :raises ConfigurationError: ``every`` is not above 0.
    """

    function: Callable[[Work], object]
    every: float = 5.0

    def __post_init__(self) -> None:
        """Check the time."""
        if not self.every > 0:
            raise ConfigurationError("every must be above 0 seconds", found=self.every, expected="seconds")


class Buffered(Protocol):
    """Keeps batches; see `offsetstore.spark.ways.buffered`."""

    @property
    def is_due(self) -> bool:
        """Whether it has to be flushed now."""
        ...

    def flush(self) -> None:
        """Write all that is kept."""
        ...


class Between:
    """Flushes and ticks while no batch is being written.

    :param lock: the sink's: held while a batch is written, and while this thread works.
    :param seconds: the buffer's time limit, ``None`` without one.
    """

    def __init__(
        self, claim: Claim, lock: RLock, *, tick: Tick | None, buffered: Buffered | None, seconds: float | None
    ) -> None:
        self._claim = claim
        self._lock = lock
        self._tick = tick
        self._buffered = buffered
        self._is_running: Callable[[], bool] = _yes
        self._last = time.monotonic()
        limits = [_LONGEST * 4, *([tick.every] if tick else []), *([seconds] if seconds else [])]
        interval = min(limits) / 4
        self._background = Background("offsetstore-between-batches", self._turn, lambda: interval)
        claim.at_close(self._close)

    def batch_ended(self, is_running: Callable[[], bool]) -> None:
        """Take note that a batch was written, or has failed.

        :param is_running: whether its query still runs; idle work ends with it.
        """
        self._is_running = is_running
        self._last = time.monotonic()

    def _turn(self) -> bool:
        if self._claim.is_lost:
            return False
        if self._lock.acquire(blocking=False):  # a batch needs no help
            try:
                self._work()
            finally:
                self._lock.release()
        return True

    def _work(self) -> None:
        if self._buffered is not None and self._buffered.is_due:
            try:
                self._buffered.flush()
            except Exception as error:  # noqa: BLE001 - the next batch raises it
                text = f": {error}" if isinstance(error, OffsetStoreError) else ""
                _log.warning("could not flush between batches: %s%s", type(error).__name__, text)
        if self._tick is not None and time.monotonic() - self._last >= self._tick.every and self._is_running():
            self._run(self._tick)
            self._last = time.monotonic()

    def _run(self, tick: Tick) -> None:
        def work(tx: Transaction) -> None:
            tx.lock({})
            discard_at_end(tx.connection)
            with refusals(None, sql_of=repr(tick)):
                tick.function(tx)

        try:
            self._claim.run(work)
        except Exception as error:  # noqa: BLE001 - the user's own; the job goes on
            strip_chain(error)
            self._claim.observers.on(IdleWorkFailed(group=self._claim.group, error=stripped(error)))

    def _close(self) -> None:
        """Write what is kept, unless another claim has taken over, which reads it again."""
        self._background.stop()
        with self._lock:
            if self._buffered is not None and not self._claim.is_lost:
                self._buffered.flush()


def _yes() -> bool:
    return True
