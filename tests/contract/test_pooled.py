"""The same contract where each transaction is on another of the server's connections: PgBouncer's transaction mode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract import test_postgres
from tests.support.pooler import Pooler


@pytest.mark.behaviour("TX-16")
class TestPooledOffsetStore(test_postgres.TestPostgresOffsetStore):
    @pytest.fixture
    def offsetstore_database(self, offsetstore_database: str) -> Iterator[str]:
        with Pooler(offsetstore_database) as pooler:
            yield pooler.url
