from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from offsetstore import Transaction
from offsetstore.testing import InMemoryOffsetStore
from tests.contract.outbox import ReadOutbox
from tests.contract.parts import Letters, Read, Write
from tests.contract.suite import JobContract


class TestInMemoryOffsetStore(JobContract):
    @pytest.fixture(name="store")
    def make_store(self) -> Iterator[InMemoryOffsetStore]:
        with InMemoryOffsetStore() as store:
            yield store

    @pytest.fixture(name="write")
    def make_write(self) -> Write:
        def write(tx: Transaction, numbers: Iterable[int]) -> None:
            tx.connection.extend("results", numbers)

        return write

    @pytest.fixture(name="read")
    def make_read(self, store: InMemoryOffsetStore) -> Read:
        return lambda: sorted(row for row in store.rows("results") if isinstance(row, int))

    @pytest.fixture(name="letters")
    def make_letters(self, store: InMemoryOffsetStore) -> Letters:
        return store

    @pytest.fixture
    def outbox(self, store: InMemoryOffsetStore) -> ReadOutbox:  # pyright: ignore[reportIncompatibleMethodOverride] - a fixture
        return store.outbox
