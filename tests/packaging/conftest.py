"""What is installed, once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.packaging.building import Distributions, make_venv


@pytest.fixture(scope="session")
def core_venv(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and the core's own requirements, no extra."""
    return make_venv(tmp_path_factory.mktemp("core"), "core.txt", distributions.wheel)


@pytest.fixture(scope="session")
def wheel_venv(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel, the command line, and psycopg with its own libpq."""
    return make_venv(tmp_path_factory.mktemp("wheel"), "cli.txt", distributions.wheel)
