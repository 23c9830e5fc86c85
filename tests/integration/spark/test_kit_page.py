"""docs/test-kit.md: its blocks are a file of tests, which pass; its tables are true."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from offsetstore.testing import POINTS, fixtures

PAGE = (Path(__file__).parents[3] / "docs" / "test-kit.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
FILE: dict[str, Any] = {}
exec(compile("".join(BLOCKS), "docs/test-kit.md", "exec"), FILE)  # noqa: S102 - the page's own words
TESTS = [name for name in FILE if name.startswith("test_")]


@pytest.mark.parametrize("name", TESTS)
def test_each_test_of_the_page_passes(name: str, request: pytest.FixtureRequest) -> None:
    test = FILE[name]
    cases: list[dict[str, Any]] = [{}]
    for mark in getattr(test, "pytestmark", []):
        argument, values = mark.args
        cases = [{argument: value} for value in values]
    for case in cases:
        wanted = inspect.signature(test).parameters.keys() - case.keys()
        test(**case, **{fixture: request.getfixturevalue(fixture) for fixture in wanted})


def test_the_page_has_a_test_for_each_part() -> None:
    assert len(TESTS) == 6
    code = "".join(BLOCKS)
    for part in re.findall(r"^\| .* \| \[`(\w+)`\]", PAGE, re.MULTILINE):
        assert re.search(rf"\b{part}[(.]", code)


def table(heading: str) -> list[str]:
    rows = PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)


def test_the_points_and_fixtures_of_its_tables_are_there() -> None:
    assert {*table("point")} < POINTS.keys()
    assert len(table("point")) == 7
    found = re.findall(r"^``(\w+)``", fixtures.__doc__ or "", re.MULTILINE)
    assert sorted(table("fixture")) == sorted(found)
    assert all(hasattr(fixtures, name) for name in found)


def test_it_is_short() -> None:
    prose = re.sub(r"^```.*?^```$", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 800
