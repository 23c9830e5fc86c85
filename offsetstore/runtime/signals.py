"""How often a process was asked to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

APART: Final = 1.0
"""Seconds. `timeout` signals its program and then the program's group; others signal a group and each process in it."""


class StopRequests:
    """Counts the requests to end. A request within a second of one that counted is the same request.

    A signal handler may use it: it holds no lock.

    :param clock: in seconds; it must hold no lock either.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._counted_at = 0.0

    def add(self) -> bool:
        """Return whether this is another request."""
        now = self._clock()
        if self.count and now - self._counted_at < APART:
            return False
        self._counted_at = now
        self.count += 1
        return True
