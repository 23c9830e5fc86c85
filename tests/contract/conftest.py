"""Which cases of the contract are run where."""

from __future__ import annotations

import pytest

from tests.contract.test_pooled import TestPooledOffsetStore


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of each test, one case is enough behind a pooler: what varies are values, and the statements stay the same."""
    seen = set[str]()
    for item in [*items]:
        if isinstance(item, pytest.Function) and item.cls is TestPooledOffsetStore:
            if item.originalname in seen:
                items.remove(item)
            seen.add(item.originalname)
