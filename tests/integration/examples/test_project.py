"""examples/project, as a user copies it: its tests, its migrations and its CI, with offsetstore from the wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from offsetstore import OffsetStore
from offsetstore.local.java import OLDEST_JAVA
from tests.support.examples import EXAMPLES, ROOT, Examples
from tests.support.postgres import Database
from tests.support.waiting import wait_until

PROJECT = EXAMPLES / "project"
TESTS = 9
MAIN = "from offsetstore.cli.main import main; main()"
pytestmark = pytest.mark.behaviour("DX-6")


@pytest.fixture
def copied(installed_wheel: Path, offsetstore_empty_database: str, tmp_path: Path) -> Examples:
    """The project in a directory of its own."""
    shutil.copytree(PROJECT, tmp_path / "shop")
    return Examples(tmp_path / "shop", offsetstore_empty_database, wheel=installed_wheel)


def test_its_own_tests_pass(copied: Examples) -> None:
    found = copied.python("-m", "pytest", "-p", "no:cacheprovider", "-W", "error")

    assert f"{TESTS} passed" in found.stdout
    assert "skipped" not in found.stdout
    assert "warning" not in found.stdout


@pytest.mark.behaviour("OPS-9")
def test_one_upgrade_brings_its_tables_and_ours_and_autogenerate_leaves_both_alone(copied: Examples) -> None:
    alembic = ("-m", "alembic")
    copied.python(*alembic, "upgrade", "head")
    copied.python(*alembic, "upgrade", "head")  # the next deploy

    with psycopg.connect(copied.url) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
        for table in ("payments", "refunds"):
            assert connection.execute(f"SELECT id FROM {table}".encode()).fetchall() == []
    with OffsetStore.connect(copied.url) as store:
        assert store.offsets("shop-payments") == {}
    assert "No new upgrade operations detected" in copied.python(*alembic, "check").stdout


def test_its_ci_installs_and_runs_what_the_project_has() -> None:
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    for needed in [*project["dependencies"], *extras["test"]]:
        name, names = re.fullmatch(r"(\w+)\[(.*)\]", needed).groups()  # pyright: ignore[reportOptionalMemberAccess]
        assert name == ours["name"]
        assert {*names.split(",")} <= ours["optional-dependencies"].keys()
    workflow: dict[Any, Any] = yaml.safe_load((PROJECT / ".github/workflows/test.yml").read_text("utf-8"))
    steps = workflow["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["pip install -e '.[test]'", "pytest"]
    assert "test" in extras
    actions = {step["uses"].partition("@")[0]: step.get("with", {}) for step in steps if "uses" in step}
    assert all(name.startswith("actions/") for name in actions)
    assert actions["actions/setup-java"]["java-version"] == str(OLDEST_JAVA)
    python = actions["actions/setup-python"]["python-version"]
    assert f"Programming Language :: Python :: {python}" in ours["classifiers"]
    assert workflow["permissions"] == {"contents": "read"}


def test_its_consumer_runs_under_the_command(
    examples: Examples, copied: Examples, database: Database, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE refunds (payer text, amount numeric(12,2) CHECK (amount > 0))")
    examples.produce("refunds", ("ada", "1.50"), ("bob", "-1"), ("cleo", "2.25"))
    command = ["-c", MAIN, "consume", "shop.refunds_consumer:consumer", "--processes", "1"]
    environment = {"OFFSETSTORE_URL": examples.url, "OFFSETSTORE_BOOTSTRAP_SERVERS": examples.kafka_servers}
    log = tmp_path / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [sys.executable, *command],
            cwd=copied.directory,
            env={**os.environ, **environment},
            stdout=out,
            stderr=out,
        ) as running,
    ):
        try:
            stored = "SELECT next_offset FROM kafka_partitions WHERE consumer_group = 'shop-refunds'"
            wait_until(lambda: database.rows(stored) == [(3,)] or running.poll() is not None)
            running.terminate()
            assert running.wait(60) == 0, log.read_text()
        finally:
            running.kill()

    assert database.rows("SELECT payer, amount::text FROM refunds ORDER BY payer") == [
        ("ada", "1.50"),
        ("cleo", "2.25"),
    ]
    assert database.rows("SELECT record_offset, cause FROM dead_letters") == [(1, "refused")]
