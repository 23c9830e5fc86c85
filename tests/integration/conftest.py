from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

import psycopg
import pytest
from sqlalchemy import Engine

from offsetstore import OffsetStore
from offsetstore.local.postgres import PostgresServer, find_binaries
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from tests.support.authorized import Authorized

Rows: TypeAlias = list[tuple[Any, ...]]

CONTENTS = {
    "consumer_groups": "SELECT * FROM consumer_groups ORDER BY 1",
    "heartbeats": "SELECT claim_id FROM heartbeats ORDER BY 1",  # a live claim sends one at any time
    "kafka_partitions": "SELECT * FROM kafka_partitions ORDER BY 1, 2, 3",
    "offset_history": "SELECT * FROM offset_history ORDER BY 1",
}


class Query(Protocol):
    def __call__(self, statement: str) -> Rows: ...


class Contents(Protocol):
    def __call__(self) -> dict[str, Rows]: ...


@pytest.fixture
def store(offsetstore_database: str) -> Iterator[OffsetStore]:
    with OffsetStore.connect(offsetstore_database) as connected:
        yield connected


@pytest.fixture
def engine(offsetstore_database: str) -> Iterator[Engine]:
    """An engine of the user's own."""
    made = make_engine(offsetstore_database)
    yield made
    made.dispose()


@pytest.fixture
def query(offsetstore_database: str) -> Iterator[Query]:
    """Look at the database from outside, with one connection that commits each statement."""
    with psycopg.connect(offsetstore_database, autocommit=True) as connection:

        def run(statement: str) -> Rows:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        yield run


@pytest.fixture
def results(query: Query) -> str:
    """A table for results, without a key that would hide a duplicate."""
    query("CREATE TABLE results (record bigint)")
    return "results"


@pytest.fixture
def contents(query: Query) -> Contents:
    """All rows of our tables, to be compared; without the times of heartbeats."""

    def read() -> dict[str, Rows]:
        return {table: query(statement) for table, statement in CONTENTS.items()}

    return read


@pytest.fixture
def private_postgres(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server of this test alone, with our tables, which it may stop."""
    with PostgresServer(
        find_binaries(str(request.config.getoption("--offsetstore-postgres"))), durability="none"
    ) as server:
        engine = make_engine(server.url)
        with engine.begin() as connection:
            upgrade(connection)
        engine.dispose()
        yield server


@pytest.fixture(scope="session")
def authorized() -> Iterator[Authorized]:
    """A Kafka of its own that allows nothing without an ACL; tests use topics and groups that no other test has."""
    with Authorized.started() as started:
        yield started
