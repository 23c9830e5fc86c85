"""docs/exporter.md and docs/metrics.md: their tables are what `# HELP` says of each metric."""

from __future__ import annotations

import pytest

from tests.support.metrics_page import DOCS, PAGES, renewed


@pytest.mark.parametrize("page", PAGES)
def test_the_table_is_up_to_date(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert text == renewed(page, PAGES[page]()), "run `python -m tests.support.metrics_page`"
