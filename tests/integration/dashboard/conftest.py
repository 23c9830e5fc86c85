from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from playwright.sync_api import Browser

from offsetstore import OffsetStore
from offsetstore.postgres.grants import grant_dashboard
from tests.integration.conftest import Query
from tests.support.browser import Pages, browse

GROUP = "billing"


@pytest.fixture(scope="module")  # not longer: asyncio.run fails while it is there, also in the tests of other files
def browser() -> Iterator[Browser]:
    with browse() as started:
        yield started


@contextmanager
def without_faults(browser: Browser) -> Generator[Pages]:
    """Yield what opens pages, in none of which anything may go wrong."""
    opened = Pages(browser)
    yield opened
    faults = opened.take_faults()
    opened.close()
    assert faults == []


@pytest.fixture
def pages(browser: Browser) -> Iterator[Pages]:
    """Opens pages; the test fails if anything goes wrong in one of them."""
    with without_faults(browser) as opened:
        yield opened


@contextmanager
def role_with(grant: Callable[..., Iterable[str]], url: str, query: Query) -> Generator[str]:
    """The database, for a role that has what is granted, and nothing else."""
    role = f"{grant.__name__}_{uuid4().hex}"
    query(f"CREATE ROLE {role} LOGIN")
    for statement in grant(role, schema="public"):
        query(statement)
    yield url.replace("postgres@", f"{role}@")
    query(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.fixture
def reader_url(offsetstore_database: str, query: Query) -> Iterator[str]:
    """The database, for a role that has what ``offsetstore grants --dashboard-role`` prints, and nothing else."""
    with role_with(grant_dashboard, offsetstore_database, query) as url:
        yield url


@pytest.fixture
def reader(reader_url: str) -> Iterator[OffsetStore]:
    with OffsetStore.connect(reader_url) as store:
        yield store
