from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from offsetstore import OffsetStore
from offsetstore.cli import migrate
from offsetstore.local.postgres import PostgresServer
from offsetstore.local.servers import free_port
from offsetstore.postgres.migrate import config, downgrade, upgrade
from offsetstore.postgres.schema import HEAD
from offsetstore.postgres.url import make_engine
from tests.integration.cli.conftest import Here, Run
from tests.migration.conftest import ROOT, shape, tables
from tests.support.background import in_background
from tests.support.waiting import time_with, wait_until


@pytest.fixture
def empty(run: Run, offsetstore_empty_database: str) -> Here:
    """Calls commands with a database without our tables."""
    return Here(run, offsetstore_empty_database)


def test_on_a_fresh_database_it_makes_the_tables_and_then_does_nothing(empty: Here) -> None:
    assert f"  expected:  revision {HEAD}\n" in empty.fail(1, "migrate", "--check")
    assert empty("migrate") == f"Migrated from no tables to revision {HEAD}, which is head.\n"
    empty("migrate", "--check")
    assert empty("migrate") == f"The tables are already at revision {HEAD}, which is head.\n"


def test_after_another_deploy_was_waited_for_it_claims_none_of_the_work(
    empty: Here, offsetstore_empty_database: str
) -> None:
    engine = make_engine(offsetstore_empty_database)
    with psycopg.connect(offsetstore_empty_database, autocommit=True) as looking, engine.begin() as other:
        upgrade(other)
        waiting = in_background(lambda: empty("migrate"))
        wait_until(lambda: looking.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall())
    engine.dispose()
    assert waiting.result(60) == f"The tables are already at revision {HEAD}, which is head.\n"


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
    assert done.stdout.startswith(f"Migrated from revision 0007 to revision {HEAD}, which is head.\n")
    assert done.stderr.startswith(f"Waiting: pid {reader.info.backend_pid} (a long report, idle in transaction) for ")


@pytest.mark.behaviour("OPS-23")
def test_a_second_store_in_one_database_has_to_be_meant(here: Here) -> None:
    refused = here.fail(3, "migrate", "--schema", "jobs")
    assert 'found:     tables in "public"\n' in refused
    assert "--schema public; to make a second one, add --force." in refused
    here.fail(1, "migrate", "--schema", "jobs", "--check")
    ours = ("--schema", "Our Jobs")
    for options in (("--schema", "public"), (*ours, "--force"), ours, (*ours, "--check")):
        here("migrate", *options)
    assert here.fail(1, "status", "-g", "nobody", *ours).startswith("Error: the store has no group 'nobody'")


@pytest.mark.behaviour("OPS-23")
def test_schema_and_group_may_be_variables(
    empty: Here, offsetstore_empty_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFSETSTORE_SCHEMA", "jobs")
    monkeypatch.setenv("OFFSETSTORE_GROUP", "billing")
    empty("migrate")
    assert "kafka_partitions" in tables(offsetstore_empty_database, "jobs")
    assert 'SET LOCAL search_path TO "jobs"' in empty("migrate", "--sql")
    assert 'GRANT USAGE ON SCHEMA "jobs" TO "job";' in empty("grants", "--role", "job")
    with OffsetStore.connect(offsetstore_empty_database) as store:
        store.claim("billing", topics=["payments"])
    assert "takeover=fence" in empty("history")


@pytest.mark.behaviour("OPS-17")
def test_tables_that_a_later_version_has_changed_are_left_alone(
    here: Here, offsetstore_database: str, offsetstore_postgres: PostgresServer
) -> None:
    def migrated_by_a_later_version(revision: str) -> None:
        name = offsetstore_database.rpartition("/")[2]
        offsetstore_postgres.sql(f"UPDATE offsetstore_version SET version_num = '{revision}'", database=name)

    migrated_by_a_later_version("9999")
    words = "revision 9999, a later one, on which this version runs.\n"
    assert here("migrate") == f"The tables are already at {words}"
    assert here("migrate", "--check") == f"The tables are at {words}"
    migrated_by_a_later_version("1.9999")
    told = here.fail(3, "migrate")
    assert "  found:     revision 1.9999\n" in told
    assert "Update offsetstore" in told
    here.fail(1, "migrate", "--check")


@pytest.mark.behaviour("OPS-17")
def test_a_revision_that_contracts_says_so(here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "migrations", tmp_path / "migrations")
    (tmp_path / "migrations" / "versions" / "9999.py").write_text(
        f"revision, down_revision = '1.9999', '{HEAD}'\ndef upgrade(): pass\n"
    )
    made = config()
    made.set_main_option("script_location", str(tmp_path / "migrations"))
    monkeypatch.setattr("offsetstore.postgres.migrate.config", lambda: made)
    monkeypatch.setattr(migrate, "HEAD", "1.9999")
    assert here("migrate") == (
        f"Migrated from revision {HEAD} to revision 1.9999, which is head.\n"
        "Earlier versions of offsetstore do not run on these tables: start every job with this one.\n"
    )


@pytest.mark.behaviour("OPS-17")
@pytest.mark.parametrize(("revision", "lines"), [("0007", 1), ("0008", 1), ("0009", 0)])
def test_code_that_can_t_start_again_is_told(here: Here, offsetstore_database: str, revision: str, lines: int) -> None:
    engine = make_engine(offsetstore_database)
    with engine.begin() as connection:
        downgrade(connection, revision=revision)
    engine.dispose()
    first, *told = here("migrate").splitlines()
    assert first == f"Migrated from revision {revision} to revision {HEAD}, which is head."
    assert " ".join(told).count("can't be started again") == lines


READ_ONLY = "?options=-c%20default_transaction_read_only%3Don"


def test_check_writes_nothing_and_tells_an_older_revision_and_an_unreachable_database_apart(
    run: Run, empty: Here, offsetstore_database: str, offsetstore_empty_database: str
) -> None:
    Here(run, offsetstore_database + READ_ONLY)("migrate", "--check")
    Here(run, offsetstore_empty_database + READ_ONLY).fail(1, "migrate", "--check")
    assert "SQLSTATE 25006" in Here(run, offsetstore_empty_database + READ_ONLY).fail(3, "migrate")
    with psycopg.connect(offsetstore_empty_database, autocommit=True) as connection:
        connection.execute(empty("migrate", "--sql").encode())
        connection.execute("UPDATE offsetstore_version SET version_num = '0001'")
    empty.fail(1, "migrate", "--check")
    Here(run, f"postgresql://nobody@127.0.0.1:{free_port()}/none").fail(3, "migrate", "--check")


@pytest.mark.parametrize("schema", [None, "jobs"])
def test_the_sql_runs_nothing_makes_the_same_tables_and_may_begin_where_they_are(
    empty: Here, offsetstore_database: str, offsetstore_empty_database: str, schema: str | None
) -> None:
    options = () if schema is None else ("--schema", schema)
    from_nothing = empty("migrate", "--sql", *options)
    since = empty("migrate", "--sql", "--since", "0001", *options)
    empty.fail(1, "migrate", "--check", *options)
    before, step, _ = from_nothing.partition("-- Running upgrade 0001 -> 0002")
    assert step
    with psycopg.connect(offsetstore_empty_database, autocommit=True) as connection:
        connection.execute(f"{before}COMMIT;".encode())
        connection.execute(since.encode())
    assert shape(offsetstore_empty_database, schema or "public") == shape(offsetstore_database)
    empty("migrate", "--check", *options)
    with OffsetStore.connect(offsetstore_empty_database, schema=schema) as store:
        store.claim("billing", topics=["payments"])


def test_what_does_not_go_together_is_a_usage_error(here: Here) -> None:
    for options in (("--check", "--sql"), ("--since", "0001"), ("--sql", "--since", "9999")):
        here.fail(2, "migrate", *options)
