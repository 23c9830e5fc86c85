"""`upgrade` on a connection of the application's own deploy."""

from __future__ import annotations

import psycopg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, text

from offsetstore.errors import ConfigurationError
from offsetstore.postgres.migrate import config, current_revision, downgrade, revisions, upgrade
from offsetstore.postgres.schema import HEAD, VERSION_TABLE, metadata
from offsetstore.protocol.store_facts import runs_on
from tests.migration.conftest import Rows, shape, tables

SEARCH_PATH = text("SELECT current_setting('search_path')")


def test_the_revisions_are_numbered_and_head_is_the_last() -> None:
    """`OffsetStore.connect` tells by that which are later, and which of these it runs on."""
    assert ScriptDirectory.from_config(config()).get_heads() == [HEAD]
    series = 0
    for number, revision in enumerate(revisions(), 1):
        in_series, _dot, counted = revision.rpartition(".")
        assert int(counted) == number
        assert int(in_series or "0") in {series, series + 1}, "one that contracts begins the next series"
        series = int(in_series or "0")


@pytest.mark.behaviour("OPS-17")
def test_within_a_series_revisions_only_add_what_earlier_code_can_do_without(
    engine: Engine, offsetstore_empty_database: str
) -> None:
    known: dict[str, Rows] = {"columns": [], "constraints": [], "indexes": []}
    before = "0000"
    for revision in revisions():
        with engine.begin() as connection:
            upgrade(connection, revision=revision)
        found = shape(offsetstore_empty_database)
        if runs_on(before, revision):
            old_tables = {row[0] for row in known["columns"]}
            added = {name: [row for row in found[name] if row not in known[name]] for name in known}
            assert all(row in found[name] for name in known for row in known[name]), f"{revision} takes away"
            for table, _position, column, _type, _collation, default, is_nullable, _identity in added["columns"]:
                is_free = table not in old_tables or is_nullable == "YES" or default is not None
                assert is_free, f"earlier code does not fill {table}.{column} of {revision}"
            refusing = [row for row in added["constraints"] if row[0] in old_tables and "NOT NULL" not in row[2]]
            assert not refusing, f"{revision} may refuse earlier code's rows"
            assert not [row for row in added["indexes"] if row[0] in old_tables and "UNIQUE" in row[2]], revision
        known, before = {name: found[name] for name in known}, revision


def test_it_is_part_of_the_callers_transaction(engine: Engine, offsetstore_empty_database: str) -> None:
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE payments (id bigint)"))
        connection.execute(text("SET LOCAL lock_timeout = '7s'"))
        upgrade(connection)
        assert connection.execute(text("SELECT current_setting('lock_timeout')")).scalar_one() == "7s"
        assert current_revision(connection) == HEAD
        connection.rollback()

    assert tables(offsetstore_empty_database) == set()


def test_the_applications_own_version_table_is_left_alone(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY)"))
        connection.execute(text("INSERT INTO alembic_version VALUES ('of the application')"))

        upgrade(connection)
        downgrade(connection)

        assert connection.execute(text("SELECT version_num FROM alembic_version")).all() == [("of the application",)]
        assert current_revision(connection) is None


def test_a_schema_is_made_and_what_a_migration_sets_ends_with_its_transaction(
    engine: Engine, offsetstore_empty_database: str, offsetstore_database: str
) -> None:
    """Behind PgBouncer, the next client of the connection is another one."""
    with engine.connect() as connection:
        before = connection.execute(SEARCH_PATH).scalar_one()
        connection.execute(text("SET LOCAL search_path TO elsewhere, public"))
        upgrade(connection, schema="jobs")
        assert connection.execute(SEARCH_PATH).scalar_one() == "elsewhere, public"
        assert current_revision(connection, schema="jobs") == HEAD
        connection.commit()
        assert connection.execute(SEARCH_PATH).scalar_one() == before
        assert tables(offsetstore_empty_database) == set()
        assert shape(offsetstore_empty_database, "jobs") == shape(offsetstore_database)
        with pytest.raises(Exception, match="no_such_revision"):
            upgrade(connection, schema="jobs", revision="no_such_revision")
        connection.rollback()
        assert connection.execute(SEARCH_PATH).scalar_one() == before
        locks = text(
            "SELECT count(*) FROM pg_locks JOIN pg_database AS d ON d.oid = database"
            " WHERE locktype = 'advisory' AND d.datname = current_database()"
        )
        assert connection.execute(locks).scalar_one() == 0


def test_two_schemas_of_one_database_are_migrated_apart(engine: Engine, offsetstore_empty_database: str) -> None:
    with engine.begin() as connection:
        upgrade(connection)
        upgrade(connection, schema="jobs")
        downgrade(connection)
        assert current_revision(connection) is None
        assert current_revision(connection, schema="jobs") == HEAD

    assert tables(offsetstore_empty_database) == {VERSION_TABLE}
    assert "kafka_partitions" in tables(offsetstore_empty_database, "jobs")


def test_a_schema_that_is_there_needs_no_right_to_make_schemas(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE ROLE migrator_of_jobs"))
        connection.execute(text("CREATE SCHEMA jobs AUTHORIZATION migrator_of_jobs"))
        connection.execute(text("SET LOCAL ROLE migrator_of_jobs"))

        upgrade(connection, schema="jobs")

        assert current_revision(connection, schema="jobs") == HEAD
        connection.rollback()


@pytest.mark.behaviour("DX-9")
def test_the_application_s_translation_of_schemas_does_not_move_our_tables(
    engine: Engine, offsetstore_empty_database: str
) -> None:
    translated = engine.execution_options(schema_translate_map={None: "shop", "jobs": "shop"})
    with translated.begin() as connection:
        with pytest.raises(ConfigurationError, match=r"schema_translate_map .* Pass schema='shop', to OffsetStore"):
            upgrade(connection)
        assert upgrade(connection, schema="jobs") is None
        assert current_revision(connection, schema="jobs") == HEAD
        left = connection.get_execution_options()["schema_translate_map"]
        assert (left[None], left["jobs"]) == ("shop", "shop")
    assert tables(offsetstore_empty_database) == tables(offsetstore_empty_database, "shop") == set()
    assert VERSION_TABLE in tables(offsetstore_empty_database, "jobs")


def test_a_connection_that_commits_by_itself_is_refused(offsetstore_empty_database: str) -> None:
    engine = create_engine(
        offsetstore_empty_database.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection, pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
        upgrade(connection)
    engine.dispose()

    assert tables(offsetstore_empty_database) == set()


def test_the_migrations_make_the_tables_that_the_code_declares(
    engine: Engine, offsetstore_empty_database: str, offsetstore_database: str
) -> None:
    """To the last default, collation, and storage parameter."""
    metadata.create_all(engine)
    with psycopg.connect(offsetstore_database, autocommit=True) as connection:
        connection.execute(f"DROP TABLE {VERSION_TABLE}".encode())

    assert shape(offsetstore_empty_database) == shape(offsetstore_database)
