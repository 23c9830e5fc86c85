from __future__ import annotations

import psycopg
import pytest

from offsetstore import OffsetRange, OffsetStore, Transaction
from offsetstore.errors import RowsRefused
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, P1, apply, lock, process
from tests.support.background import in_background
from tests.support.waiting import wait_until


@pytest.mark.behaviour("TX-1")
def test_every_snapshot_of_another_connection_shows_results_and_offset_together(
    store: OffsetStore, query: Query, offsetstore_database: str
) -> None:
    query("CREATE TABLE seen (partition integer, record bigint)")
    claim = store.claim(GROUP, StaticBroker.with_topics({"payments": 2}, end=1000))
    steps = 150
    offsets_seen: set[int] = set()

    def job() -> None:
        for step in range(steps):
            with store.transaction(claim) as tx:
                left = lock(tx, P0, P1, range_=OffsetRange(3 * step, 3 * step + 3))
                for tp, range_ in left.items():
                    for number in range(range_.from_, range_.until):
                        tx.connection.exec_driver_sql("INSERT INTO seen VALUES (%s, %s)", (tp.partition, number))
                tx.advance({P0: left[P0]})
                tx.advance({P1: left[P1]})
            if step % 25 == 24:  # so that it is looked at meanwhile, however the threads take turns
                wait_until(lambda: 3 * step + 3 in offsets_seen)  # noqa: B023 - it is called at once

    with psycopg.connect(offsetstore_database) as observer:
        observer.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        running = in_background(job)
        while 3 * steps not in offsets_seen:
            with observer.transaction():
                # The offsets first in one snapshot, the results first in the next.
                if len(offsets_seen) % 2:
                    offsets, results = read_offsets(observer), read_results(observer)
                else:
                    results, offsets = read_results(observer), read_offsets(observer)
            for partition, next_offset in offsets.items():
                assert results.get(partition, []) == list(range(next_offset))
            offsets_seen |= set(offsets.values())
            if running.done():
                running.result()


def read_offsets(connection: psycopg.Connection) -> dict[int, int]:
    return dict(connection.execute("SELECT partition, next_offset FROM kafka_partitions").fetchall())


def read_results(connection: psycopg.Connection) -> dict[int, list[int]]:
    rows = connection.execute("SELECT partition, array_agg(record ORDER BY record) FROM seen GROUP BY 1").fetchall()
    return dict(rows)


@pytest.mark.behaviour("TX-2", "TX-12")
def test_a_deferred_constraint_fails_at_commit_and_nothing_is_written(
    store: OffsetStore, query: Query, results: str
) -> None:
    query("ALTER TABLE results ADD CONSTRAINT once UNIQUE (record) DEFERRABLE INITIALLY DEFERRED")
    claim = store.claim(GROUP, StaticBroker.with_topics({"payments": 2}, end=100))
    attempts: list[int] = []

    def work(tx: Transaction) -> None:
        attempts.append(1)
        apply(tx, P0, P1, range_=OffsetRange(0, 3))  # each number twice

    with pytest.raises(RowsRefused, match="once"):
        store.run(claim, work)

    assert len(attempts) == 1
    assert query("SELECT * FROM results") == []
    assert {row.next_offset for row in store.offsets(GROUP).values()} == {0}


@pytest.mark.behaviour("META-1", "META-2")
def test_another_process_s_store_reads_offsets_and_metadata_back(
    store: OffsetStore, results: str, offsetstore_database: str
) -> None:
    broker = StaticBroker.with_topics({"payments": 2}, end=100)
    claim = store.claim(GROUP, broker)
    note = {"quotes": "\"'\\", "unicode": "Größe 数 🦆", "nul": "\0", "large": "x" * 1_000_000}
    with store.transaction(claim) as tx:
        tx.advance(lock(tx, P0, range_=OffsetRange(0, 3)), metadata=note)
    store.close()

    with OffsetStore.connect(offsetstore_database) as after_restart:
        second = after_restart.claim(GROUP, broker)
        assert after_restart.metadata(GROUP) == {P0: note, P1: None}
        process(after_restart, second, P0, range_=OffsetRange(0, 5))
        assert after_restart.metadata(GROUP)[P0] == note
