"""How samples are put into the even windows of a curve."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from offsetstore.operations.samples import Sample, Selection

pytestmark = pytest.mark.behaviour("DASH-1")

NOON = datetime(2025, 3, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def sample(seconds: float) -> Sample:
    return Sample(at=NOON + seconds * SECOND, stored=0, epoch=1)


def test_the_last_window_is_that_of_now() -> None:
    selection = Selection.of(60 * SECOND)
    assert selection.times(NOON + 4 * SECOND) == [NOON + 10 * number * SECOND for number in range(-5, 1)]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ([0, 10, 20, 30, 40, 50], [0, 1, 2, 3, 4, 5]),
        ([1, 11.5, 22, 32.5, 43, 53.5], [0, 1, 2, 3, 4, 5]),
        ([0, 10, 30, 50], [0, 1, 1, 2, 2, 3]),
        ([0, 50], [0, 0, 0, None, None, 1]),
        ([20], [None, None, 0, 0, 0, None]),
        ([-100, 5], [1, 1, 1, None, None, None]),
        ([], [None] * 6),
    ],
    ids=["even", "a bit later each time", "one is missing", "several are missing", "now", "too old", "none"],
)
def test_a_window_without_a_sample_has_the_value_before_it_for_a_while(
    at: list[float], expected: list[int | None]
) -> None:
    selection = Selection.of(60 * SECOND)
    found = selection.spread([sample(one) for one in at], list(range(len(at))), NOON + 55 * SECOND)
    assert found == expected


def test_values_that_are_not_known_stay_so() -> None:
    selection = Selection.of(30 * SECOND)
    samples = [sample(0), sample(10), sample(20)]
    assert selection.spread(samples, [1, None, 3], NOON + 20 * SECOND) == [1, None, 3]
