"""What the shop's tests have: offsetstore's fixtures, and a database that the shop's own migrations have made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

from offsetstore import OffsetStore

pytest_plugins = ["offsetstore.testing.fixtures"]


@pytest.fixture
def alembic(offsetstore_empty_database: str, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Return Alembic's configuration, for an empty database."""
    monkeypatch.setenv("DATABASE_URL", offsetstore_empty_database.replace("postgresql:", "postgresql+psycopg:"))
    return Config(toml_file=Path(__file__).parents[1] / "pyproject.toml")


@pytest.fixture
def store(alembic: Config, offsetstore_empty_database: str) -> Iterator[OffsetStore]:
    """Connect to the migrated database."""
    command.upgrade(alembic, "head")
    with OffsetStore.connect(offsetstore_empty_database) as connected:
        yield connected
