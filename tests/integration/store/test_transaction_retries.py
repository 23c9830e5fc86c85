"""What `run` repeats, and what it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, TypeAlias

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from offsetstore import Claim, OffsetRange, OffsetStore, Retries, Timeouts, Transaction
from offsetstore.errors import RowsRefused, SinkError, StoreUnavailable, TransactionConflict, TransactionLost
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.store import heartbeat
from tests.integration.conftest import Query
from tests.integration.store.meeting import broker
from tests.integration.transacting import GROUP, P0, apply, driver, lock, write
from tests.support.waiting import wait_until

RANGE = OffsetRange(0, 3)
SERIALIZATION_FAILURE = "DO $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END $$"
DISK_FULL = "DO $$ BEGIN RAISE EXCEPTION 'no room' USING ERRCODE = '53100'; END $$"
AT_COMMIT = """
CREATE SEQUENCE tries;
CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
IF nextval('tries') = 1 THEN RAISE EXCEPTION 'not now' USING ERRCODE = '40001'; END IF; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON results DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION fail_once()
"""
Trouble: TypeAlias = Callable[[Transaction, Query], object]


@pytest.fixture
def store(offsetstore_database: str) -> Iterator[OffsetStore]:
    retries = Retries(attempts=3, shortest=0.01, longest=0.02)
    with OffsetStore.connect(offsetstore_database, retries=retries, timeouts=Timeouts(idle=3)) as connected:
        yield connected


@pytest.fixture
def claim(store: OffsetStore, results: str) -> Claim:
    return store.claim(GROUP, broker())


def assert_nothing_written(store: OffsetStore, query: Query) -> None:
    assert query("SELECT record FROM results ORDER BY 1") == []
    assert store.offsets(GROUP)[P0].next_offset == 0


def pid(tx: Transaction) -> int:
    return tx.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()


def terminate_under_psycopg(tx: Transaction, query: Query) -> None:
    assert query(f"SELECT pg_terminate_backend({pid(tx)}, 5000)") == [(True,)]
    driver(tx).execute("SELECT 1")


def idle(tx: Transaction, query: Query) -> None:
    mine = pid(tx)
    wait_until(lambda: not query(f"SELECT 1 FROM pg_stat_activity WHERE pid = {mine}"))


TROUBLES: Final[dict[str, Trouble | None]] = {
    "serialization that psycopg raises": lambda tx, _query: driver(tx).execute(SERIALIZATION_FAILURE),
    "serialization at COMMIT": None,
    "terminated under psycopg": terminate_under_psycopg,
    "idle for too long": idle,
}
"""What else the server may do to it, see `test_transaction_own_sql`."""


@pytest.mark.behaviour("TX-12", "DLQ-6")
@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_a_trouble_of_the_server_repeats_the_whole_function(
    store: OffsetStore, claim: Claim, query: Query, trouble: Trouble | None
) -> None:
    attempts: list[int] = []
    query(AT_COMMIT if trouble is None else "SELECT")

    def work(tx: Transaction) -> None:
        attempts.append(1)
        left = lock(tx, P0, range_=RANGE)
        write(tx, [0, 1, 2])
        if len(attempts) == 1 and trouble is not None:
            trouble(tx, query)
        tx.advance(left)

    store.run(claim, work)

    assert len(attempts) == 2
    assert query("SELECT record FROM results ORDER BY 1") == [(0,), (1,), (2,)]
    assert store.offsets(GROUP)[P0].next_offset == 3


@pytest.mark.behaviour("TX-12", "DLQ-6")
@pytest.mark.parametrize(
    ("statement", "error", "words"),
    [
        (SERIALIZATION_FAILURE, TransactionConflict, "SerializationFailure"),
        (DISK_FULL, StoreUnavailable, r"ran out of disk.*53100.*raised by a function.*free disk space"),
    ],
)
def test_a_trouble_in_every_attempt_is_raised(
    store: OffsetStore, claim: Claim, query: Query, *, statement: str, error: type[Exception], words: str
) -> None:
    attempts: list[int] = []

    def work(tx: Transaction) -> None:
        attempts.append(1)
        apply(tx, P0, range_=RANGE)
        driver(tx).execute(statement.encode())

    with pytest.raises(error, match=words):
        store.run(claim, work)
    assert len(attempts) == 3
    assert_nothing_written(store, query)


@pytest.mark.behaviour("TX-12", "TX-2")
@pytest.mark.parametrize("deferred", ["", "DEFERRABLE INITIALLY DEFERRED"], ids=["in a statement", "at COMMIT"])
def test_a_constraint_violation_is_not_repeated(store: OffsetStore, claim: Claim, query: Query, deferred: str) -> None:
    query(f"ALTER TABLE results ADD CONSTRAINT once UNIQUE (record) {deferred}")
    attempts: list[int] = []

    def work(tx: Transaction) -> None:
        attempts.append(1)
        apply(tx, P0, range_=RANGE)
        write(tx, [0])

    def swallow(tx: Transaction) -> None:
        attempts.append(1)
        apply(tx, P0, range_=RANGE)
        with suppress(IntegrityError):
            write(tx, [0])

    with pytest.raises(RowsRefused if deferred else IntegrityError, match="once"):
        store.run(claim, work)
    with pytest.raises(RowsRefused if deferred else SinkError, match=r"once|swallowed an error of the database"):
        store.run(claim, swallow)

    assert len(attempts) == 2
    assert_nothing_written(store, query)


@pytest.mark.behaviour("TX-12")
def test_one_transaction_is_not_repeated_and_opens_no_connection_to_end_the_one_that_was_lost(
    store: OffsetStore, results: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the server is gone, each try would wait for a connection that does not come."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)  # which would open one of its own
    claim = store.claim(GROUP, broker(), mirror_every=None)
    opened: list[int] = []
    database = store.database
    assert isinstance(database, PostgresDatabase)
    event.listen(database.engine, "do_connect", lambda *_: opened.append(1))

    def job() -> None:
        with store.transaction(claim) as tx:
            left = lock(tx, P0, range_=RANGE)
            write(tx, [0, 1, 2])
            tx.connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
            tx.advance(left)

    with pytest.raises(TransactionLost, match="found AdminShutdown: terminating connection"):
        job()
    assert opened == []
    assert_nothing_written(store, query)
