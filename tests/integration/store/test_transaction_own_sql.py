"""SQL of the job's own, inside its transaction: on the rows that `lock` has locked, and on connections of its own."""

from __future__ import annotations

import os
import socket
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from offsetstore import Claim, Execute, OffsetRange, OffsetStore, Transaction, Work
from offsetstore.errors import StaleClaim
from tests.integration.conftest import Query
from tests.integration.store.meeting import broker
from tests.integration.transacting import GROUP, P0, P1, driver, lock, write
from tests.integration.writers.writing import batch
from tests.support.server_errors import OF_SERVER, held


@pytest.fixture
def claim(store: OffsetStore, results: str) -> Claim:
    return store.claim(GROUP, broker(2))


@pytest.mark.behaviour("TX-2", "TX-3")
@pytest.mark.parametrize("column", ["next_offset = 2", "epoch = epoch + 1", "claim_id = gen_random_uuid()"])
def test_a_row_that_was_changed_under_its_own_lock_takes_results_and_offsets_with_it(
    store: OffsetStore, claim: Claim, query: Query, column: str
) -> None:
    """No other transaction can do that: the lock is ours. Only the comparison inside the UPDATE sees it."""

    def job() -> None:
        with store.transaction(claim) as tx:
            left = lock(tx, P0, P1, range_=OffsetRange(0, 3))
            write(tx, [0, 1, 2])
            tx.connection.exec_driver_sql(f"UPDATE kafka_partitions SET {column} WHERE partition = 1")
            tx.advance(left)

    with pytest.raises(StaleClaim, match="changed although they were locked") as caught:
        job()

    assert (caught.value.found, caught.value.expected) == ("1 unchanged rows", "2")
    assert query("SELECT * FROM results") == []
    assert {row.next_offset for row in store.offsets(GROUP).values()} == {0}


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize("splittable", [False, True])
def test_a_connection_of_the_functions_own_that_fails_is_its_own_error(
    store: OffsetStore, claim: Claim, query: Query, *, splittable: bool
) -> None:
    calls: list[int] = []

    def mirror(_: Work, __: object) -> None:
        calls.append(1)
        with socket.socket() as deaf:
            deaf.bind(("127.0.0.1", 0))
            psycopg.connect(host="127.0.0.1", port=deaf.getsockname()[1])

    def work(tx: Transaction) -> None:
        left = lock(tx, P0, range_=OffsetRange(0, 3))
        Execute(mirror, splittable=splittable).write(tx, [batch({"n": [1]})])
        tx.advance(left)

    with pytest.raises(psycopg.OperationalError, match="refused"):
        store.run(claim, work)
    assert calls == [1]
    assert query("SELECT next_offset FROM kafka_partitions WHERE partition = 0") == [(0,)]


def block(statements: str) -> str:
    return f"DO $do$ BEGIN {statements} END $do$"


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize(
    ("sqlstate", "as_execute"),
    [("40001", "execute"), ("40001", "plain"), *((state, "splittable") for state in ("40001", *OF_SERVER))],
)
def test_an_error_of_another_transaction_of_the_functions_is_its_own(
    store: OffsetStore, claim: Claim, query: Query, offsetstore_database: str, *, sqlstate: str, as_execute: str
) -> None:
    calls: list[int] = []
    query("CREATE TABLE moved (n bigint)")
    query("INSERT INTO moved VALUES (0)")

    def mirror(_: object, __: object = None) -> None:
        calls.append(1)
        with psycopg.connect(offsetstore_database) as other:
            if sqlstate != "40001":
                other.execute(block(OF_SERVER[sqlstate]).encode())
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT FROM moved")
            query("UPDATE moved SET n = n + 1")
            other.execute("UPDATE moved SET n = n + 1")

    def work(tx: Transaction) -> None:
        left = lock(tx, P0, range_=OffsetRange(0, 3))
        if as_execute == "plain":
            mirror(tx)
        else:
            Execute(mirror, splittable=as_execute == "splittable").write(tx, [batch({"n": [1]})])
        tx.advance(left)

    with psycopg.connect(offsetstore_database) as holder, held(holder), pytest.raises(psycopg.Error) as caught:
        store.run(claim, work)
    assert (caught.value.sqlstate, calls) == (sqlstate, [1])
    assert query("SELECT next_offset FROM kafka_partitions WHERE partition = 0") == [(0,)]


@pytest.mark.behaviour("TX-12", "DLQ-6")
@pytest.mark.parametrize(
    ("sqlstate", "in_savepoint"),
    [("40001", False), ("57P01", False), *((state, True) for state in ("40001", "40P01", *OF_SERVER))],
)
def test_an_outage_in_a_savepoint_is_the_transactions(
    store: OffsetStore, claim: Claim, query: Query, offsetstore_database: str, sqlstate: str, *, in_savepoint: bool
) -> None:
    calls: list[int] = []
    statements = OF_SERVER.get(sqlstate, f"RAISE EXCEPTION USING ERRCODE = '{sqlstate}';")

    def work(tx: Transaction) -> None:
        calls.append(1)
        left = lock(tx, P0, range_=OffsetRange(0, 3))
        if len(calls) == 1:
            with tx.connection.begin_nested() if in_savepoint else nullcontext():
                tx.connection.execute(text(block(statements)))
        write(tx, [1])
        tx.advance(left)

    with psycopg.connect(offsetstore_database) as holder, held(holder):
        store.run(claim, work)
    assert len(calls) == 2
    assert query("SELECT * FROM results") == [(1,)]


@pytest.mark.behaviour("TX-12", "DLQ-6")
def test_the_transactions_connection_that_breaks_without_a_word_is_repeated(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    calls: list[int] = []

    def cut_once(work: Work, _: object) -> None:
        calls.append(1)
        connection: psycopg.Connection[Any] = work.connection.connection.driver_connection
        if len(calls) == 1:
            with socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)
        connection.execute("INSERT INTO results VALUES (1)")

    def work(tx: Transaction) -> None:
        left = lock(tx, P0, range_=OffsetRange(0, 3))
        Execute(cut_once).write(tx, [batch({"n": [1]})])
        assert not driver(tx).closed
        tx.advance(left)

    store.run(claim, work)
    assert calls == [1, 1]
    assert query("SELECT * FROM results") == [(1,)]
