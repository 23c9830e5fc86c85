from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from offsetstore import Transaction
from offsetstore.testing import InMemoryOffsetStore
from tests.contract.outbox import ReadOutbox
from tests.contract.parts import Read, Write
from tests.contract.suite import JobContract


class TestInMemoryOffsetStore(JobContract):
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

    @pytest.fixture
    def outbox(self, store: InMemoryOffsetStore) -> ReadOutbox:  # pyright: ignore[reportIncompatibleMethodOverride] - a fixture
        return store.outbox
