"""Which tests a worker of a run gets together."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import LANES, lane_of

TESTS = Path(__file__).parents[1]


def test_each_place_of_a_lane_has_tests_and_those_go_to_that_lane() -> None:
    for number, places in enumerate(LANES):
        for place in places:
            found = [*TESTS.glob(f"{place}*")]
            assert found, place
            assert lane_of(f"tests/{place}") == number
    assert lane_of("tests/integration/examples/test_three_lines.py::test_it") == 0
    assert lane_of("tests/integration/examples/test_jobs.py::test_it") == 1
    assert lane_of("tests/integration/spark/test_batches.py::test_it") is None
