"""The store behind PgBouncer's transaction mode, as `Pooler` shows it: what the contract's suite doesn't cover."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text

from offsetstore import OffsetRange, OffsetStore, Retries, Timeouts
from offsetstore.errors import GroupBusy, LockTimeout, SchemaMissing, StaleClaim, StoreUnavailable, TransactionLost
from offsetstore.postgres.migrate import current_revision, upgrade
from offsetstore.postgres.schema import HEAD
from offsetstore.postgres.url import make_engine
from offsetstore.store import heartbeat
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, apply, lock, process
from tests.support import pooler
from tests.support.background import in_background
from tests.support.proxy import CommitProxy, Lost
from tests.support.waiting import wait_until

ADVISORY_LOCKS = """
FROM pg_locks JOIN pg_database AS d ON d.oid = database
WHERE locktype = 'advisory' AND d.datname = current_database()
"""
RECORDS = "SELECT count(*), count(DISTINCT record) FROM results"


def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 2}, end=100)


@pytest.fixture
def pooled(offsetstore_database: str) -> Iterator[str]:
    """The URL of a database with our tables, behind a pooler."""
    with pooler.Pooler(offsetstore_database) as made:
        yield made.url


@pytest.fixture
def pooled_store(pooled: str) -> Iterator[OffsetStore]:
    retries = Retries(shortest=0.01, longest=0.1)
    with OffsetStore.connect(pooled, timeouts=Timeouts(commit=5), retries=retries) as store:
        yield store


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
def test_an_engine_that_prepares_statements_is_kept_from_it(pooled: str, results: str) -> None:
    """psycopg does it with the fifth run of a statement unless it is told otherwise, and an engine may be anybody's."""
    engine = create_engine(pooled.replace("postgresql:", "postgresql+psycopg:"))
    with OffsetStore.connect(engine) as store:
        claim = store.claim(GROUP, broker())
        for number in range(12):
            process(store, claim, P0, range_=OffsetRange(number, number + 1))

        assert store.offsets(GROUP)[P0].next_offset == 12
    engine.dispose()


@pytest.mark.behaviour("TX-16")
def test_a_takeover_terminates_the_transaction_that_blocks_it(
    pooled_store: OffsetStore, pooled: str, query: Query, results: str
) -> None:
    stale = pooled_store.claim(GROUP, broker())
    with OffsetStore.connect(pooled) as other:
        with pytest.raises(TransactionLost), pooled_store.transaction(stale) as tx:  # noqa: PT012 - what is lost, and how
            left = lock(tx, P0, range_=OffsetRange(0, 5))
            other.claim(GROUP, broker(), takeover_timeout=0.3)
            tx.advance(left)
        process(other, other.claim(GROUP, broker()), P0, range_=OffsetRange(0, 2))

    assert query(RECORDS) == [(2, 2)]
    with pytest.raises(StaleClaim):
        process(pooled_store, stale, P0, range_=OffsetRange(2, 3))


@pytest.mark.behaviour("TX-16")
@pytest.mark.parametrize("lost", Lost, ids=lambda lost: lost.name)
def test_a_lost_commit_is_looked_up(pooled: str, query: Query, results: str, lost: Lost) -> None:
    with (
        CommitProxy(pooled) as proxy,
        OffsetStore.connect(
            proxy.url, timeouts=Timeouts(commit=4), retries=Retries(shortest=0.01, longest=0.1)
        ) as store,
    ):
        claim = store.claim(GROUP, broker())
        with proxy.losing(lost):
            store.run(claim, lambda tx: apply(tx, P0, range_=OffsetRange(0, 40)))

        assert query(RECORDS) == [(40, 40)]
        assert store.offsets(GROUP)[P0].next_offset == 40


@pytest.mark.behaviour("TX-16")
def test_heartbeats_keep_the_owner_alive_and_end_with_it(
    pooled_store: OffsetStore, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.05)
    claim = pooled_store.claim(GROUP, broker())
    beats = "SELECT beat_at FROM heartbeats"
    first = query(beats)
    wait_until(lambda: query(beats) not in ([], first))

    with pytest.raises(GroupBusy):
        pooled_store.claim(GROUP, broker(), takeover="refuse")
    monkeypatch.setattr(heartbeat, "INTERVAL", 60)  # so long the end waits for a heartbeat that is under way
    claim.close()
    assert query(beats) == []
    pooled_store.claim(GROUP, broker(), takeover="refuse")


@pytest.mark.behaviour("TX-16")
def test_a_lock_that_is_not_had_in_time_ends_the_wait_and_leaves_no_timeout_behind(
    pooled_store: OffsetStore, pooled: str
) -> None:
    claim = pooled_store.claim(GROUP, broker())

    def lock_briefly() -> None:
        with pooled_store.transaction(claim, lock_timeout=0.1) as tx:
            lock(tx, P0, range_=OffsetRange(0, 1))

    with pooled_store.transaction(claim) as holding:
        holding.lock({P0: OffsetRange(0, 1)})
        waiting = in_background(lock_briefly)
        assert isinstance(waiting.exception(timeout=60), LockTimeout)
        holding.advance({P0: OffsetRange(0, 1)})

    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as client:
        settings = "SELECT current_setting('lock_timeout'), current_setting('application_name') LIKE 'offsetstore%'"
        assert {client.execute(settings).fetchone() for _ in range(12)} == {("0", False)}


@pytest.mark.behaviour("TX-16")
@pytest.mark.parametrize("schema", [None, "jobs"])
def test_a_deploy_waits_for_another_one_and_leaves_no_lock_and_no_search_path_behind(
    pooled_and_empty: Engine, offsetstore_empty_database: str, schema: str | None
) -> None:
    def deploy() -> None:
        with pooled_and_empty.begin() as connection:
            upgrade(connection, schema=schema)

    with psycopg.connect(offsetstore_empty_database) as other:
        other.execute("SELECT pg_advisory_xact_lock(8027216031643890548)")
        deploying = in_background(deploy)
        wait_until(lambda: other.execute(f"SELECT 1 {ADVISORY_LOCKS} AND NOT granted").fetchone())
        assert not deploying.done()
    deploying.result(timeout=60)

    with pooled_and_empty.connect() as connection:
        assert current_revision(connection, schema=schema) == HEAD
        assert connection.execute(text(f"SELECT count(*) {ADVISORY_LOCKS}")).scalar_one() == 0
        found: set[str] = set()
        for _ in range(12):
            found.add(connection.execute(text("SELECT current_setting('search_path')")).scalar_one())
            connection.rollback()
    assert found == {'"$user", public'}


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
