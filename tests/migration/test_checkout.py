"""Alembic's own command line in a checkout, with pyproject.toml alone."""

from __future__ import annotations

import subprocess

import psycopg
import pytest

from offsetstore.local.free_ports import free_port
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.postgres.schema import HEAD
from tests.migration.conftest import MARK, Checkout, shape, tables
from tests.support.waiting import wait_until

OURS = {
    "batch_marks",
    "consumer_groups",
    "dead_letters",
    "failures",
    "group_members",
    "heartbeats",
    "job_errors",
    "job_runs",
    "kafka_partitions",
    "member_runs",
    "offset_history",
    "offsetstore_version",
    "outbox",
    "outbox_refused",
    "outbox_relays",
    "relay_runs",
    "samples",
    "store_identity",
}


@pytest.mark.parametrize("installed", [True, False], ids=["installed", "not installed"])
def test_upgrade_head(
    checkout: Checkout, checkout_alone: Checkout, offsetstore_empty_database: str, *, installed: bool
) -> None:
    where = checkout if installed else checkout_alone

    done = where.alembic("upgrade", "head", url=offsetstore_empty_database)

    assert done.returncode == 0, done.stderr
    assert MARK in done.stderr
    assert tables(offsetstore_empty_database) == OURS


def test_check_finds_the_tables_as_the_code_has_them(checkout: Checkout, offsetstore_database: str) -> None:
    done = checkout.alembic("check", url=offsetstore_database)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "No new upgrade operations detected" in done.stdout


def test_check_finds_what_differs(checkout: Checkout, offsetstore_database: str) -> None:
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


def test_of_five_deploys_at_once_one_migrates_and_all_succeed(
    checkout: Checkout, offsetstore_postgres: PostgresServer, offsetstore_empty_database: str
) -> None:
    url = offsetstore_empty_database
    name = url.rpartition("/")[2]
    offsetstore_postgres.sql(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    # They are held up until all of them wait.
    with psycopg.connect(url) as holding:
        holding.execute("SELECT pg_advisory_xact_lock(8027216031643890548)")
        deploys = [
            subprocess.Popen(
                [*checkout.command, "upgrade", "head"],
                cwd=checkout.path,
                env=checkout.with_url(url),
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(5)
        ]
        _wait_for_waiting(url, 5)
    told = [deploy.communicate(timeout=240)[1] for deploy in deploys]

    assert [deploy.returncode for deploy in deploys] == [0] * 5, told
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version_num FROM offsetstore_version").fetchall() == [(HEAD,)]
    assert tables(url) == OURS


def _wait_for_waiting(url: str, count: int) -> None:
    query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(url, autocommit=True) as connection:
        wait_until(lambda: connection.execute(query).fetchone() == (count,), timeout=240)


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


def test_without_a_url_it_says_so_in_a_line(checkout: Checkout) -> None:
    done = checkout.alembic("upgrade", "head", url=None)

    assert done.returncode != 0
    assert "OFFSETSTORE_URL is not set" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_where_the_database_is_not_there_it_says_so_in_a_line(checkout: Checkout) -> None:
    done = checkout.alembic("upgrade", "head", url=f"postgresql://me:hidden-one@127.0.0.1:{free_port()}/sales")

    assert done.returncode != 0
    assert "the database can't be reached" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "hidden-one" not in done.stdout + done.stderr
