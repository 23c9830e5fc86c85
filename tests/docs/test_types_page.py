from __future__ import annotations

import pytest

from offsetstore.writers.arrow.casts import lossless_type
from offsetstore.writers.table.conversions import conversion
from tests.support.type_pairs import COLUMNS, PAGE, SOURCES, VALUES, expressions, text


@pytest.mark.behaviour("SINK-22")
def test_the_page_of_types_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "run `make types`"


@pytest.mark.behaviour("SINK-22")
@pytest.mark.parametrize("source", SOURCES)
def test_each_pair_has_a_value_to_compare_or_another_column_that_has_one(source: str) -> None:
    compared = [name for of in VALUES[source].values() for names in of for name in names.split(", ")]
    assert sorted(compared) == sorted(name for name, column in COLUMNS.items() if expressions(source, column))
    others = [column for name, column in COLUMNS.items() if name not in compared and not lossless_type(column)]
    assert {conversion("x", SOURCES[source], column).instead for column in others} <= set(compared)
