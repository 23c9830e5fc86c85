"""What every test may use."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from fcntl import LOCK_EX, flock
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling  # pyright: ignore[reportMissingTypeStubs] - it has none

from offsetstore.local.kafka import KafkaBroker
from offsetstore.runtime import failpoints
from tests.packaging.building import Distributions
from tests.support.recorder import Recorder

# The same examples in every run, so that a failure in CI is one everywhere. To search for new ones:
# HYPOTHESIS_PROFILE=search pytest tests/property
settings.register_profile("same", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("search", max_examples=2000, database=None, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

pytest_plugins = ["offsetstore.testing.fixtures", "tests.behaviours", "tests.durations", "tests.programs"]
pytest.register_assert_rewrite("tests.contract")  # its cases are in modules that no test is collected from


# All on one worker, and so on one Spark: a second one would have to get warm, too.
ON_SPARK = tuple(
    f"tests/integration/{place}"
    for place in ("spark/", "examples/test_jobs.py", "examples/test_three_lines.py", "mistakes/")
)
# What takes longest: begun first, so that no worker is left alone with it at the end of a run.
LONG = (
    *ON_SPARK,
    "tests/integration/demo",
    "tests/integration/examples",
    "tests/faults/chaos",
    "tests/docs/test_tutorial",
    "tests/docs/test_readme",
)


def pytest_configure() -> None:
    # A shell without job control has what it starts with & ignore SIGINT, and so would each process of a test.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((n for n, place in enumerate(LONG) if item.nodeid.startswith(place)), len(LONG)))


class _Scheduling(LoadFileScheduling):
    """One worker for all tests on the run's Spark, and for each other file."""

    def _split_scope(self, nodeid: str) -> str:
        return "Spark" if nodeid.startswith(ON_SPARK) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)  # also without xdist's plugin
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No garbage is collected, as in a process that polls."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def no_failpoint_outlives_its_test() -> Iterator[None]:
    """Count anew; disarm what a test left armed, and fail it: a later test would hang there, far from the cause."""
    failpoints._reached.clear()  # it counts in the whole process
    yield
    left = os.environ.pop(failpoints.VARIABLE, None)
    assert left is None, f"the test left a failpoint armed: {left}"


@pytest.fixture(scope="session")
def offsetstore_kafka() -> Iterator[KafkaBroker]:
    """As ours for users, but it misses members of groups, and itself after a SIGKILL, sooner."""
    settings = {
        "group.min.session.timeout.ms": "1000",
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "250",
    }
    with KafkaBroker(settings=settings) as broker:
        yield broker


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


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
