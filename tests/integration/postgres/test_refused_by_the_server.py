"""A statement that the server cancels, and a server that accepts no writes: typed, repeated, and no record's fault."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, cast

import psycopg
import pytest
from sqlalchemy.exc import IntegrityError

from offsetstore import Append, Claim, OffsetRange, OffsetStore, Retries, Transaction
from offsetstore.errors import LockTimeout, OffsetStoreError, StoreUnavailable, TransactionLost
from offsetstore.store.sessions import transaction
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, apply, driver, lock, write
from tests.integration.writers.writing import batch
from tests.support.background import in_background
from tests.support.server_errors import OF_SERVER, held
from tests.support.shown import shown

RANGE = OffsetRange(0, 3)
CANARY = "canary-4111"
CANCELLED = r"cancelled a statement.*57014.*canceling statement due to"
READ_ONLY = r"accepts no writes.*25006.*read-only"


@pytest.fixture
def store(offsetstore_database: str) -> Iterator[OffsetStore]:
    retries = Retries(attempts=3, shortest=0.01, longest=0.02)
    with OffsetStore.connect(offsetstore_database, retries=retries) as connected:
        yield connected


@pytest.fixture
def claim(store: OffsetStore, results: str) -> Claim:
    assert results
    return store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100))


def cancel(tx: Transaction) -> None:
    driver(tx).execute("SET LOCAL statement_timeout = 20; SELECT pg_sleep(30)")


@pytest.mark.behaviour("TX-12", "DLQ-6")
def test_a_cancelled_statement_repeats_the_whole_function(store: OffsetStore, claim: Claim, query: Query) -> None:
    attempts: list[int] = []

    def work(tx: Transaction) -> None:
        attempts.append(1)
        left = lock(tx, P0, range_=RANGE)
        write(tx, [0, 1, 2])
        if len(attempts) == 1:
            cancel(tx)
        tx.advance(left)

    store.run(claim, work)
    assert len(attempts) == 2
    assert query("SELECT record FROM results ORDER BY 1") == [(0,), (1,), (2,)]


@pytest.mark.behaviour("TX-12", "DLQ-6")
def test_one_that_is_always_cancelled_ends_in_an_error_that_says_so(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    attempts: list[int] = []

    def work(tx: Transaction) -> None:
        attempts.append(1)
        apply(tx, P0, range_=RANGE)
        cancel(tx)

    with pytest.raises(StoreUnavailable, match=CANCELLED + r".*statement_timeout.*pg_cancel_backend"):
        store.run(claim, work)
    assert len(attempts) == 3
    assert query("SELECT record FROM results") == []


@pytest.mark.behaviour("DLQ-6")
def test_a_read_a_reset_and_a_claim_that_are_cancelled_say_so(
    store: OffsetStore, claim: Claim, offsetstore_database: str
) -> None:
    questions: list[Callable[[], object]] = [
        lambda: store.offsets(GROUP),
        lambda: store.reset(GROUP, {P0: 1}, reason="a test"),
        lambda: store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100)),
    ]
    with psycopg.connect(offsetstore_database) as holder, psycopg.connect(offsetstore_database, autocommit=True) as eye:
        holder.execute("LOCK TABLE kafka_partitions")
        for ask in questions:
            waiting = in_background(ask)
            while not waiting.done():
                eye.execute("SELECT pg_cancel_backend(pid) FROM pg_locks WHERE NOT granted")
            with pytest.raises(StoreUnavailable, match=CANCELLED):
                waiting.result()
    assert claim.token == store.owner(GROUP).token  # type: ignore[union-attr] - it has one


@pytest.mark.behaviour("TX-12", "DLQ-6")
def test_a_database_that_became_read_only_is_left_for_a_new_connection(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    """As at a failover: the connections that are open stay with what is the standby now."""
    [(name,)] = query("SELECT current_database()")
    query(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    store.database.engine.dispose()  # type: ignore[attr-defined] - it is PostgreSQL's
    attempts: list[Any] = []

    def work(tx: Transaction) -> None:
        attempts.append(tx)
        apply(tx, P0, range_=RANGE)

    with pytest.raises(StoreUnavailable, match=READ_ONLY + r".*target_session_attrs"):
        store.run(claim, work)
    assert len(attempts) == 3
    with pytest.raises(StoreUnavailable, match=READ_ONLY):
        store.reset(GROUP, {P0: 1}, reason="a test")
    with pytest.raises(StoreUnavailable, match=READ_ONLY):
        store.claim(GROUP, StaticBroker.with_topics({"payments": 1}, end=100))

    def meanwhile(tx: Transaction) -> None:
        if len(attempts) == 3:
            query("SET default_transaction_read_only = off")
            query(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
        work(tx)

    store.run(claim, meanwhile)
    assert len(attempts) == 5
    assert query("SELECT record FROM results ORDER BY 1") == [(0,), (1,), (2,)]


STATES = {
    "lock": ("55P03", LockTimeout),
    "cancelled": ("57014", StoreUnavailable),
    "full": ("53400", StoreUnavailable),
    "terminated": ("57P01", TransactionLost),
}


@pytest.mark.behaviour("OPS-7")
@pytest.mark.parametrize("deferred", [False, True], ids=["at once", "at commit"])
@pytest.mark.parametrize("state", STATES)
def test_what_became_ours_was_raised_from_nothing_that_quotes_a_row(
    store: OffsetStore,
    claim: Claim,
    query: Query,
    caplog: pytest.LogCaptureFixture,
    *,
    offsetstore_database: str,
    state: str,
    deferred: bool,
) -> None:
    sqlstate, kind = STATES[state]
    query("CREATE TABLE people (name text, address inet)")
    body = f"{OF_SERVER[sqlstate]} RETURN NEW;"
    query(f"CREATE FUNCTION meet() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} END $$")
    when = "CONSTRAINT TRIGGER meet AFTER INSERT ON people DEFERRABLE INITIALLY DEFERRED"
    query(f"CREATE {when if deferred else 'TRIGGER meet BEFORE INSERT ON people'} FOR EACH ROW EXECUTE FUNCTION meet()")
    rows = [batch({"name": [CANARY], "address": ["10.0.0.1"]})]

    def work(tx: Transaction) -> None:
        left = lock(tx, P0, range_=RANGE)
        Append("people").write(tx, rows)
        tx.advance(left)

    caplog.set_level(logging.DEBUG)
    with psycopg.connect(offsetstore_database) as other, held(other), pytest.raises(OffsetStoreError) as caught:
        store.run(claim, work)
    logging.getLogger("test").error("it failed", exc_info=caught.value)

    assert isinstance(caught.value, kind)
    assert CANARY not in shown(caught.value)
    assert CANARY not in caplog.text
    assert "it failed" in caplog.text


@pytest.mark.behaviour("OPS-7")
def test_what_sql_in_a_transaction_of_the_store_s_raises_quotes_no_row(store: OffsetStore, query: Query) -> None:
    query("CREATE TABLE people (name text UNIQUE)")
    insert = "INSERT INTO people VALUES (%s), (%s)"
    with pytest.raises(IntegrityError) as caught, transaction(store.database, name="a test") as session:
        cast("Any", session).connection.exec_driver_sql(insert, (CANARY, CANARY))
    assert "people_name_key" in shown(caught.value)
    assert CANARY not in shown(caught.value)
