"""The same contract in a hard place.

Each transaction is on another of the server's connections, as with PgBouncer's transaction mode, and the database has
hostile defaults. Each statement is sent, not by each test (`tests.contract.conftest`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract import test_postgres
from tests.support.hostile import HOSTILE, set_defaults
from tests.support.pooler import Pooler


@pytest.mark.behaviour("TX-16", "TX-19")
class TestPooledOffsetStore(test_postgres.TestPostgresOffsetStore):
    @pytest.fixture
    def offsetstore_database(self, offsetstore_database: str) -> Iterator[str]:
        set_defaults(offsetstore_database, "DATABASE", HOSTILE)
        with Pooler(offsetstore_database) as pooler:
            yield pooler.url
