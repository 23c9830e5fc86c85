from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.store.committing import started

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.store.committing import Job


@pytest.fixture
def job(offsetstore_database: str, results: str) -> Iterator[Job]:
    """A job behind a proxy that can lose its COMMIT."""
    with started(offsetstore_database) as made:
        yield made
