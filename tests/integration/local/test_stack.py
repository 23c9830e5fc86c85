"""``offsetstore local up``, ``status`` and ``down``, each a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest

from offsetstore.kafka.admin import create_topic
from offsetstore.local import stack
from offsetstore.local.cache import cache_directory
from offsetstore.local.processes import is_process_of
from offsetstore.local.spark.artifacts import KAFKA_BROKER
from offsetstore.local.spark.jars import jars

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from offsetstore.local.stack import ServiceStatus


@pytest.fixture
def _own_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache but for the jars, which need not be downloaded again; no stack is left at the end."""
    jars(KAFKA_BROKER)
    (tmp_path / "jars").symlink_to(cache_directory() / "jars")
    monkeypatch.setenv("OFFSETSTORE_CACHE", str(tmp_path))
    yield
    stack.down(delete_data=True)


def run(*arguments: str) -> tuple[int, str]:
    script = "from offsetstore.cli.local import local; local()"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.usefixtures("_own_stack")
def test_servers_outlive_the_command_and_keep_their_data() -> None:
    code, said = run("up")
    assert (code, "export OFFSETSTORE_URL='postgresql://offsetstore:" in said) == (0, True), said
    postgres, kafka = running = stack.status()
    assert [service.running for service in running] == [True, True]
    with psycopg.connect(postgres.address) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS x")
    create_topic(kafka.address, "t")

    code, said = run("status")
    assert (code, said.count("running")) == (0, 2), said
    assert password(postgres) not in said
    assert run("up")[0] == 0
    assert stack.status() == running  # nothing was started twice

    assert run("down") == (0, "PostgreSQL stopped.\nKafka stopped.\n")
    assert [is_process_of(service.pid or 0, service.directory) for service in running] == [False, False]
    assert run("status")[0] == 1

    assert run("up")[0] == 0
    assert [service.address for service in stack.status()] == [postgres.address, kafka.address]
    with psycopg.connect(postgres.address) as connection:
        assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
    assert run("down", "--delete-data")[0] == 0
    assert [service.directory.exists() for service in running] == [False, False]
    assert "There is no local stack" in run("status")[1]


def password(postgres: ServiceStatus) -> str:
    return postgres.address.split(":")[2].split("@")[0]
