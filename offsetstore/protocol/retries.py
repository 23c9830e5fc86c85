"""How long to wait for the database, what may succeed the next time, and the one loop that tries again."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from offsetstore.errors import LockTimeout, StoreUnavailable, TransactionLost

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Timeouts:
    """In seconds.

    ``lock``: for any one row lock; ``idle``: a transaction that does nothing is ended by the server; ``commit``: to
    find out about a COMMIT whose answer was lost.
    """

    lock: float = 10.0
    idle: float = 120.0
    commit: float = 30.0


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how fast to repeat: ``attempts`` in all.

    It waits from ``shortest`` to ``longest`` seconds in between, doubling, with jitter.
    """

    attempts: int = 8
    shortest: float = 0.05
    longest: float = 5.0

    def wait(self, attempt: int) -> float:
        """Seconds to wait after failed attempt ``attempt``, counted from 1."""
        return random.uniform(0.5, 1.0) * min(self.longest, self.shortest * 2 ** (attempt - 1))  # noqa: S311 - jitter


def may_pass(error: BaseException) -> bool:
    """Whether all of the work, done again in a new transaction, may succeed."""
    return isinstance(error, (LockTimeout, StoreUnavailable, TransactionLost))


def with_retries(
    retries: Retries, work: Callable[[int], _T], *, retry_if: Callable[[Exception], bool] = may_pass
) -> _T:
    """Call ``work`` with the number of the attempt, from 1, until it succeeds or fails for good.

    :raises Exception: what ``work`` raised in the last of ``retries.attempts``, or what ``retry_if`` is not true of.
    """
    attempt = 1
    while True:
        try:
            return work(attempt)
        except Exception as error:
            if attempt >= retries.attempts or not retry_if(error):
                raise
            wait = retries.wait(attempt)
            _log.warning("attempt %d failed (%s), again in %.2f s", attempt, type(error).__name__, wait)
        time.sleep(wait)
        attempt += 1
