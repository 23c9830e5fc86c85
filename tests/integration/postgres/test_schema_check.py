"""A database that is not the one this version works with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from offsetstore import OffsetStore
from offsetstore.errors import SchemaMissing, SchemaNotAtHead, StoreUnavailable
from offsetstore.postgres.migrate import downgrade
from offsetstore.postgres.schema import HEAD
from offsetstore.postgres.url import make_engine

if TYPE_CHECKING:
    from tests.integration.conftest import Query


@pytest.mark.behaviour("START-17")
def test_no_tables(offsetstore_empty_database: str) -> None:
    with pytest.raises(SchemaMissing, match="no offsetstore tables") as caught:
        OffsetStore.connect(offsetstore_empty_database)

    assert "`offsetstore migrate`" in str(caught.value)


@pytest.mark.behaviour("START-17")
def test_no_tables_in_the_schema_that_was_named(offsetstore_database: str) -> None:
    with pytest.raises(SchemaMissing, match=r'"elsewhere"\.offsetstore_version'):
        OffsetStore.connect(offsetstore_database, schema="elsewhere")


@pytest.mark.behaviour("START-17")
def test_tables_that_were_taken_back(offsetstore_database: str) -> None:
    engine = make_engine(offsetstore_database)
    with engine.begin() as connection:
        downgrade(connection)
    engine.dispose()

    with pytest.raises(SchemaMissing):
        OffsetStore.connect(offsetstore_database)


@pytest.mark.behaviour("START-17")
def test_an_older_revision(offsetstore_database: str, query: Query) -> None:
    query("UPDATE offsetstore_version SET version_num = '0000'")

    with pytest.raises(SchemaNotAtHead) as caught:
        OffsetStore.connect(offsetstore_database)

    assert caught.value.found == "revision 0000"
    assert caught.value.expected == f"revision {HEAD}"
    assert "`offsetstore migrate`" in caught.value.next_step


@pytest.mark.behaviour("START-17")
def test_a_newer_revision_asks_for_a_newer_package_instead(offsetstore_database: str, query: Query) -> None:
    query("UPDATE offsetstore_version SET version_num = '9999'")

    with pytest.raises(SchemaNotAtHead, match="Update offsetstore"):
        OffsetStore.connect(offsetstore_database)


def test_a_role_that_may_not_read_the_tables(offsetstore_database: str, query: Query) -> None:
    query(f"CREATE ROLE stranger_{_name(offsetstore_database)} LOGIN")
    url = offsetstore_database.replace("postgres@", f"stranger_{_name(offsetstore_database)}@")
    try:
        with pytest.raises(StoreUnavailable, match="permission denied for table offsetstore_version"):
            OffsetStore.connect(url)
    finally:
        query(f"DROP ROLE stranger_{_name(offsetstore_database)}")


def test_no_such_database(offsetstore_database: str) -> None:
    with pytest.raises(StoreUnavailable, match='database "nowhere" does not exist'):
        OffsetStore.connect(offsetstore_database.rpartition("/")[0] + "/nowhere")


def test_a_refused_connect_leaves_no_connection_open(offsetstore_empty_database: str) -> None:
    with pytest.raises(SchemaMissing):
        OffsetStore.connect(offsetstore_empty_database)

    with psycopg.connect(offsetstore_empty_database) as connection:
        others = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone()
    assert others == (0,)


def _name(url: str) -> str:
    return url.rpartition("/")[2]
