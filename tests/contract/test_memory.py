from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetstore.testing import InMemoryOffsetStore
from tests.contract.suite import OffsetStoreContract

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from offsetstore import Transaction
    from tests.contract.parts import Read, Write


class TestInMemoryOffsetStore(OffsetStoreContract):
    @pytest.fixture
    def store(self) -> Iterator[InMemoryOffsetStore]:  # pyright: ignore[reportIncompatibleMethodOverride] - a fixture
        with InMemoryOffsetStore() as store:
            yield store

    @pytest.fixture
    def write(self) -> Write:
        def write(tx: Transaction, numbers: Iterable[int]) -> None:
            tx.connection.extend("results", numbers)

        return write

    @pytest.fixture
    def read(self, store: InMemoryOffsetStore) -> Read:  # pyright: ignore[reportIncompatibleMethodOverride] - a fixture
        return lambda: sorted(row for row in store.rows("results") if isinstance(row, int))
