"""For users' tests: a store in memory, a broker with given answers, failures on demand, and fixtures with real servers.

`offsetstore.testing.fixtures` is a pytest plugin; docs/test-kit.md shows each part.
"""

from __future__ import annotations

from offsetstore.testing.broker import StaticBroker
from offsetstore.testing.delivering import deliver
from offsetstore.testing.failing import POINTS, FailpointReached, failpoint
from offsetstore.testing.memory import InMemoryOffsetStore, MemoryDatabase
from offsetstore.testing.repeating import replay_twice

__all__ = [
    "POINTS",
    "FailpointReached",
    "InMemoryOffsetStore",
    "MemoryDatabase",
    "StaticBroker",
    "deliver",
    "failpoint",
    "replay_twice",
]
