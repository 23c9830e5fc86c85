from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from offsetstore import OffsetStore
from offsetstore.postgres.url import make_engine
from offsetstore.testing import OffsetStoreContract

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Engine

    from offsetstore import Transaction
    from offsetstore.testing.contract.parts import Read, Write


class TestPostgresOffsetStore(OffsetStoreContract):
    @pytest.fixture
    def engine(self, offsetstore_database: str) -> Iterator[Engine]:
        engine = make_engine(offsetstore_database)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE results (number bigint NOT NULL)"))
        yield engine
        engine.dispose()

    @pytest.fixture
    def store(self, engine: Engine) -> Iterator[OffsetStore]:  # pyright: ignore[reportIncompatibleMethodOverride] - a fixture
        with OffsetStore.connect(engine) as store:
            yield store

    @pytest.fixture
    def write(self) -> Write:
        def write(tx: Transaction, numbers: Iterable[int]) -> None:
            for number in numbers:
                tx.connection.execute(text("INSERT INTO results VALUES (:number)"), {"number": number})

        return write

    @pytest.fixture
    def read(self, engine: Engine) -> Read:  # pyright: ignore[reportIncompatibleMethodOverride] - a fixture
        def read() -> list[int]:
            with engine.connect() as connection:
                return list(connection.scalars(text("SELECT number FROM results ORDER BY number")))

        return read
