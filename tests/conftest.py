"""What every test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fcntl import LOCK_EX, flock
from typing import Any

import pytest
from hypothesis import settings

from offsetstore.protocol import failpoints
from tests.packaging.building import Distributions

# The same examples in every run, so that a failure in CI is one everywhere. To search for new ones:
# HYPOTHESIS_PROFILE=search pytest tests/property
settings.register_profile("same", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("search", max_examples=2000, database=None, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

pytest_plugins = ["offsetstore.testing.fixtures", "tests.behaviours", "tests.programs"]
pytest.register_assert_rewrite("tests.contract")  # its cases are in modules that no test is collected from


# Jobs that are processes of their own, each with a Spark: of several workers two run these, one for each line, since
# more of them at once get less done. They take longest, and are begun first; then come those with the worker's Spark.
LANES = (
    (
        "integration/demo",
        "integration/examples/test_three_lines",
        "faults/chaos",
        "docs/test_readme",
        "integration/spark/test_canary",
    ),
    (
        "integration/examples",
        "integration/local/test_stack",
        "integration/spark/test_health",
        "integration/spark/test_cluster",
        "integration/spark/test_secured",
        "packaging",
    ),
)
LONG = "integration/spark"


def lane_of(nodeid: str) -> int | None:
    """The number of the lane that a test is in."""
    places = [(nodeid.startswith(f"tests/{place}"), number) for number, lane in enumerate(LANES) for place in lane]
    return next((number for is_in, number in places if is_in), None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def order(item: pytest.Item) -> int:
        lane = lane_of(item.nodeid)
        return lane if lane is not None else len(LANES) + (not item.nodeid.startswith(f"tests/{LONG}"))

    items.sort(key=order)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A lane goes to one worker, as a file does."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 # pyright: ignore[reportMissingTypeStubs] - it has none

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            lane = lane_of(nodeid)
            return super()._split_scope(nodeid) if lane is None else f"lane {lane}"

    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def no_failpoint_outlives_its_test() -> Iterator[None]:
    """Count anew; disarm what a test left armed, and fail it: a later test would hang there, far from the cause."""
    failpoints._reached.clear()  # it counts in the whole process
    yield
    left = os.environ.pop(failpoints.VARIABLE, None)
    assert left is None, f"the test left a failpoint armed: {left}"


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The sdist and the wheel, as a release would have them: built by the first worker that needs them."""
    from tests.packaging.building import build  # noqa: PLC0415

    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # which the workers of a run share
    with (place / "building").open("w") as lock:
        flock(lock, LOCK_EX)
        return build(place / "source", place / "dist")
