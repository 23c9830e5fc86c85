"""The search for records that can't be computed."""

from __future__ import annotations

import math
import random
from collections.abc import Collection

import pytest

from offsetstore.errors import FunctionFailed
from offsetstore.processing.blame import TimeIsUp, TooManyFailed, find_failing


class Tries:
    """Computes records, of which some can't be; ``tried`` are the parts that were."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad
        self.rowless: Collection[int] = ()
        self.tried: list[tuple[int, int]] = []

    def __call__(self, begin: int, end: int) -> FunctionFailed | int:
        self.tried.append((begin, end))
        first = next((place for place in self.bad if begin <= place < end), None)
        return len({*range(begin, end)}.difference(self.rowless)) if first is None else FunctionFailed(f"at {first}")


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 1000])
def test_each_record_that_cant_be_computed_is_found_with_its_own_error(size: int) -> None:
    chance = random.Random(size)  # noqa: S311 - not a secret
    for count in {1, min(2, size), min(9, size), size // 3}:
        bad = sorted(chance.sample(range(size), count))
        if bad:
            found = find_failing(size, Tries(*bad))
            assert {place: error.what for place, error in found.items()} == {place: f"at {place}" for place in bad}


@pytest.mark.behaviour("DLQ-8", "DLQ-15")
def test_twenty_of_a_hundred_thousand_take_some_three_hundred_jobs() -> None:
    tries = Tries(*sorted(random.Random(7).sample(range(100_000), 20)))  # noqa: S311 - not a secret
    assert len(find_failing(100_000, tries)) == 20
    assert len(tries.tried) < 380


@pytest.mark.behaviour("DLQ-13", "DLQ-15")
def test_what_fails_for_all_records_is_given_up_after_a_few() -> None:
    tries = Tries(*range(2_000))
    with pytest.raises(TooManyFailed, match="all 19 records tried failed") as caught:
        find_failing(2_000, tries)
    assert caught.value.error.what == "at 9"
    assert len(tries.tried) < 60


@pytest.mark.behaviour("DLQ-15")
def test_a_record_that_can_be_computed_alone_is_not_to_blame() -> None:
    def try_(begin: int, end: int) -> FunctionFailed | int:  # a part is too large, and no record is to blame
        return FunctionFailed("too large") if end - begin > 4 else end - begin

    assert find_failing(64, try_) == {}


def test_when_the_time_is_up_what_was_found_is_known_up_to_there() -> None:
    tries = Tries(3, 40, 70)
    with pytest.raises(TimeIsUp) as caught:
        find_failing(100, tries, seconds=-math.inf)
    assert (caught.value.place, [*caught.value.failed]) == (4, [3])


@pytest.mark.behaviour("DLQ-8", "DLQ-15")
@pytest.mark.parametrize(
    ("bad", "rowless", "place", "found"),
    [
        ([0, 5], [], 3, [0]),
        ([0, 1, 2, 3, 70], [], 6, [0, 1, 2, 3]),
        ([5, 40], range(5), 18, [5]),
        ([0, 7], [1, 2, 3, 4], 7, [0]),
        ([*range(10), 12], [], 12, [*range(10)]),
    ],
)
def test_a_search_without_time_goes_on_until_another_record_makes_a_row(
    bad: list[int], rowless: Collection[int], place: int, found: list[int]
) -> None:
    """Else the part that ends there has nothing that shows that its bad records are to blame."""
    tries = Tries(*bad)
    tries.rowless = rowless
    with pytest.raises(TimeIsUp) as caught:
        find_failing(100, tries, seconds=-math.inf)
    assert (caught.value.place, [*caught.value.failed]) == (place, found)
