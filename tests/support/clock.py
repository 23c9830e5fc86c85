"""A clock for what reads the time by calling it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Time passes when a test says so, however busy the machine is."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
