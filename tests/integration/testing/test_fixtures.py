"""The fixtures that others use in their own tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from offsetstore.local.servers import is_process_of
from offsetstore.testing.fixtures import NewDatabase


def tables(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        return {name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}


def test_databases_do_not_know_of_each_other(offsetstore_new_database: NewDatabase) -> None:
    first, second = offsetstore_new_database(), offsetstore_new_database()
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE mine ()")
    assert "mine" in tables(first)
    assert "mine" not in tables(second)


def test_servers_are_stopped_after_a_failure(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["offsetstore.testing.fixtures"]\n')
    (tmp_path / "test_it.py").write_text(
        "def test_it(offsetstore_postgres):\n"
        "    print('server:', offsetstore_postgres.pid, offsetstore_postgres.directory)\n"
        "    assert False\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    pid, where = done.stdout.split("\nserver: ")[1].split()[:2]
    assert not is_process_of(int(pid), Path(where))
