"""A database that is not the one this version works with."""

from __future__ import annotations

import shlex

import psycopg
import pytest
from sqlalchemy import Engine

from offsetstore import OffsetStore
from offsetstore.errors import SchemaMissing, SchemaNotAtHead, StoreUnavailable
from offsetstore.postgres.migrate import downgrade, upgrade
from offsetstore.postgres.schema import HEAD
from offsetstore.postgres.url import make_engine
from tests.integration.conftest import Query
from tests.support.waiting import wait_until


@pytest.mark.behaviour("START-17")
def test_no_tables(offsetstore_empty_database: str) -> None:
    with pytest.raises(StoreUnavailable, match='database "nowhere" does not exist'):
        OffsetStore.connect(offsetstore_empty_database.rpartition("/")[0] + "/nowhere")
    with pytest.raises(SchemaMissing, match="no offsetstore tables") as caught:
        OffsetStore.connect(offsetstore_empty_database)

    assert "`offsetstore migrate`" in str(caught.value)
    others = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )
    with psycopg.connect(offsetstore_empty_database, autocommit=True) as connection:
        wait_until(lambda: not connection.execute(others).fetchall())  # a server process ends after its client
        engine = make_engine(offsetstore_empty_database)
        with engine.begin() as owner:
            upgrade(owner)
            downgrade(owner)
        engine.dispose()
        with pytest.raises(SchemaMissing):
            OffsetStore.connect(offsetstore_empty_database)


@pytest.fixture
def elsewhere(offsetstore_empty_database: str) -> str:
    """A database whose tables are in a schema of their own, named "our jobs"."""
    engine = make_engine(offsetstore_empty_database)
    with engine.begin() as connection:
        upgrade(connection, schema="our jobs")
    engine.dispose()
    return offsetstore_empty_database


@pytest.mark.behaviour("OPS-23")
@pytest.mark.parametrize("asked", [None, "public"])
def test_tables_in_another_schema_are_named(elsewhere: str, monkeypatch: pytest.MonkeyPatch, asked: str | None) -> None:
    with pytest.raises(SchemaMissing, match=r'another schema.*tables in "our jobs"') as caught:
        OffsetStore.connect(elsewhere, schema=asked)

    step = caught.value.next_step
    assert "offsetstore migrate" not in step
    assert "schema='our jobs' in Python, --schema 'our jobs' for a command" in step
    [variable, value] = shlex.split(step.partition(" or ")[2])[0].split("=")
    monkeypatch.setenv(variable, value)
    with OffsetStore.connect(elsewhere) as store:
        assert store.facts().schema == "our jobs"
    with pytest.raises(SchemaMissing):
        OffsetStore.connect(elsewhere, schema="public")


@pytest.mark.behaviour("OPS-23")
def test_the_command_that_is_named_has_the_schema(elsewhere: str) -> None:
    with psycopg.connect(elsewhere, autocommit=True) as connection:
        connection.execute("""UPDATE "our jobs".offsetstore_version SET version_num = '0007'""")
    with pytest.raises(SchemaNotAtHead, match="Run `offsetstore migrate --schema 'our jobs'`"):
        OffsetStore.connect(elsewhere, schema="our jobs")
    with psycopg.connect(elsewhere, autocommit=True) as connection:
        connection.execute("""DROP SCHEMA "our jobs" CASCADE""")
    with pytest.raises(SchemaMissing, match="Run `offsetstore migrate --schema 'our jobs'`"):
        OffsetStore.connect(elsewhere, schema="our jobs")


@pytest.mark.behaviour("OPS-17")
def test_a_later_revision_that_only_expands_is_fine(offsetstore_database: str, query: Query, engine: Engine) -> None:
    query("ALTER TABLE kafka_partitions ADD COLUMN of_a_later_version text")
    query(f"UPDATE offsetstore_version SET version_num = '{HEAD[:-4]}9999'")

    with OffsetStore.connect(offsetstore_database) as store:
        store.claim("billing", topics=["payments"])
        assert store.facts().is_as_expected
    with engine.begin() as connection:
        upgrade(connection)
        upgrade(connection, revision="0007")
    assert query("SELECT 1 FROM kafka_partitions WHERE of_a_later_version IS NOT NULL") == []


@pytest.mark.behaviour("START-17")
@pytest.mark.parametrize("revision", ["0000", "1.9999", "another"])
def test_a_later_revision_that_contracts_asks_for_a_later_package(
    offsetstore_database: str, query: Query, engine: Engine, revision: str
) -> None:
    """As an earlier one asks for the migration."""
    query(f"UPDATE offsetstore_version SET version_num = '{revision}'")

    with pytest.raises(SchemaNotAtHead) as caught:
        OffsetStore.connect(offsetstore_database)
    assert (caught.value.found, caught.value.expected) == (f"revision {revision}", f"revision {HEAD}")
    if revision == "0000":
        assert "`offsetstore migrate`" in caught.value.next_step
        return
    assert "Update offsetstore" in caught.value.next_step
    with engine.begin() as connection, pytest.raises(SchemaNotAtHead, match="Update offsetstore"):
        upgrade(connection)
