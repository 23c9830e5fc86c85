from __future__ import annotations

from collections.abc import Iterator

import pytest

from offsetstore.local.postgres import PostgresServer
from tests.integration.writers.writing import Database, new_database


@pytest.fixture(scope="module")
def shared_database(offsetstore_postgres: PostgresServer) -> Iterator[Database]:
    with new_database(offsetstore_postgres) as made:
        yield made


@pytest.fixture
def database(shared_database: Database) -> Database:
    """A database with nothing in it: emptying one takes a tenth of the time that making one does."""
    shared_database.run('DROP SCHEMA IF EXISTS public, "weird Schema" CASCADE; CREATE SCHEMA public')
    return shared_database
