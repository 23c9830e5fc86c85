from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import pytest
from sqlalchemy import Engine, text

from offsetstore import Letter, LetterFilter, LetterKey, OffsetStore, Transaction
from offsetstore.postgres.letters import read_headers
from offsetstore.postgres.url import make_engine
from offsetstore.protocol.outbox import OutboxRecord
from tests.contract.outbox import ReadOutbox
from tests.contract.parts import Letters, Read, Write
from tests.contract.suite import OffsetStoreContract


@dataclass
class StoredLetters:
    """The dead letters of a store in PostgreSQL."""

    store: OffsetStore

    def dead_letters(self, group: str) -> list[Letter]:
        return sorted(self.store.letters(group, contents=True).letters, key=lambda letter: letter.key)

    def decide_letters(
        self,
        group: str,
        state: Literal["requested", "discarded"],
        keys: Collection[LetterKey] | None = None,
        *,
        forced: bool = False,
    ) -> None:
        which = LetterFilter() if keys is None else keys
        if state == "requested":
            self.store.request_replay(group, which, reason="ticket 17", forced=forced)
        else:
            self.store.discard(group, which, reason="ticket 17")


class OnPostgres:
    """What the contract's suite needs."""

    @pytest.fixture
    def engine(self, offsetstore_database: str) -> Iterator[Engine]:
        engine = make_engine(offsetstore_database)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE results (number bigint NOT NULL)"))
        yield engine
        engine.dispose()

    @pytest.fixture(name="store")
    def make_store(self, engine: Engine) -> Iterator[OffsetStore]:
        with OffsetStore.connect(engine) as store:
            yield store

    @pytest.fixture(name="write")
    def make_write(self) -> Write:
        def write(tx: Transaction, numbers: Iterable[int]) -> None:
            for number in numbers:
                tx.connection.execute(text("INSERT INTO results VALUES (:number)"), {"number": number})

        return write

    @pytest.fixture(name="read")
    def make_read(self, engine: Engine) -> Read:
        def read() -> list[int]:
            with engine.connect() as connection:
                return list(connection.scalars(text("SELECT number FROM results ORDER BY number")))

        return read

    @pytest.fixture(name="letters")
    def make_letters(self, store: OffsetStore) -> Letters:
        return StoredLetters(store)

    @pytest.fixture
    def outbox(self, engine: Engine) -> ReadOutbox:
        def outbox() -> list[OutboxRecord]:
            with engine.connect() as connection:
                rows = connection.execute(text("SELECT topic, key, value, headers FROM outbox ORDER BY id")).all()
            return [OutboxRecord(row.topic, row.key, row.value, read_headers(row.headers)) for row in rows]

        return outbox


class TestPostgresOffsetStore(OnPostgres, OffsetStoreContract):
    """The whole suite."""
