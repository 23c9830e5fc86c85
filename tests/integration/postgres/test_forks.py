"""A process that is forked inside an open transaction: whatever it does, the parent's transaction goes on."""

from __future__ import annotations

import atexit
import errno
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pytest

from offsetstore import Claim, Execute, OffsetRange, OffsetStore, Transaction, Work
from offsetstore.errors import StoreUnavailable
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, lock, write
from tests.integration.writers.writing import batch
from tests.support.forking import BEFORE_A_FORK, in_new_process, run_forked

RANGE = OffsetRange(0, 2)


def connected(url: str) -> tuple[OffsetStore, Claim]:
    store = OffsetStore.connect(url)
    return store, store.claim(GROUP, topics=["payments"])


@dataclass(frozen=True)
class Inherited:
    """What a child has of its parent inside of a transaction. ``held``: the connection, taken before the fork."""

    url: str
    store: OffsetStore
    claim: Claim
    tx: Transaction
    held: Any

    @property
    def driver(self) -> Any:
        return self.held.connection.driver_connection

    def begin_another(self) -> None:
        with self.store.transaction(self.claim) as another:
            another.lock({P0: RANGE})

    def fail(self) -> None:
        raise LookupError("own")

    def open_another(self) -> None:
        with OffsetStore.connect(self.url) as own:
            other = own.claim("other", topics=["payments"])
            own.run(other, lambda tx: tx.advance({P0: tx.lock({P0: RANGE})[P0].remaining}))
        sys.exit(0)


WAYS: dict[str, tuple[Callable[[Inherited], object], str]] = {
    "exit": (lambda _: sys.exit(3), "SystemExit: 3"),
    "error": (Inherited.fail, "LookupError: own"),
    "a store of its own": (Inherited.open_another, "SystemExit: 0"),
    "end of the block": (lambda _: None, BEFORE_A_FORK),
    "connection": (lambda had: had.tx.connection, BEFORE_A_FORK),
    "advance": (lambda had: had.tx.advance({P0: RANGE}), BEFORE_A_FORK),
    "finish": (lambda had: had.tx.finish({P0: RANGE}), BEFORE_A_FORK),
    "another transaction": (Inherited.begin_another, BEFORE_A_FORK),
    "read": (lambda had: had.store.offsets(GROUP), BEFORE_A_FORK),
    "SQL": (lambda had: had.held.exec_driver_sql("INSERT INTO results VALUES (7)"), BEFORE_A_FORK),
    "SQL of the driver": (lambda had: had.driver.execute("COMMIT"), BEFORE_A_FORK),
    "close of the connection": (lambda had: had.driver.close(), BEFORE_A_FORK),
    "invalidated": (lambda had: had.held.invalidate(), BEFORE_A_FORK),
    "close of the store": (lambda had: had.store.close(), BEFORE_A_FORK),
}


def fork_in_transactions(url: str) -> None:
    for number, (way, (in_child, expected)) in enumerate(WAYS.items()):
        fork_in_a_transaction(url, way, in_child, expected, OffsetRange(2 * number, 2 * number + 2))


def fork_in_a_transaction(
    url: str, way: str, in_child: Callable[[Inherited], object], expected: str, range_: OffsetRange
) -> None:
    store, claim = connected(url)

    def job() -> None:
        store.offsets(GROUP)
        with store.transaction(claim) as tx:
            left = lock(tx, P0, range_=range_)
            write(tx, [range_.from_])
            had = Inherited(url, store, claim, tx, tx.connection)
            child = os.fork()
            if child == 0:
                in_child(had)
                return
            os.waitpid(child, 0)
            write(tx, [range_.from_ + 1])
            tx.advance(left)

    told = run_forked(job)
    assert told.startswith(expected), f"{way}: {told}"
    assert store.offsets(GROUP)[P0].next_offset == range_.until, way
    store.close()


@pytest.mark.behaviour("TX-2")
def test_a_forked_child_leaves_the_parent_s_transaction_alone(
    offsetstore_database: str, results: str, query: Query
) -> None:
    in_new_process(fork_in_transactions, offsetstore_database)
    assert query("SELECT record FROM results ORDER BY record") == [(number,) for number in range(2 * len(WAYS))]
    stored = query("SELECT consumer_group, next_offset FROM kafka_partitions ORDER BY 1")
    assert stored == [(GROUP, 2 * len(WAYS)), ("other", 2)]
    assert query("SELECT count(*) FROM heartbeats") == [(0,)]


def in_pool(number: int) -> int:
    return number + 1


def insert_from_a_pool(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        for one in batches:
            for record in pool.map(in_pool, cast("Any", one)["record"].to_pylist()):
                work.connection.exec_driver_sql("INSERT INTO results VALUES (%s)", (record,))


def execute_with_a_pool(url: str) -> None:
    store, claim = connected(url)
    with store, store.transaction(claim) as tx:
        left = lock(tx, P0, range_=RANGE)
        Execute(insert_from_a_pool).write(tx, [batch({"record": [0, 1]})])
        tx.advance(left)


@pytest.mark.behaviour("TX-2")
def test_a_pool_of_forked_processes_may_work_for_an_execute(
    offsetstore_database: str, results: str, query: Query
) -> None:
    in_new_process(execute_with_a_pool, offsetstore_database)
    assert query("SELECT record FROM results ORDER BY record") == [(1,), (2,)]
    assert query("SELECT next_offset FROM kafka_partitions") == [(2,)]


def exit_in_a_child(url: str) -> None:
    store, claim = connected(url)
    atexit.register(store.close)
    with store, claim, store.transaction(claim) as tx:
        left = lock(tx, P0, range_=RANGE)
        write(tx, [0])
        child = os.fork()
        if child == 0:
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        write(tx, [1])
        tx.advance(left)


@pytest.mark.behaviour("TX-2")
def test_a_child_that_exits_inside_the_block_ends_quietly_with_all_exit_handlers(
    offsetstore_database: str, results: str, query: Query
) -> None:
    assert in_new_process(exit_in_a_child, offsetstore_database) == ""
    assert query("SELECT record FROM results ORDER BY record") == [(0,), (1,)]
    assert query("SELECT next_offset FROM kafka_partitions") == [(2,)]


@pytest.mark.behaviour("TX-2")
def test_a_connection_that_children_could_use_goes_back_to_its_pool(
    offsetstore_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OffsetStore.connect(offsetstore_database) as store:
        database = cast("Any", store.database)

        def refused(_: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr("offsetstore.postgres.database.keep_from_children", refused)
        with pytest.raises(StoreUnavailable, match="Too many open files") as unavailable:
            store.groups()
        assert unavailable.tb is not None, "it keeps the frames"
        assert database.engine.pool.checkedout() == 0
        monkeypatch.undo()
        assert store.groups() == []
