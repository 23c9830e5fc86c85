"""What `run` repeats, and what it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from offsetstore import Claim, OffsetRange, OffsetStore, Retries, Timeouts, Transaction
from offsetstore.errors import SinkError, StoreUnavailable, TransactionConflict, TransactionLost
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.store import heartbeat
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, apply, driver, lock, write
from tests.support.background import in_background
from tests.support.waiting import wait_until

RANGE = OffsetRange(0, 3)
RETRIES = Retries(attempts=3, shortest=0.01, longest=0.02)
SERIALIZATION_FAILURE = "DO $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END $$"
DISK_FULL = "DO $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $$"


@pytest.fixture
def store(offsetstore_database: str) -> Iterator[OffsetStore]:
    with OffsetStore.connect(offsetstore_database, retries=RETRIES) as connected:
        yield connected


@pytest.fixture
def claim(store: OffsetStore, results: str) -> Claim:
    return store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100))


def run_with(store: OffsetStore, claim: Claim, trouble: Callable[[Transaction], object]) -> int:
    """Run a job that meets trouble in its first attempt, after its results are written; return the attempts."""
    attempts: list[int] = []

    def work(tx: Transaction) -> None:
        attempts.append(1)
        left = lock(tx, P0, range_=RANGE)
        write(tx, [0, 1, 2])
        if len(attempts) == 1:
            trouble(tx)
        tx.advance(left)

    store.run(claim, work, lock_timeout=0.2)
    return len(attempts)


def assert_written_once(store: OffsetStore, query: Query) -> None:
    assert query("SELECT record FROM results ORDER BY 1") == [(0,), (1,), (2,)]
    assert store.offsets(GROUP)[P0].next_offset == 3


def assert_nothing_written(store: OffsetStore, query: Query) -> None:
    assert query("SELECT record FROM results ORDER BY 1") == []
    assert store.offsets(GROUP)[P0].next_offset == 0


@pytest.mark.behaviour("TX-12")
def test_a_serialization_failure_repeats_the_whole_function(store: OffsetStore, claim: Claim, query: Query) -> None:
    assert run_with(store, claim, lambda tx: tx.connection.exec_driver_sql(SERIALIZATION_FAILURE)) == 2
    assert_written_once(store, query)


@pytest.mark.behaviour("TX-12")
def test_so_does_one_that_psycopg_raises_itself(store: OffsetStore, claim: Claim, query: Query) -> None:
    assert run_with(store, claim, lambda tx: driver(tx).execute(SERIALIZATION_FAILURE)) == 2
    assert_written_once(store, query)


@pytest.mark.behaviour("TX-12")
def test_a_serialization_failure_at_commit_repeats_the_whole_function(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    query("CREATE SEQUENCE tries")
    query("""
        CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('tries') = 1 THEN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END IF; RETURN NULL; END $$
    """)
    query("""
        CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON results DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION fail_once()
    """)

    assert run_with(store, claim, lambda _: None) == 2
    assert_written_once(store, query)


@pytest.mark.behaviour("TX-12")
def test_a_deadlock_repeats_the_whole_function(
    store: OffsetStore, claim: Claim, query: Query, offsetstore_database: str
) -> None:
    query("CREATE TABLE mine (x integer)")
    query("CREATE TABLE yours (x integer)")
    with psycopg.connect(offsetstore_database) as other:
        # The other one never gives up, so that we do.
        other.execute("SET deadlock_timeout = '1h'")
        other.execute("LOCK TABLE yours")
        waiting: list[Any] = []

        def trouble(tx: Transaction) -> None:
            tx.connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
            tx.connection.exec_driver_sql("LOCK TABLE mine")
            waiting.append(in_background(lambda: other.execute("LOCK TABLE mine")))
            wait_until(lambda: query("SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'mine'::regclass"))
            tx.connection.exec_driver_sql("LOCK TABLE yours")

        assert run_with(store, claim, trouble) == 2
        waiting[0].result(60)
    assert_written_once(store, query)


@pytest.mark.behaviour("TX-12")
def test_a_lock_timeout_on_results_repeats_the_whole_function(
    store: OffsetStore, claim: Claim, query: Query, offsetstore_database: str
) -> None:
    query("CREATE TABLE theirs (x integer)")
    with psycopg.connect(offsetstore_database) as other:
        other.execute("LOCK TABLE theirs")
        assert run_with(store, claim, lambda tx: tx.connection.exec_driver_sql("SELECT * FROM theirs")) == 2
    assert_written_once(store, query)


@pytest.mark.behaviour("TX-12")
def test_a_terminated_connection_repeats_the_whole_function(store: OffsetStore, claim: Claim, query: Query) -> None:
    def trouble(tx: Transaction) -> None:
        pid = tx.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        assert query(f"SELECT pg_terminate_backend({pid}, 5000)") == [(True,)]

    assert run_with(store, claim, trouble) == 2
    assert_written_once(store, query)


@pytest.mark.behaviour("TX-12")
def test_a_connection_that_breaks_under_psycopg_repeats_the_whole_function(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    def trouble(tx: Transaction) -> None:
        pid = tx.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        assert query(f"SELECT pg_terminate_backend({pid}, 5000)") == [(True,)]
        driver(tx).execute("SELECT 1")

    assert run_with(store, claim, trouble) == 2
    assert_written_once(store, query)


@pytest.mark.behaviour("TX-12")
def test_a_transaction_that_was_idle_for_too_long_repeats_the_whole_function(
    offsetstore_database: str, results: str, query: Query
) -> None:
    def trouble(tx: Transaction) -> None:
        pid = tx.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        wait_until(lambda: not query(f"SELECT 1 FROM pg_stat_activity WHERE pid = {pid}"))

    with OffsetStore.connect(offsetstore_database, retries=RETRIES, timeouts=Timeouts(idle=3)) as store:
        claim = store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100))
        assert run_with(store, claim, trouble) == 2
        assert_written_once(store, query)


@pytest.mark.behaviour("TX-12")
def test_one_transaction_is_not_repeated_and_says_that_it_was_lost(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    def job() -> None:
        with store.transaction(claim) as tx:
            left = lock(tx, P0, range_=RANGE)
            write(tx, [0, 1, 2])
            tx.connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
            tx.advance(left)

    with pytest.raises(TransactionLost, match="found AdminShutdown: terminating connection"):
        job()
    assert_nothing_written(store, query)


@pytest.mark.behaviour("TX-12")
def test_a_conflict_in_every_attempt_is_raised(store: OffsetStore, claim: Claim, query: Query) -> None:
    attempts: list[int] = []

    def work(tx: Transaction) -> None:
        attempts.append(1)
        lock(tx, P0, range_=RANGE)
        write(tx, [0])
        tx.connection.exec_driver_sql(SERIALIZATION_FAILURE)

    with pytest.raises(TransactionConflict, match="SerializationFailure") as caught:
        store.run(claim, work)

    assert isinstance(caught.value.__cause__, DBAPIError)
    assert len(attempts) == 3
    assert_nothing_written(store, query)


@pytest.mark.behaviour("TX-12", "DLQ-6")
def test_a_full_disk_repeats_the_whole_function_and_is_the_servers_fault(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    assert run_with(store, claim, lambda tx: tx.connection.exec_driver_sql(DISK_FULL)) == 2
    assert_written_once(store, query)


@pytest.mark.behaviour("TX-12", "DLQ-6")
def test_a_disk_that_stays_full_ends_in_an_error_that_says_so(store: OffsetStore, claim: Claim, query: Query) -> None:
    def work(tx: Transaction) -> None:
        apply(tx, P0, range_=RANGE)
        driver(tx).execute(DISK_FULL)

    with pytest.raises(StoreUnavailable, match=r"ran out of disk.*53100.*raised by a function.*free disk space"):
        store.run(claim, work)
    assert_nothing_written(store, query)


@pytest.mark.behaviour("TX-12")
def test_a_constraint_violation_is_not_repeated(store: OffsetStore, claim: Claim, query: Query) -> None:
    query("ALTER TABLE results ADD CONSTRAINT small CHECK (record < 2)")
    attempts: list[int] = []

    def work(tx: Transaction) -> None:
        attempts.append(1)
        apply(tx, P0, range_=RANGE)

    with pytest.raises(IntegrityError, match="small"):
        store.run(claim, work)

    assert len(attempts) == 1
    assert_nothing_written(store, query)


@pytest.mark.behaviour("TX-12", "TX-2")
def test_an_error_of_the_database_that_the_work_swallows_is_raised_all_the_same(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    query("ALTER TABLE results ADD CONSTRAINT small CHECK (record < 3)")

    def job() -> None:
        with store.transaction(claim) as tx:
            apply(tx, P0, range_=RANGE)
            try:
                write(tx, [99])
            except IntegrityError:
                return

    with pytest.raises(SinkError, match="swallowed an error of the database"):
        job()
    assert_nothing_written(store, query)


def test_a_transaction_whose_connection_was_ended_opens_none_to_end(
    store: OffsetStore, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the server is gone, each try would wait for a connection that does not come."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)  # which would open one of its own
    claim = store.claim(GROUP, topics=["payments"])
    opened: list[int] = []
    database = store.database
    assert isinstance(database, PostgresDatabase)
    event.listen(database.engine, "do_connect", lambda *_: opened.append(1))

    def meet_the_end() -> None:
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1)})
            pid = tx.connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            query(f"SELECT pg_terminate_backend({pid}, 10000)")
            tx.connection.execute(text("SELECT 1"))

    with pytest.raises(TransactionLost):
        meet_the_end()

    assert opened == []
