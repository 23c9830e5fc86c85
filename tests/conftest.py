"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.packaging.building import Distributions

# The same examples in every run, so that a failure in CI is one everywhere. To search for new ones:
# HYPOTHESIS_PROFILE=search pytest tests/property
settings.register_profile("same", derandomize=True, database=None, deadline=None, print_blob=True)
settings.register_profile("search", max_examples=2000, database=None, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

_SPARK = Path(__file__).parent / "integration" / "spark"

pytest_plugins = ["offsetstore.testing.fixtures", "tests.behaviours"]


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """The sdist and the wheel, as a release would have them."""
    from tests.packaging.building import build  # noqa: PLC0415

    return build(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tell workers (``-n 2 --dist loadgroup``) what belongs together: all tests of the Spark session, else a file's."""
    for item in items:
        group = "spark" if _SPARK in item.path.parents else f"{item.path.parent.name}/{item.path.name}"
        item.add_marker(pytest.mark.xdist_group(group))
