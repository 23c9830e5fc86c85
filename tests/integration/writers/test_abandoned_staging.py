"""Which staging tables are dropped: those that no claim can move any more, by whatever name their group goes now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from offsetstore import Claim, OffsetStore
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.schema import STAGING_SCHEMA
from offsetstore.postgres.url import make_engine
from offsetstore.spark.staging_area import StagingArea
from offsetstore.testing import StaticBroker
from offsetstore.writers.staging_schema import StagingOwner

TABLES = f"SELECT relname::text FROM pg_class WHERE relnamespace = '{STAGING_SCHEMA}'::regnamespace"


def claim(store: OffsetStore, group: str) -> Claim:
    return store.claim(group, StaticBroker.with_topics({"payments": 1}, end=100), mirror_every=None)


@pytest.fixture
def store(offsetstore_database: str) -> Iterator[OffsetStore]:
    with OffsetStore.connect(offsetstore_database) as connected:
        yield connected


@pytest.fixture
def database(offsetstore_database: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    with psycopg.connect(offsetstore_database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def leave(database: psycopg.Connection[tuple[Any, ...]]) -> Callable[[Claim], str]:
    """Make a table as the claim does for a batch, and leave it there."""

    def make(owner: Claim) -> str:
        name = StagingArea(owner)._get_owner().fresh().name
        database.execute(f'CREATE UNLOGGED TABLE {STAGING_SCHEMA}."{name}" ()'.encode())
        return name

    return make


def tables(database: psycopg.Connection[tuple[Any, ...]]) -> set[str]:
    return {name for (name,) in database.execute(TABLES.encode())}


def test_tables_of_renamed_reset_deleted_and_claimed_groups_are_dropped_and_no_others(
    store: OffsetStore,
    offsetstore_database: str,
    database: psycopg.Connection[tuple[Any, ...]],
    leave: Callable[[Claim], str],
) -> None:
    for group in ("renamed", "reset", "deleted", "taken"):
        leave(claim(store, group))
    store.rename_group("renamed", "new name", reason="a test")
    store.reset("reset", dict.fromkeys(store.offsets("reset"), 7), reason="a test")
    database.execute("DELETE FROM consumer_groups WHERE consumer_group = 'deleted'")
    mine = claim(store, "taken")
    kept = {leave(mine), leave(claim(store, "of its own")), leave(claim(store, "renamed, and claimed"))}
    engine = make_engine(offsetstore_database)
    with engine.begin() as connection:
        upgrade(connection, schema="other")
    engine.dispose()
    with OffsetStore.connect(offsetstore_database, schema="other") as other:
        kept.add(leave(claim(other, "taken")))
        database.execute("DELETE FROM other.consumer_groups")
        assert len(tables(database)) == 8

        StagingArea(mine).drop_abandoned()

    assert tables(database) == kept
    assert all(len(name) < 63 for name in kept)


def test_a_table_that_the_role_may_not_drop_is_left_alone(
    offsetstore_database: str,
    store: OffsetStore,
    database: psycopg.Connection[tuple[Any, ...]],
    leave: Callable[[Claim], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine, theirs = leave(claim(store, "billing")), leave(claim(store, "billing"))
    role = f"job_{uuid4().hex[:12]}"
    database.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        database.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}".encode())
        database.execute(f"GRANT USAGE, CREATE ON SCHEMA {STAGING_SCHEMA} TO {role}".encode())
        database.execute(f'ALTER TABLE {STAGING_SCHEMA}."{mine}" OWNER TO {role}'.encode())
        with OffsetStore.connect(offsetstore_database.replace("postgres@", f"{role}@")) as job:
            StagingArea(claim(job, "billing")).drop_abandoned()
        assert tables(database) == {theirs}
        assert "left for later" not in caplog.text
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_a_claim_that_is_made_while_tables_are_looked_for_keeps_its_own(
    store: OffsetStore, database: psycopg.Connection[tuple[Any, ...]], leave: Callable[[Claim], str]
) -> None:
    leave(claim(store, "billing"))
    mine = claim(store, "billing")
    owner = StagingOwner.of(store.database.store_id(), mine.group, mine.token)
    look = store.database.begin(name="test")

    def current_claims() -> set[UUID]:
        found = {claim_id for (claim_id,) in database.execute("SELECT claim_id FROM consumer_groups")}
        leave(claim(store, "just made"))
        return found

    try:
        before = tables(database)
        abandoned = {staging.name for staging in owner.abandoned(look.connection, current_claims)}
    finally:
        look.rollback()
    assert len(tables(database)) == 2
    assert abandoned == before


def test_tables_with_names_of_earlier_versions_go_with_the_group_s_next_claim(
    store: OffsetStore, database: psycopg.Connection[tuple[Any, ...]]
) -> None:
    first = claim(store, "billing")
    mine = claim(store, "billing")
    owner = StagingOwner.of(store.database.store_id(), mine.group, mine.token)
    names = [f"{owner.former}_{epoch}_{uuid4().hex}" for epoch in (first.token.epoch, mine.token.epoch)]
    for name in names:
        database.execute(f'CREATE TABLE {STAGING_SCHEMA}."{name}" ()'.encode())

    StagingArea(mine).drop_abandoned()

    assert tables(database) == {names[1]}
