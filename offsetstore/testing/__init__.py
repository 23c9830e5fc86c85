"""For users' tests: a store in memory, a broker with given answers, and fixtures with real servers.

`offsetstore.testing.fixtures` is a pytest plugin.
"""

from __future__ import annotations

from offsetstore.testing.broker import StaticBroker
from offsetstore.testing.memory import InMemoryOffsetStore, MemoryDatabase

__all__ = ["InMemoryOffsetStore", "MemoryDatabase", "StaticBroker"]
