from __future__ import annotations

import psycopg
import pytest

from offsetstore import Claim, OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import LockTimeout
from offsetstore.postgres import statements
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.store.meeting import broker, wait_for_waiting
from tests.integration.transacting import GROUP, P0, apply, lock, write
from tests.support.background import in_background
from tests.support.plans import expected_plan


@pytest.fixture
def claim(store: OffsetStore, results: str) -> Claim:
    return store.claim(GROUP, broker(3))


@pytest.mark.behaviour("TX-8")
@pytest.mark.parametrize("asked", [2, 1000])
def test_the_plan_locks_what_comes_out_of_the_sort(store: OffsetStore, query: Query, results: str, asked: int) -> None:
    store.claim(GROUP, broker(2000))
    query("ANALYZE kafka_partitions")
    values = {"group": GROUP, "topics": ["payments"] * asked, "partitions": list(range(asked, 0, -1))}
    aggregate, *_ = expected_plan(store, statements.LOCK_PARTITIONS, values)

    [locked] = [node for node in aggregate["Plans"] if node.get("Subplan Name") == "CTE locked"]
    assert locked["Node Type"] == "LockRows"
    [below] = [node for node in locked["Plans"] if node["Parent Relationship"] == "Outer"]
    assert below["Node Type"] in {"Sort", "Incremental Sort", "Merge Join"}


@pytest.mark.behaviour("TX-9")
def test_lock_timeout_on_a_table_of_results_blames_no_partition(
    store: OffsetStore, claim: Claim, offsetstore_database: str
) -> None:
    def job() -> None:
        with store.transaction(claim, lock_timeout=0.2) as tx:
            lock(tx, P0, range_=OffsetRange(0, 1))
            write(tx, [0])

    with psycopg.connect(offsetstore_database) as other:
        other.execute("LOCK TABLE results IN SHARE MODE")
        with pytest.raises(LockTimeout, match="results") as caught:
            job()

    assert caught.value.topic_partition is None
    assert caught.value.found == "LockNotAvailable: canceling statement due to lock timeout"


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
        wait_for_waiting(query)
        write(first, [40, 41, 42])
        first.advance(left)
    second.result(60)

    assert query("SELECT record FROM results ORDER BY 1") == [(40,), (41,), (42,), (43,), (44,)]
    assert [event.topic_partition for event in store.history(GROUP) if event.event == "adopt"].count(new) == 1


def test_topics_are_data_whatever_an_array_makes_of_their_names(store: OffsetStore) -> None:
    names = ['"quoted"', "back\\slash", "{a,b}", "NULL", "%s", "a:b", "it's", " ", "ü"]
    claim = store.claim(GROUP, StaticBroker.with_topics(dict.fromkeys(names, 2), end=9), mirror_every=None)

    with store.transaction(claim) as tx:
        tx.advance(lock(tx, *[TopicPartition(name, 1) for name in names], range_=OffsetRange(0, 7)))

    found = {tp: row.next_offset for tp, row in store.offsets(GROUP).items()}
    assert found == {TopicPartition(name, number): 7 * number for name in names for number in range(2)}
