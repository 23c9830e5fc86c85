"""Narrowing down to the rows that can't be converted, with any conversion."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from offsetstore.writers.arrow.misfits import converted
from offsetstore.writers.table.catalogue import Column
from offsetstore.writers.table.conversions import conversion


class Conversion:
    """Adds one to numbers of which none is in ``bad``, and counts how often it was tried."""

    def __init__(self, *bad: int) -> None:
        self.bad = set(bad)
        self.attempts = 0

    def __call__(self, array: pa.Array[Any]) -> pa.Array[Any] | str:
        self.attempts += 1
        numbers = cast("list[int]", array.to_pylist())
        refused = self.bad.intersection(numbers)
        return f"{min(refused)} is bad" if refused else cast("Any", pa).array([n + 1 for n in numbers], pa.int32())


def numbers(count: int) -> pa.Array[Any]:
    return cast("Any", pa).array(range(count), pa.int64())


def none(_: pa.Array[Any]) -> set[int]:
    return set()


@pytest.mark.behaviour("DLQ-8")
@pytest.mark.parametrize("suspects", [set[int](), {3}, {0, 3, 5}, {3, 9}, set(range(10))], ids=str)
def test_whatever_is_suspected_the_bad_rows_are_found_and_the_others_converted(suspects: set[int]) -> None:
    def suspected(array: pa.Array[Any]) -> set[int]:
        return {row for row, number in enumerate(array.to_pylist()) if number in suspects}

    made, refused = converted(numbers(10), Conversion(3, 9), suspected)
    assert refused == {3: "3 is bad", 9: "9 is bad"}
    assert made.type == pa.int32()
    assert made.to_pylist() == [1, 2, 3, 5, 6, 7, 8, 9]


@pytest.mark.behaviour("DLQ-8")
def test_a_few_bad_rows_take_few_attempts_and_good_ones_a_single_one() -> None:
    good, few, half = Conversion(), Conversion(17, 4000, 8191), Conversion(*range(0, 8192, 2))
    converted(numbers(8192), good, none)
    converted(numbers(8192), few, none)
    converted(numbers(8192), half, none)
    assert good.attempts == 1
    assert few.attempts < 100
    assert half.attempts < 2 * 8192


@pytest.mark.behaviour("DLQ-8")
def test_if_only_the_whole_is_refused_no_row_is() -> None:
    def at_most_three(array: pa.Array[Any]) -> pa.Array[Any] | str:
        return array if len(array) <= 3 else "too many"

    made, refused = converted(numbers(100), at_most_three, none)
    assert refused == {}
    assert made.to_pylist() == list(range(100))


@pytest.mark.behaviour("SINK-22")
@pytest.mark.parametrize(
    ("precision", "scale", "cast"),
    [(12, 2, "12,2"), (3, 5, "5,5"), (38, 38, "38,38"), (50, 2, "38,2"), (60, 40, "38,18"), (100, 50, "38,6")],
)
def test_a_cast_to_a_numeric_that_is_too_wide_for_spark_keeps_the_digits_before_the_point(
    precision: int, scale: int, cast: str
) -> None:
    column = Column("x", f"numeric({precision},{scale})", "numeric", modifier=(precision << 16 | scale) + 4)
    assert conversion("x", pa.float64(), column).expressions == (f'col("x").cast("decimal({cast})")',)
