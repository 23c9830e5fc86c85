from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from offsetstore import OffsetStore
from offsetstore.cli import migrate
from offsetstore.local.free_ports import free_port
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.postgres.migrate import config, upgrade
from offsetstore.postgres.schema import HEAD
from offsetstore.postgres.url import make_engine
from tests.integration.cli.conftest import Run
from tests.migration.conftest import ROOT, shape, tables
from tests.support.background import in_background
from tests.support.waiting import time_with, wait_until


def later(server: PostgresServer, url: str, revision: str) -> None:
    """As if a later version had migrated the database."""
    server.sql(f"UPDATE offsetstore_version SET version_num = '{revision}'", database=url.rpartition("/")[2])


def test_on_a_fresh_database_it_makes_the_tables_and_then_does_nothing(
    run: Run, offsetstore_empty_database: str
) -> None:
    assert run("migrate", "--check", url=offsetstore_empty_database).exit_code == 1
    result = run("migrate", url=offsetstore_empty_database)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"Migrated from no tables to revision {HEAD}, which is head.\n"
    OffsetStore.connect(offsetstore_empty_database).close()
    assert run("migrate", "--check", url=offsetstore_empty_database).exit_code == 0
    again = run("migrate", "--url", offsetstore_empty_database)
    assert (again.exit_code, again.stdout) == (0, f"The tables are already at revision {HEAD}, which is head.\n")


def test_after_another_deploy_was_waited_for_it_claims_none_of_the_work(
    run: Run, offsetstore_empty_database: str
) -> None:
    url = offsetstore_empty_database
    engine = make_engine(url)
    with psycopg.connect(url, autocommit=True) as looking, engine.begin() as other:
        upgrade(other)
        waiting = in_background(lambda: run("migrate", url=url))
        wait_until(lambda: looking.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall())
    engine.dispose()
    assert waiting.result(60).stdout == f"The tables are already at revision {HEAD}, which is head.\n"


@pytest.fixture
def reader(offsetstore_empty_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[psycopg.Connection]:
    """A transaction that stays open, and is in the way of the last revision."""
    monkeypatch.setattr(migrate, "_PAUSE", 0.1)
    engine = make_engine(offsetstore_empty_database)
    with engine.begin() as connection:
        upgrade(connection, revision="0007")
    engine.dispose()
    with psycopg.connect(offsetstore_empty_database, application_name="a long report") as connection:
        connection.execute("SELECT 1 FROM store_identity")
        yield connection


@pytest.mark.behaviour("OPS-18")
def test_it_tries_again_for_a_while_and_says_whom_it_waits_for(
    run: Run, offsetstore_empty_database: str, reader: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(migrate, "_PATIENCE", 0.2)
        given_up = run("migrate", url=offsetstore_empty_database)
    assert given_up.exit_code == 3
    assert f"found:     pid {reader.info.backend_pid} (a long report" in given_up.stderr
    monkeypatch.setattr(migrate, "time", time_with(lambda _seconds: reader.rollback()))  # between two attempts
    done = run("migrate", url=offsetstore_empty_database)
    assert done.stdout == f"Migrated from revision 0007 to revision {HEAD}, which is head.\n"
    assert done.stderr.startswith(f"Waiting: pid {reader.info.backend_pid} (a long report, idle in transaction) for ")


@pytest.mark.behaviour("OPS-23")
def test_a_second_store_in_one_database_has_to_be_meant(run: Run, offsetstore_database: str) -> None:
    url = offsetstore_database
    refused = run("migrate", "--schema", "jobs", url=url)
    assert refused.exit_code == 3
    assert 'found:     tables in "public"\n' in refused.stderr
    assert "--schema public; to make a second one, add --force." in refused.stderr
    assert run("migrate", "--schema", "jobs", "--check", url=url).exit_code == 1
    assert run("migrate", "--schema", "public", url=url).exit_code == 0
    assert run("migrate", "--schema", "Our Jobs", "--force", url=url).exit_code == 0
    assert run("migrate", "--schema", "Our Jobs", url=url).exit_code == 0
    assert run("migrate", "--schema", "Our Jobs", "--check", url=url).exit_code == 0
    result = run("status", "-g", "nobody", "--schema", "Our Jobs", url=url)
    assert result.stderr.startswith("Error: the store has no group 'nobody'\n")


@pytest.mark.behaviour("OPS-23")
def test_schema_and_group_may_be_variables(
    run: Run, offsetstore_empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFSETSTORE_SCHEMA", "jobs")
    monkeypatch.setenv("OFFSETSTORE_GROUP", "billing")
    assert run("migrate", url=offsetstore_empty_database).exit_code == 0
    assert "kafka_partitions" in tables(offsetstore_empty_database, "jobs")
    assert 'SET LOCAL search_path TO "jobs"' in run("migrate", "--sql").stdout
    assert 'GRANT USAGE ON SCHEMA "jobs" TO "job";' in run("grants", "--role", "job").stdout
    with OffsetStore.connect(offsetstore_empty_database) as store:
        store.claim("billing", topics=["payments"])
    assert "takeover=fence" in run("history", url=offsetstore_empty_database).stdout


@pytest.mark.behaviour("OPS-17")
def test_tables_that_a_later_version_has_changed_are_left_alone(
    run: Run, offsetstore_database: str, offsetstore_postgres: PostgresServer
) -> None:
    later(offsetstore_postgres, offsetstore_database, "9999")
    words = "revision 9999, a later one, on which this version runs.\n"
    for arguments, printed in ((), "already at"), (("--check",), "at"):
        result = run("migrate", *arguments, url=offsetstore_database)
        assert (result.exit_code, result.stdout) == (0, f"The tables are {printed} {words}")
    later(offsetstore_postgres, offsetstore_database, "1.9999")
    result = run("migrate", url=offsetstore_database)
    assert result.exit_code == 3
    assert "  found:     revision 1.9999\n" in result.stderr
    assert "Update offsetstore" in result.stderr
    assert run("migrate", "--check", url=offsetstore_database).exit_code == 1


@pytest.mark.behaviour("OPS-17")
def test_a_revision_that_contracts_says_so(
    run: Run, offsetstore_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(ROOT / "migrations", tmp_path / "migrations")
    (tmp_path / "migrations" / "versions" / "9999.py").write_text(
        f"revision, down_revision = '1.9999', '{HEAD}'\ndef upgrade(): pass\n"
    )
    made = config()
    made.set_main_option("script_location", str(tmp_path / "migrations"))
    monkeypatch.setattr("offsetstore.postgres.migrate.config", lambda: made)
    monkeypatch.setattr(migrate, "HEAD", "1.9999")
    assert run("migrate", url=offsetstore_database).stdout == (
        f"Migrated from revision {HEAD} to revision 1.9999, which is head.\n"
        "Earlier versions of offsetstore do not run on these tables: start every job with this one.\n"
    )


READ_ONLY = "?options=-c%20default_transaction_read_only%3Don"


def test_check_writes_nothing_and_tells_an_older_revision_and_an_unreachable_database_apart(
    run: Run, offsetstore_database: str, offsetstore_empty_database: str
) -> None:
    assert run("migrate", "--check", url=offsetstore_database + READ_ONLY).exit_code == 0
    result = run("migrate", "--check", url=offsetstore_empty_database + READ_ONLY)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"  expected:  revision {HEAD}\n" in result.stderr
    result = run("migrate", url=offsetstore_empty_database + READ_ONLY)
    assert result.exit_code == 3
    assert "SQLSTATE 25006" in result.stderr
    with psycopg.connect(offsetstore_empty_database, autocommit=True) as connection:
        connection.execute(run("migrate", "--sql").stdout.encode())
        connection.execute("UPDATE offsetstore_version SET version_num = '0001'")
    assert run("migrate", "--check", url=offsetstore_empty_database).exit_code == 1
    assert run("migrate", "--check", url=f"postgresql://nobody@127.0.0.1:{free_port()}/none").exit_code == 3


@pytest.mark.parametrize("schema", [None, "jobs"])
def test_the_sql_runs_nothing_and_makes_the_same_tables(
    run: Run, offsetstore_database: str, offsetstore_empty_database: str, schema: str | None
) -> None:
    options = () if schema is None else ("--schema", schema)
    result = run("migrate", "--sql", *options, url=offsetstore_empty_database)
    assert run("migrate", "--check", url=offsetstore_empty_database).exit_code == 1
    assert (result.exit_code, result.stderr) == (0, "")
    with psycopg.connect(offsetstore_empty_database, autocommit=True) as connection:
        connection.execute(result.stdout.encode())
    assert shape(offsetstore_empty_database, schema or "public") == shape(offsetstore_database)
    assert run("migrate", "--check", *options, url=offsetstore_empty_database).exit_code == 0
    with OffsetStore.connect(offsetstore_empty_database, schema=schema) as store:
        store.claim("billing", topics=["payments"])


def test_the_sql_begins_where_the_tables_are(
    run: Run, offsetstore_database: str, offsetstore_empty_database: str
) -> None:
    from_nothing = run("migrate", "--sql").stdout
    since = run("migrate", "--sql", "--since", "0001").stdout
    step = "-- Running upgrade 0001 -> 0002"
    before = from_nothing.partition(step)[0]
    with psycopg.connect(offsetstore_empty_database, autocommit=True) as connection:
        connection.execute(f"{before}COMMIT;".encode())
        connection.execute(since.encode())
    assert step in from_nothing
    assert "CREATE TABLE kafka_partitions" not in since
    assert shape(offsetstore_empty_database) == shape(offsetstore_database)


def test_what_does_not_go_together_is_a_usage_error(run: Run) -> None:
    for options in (("--check", "--sql"), ("--since", "0001"), ("--sql", "--since", "9999")):
        assert run("migrate", *options).exit_code == 2, options
