"""A store in memory, for unit tests of your own code around it."""

from offsetstore.testing.memory.store import InMemoryOffsetStore, MemoryDatabase

__all__ = ["InMemoryOffsetStore", "MemoryDatabase"]
