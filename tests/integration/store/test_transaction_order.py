"""In which order a job locks and makes rows, seen from outside while it waits for one in the middle."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import psycopg
import pytest

from offsetstore import Claim, OffsetRange, OffsetStore, TopicPartition
from tests.integration.conftest import Query
from tests.integration.store.meeting import broker, wait_for_waiting
from tests.integration.transacting import GROUP, P0, P1, P2
from tests.support.background import in_background

RANGE = OffsetRange(0, 7)
MAKE = """
INSERT INTO kafka_partitions (consumer_group, topic, partition, next_offset, epoch, claim_id)
VALUES (%s, 'payments', %s, 0, 1, gen_random_uuid())
"""
UNLOCKED = "SELECT partition FROM kafka_partitions FOR UPDATE SKIP LOCKED"


@contextmanager
def held_up(
    store: OffsetStore, claim: Claim, query: Query, holding: psycopg.Connection, *asked: TopicPartition
) -> Generator[None]:
    """A job asks for these partitions, and has to wait for what the other one holds until the block ends."""

    def job() -> None:
        with store.transaction(claim, lock_timeout=60) as tx:
            tx.lock(dict.fromkeys(asked, RANGE))
            tx.advance(tx.ranges)

    running = in_background(job)
    try:
        wait_for_waiting(query)
        yield
    finally:
        holding.rollback()
    running.result(60)


def can_be_made(url: str, partition: int) -> bool:
    """Whether nobody's open transaction has made the row."""
    with psycopg.connect(url) as connection:
        connection.execute("SET lock_timeout = '100ms'")
        try:
            connection.execute(MAKE, (GROUP, partition))
        except psycopg.errors.LockNotAvailable:
            return False
        finally:
            connection.rollback()
    return True


@pytest.mark.behaviour("TX-8")
def test_rows_are_locked_in_order_also_by_a_plan_that_comes_upon_them_in_another(
    offsetstore_database: str, query: Query
) -> None:
    """Small tables are read by their key, and so in order by chance: here they can't be."""
    [(name,)] = query("SELECT current_database()")
    for way in ("indexscan", "bitmapscan", "mergejoin", "nestloop"):
        query(f"ALTER DATABASE {name} SET enable_{way} = off")
    partitions = [P2, P1, P0]
    with OffsetStore.connect(offsetstore_database) as store, psycopg.connect(offsetstore_database) as other:
        claim = store.claim(GROUP, broker(3), mirror_every=None)
        for tp in partitions:  # written anew, they lie in the table in this order
            query(f"UPDATE kafka_partitions SET updated_at = now() WHERE partition = {tp.partition}")
        other.execute("SELECT 1 FROM kafka_partitions WHERE partition = 1 FOR UPDATE")
        with held_up(store, claim, query, other, *partitions):
            assert query(UNLOCKED) == [(2,)]


@pytest.mark.behaviour("TX-8", "TX-10")
def test_rows_are_made_in_order_whatever_was_asked(store: OffsetStore, offsetstore_database: str, query: Query) -> None:
    """Two jobs that make the same rows in opposite orders would wait for each other, each for the other's first."""
    claim = store.claim(GROUP, broker())
    asked = [TopicPartition("payments", number) for number in (12, 11, 10)]
    with psycopg.connect(offsetstore_database) as other:
        other.execute(MAKE, (GROUP, 11))
        with held_up(store, claim, query, other, *asked):
            assert [number for number in (10, 12) if can_be_made(offsetstore_database, number)] == [12]

    assert {row.next_offset for tp, row in store.offsets(GROUP).items() if tp in asked} == {7}


@pytest.mark.behaviour("TX-8", "TX-10")
def test_the_group_s_row_is_had_before_any_partition_s(
    store: OffsetStore, offsetstore_database: str, query: Query
) -> None:
    """As a claim does it, which has the group's row and wants the partitions': the other way round they deadlock."""
    claim = store.claim(GROUP, broker())
    with psycopg.connect(offsetstore_database) as other:
        other.execute("SELECT 1 FROM consumer_groups FOR UPDATE")
        with held_up(store, claim, query, other, P0, P1):
            assert query(UNLOCKED) == [(0,)]

    assert {row.next_offset for row in store.offsets(GROUP).values()} == {7}
