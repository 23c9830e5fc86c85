from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.browser import Pages, browse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser


@pytest.fixture(scope="module")  # not longer: asyncio.run fails while it is there, also in the tests of other files
def browser() -> Iterator[Browser]:
    with browse() as started:
        yield started


@pytest.fixture
def pages(browser: Browser) -> Iterator[Pages]:
    """Opens pages; the test fails if anything goes wrong in one of them."""
    opened = Pages(browser)
    yield opened
    faults = opened.take_faults()
    opened.close()
    assert faults == []
