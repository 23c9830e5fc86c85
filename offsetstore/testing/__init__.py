"""For users' tests: a store in memory, a broker with given answers, failures on demand, and fixtures with real servers.

`offsetstore.testing.fixtures` is a pytest plugin; docs/test-kit.md shows each part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsetstore.lazy import load
from offsetstore.testing.broker import StaticBroker
from offsetstore.testing.failing import POINTS, FailpointReached, failpoint
from offsetstore.testing.memory import InMemoryOffsetStore, MemoryDatabase
from offsetstore.testing.repeating import replay_twice

if TYPE_CHECKING:
    from offsetstore.testing.delivering import deliver

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


def __getattr__(name: str) -> Any:
    return load(__name__, name, {"deliver": ("offsetstore.testing.delivering", "consumer")})
