from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import psycopg
import pytest

from offsetstore import Claim, OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import LockTimeout, StaleClaim
from offsetstore.postgres import statements
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, P1, P2, apply, lock, process, write
from tests.support.background import in_background
from tests.support.plans import expected_plan


@pytest.fixture
def claim(store: OffsetStore, results: str) -> Claim:
    return store.claim(GROUP, StaticBroker.with_topics({"payments": 3}, end=1000))


@pytest.fixture
def other(offsetstore_database: str) -> Iterator[psycopg.Connection]:
    """Somebody else in the database, in a transaction of their own."""
    with psycopg.connect(offsetstore_database, application_name="a dashboard") as connection:
        yield connection


BLOCKED = """
SELECT 1 FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name LIKE 'offsetstore:%'
"""


@pytest.mark.behaviour("TX-8")
def test_rows_are_locked_in_order_whatever_was_asked_and_however_they_lie(
    store: OffsetStore, claim: Claim, other: psycopg.Connection, query: Query
) -> None:
    # Written anew, the rows lie in the table in the opposite order.
    for partition in (2, 1, 0):
        query(f"UPDATE kafka_partitions SET updated_at = now() WHERE partition = {partition}")
    other.execute("SELECT 1 FROM kafka_partitions WHERE partition = 1 FOR UPDATE")

    def job() -> None:
        with store.transaction(claim, lock_timeout=60) as tx:
            tx.advance(lock(tx, P2, P1, P0, range_=OffsetRange(0, 1)))

    running = in_background(job)
    while not query(BLOCKED):
        assert not running.done()
    free = query("SELECT partition FROM kafka_partitions FOR UPDATE SKIP LOCKED")
    other.rollback()
    running.result(60)

    assert free == [(2,)]


@pytest.mark.behaviour("TX-8")
@pytest.mark.parametrize("asked", [2, 1000])
def test_the_plan_locks_what_comes_out_of_the_sort(store: OffsetStore, query: Query, results: str, asked: int) -> None:
    store.claim(GROUP, StaticBroker.with_topics({"payments": 2000}, end=1))
    query("ANALYZE kafka_partitions")
    values = {"group": GROUP, "topics": ["payments"] * asked, "partitions": list(range(asked, 0, -1))}
    aggregate, *_ = expected_plan(store, statements.LOCK_PARTITIONS, values)

    [locked] = [node for node in aggregate["Plans"] if node.get("Subplan Name") == "CTE locked"]
    assert locked["Node Type"] == "LockRows"
    [below] = [node for node in locked["Plans"] if node["Parent Relationship"] == "Outer"]
    assert below["Node Type"] in {"Sort", "Incremental Sort", "Merge Join"}


@pytest.mark.behaviour("TX-8", "TX-10")
def test_two_jobs_that_create_rows_in_opposite_orders_never_deadlock(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    rounds = [[TopicPartition("payments", 10 * number + one) for one in range(3)] for number in range(1, 25)]

    def job(direction: int) -> None:
        for partitions in rounds:
            process(store, claim, *partitions[::direction], range_=OffsetRange(5, 7))

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(job, 1), pool.submit(job, -1)]:
            done.result(60)

    assert query("SELECT record, count(*) FROM results GROUP BY 1 ORDER BY 1") == [(5, 72), (6, 72)]


@pytest.mark.behaviour("TX-8")
def test_jobs_and_claims_at_once_never_deadlock(store: OffsetStore, claim: Claim) -> None:
    """A claim takes all rows, a job with a partition that is new to it shares the group's: both take that one first."""
    broker = StaticBroker.with_topics({"payments": 3}, end=1000)
    claims = [claim]
    fresh = count(10)

    def take_over() -> None:
        for _ in range(10):
            newest = store.claim(GROUP, broker)
            claims.append(newest)

    def work() -> None:
        partitions = (P0, TopicPartition("payments", next(fresh)))
        with suppress(StaleClaim):
            process(store, claims[-1], *partitions, range_=OffsetRange(0, 0))

    taking = in_background(take_over)
    while not taking.done():
        in_background(work).result(60)
    taking.result()


@pytest.mark.behaviour("TX-9")
def test_lock_timeout_names_the_partition_and_whoever_holds_it(
    store: OffsetStore, claim: Claim, other: psycopg.Connection, query: Query
) -> None:
    other.execute("SELECT 1 FROM kafka_partitions WHERE partition = 1 FOR UPDATE")

    with pytest.raises(LockTimeout) as caught, store.transaction(claim, lock_timeout=0.2) as tx:
        lock(tx, P0, P1, P2, range_=OffsetRange(0, 1))

    other.rollback()
    assert caught.value.topic_partition == P1
    assert caught.value.found == f"held by pid {other.info.backend_pid} (a dashboard, idle in transaction)"


@pytest.mark.behaviour("TX-9")
def test_lock_timeout_on_a_table_of_results_blames_no_partition(
    store: OffsetStore, claim: Claim, other: psycopg.Connection
) -> None:
    other.execute("LOCK TABLE results IN SHARE MODE")

    def job() -> None:
        with store.transaction(claim, lock_timeout=0.2) as tx:
            lock(tx, P0, range_=OffsetRange(0, 1))
            write(tx, [0])

    with pytest.raises(LockTimeout) as caught:
        job()

    other.rollback()
    assert caught.value.topic_partition is None
    assert caught.value.found == "LockNotAvailable: canceling statement due to lock timeout"
    assert "results" in str(caught.value)


@pytest.mark.behaviour("TX-10")
def test_who_creates_a_row_second_waits_and_goes_by_what_the_first_has_written(
    store: OffsetStore, claim: Claim, query: Query
) -> None:
    new = TopicPartition("payments", 9)
    with store.transaction(claim) as first:
        left = lock(first, new, range_=OffsetRange(40, 43))
        second = in_background(
            lambda: store.run(claim, lambda tx: apply(tx, new, range_=OffsetRange(40, 45)), lock_timeout=60)
        )
        while not query(BLOCKED):
            assert not second.done()
        write(first, [40, 41, 42])
        first.advance(left)
    second.result(60)

    assert query("SELECT record FROM results ORDER BY 1") == [(40,), (41,), (42,), (43,), (44,)]
    assert [event.topic_partition for event in store.history(GROUP) if event.event == "adopt"].count(new) == 1


def test_topics_are_data_whatever_an_array_makes_of_their_names(store: OffsetStore) -> None:
    names = ['"quoted"', "back\\slash", "{a,b}", "NULL", "%s", "a:b", "it's", " ", "ü"]
    broker = StaticBroker.with_topics(dict.fromkeys(names, 2), end=9)
    claim = store.claim(GROUP, broker, mirror_every=None)

    with store.transaction(claim) as tx:
        tx.advance(lock(tx, *[TopicPartition(name, 1) for name in names], range_=OffsetRange(0, 7)))

    found = {tp: row.next_offset for tp, row in store.offsets(GROUP).items()}
    assert found == {TopicPartition(name, number): 7 * number for name in names for number in range(2)}
