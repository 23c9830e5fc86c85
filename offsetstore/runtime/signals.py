"""How often a process was asked to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

APART: Final = 1.0
"""Seconds. `timeout` signals its program and then the group that this is in; others signal a group and each process."""


class StopRequests:
    """Counts the requests to end. Those that come within a second of one that counts are the same one.

    A signal handler may use it: it holds no lock.

    :param clock: in seconds; it must hold no lock either.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._counted_at = 0.0

    def add(self) -> bool:
        """Return whether this is another one."""
        now = self._clock()
        if self.count and now - self._counted_at < APART:
            return False
        self._counted_at = now
        self.count += 1
        return True
