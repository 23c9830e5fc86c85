"""For users' tests: a store in memory, a broker with given answers, fixtures with real servers, the contract.

The contract suite needs pytest and is loaded at first use; `offsetstore.testing.fixtures` is a pytest plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offsetstore.testing.broker import StaticBroker
from offsetstore.testing.memory.store import InMemoryOffsetStore, MemoryDatabase

if TYPE_CHECKING:
    from offsetstore.testing.contract.suite import OffsetStoreContract

__all__ = ["InMemoryOffsetStore", "MemoryDatabase", "OffsetStoreContract", "StaticBroker"]


def __getattr__(name: str) -> Any:
    if name != "OffsetStoreContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest  # noqa: PLC0415

    # pytest is to explain its failed asserts like those of tests.
    parts = ("parts", "together", "misuse", "replays", "locks", "fence", "metadata", "marks", "admin")
    pytest.register_assert_rewrite(*(f"{__name__}.contract.{part}" for part in parts))
    from offsetstore.testing.contract.suite import OffsetStoreContract  # noqa: PLC0415

    return OffsetStoreContract
