"""A store in memory, for unit tests of one's own code around it."""

from offsetstore.testing.memory.store import InMemoryOffsetStore, MemoryDatabase

__all__ = ["InMemoryOffsetStore", "MemoryDatabase"]
