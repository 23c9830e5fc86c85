"""The store behind PgBouncer's transaction mode, as `Pooler` shows it: what the contract's suite doesn't cover."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine

from offsetstore import OffsetRange, OffsetStore, Retries, Timeouts
from offsetstore.errors import SchemaMissing, StoreUnavailable
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, apply, process
from tests.support import pooler
from tests.support.proxy import CommitProxy, Lost

RECORDS = "SELECT count(*), count(DISTINCT record) FROM results"


def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 2}, end=100)


@pytest.fixture
def pooled(offsetstore_database: str) -> Iterator[str]:
    """The URL of a database with our tables, behind a pooler."""
    with pooler.Pooler(offsetstore_database) as made:
        yield made.url


@pytest.fixture
def pooled_and_empty(offsetstore_empty_database: str) -> Iterator[Engine]:
    with pooler.Pooler(offsetstore_empty_database) as made:
        engine = make_engine(made.url)
        yield engine
        engine.dispose()


# What the pooler takes away, so that the rest of this file has something to prove.


def test_connections_settings_and_prepared_statements_are_not_kept(pooled: str) -> None:
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as client:
        pids = {client.execute("SELECT pg_backend_pid()").fetchone() for _ in range(12)}
        with client.transaction():
            within = {client.execute("SELECT pg_backend_pid()").fetchone() for _ in range(12)}
        client.execute("SET lock_timeout = '1234ms'")
        found = {str(client.execute("SELECT current_setting('lock_timeout')").fetchone()) for _ in range(12)}
    assert (len(pids) > 1, len(within)) == (True, 1)
    assert found == {"('0',)", "('1234ms',)"}, "left to others"
    with (
        psycopg.connect(pooled, autocommit=True, prepare_threshold=0) as client,
        pytest.raises(psycopg.errors.InvalidSqlStatementName),
    ):
        [client.execute("SELECT 1") for _ in range(12)]


# What the store does all the same.


@pytest.mark.behaviour("TX-16")
def test_an_engine_that_prepares_statements_is_kept_from_it_and_no_setting_is_left_behind(
    pooled: str, results: str
) -> None:
    """psycopg does it with the fifth run of a statement unless it is told otherwise, and an engine may be anybody's."""
    engine = create_engine(pooled.replace("postgresql:", "postgresql+psycopg:"))
    with OffsetStore.connect(engine) as store:
        claim = store.claim(GROUP, broker())
        for number in range(12):
            process(store, claim, P0, range_=OffsetRange(number, number + 1))

        assert store.offsets(GROUP)[P0].next_offset == 12
    engine.dispose()
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as client:
        settings = "SELECT current_setting('lock_timeout'), current_setting('application_name') LIKE 'offsetstore%'"
        assert {client.execute(settings).fetchone() for _ in range(12)} == {("0", False)}


@pytest.mark.behaviour("TX-16")
@pytest.mark.parametrize("lost", Lost, ids=lambda lost: lost.name)
def test_a_lost_commit_is_looked_up(pooled: str, query: Query, results: str, lost: Lost) -> None:
    timing: Any = {"timeouts": Timeouts(commit=4), "retries": Retries(shortest=0.01, longest=0.1)}
    with CommitProxy(pooled) as proxy, OffsetStore.connect(proxy.url, **timing) as store:
        claim = store.claim(GROUP, broker())
        with proxy.losing(lost):
            store.run(claim, lambda tx: apply(tx, P0, range_=OffsetRange(0, 40)))

        assert query(RECORDS) == [(40, 40)]
        assert store.offsets(GROUP)[P0].next_offset == 40


@pytest.mark.behaviour("TX-16")
def test_a_schema_is_named_without_startup_options_and_a_url_that_needs_them_is_told_so(
    pooled_and_empty: Engine, pooled: str
) -> None:
    with pooled_and_empty.begin() as connection:
        upgrade(connection, schema="jobs")

    with pytest.raises(SchemaMissing):
        OffsetStore.connect(pooled_and_empty)
    with OffsetStore.connect(pooled_and_empty, schema="jobs") as store:
        claim = store.claim(GROUP, broker())
        with store.transaction(claim) as tx:
            tx.advance({tp: one.remaining for tp, one in tx.lock({P0: OffsetRange(0, 7)}).items()})
        assert store.offsets(GROUP)[P0].next_offset == 7
    jdbc = f"jdbc:{pooled.replace('postgres@', '')}?user=postgres&currentSchema=public"
    with pytest.raises(StoreUnavailable, match="unsupported startup parameter: options") as caught:
        OffsetStore.connect(jdbc)
    assert "schema=" in caught.value.next_step
