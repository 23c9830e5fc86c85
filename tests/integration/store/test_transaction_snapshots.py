from __future__ import annotations

import psycopg
import pytest

from offsetstore import OffsetRange, OffsetStore
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, P1, lock
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
