"""SQL of the job's own, inside its transaction: on the rows that `lock` has locked, and on connections of its own."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from offsetstore import Execute, OffsetRange, OffsetStore
from offsetstore.errors import StaleClaim
from offsetstore.testing import StaticBroker
from tests.integration.transacting import GROUP, P0, P1, driver, lock, write
from tests.integration.writers.writing import batch

if TYPE_CHECKING:
    from offsetstore import Claim, Transaction, Work
    from tests.integration.conftest import Query


@pytest.fixture
def claim(store: OffsetStore, results: str) -> Claim:
    return store.claim(GROUP, StaticBroker.with_topics({"payments": 2}, end=100))


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
