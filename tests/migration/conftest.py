from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest
from sqlalchemy import Engine

from offsetstore.postgres.url import make_engine

ROOT = Path(__file__).parents[2]
MARK = "migrated by the checkout's own code"

Rows: TypeAlias = list[tuple[Any, ...]]

COLUMNS = """
SELECT table_name, ordinal_position, column_name, data_type, collation_name, column_default, is_nullable,
       identity_generation
FROM information_schema.columns WHERE table_schema = %(schema)s ORDER BY 1, 2
"""
CONSTRAINTS = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = to_regnamespace(%(schema)s) ORDER BY 1, 2
"""
INDEXES = """
SELECT tablename, indexname, replace(indexdef, %(schema)s || '.', '') FROM pg_indexes WHERE schemaname = %(schema)s
ORDER BY 1, 2
"""
OPTIONS = """
SELECT relname, relkind::text, reloptions FROM pg_class
WHERE relnamespace = to_regnamespace(%(schema)s) ORDER BY 1, 2
"""


def shape(url: str, schema: str = "public") -> dict[str, Rows]:
    """All that the catalogue says about the tables of a schema (whose name needs no quotes)."""
    with psycopg.connect(url, options=f"-c search_path={schema}") as connection:
        return {
            name: connection.execute(query.encode(), {"schema": schema}).fetchall()
            for name, query in (
                ("columns", COLUMNS),
                ("constraints", CONSTRAINTS),
                ("indexes", INDEXES),
                ("options", OPTIONS),
            )
        }


def tables(url: str, schema: str = "public") -> set[str]:
    return {row[0] for row in shape(url, schema)["columns"]}


@pytest.fixture
def engine(offsetstore_empty_database: str) -> Iterator[Engine]:
    """An engine on a database without our tables."""
    made = make_engine(offsetstore_empty_database)
    yield made
    made.dispose()


@dataclass(frozen=True)
class Checkout:
    """A copy of the checkout, and how Alembic is started in it."""

    path: Path
    command: tuple[str, ...]
    environment: Mapping[str, str]

    def alembic(self, *arguments: str, url: str | None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments],
            cwd=self.path,
            env=self.with_url(url),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def with_url(self, url: str | None) -> dict[str, str]:
        environment = {**os.environ, **self.environment}
        environment.pop("OFFSETSTORE_URL", None)
        return environment if url is None else {**environment, "OFFSETSTORE_URL": url}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """With the package installed, as in `make setup`'s environment."""
    path = tmp_path / "checkout"
    path.mkdir()
    shutil.copy(ROOT / "pyproject.toml", path)
    for folder in ("offsetstore", "migrations"):
        shutil.copytree(ROOT / folder, path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    with (path / "migrations" / "env.py").open("a") as env:
        env.write(f'\nimport sys\nassert {str(path)!r} in sys.modules["offsetstore"].__file__\n')
        env.write(f"print({MARK!r}, file=sys.stderr)\n")
    # -P: like the console script, without the current directory on the path.
    return Checkout(path, (sys.executable, "-P", "-m", "alembic"), {})


@pytest.fixture
def checkout_alone(checkout: Checkout) -> Checkout:
    """Where only the dependencies are installed: without `site`, nobody reads the links of editable installs."""
    command = (sys.executable, "-P", "-S", "-m", "alembic")
    return Checkout(checkout.path, command, {"PYTHONPATH": os.pathsep.join(site.getsitepackages())})
