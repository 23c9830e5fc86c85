from __future__ import annotations

from contextlib import suppress

import psycopg
import pytest

from offsetstore import Claim, OffsetRange, OffsetStore, Timeouts, TopicPartition, Transaction
from offsetstore.errors import StaleClaim, TransactionLost, UnexpectedCommit
from offsetstore.runtime import failpoints
from offsetstore.store import heartbeat
from tests.integration.conftest import Query
from tests.integration.store.meeting import broker
from tests.integration.transacting import GROUP, P0, P1, driver, lock, process, write
from tests.support.trips import TripCounter
from tests.support.waiting import wait_until

RANGE = OffsetRange(0, 3)


@pytest.fixture
def claim(store: OffsetStore, results: str) -> Claim:
    return store.claim(GROUP, broker(2))


def stored(store: OffsetStore) -> set[int]:
    return {row.next_offset for row in store.offsets(GROUP).values()}


def set_for_database(query: Query, setting: str, value: str) -> None:
    [(name,)] = query("SELECT current_database()")
    query(f"ALTER DATABASE {name} SET {setting} = '{value}'")


@pytest.mark.behaviour("TX-14")
def test_a_thousand_partitions_are_locked_and_advanced_in_one_round_trip_each(
    offsetstore_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)  # a connection is known to carry them only once one was sent
    partitions = [TopicPartition("payments", number) for number in range(1000)]
    with TripCounter(offsetstore_database) as counter, OffsetStore.connect(counter.url) as store:
        claim = store.claim(GROUP, broker(1000), mirror_every=None)
        with store.transaction(claim) as tx:
            with counter.counting() as trips:
                left = lock(tx, *partitions, range_=OffsetRange(0, 7))
            assert trips == [1]
            with counter.counting() as trips:
                tx.advance(left, metadata="the same for all")
            assert trips == [1]

        assert stored(store) == {7}
        assert set(store.metadata(GROUP).values()) == {"the same for all"}


def test_an_advance_is_a_hot_update(
    store: OffsetStore, results: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It touches no index, so that the table needs no vacuum to stay small and fast."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)  # while the transaction of one is open, old rows stay in the page
    claim = store.claim(GROUP, broker(2), mirror_every=None)
    for number in range(200):
        process(store, claim, P0, P1, range_=OffsetRange(number, number + 1))
    store.close()  # a server process hands in its figures when it ends

    counts = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'kafka_partitions'"
    wait_until(lambda: query(counts)[0][0] >= 400)
    [(updated, hot)] = query(counts)
    assert updated == hot


@pytest.mark.parametrize("last", ["lock", "advance", "finish"])
def test_the_server_ends_a_transaction_that_idles_for_too_long(
    offsetstore_database: str, query: Query, last: str
) -> None:
    """As that of a frozen job, whose locks it holds."""
    with OffsetStore.connect(offsetstore_database, timeouts=Timeouts(idle=0.3)) as store:
        claim = store.claim(GROUP, broker(2), mirror_every=None)

        def job() -> None:
            with store.transaction(claim) as tx:
                left = lock(tx, P0, range_=RANGE)
                if last != "lock":
                    getattr(tx, last)(left)
                mine = f"application_name LIKE '{claim.name}:%' AND state LIKE 'idle in transaction%'"
                wait_until(lambda: not query(f"SELECT 1 FROM pg_stat_activity WHERE {mine}"))

        with pytest.raises(TransactionLost):
            job()
        assert stored(store) == {0}


@pytest.mark.behaviour("TX-3")
@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN", "psycopg.commit", "psycopg.rollback"])
@pytest.mark.parametrize("last", ["advance", "finish"])
def test_an_end_behind_our_back_is_noticed_and_the_offset_stays(
    store: OffsetStore, claim: Claim, how: str, last: str
) -> None:
    def job() -> None:
        with store.transaction(claim) as tx:
            left = lock(tx, P0, range_=RANGE)
            write(tx, [0, 1, 2])
            end(tx, how)
            getattr(tx, last)(left)

    with pytest.raises(UnexpectedCommit):
        job()
    assert stored(store) == {0}


@pytest.mark.behaviour("TX-3")
@pytest.mark.parametrize("how", ["ROLLBACK", "SELECT 1/0", "psycopg.rollback"])
def test_a_transaction_that_ends_or_fails_after_it_was_finished_is_no_success(
    store: OffsetStore, claim: Claim, how: str
) -> None:
    """The server would answer its COMMIT with ROLLBACK, or the driver would send none."""

    def job() -> None:
        with store.transaction(claim) as tx:
            left = lock(tx, P0, range_=RANGE)
            write(tx, [0, 1, 2])
            raw = driver(tx)
            tx.finish(left)
            with suppress(psycopg.errors.DivisionByZero):
                raw.rollback() if how == "psycopg.rollback" else raw.execute(how.encode())

    with pytest.raises(UnexpectedCommit, match="before its COMMIT"):
        job()
    assert stored(store) == {0}


@pytest.mark.behaviour("TX-3")
@pytest.mark.parametrize("after", ["ROLLBACK", "ROLLBACK TO before"])
def test_an_end_after_the_advance_is_noticed_too(store: OffsetStore, claim: Claim, query: Query, after: str) -> None:
    def job() -> None:
        with store.transaction(claim) as tx:
            left = lock(tx, P0, P1, range_=RANGE)
            write(tx, [0, 1, 2])
            tx.advance({P0: left[P0]})
            tx.connection.exec_driver_sql("SAVEPOINT before")
            tx.advance({P1: left[P1]})
            tx.connection.exec_driver_sql(after)

    with pytest.raises(UnexpectedCommit):
        job()
    assert query("SELECT * FROM results") == []
    assert stored(store) == {0}


def test_a_row_that_the_transactions_own_sql_moved_is_not_finished(store: OffsetStore, claim: Claim) -> None:
    def job() -> None:
        with store.transaction(claim) as tx:
            left = lock(tx, P0, range_=RANGE)
            tx.connection.exec_driver_sql("UPDATE kafka_partitions SET next_offset = 1")
            tx.finish(left)

    with pytest.raises(StaleClaim, match="although they were locked"):
        job()
    assert stored(store) == {0}


def test_a_failpoint_counts_each_commit_and_fires_when_the_server_has_been_told(
    store: OffsetStore, results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By it crash tests tell one COMMIT from another."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)  # its COMMIT would count, too
    claim = store.claim(GROUP, broker(2), mirror_every=None)
    monkeypatch.setattr(failpoints, "_reached", type(failpoints._reached)())
    monkeypatch.setenv(failpoints.VARIABLE, "commit_sent:2:raise")

    process(store, claim, P0, P1, range_=RANGE)
    with pytest.raises(failpoints.FailpointReached):
        process(store, claim, P0, P1, range_=OffsetRange(3, 8))

    wait_until(lambda: stored(store) == {8})


@pytest.mark.parametrize(
    ("default", "inside"), [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")]
)
def test_a_commit_that_was_answered_is_on_disk(
    query: Query, offsetstore_database: str, default: str, inside: str
) -> None:
    set_for_database(query, "synchronous_commit", default)

    with OffsetStore.connect(offsetstore_database) as store:
        session = store.database.begin(name="look")
        assert session.connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == inside
        session.rollback()


def test_the_isolation_is_ours_whatever_the_database_s_default(
    query: Query, results: str, offsetstore_database: str
) -> None:
    set_for_database(query, "default_transaction_isolation", "serializable")

    with OffsetStore.connect(offsetstore_database) as store:
        claim = store.claim(GROUP, broker(2))
        with store.transaction(claim) as tx:
            left = lock(tx, P0, range_=OffsetRange(0, 1))
            isolation = tx.connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
            tx.advance(left)

        assert isolation == "read committed"
        assert store.offsets(GROUP)[P0].next_offset == 1


def end(tx: Transaction, how: str) -> None:
    if how.startswith("psycopg."):
        getattr(driver(tx), how.removeprefix("psycopg."))()
    else:
        tx.connection.exec_driver_sql(how)
