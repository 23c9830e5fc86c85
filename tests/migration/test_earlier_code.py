"""A deploy one by one: the tables first, then each job, while the others go on with the code from before."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, text

from offsetstore import OffsetStore
from offsetstore.errors import SchemaNotAtHead
from offsetstore.postgres.migrate import downgrade, upgrade
from offsetstore.postgres.schema import HEAD
from tests.migration.conftest import ROOT
from tests.support.earlier_job import Job

# By the revision of its code; 0008 is that of the code before decision 0056.
COMMITS = {
    "0006": "c8d9c61c8d8bbf80fb51de3afedd27bfc755e159",
    "0008": "f084d2b18a6196ad5f6f13c5c703fe5199c2d568",
    "0011": "d2d872fde6cade00982a7ff6b28feab84a1fdf5c",
}


def code_of(revision: str, directory: Path) -> Path:
    """Unpack the code of that revision there."""
    archive = directory / "archive.tar"
    subprocess.run(
        ["git", "-C", str(ROOT), "archive", f"--output={archive}", COMMITS[revision], "offsetstore"], check=True
    )
    with tarfile.open(archive) as packed:
        packed.extractall(directory / "code", filter="data")
    return directory / "code"


@contextmanager
def running(code: Path, url: str) -> Generator[Callable[[str], str]]:
    """A process with a job on that code; yields what takes a step of it."""
    command = [sys.executable, "-P", str(ROOT / "tests" / "support" / "earlier_job.py"), url, HEAD]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(code)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def step(name: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        print(name, file=process.stdin, flush=True)
        return process.stdout.readline().strip()

    try:
        yield step
    finally:
        process.kill()
        process.communicate()


@pytest.mark.behaviour("OPS-17")
@pytest.mark.parametrize(
    "table",
    [
        "",
        "CREATE TABLE offsetstore_staging.rows (id bigint)",
        "CREATE SCHEMA second CREATE TABLE offsetstore_version (version_num text)",
    ],
    ids=["empty", "in use", "of another store, too"],
)
def test_the_staging_schema_of_earlier_code_is_dropped_unless_it_is_in_use(
    engine: Engine, offsetstore_empty_database: str, table: str
) -> None:
    there = text("SELECT to_regnamespace('offsetstore_staging') IS NOT NULL")
    with engine.begin() as connection:
        upgrade(connection, revision="0008")
        assert connection.scalar(there)
        connection.execute(text(table or "SELECT"))
    with engine.begin() as connection:
        upgrade(connection)
        assert connection.scalar(there) is bool(table)
    with engine.begin() as connection:
        downgrade(connection, revision="0008")
        assert connection.scalar(there)


@pytest.mark.needs_program("history")
@pytest.mark.behaviour("OPS-17")
@pytest.mark.parametrize("revision", COMMITS)
def test_a_job_of_earlier_code_goes_on_while_the_tables_are_expanded_and_can_come_back(
    engine: Engine, offsetstore_empty_database: str, tmp_path: Path, revision: str
) -> None:
    url = offsetstore_empty_database
    with engine.begin() as connection:
        upgrade(connection, revision=revision)
        connection.execute(text("CREATE TABLE results (record bigint)"))

    with running(code_of(revision, tmp_path), url) as earlier:
        assert [earlier("start"), earlier("write")] == ["done", "done"]
        if revision != HEAD:
            with pytest.raises(SchemaNotAtHead, match="offsetstore migrate"):
                OffsetStore.connect(url)
        with engine.begin() as connection:
            upgrade(connection)
        assert [earlier("write"), earlier("decide"), earlier("trust")] == ["done"] * 3

        later = Job(url, HEAD)
        later.start()
        assert earlier("write") == "StaleClaim"
        later.write()
        later.decide()

        assert [earlier("stop"), earlier("start"), earlier("write"), earlier("stop")] == ["done"] * 4
        later.stop()

    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT record FROM results ORDER BY 1").fetchall()
        letters = connection.execute("SELECT record_offset FROM dead_letters ORDER BY 1").fetchall()
    assert rows == [(number,) for number in range(40) if number % 10]
    assert letters == [(0,), (10,), (20,), (30,)]


@pytest.mark.needs_program("history")
def test_code_that_runs_on_its_own_revision_alone_goes_on_but_starts_again_only_after_the_pages_way_back(
    engine: Engine, offsetstore_empty_database: str, tmp_path: Path
) -> None:
    """docs/upgrade.md, from revision 0008."""
    url = offsetstore_empty_database
    page = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8")
    [way_back] = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    with engine.begin() as connection:
        upgrade(connection, revision="0008")
        connection.execute(text("CREATE TABLE results (record bigint)"))

    with running(code_of("0008", tmp_path), url) as earlier:
        assert [earlier("start"), earlier("write")] == ["done", "done"]
        with engine.begin() as connection:
            upgrade(connection)
        assert [earlier("write"), earlier("stop")] == ["done", "done"]
        assert earlier("start") == "SchemaNotAtHead"

        names: dict[str, Any] = {"url": url.replace("postgresql:", "postgresql+psycopg:")}
        exec(way_back, names)  # noqa: S102 - the page's own words
        names["engine"].dispose()
        assert [earlier("start"), earlier("write"), earlier("decide"), earlier("stop")] == ["done"] * 4

    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT record FROM results ORDER BY 1").fetchall()
        letters = connection.execute("SELECT record_offset FROM dead_letters ORDER BY 1").fetchall()
    assert rows == [(number,) for number in range(30) if number % 10]
    assert letters == [(0,), (10,), (20,)]
