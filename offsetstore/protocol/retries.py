"""Timeouts; and which errors are retried, how often and after which waits."""

from __future__ import annotations

import random
from dataclasses import dataclass

from offsetstore.errors import LockTimeout, StoreUnavailable, TransactionLost
from offsetstore.protocol.arguments import check_seconds, check_whole


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits in seconds.

    ``lock``: for each wait for a row lock; ``idle``: after which the server ends an idle transaction; ``commit``: to
    look up a COMMIT whose answer was lost.
    """

    lock: float = 10.0
    idle: float = 120.0
    commit: float = 30.0

    def __post_init__(self) -> None:
        check_seconds("Timeouts.lock", self.lock, or_zero=True)
        check_seconds("Timeouts.idle", self.idle)
        check_seconds("Timeouts.commit", self.commit, or_zero=True)


@dataclass(frozen=True, slots=True)
class Retries:
    """How often and how fast to retry: ``attempts`` in all.

    The wait between attempts doubles from ``shortest`` to ``longest`` seconds, with jitter.
    """

    attempts: int = 8
    shortest: float = 0.05
    longest: float = 5.0

    def __post_init__(self) -> None:
        check_whole("Retries.attempts", self.attempts, least=1)
        check_seconds("Retries.shortest", self.shortest, or_zero=True)
        check_seconds("Retries.longest", self.longest, or_zero=True)

    def wait(self, attempt: int) -> float:
        """Seconds to wait after the failed attempt number ``attempt``, counted from 1."""
        return random.uniform(0.5, 1.0) * doubled(self.shortest, attempt - 1, self.longest)  # noqa: S311 - jitter


def doubled(seconds: float, times: int, longest: float) -> float:
    """``seconds``, doubled this many times, but at most ``longest``."""
    # A power of 1024 or more would overflow a float.
    return min(longest, seconds * 2.0 ** min(times, 64))


def may_pass(error: BaseException) -> bool:
    """Whether the work may succeed if all of it is repeated in a new transaction."""
    # Nothing of it has happened then. A full disk or a cancelled statement may pass, too, and is `StoreUnavailable`.
    # A constraint violation is not here: to repeat it would only hide it (decision 0008).
    return isinstance(error, (LockTimeout, StoreUnavailable, TransactionLost))
