from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.store.committing import Job, started


@pytest.fixture
def job(offsetstore_database: str, results: str) -> Iterator[Job]:
    """A job behind a proxy that can lose its COMMIT."""
    with started(offsetstore_database) as made:
        yield made
