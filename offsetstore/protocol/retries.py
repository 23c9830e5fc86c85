"""How long to wait for the database, and how often to try again."""

from __future__ import annotations

import random
from dataclasses import dataclass


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
    """How `OffsetStore.run` repeats: ``attempts`` in all.

    It waits from ``shortest`` to ``longest`` seconds in between, doubling, with jitter.
    """

    attempts: int = 8
    shortest: float = 0.05
    longest: float = 5.0

    def wait(self, attempt: int) -> float:
        """Seconds to wait after failed attempt ``attempt``, counted from 1."""
        return random.uniform(0.5, 1.0) * min(self.longest, self.shortest * 2 ** (attempt - 1))  # noqa: S311 - jitter
