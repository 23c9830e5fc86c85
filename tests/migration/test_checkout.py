"""Alembic's own command line in a checkout, with pyproject.toml alone."""

from __future__ import annotations

import subprocess

import psycopg
import pytest

from offsetstore.local.postgres import PostgresServer
from offsetstore.local.servers import free_port
from offsetstore.postgres.migrate import OURS
from offsetstore.postgres.schema import HEAD
from tests.migration.conftest import MARK, Checkout, shape, tables
from tests.support.waiting import wait_until


def test_upgrade_head_where_only_the_dependencies_are_installed(
    checkout_alone: Checkout, offsetstore_empty_database: str
) -> None:
    done = checkout_alone.alembic("upgrade", "head", url=offsetstore_empty_database)

    assert done.returncode == 0, done.stderr
    assert MARK in done.stderr
    assert tables(offsetstore_empty_database) == OURS


def test_check_finds_the_tables_as_the_code_has_them_and_what_differs(
    checkout: Checkout, offsetstore_database: str
) -> None:
    done = checkout.alembic("check", url=offsetstore_database)
    assert (done.returncode, "No new upgrade operations detected" in done.stdout) == (0, True), done.stderr

    differing = {
        "metadata": "ALTER TABLE kafka_partitions DROP COLUMN metadata",
        "pinned": "ALTER TABLE kafka_partitions ALTER pinned SET DEFAULT true",
        "next_offset": "ALTER TABLE kafka_partitions ALTER next_offset TYPE integer",
        "offset_history_consumer_group_idx": "DROP INDEX offset_history_consumer_group_idx",
        "heartbeats": "DROP TABLE heartbeats",
    }
    with psycopg.connect(offsetstore_database, autocommit=True) as connection:
        for change in differing.values():
            connection.execute(change.encode())

    done = checkout.alembic("check", url=offsetstore_database)

    assert "New upgrade operations detected" in done.stdout + done.stderr
    assert [name for name in differing if name not in done.stdout + done.stderr] == []
    assert done.returncode != 0


def test_of_three_deploys_at_once_one_migrates_and_all_succeed(
    checkout: Checkout, offsetstore_postgres: PostgresServer, offsetstore_empty_database: str
) -> None:
    url = offsetstore_empty_database
    name = url.rpartition("/")[2]
    offsetstore_postgres.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    # They are held up until all of them wait.
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(url) as holding, psycopg.connect(url, autocommit=True) as looking:
        holding.execute("SELECT pg_advisory_xact_lock(8027216031643890548)")
        deploys = [
            subprocess.Popen(
                [*checkout.command, "upgrade", "head"],
                cwd=checkout.path,
                env=checkout.with_url(url),
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(3)
        ]
        wait_until(lambda: looking.execute(waiting).fetchone() == (3,), timeout=240)
    told = [deploy.communicate(timeout=240)[1] for deploy in deploys]

    assert [deploy.returncode for deploy in deploys] == [0] * 3, told
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version_num FROM offsetstore_version").fetchall() == [(HEAD,)]
    assert tables(url) == OURS


@pytest.mark.parametrize("schema", [None, "jobs"])
def test_sql_writes_what_upgrade_would_do(
    checkout: Checkout, offsetstore_database: str, offsetstore_empty_database: str, schema: str | None
) -> None:
    options = () if schema is None else ("-x", f"schema={schema}")
    done = checkout.alembic(*options, "upgrade", "head", "--sql", url=None)
    assert done.returncode == 0, done.stderr

    with psycopg.connect(offsetstore_empty_database, autocommit=True) as connection:
        connection.execute(done.stdout.encode())

    assert shape(offsetstore_empty_database, schema or "public") == shape(offsetstore_database)


@pytest.mark.parametrize("said", ["OFFSETSTORE_URL is not set", "the database can't be reached"])
def test_without_a_url_or_a_database_it_says_so_in_a_line(checkout: Checkout, said: str) -> None:
    nowhere = f"postgresql://me:hidden-one@127.0.0.1:{free_port()}/sales"
    done = checkout.alembic("upgrade", "head", url=nowhere if "reached" in said else None)

    assert done.returncode != 0
    assert said in done.stdout + done.stderr
    assert not [word for word in ("Traceback", "hidden-one") if word in done.stdout + done.stderr]
