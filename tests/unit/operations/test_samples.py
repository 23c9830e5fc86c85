"""Which samples are read, and what they tell of the time between them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from offsetstore.operations.samples import Rate, Sample, Selection, rates

ONE, SLOT = timedelta(seconds=1), timedelta(seconds=10)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
FIRST = Sample(
    at=datetime(2025, 3, 1, tzinfo=UTC), stored=1_000, batches=10, batch_seconds=20.0, rows=500, memory=1, epoch=4
)
SECOND = replace(FIRST, at=FIRST.at + SLOT, stored=1_500, batches=14, batch_seconds=26.0, rows=700)


@pytest.mark.parametrize(
    ("span", "points", "every", "windows"),
    [
        (timedelta(microseconds=1), None, 10, 1),
        (timedelta(minutes=5), None, 10, 30),
        (HOUR, None, 10, 360),
        (HOUR + timedelta(seconds=1), None, 60, 61),
        (DAY, None, 60, 1_440),
        (31 * DAY, None, 1_800, 1_488),
        (HOUR, 60, 60, 60),
        (HOUR, 59, 80, 45),
        (HOUR, 1, 3_600, 1),
        (HOUR, 1_000, 10, 360),
        (DAY, 60, 1_440, 60),
        (31 * DAY, 60, 31 * 1_800, 48),
        (timedelta(minutes=5), 10, 30, 10),
    ],
)
def test_a_selection_covers_the_span_with_no_more_than_the_points(
    span: timedelta, points: int | None, every: int, windows: int
) -> None:
    found = Selection.of(span, points)
    assert (found.every, found.windows) == (timedelta(seconds=every), windows)
    assert found.every * found.windows >= span
    assert found.ring.slots % found.step == 0


@pytest.mark.parametrize(
    ("second", "rate"),
    [
        (replace(SECOND, at=FIRST.at + 3 * SLOT), Rate(500 / 30, 200 / 30, 1.5)),
        (replace(SECOND, at=FIRST.at + 3.1 * SLOT), Rate()),
        (replace(SECOND, stored=999), Rate(None, 20.0, 1.5)),
        (replace(SECOND, stored=1_000), Rate(0.0, 20.0, 1.5)),
        (replace(SECOND, epoch=5), Rate(50.0)),
        (replace(SECOND, batches=10, batch_seconds=20.0, rows=500), Rate(50.0, 0.0, None)),
        (replace(SECOND, batches=None, batch_seconds=None, rows=None), Rate(50.0)),
        (replace(SECOND, batches=1, batch_seconds=2.0, rows=7), Rate(50.0)),
    ],
    ids=["3 slots", "a gap", "back", "idle", "another run", "no batch", "no run", "the same epoch again"],
)
def test_what_is_not_known_is_no_rate(second: Sample, rate: Rate) -> None:
    assert rates([FIRST, second], SLOT)[1] == rate


# -- in the even windows of a curve


def sample(seconds: float) -> Sample:
    return Sample(at=FIRST.at + seconds * ONE, stored=0, epoch=1)


@pytest.mark.behaviour("DASH-1")
def test_the_last_window_is_that_of_now() -> None:
    selection = Selection.of(60 * ONE)
    assert selection.times(FIRST.at + 4 * ONE) == [FIRST.at + 10 * number * ONE for number in range(-5, 1)]


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
@pytest.mark.behaviour("DASH-1")
def test_a_window_without_a_sample_has_the_value_before_it_for_a_while(
    at: list[float], expected: list[int | None]
) -> None:
    selection = Selection.of(60 * ONE)
    found = selection.spread([sample(one) for one in at], list(range(len(at))), FIRST.at + 55 * ONE)
    assert found == expected
