"""How often a batch and a task wait for the database, counted by a proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from offsetstore import Append, Claim, OffsetRange, OffsetStore, TopicPartition
from offsetstore.processing.plan import DeliveryPlan
from offsetstore.processing.unit import UNNAMED
from offsetstore.protocol.replay import decide
from offsetstore.spark.collecting import OnDriver
from offsetstore.spark.executors.task import TaskEnding, Tasks
from offsetstore.store import heartbeat
from offsetstore.store.identity import TaskClaim
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.writers.writing import batch, kafka
from tests.support.trips import TripCounter
from tests.support.units import commit_rows
from tests.support.work import here

TOPIC = "payments"


@pytest.fixture
def counter(offsetstore_database: str, query: Query) -> Iterator[TripCounter]:
    query("CREATE TABLE results (record bigint)")
    with TripCounter(offsetstore_database) as proxy:
        yield proxy


@pytest.fixture
def store(counter: TripCounter, monkeypatch: pytest.MonkeyPatch) -> Iterator[OffsetStore]:
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)  # a connection is known to carry them only once one was sent
    with OffsetStore.connect(counter.url) as connected:
        yield connected


def claimed(store: OffsetStore, partitions: int) -> Claim:
    return store.claim("billing", StaticBroker.with_topics({TOPIC: partitions}, end=1000), mirror_every=None)


def process(claim: Claim, partitions: int, number: int) -> None:
    """Write the records of one batch, ten of each partition, as the batch way does."""
    ranges = {TopicPartition(TOPIC, one): OffsetRange(10 * number, 10 * number + 10) for one in range(partitions)}
    plan = DeliveryPlan.of(claim, ranges)
    rows = OnDriver(Append("results"), [batch({"record": list(range(10 * partitions))})])
    assert commit_rows(claim, plan, {UNNAMED: rows}) is not None


@pytest.mark.parametrize("partitions", [1, 3, 1000])
def test_a_batch_waits_for_the_database_eight_times_however_many_partitions_it_has(
    counter: TripCounter, store: OffsetStore, query: Query, partitions: int
) -> None:
    claim = claimed(store, partitions)
    process(claim, partitions, 0)
    with counter.counting() as trips:
        for number in range(1, 6):
            process(claim, partitions, number)
    assert trips[0] <= 5 * 8
    assert query("SELECT count(*) FROM results") == [(6 * 10 * partitions,)]
    assert query("SELECT DISTINCT next_offset FROM kafka_partitions") == [(60,)]


def test_a_task_waits_for_the_database_six_times(counter: TripCounter, store: OffsetStore, query: Query) -> None:
    claim, tp = claimed(store, 1), TopicPartition(TOPIC, 0)

    def write(number: int) -> None:
        decision = decide(number, OffsetRange(number, number + 1))
        tasks = Tasks(here(store), TaskClaim.of(claim), Append("results"), [decision], [tp], None, 1.0)
        rows = batch({"record": [number], "_kafka": kafka((TOPIC, 0, number))})
        assert tasks.perform(0, iter([rows, None])).ending is TaskEnding.WRITTEN

    write(0)
    with counter.counting() as trips:
        for number in range(1, 6):
            write(number)
    assert trips[0] <= 5 * 6
    assert query("SELECT record FROM results ORDER BY record") == [(number,) for number in range(6)]


def test_a_connection_that_died_in_the_pool_is_replaced_without_an_error(store: OffsetStore, query: Query) -> None:
    claim, tp = claimed(store, 1), TopicPartition(TOPIC, 0)
    process(claim, 1, 0)
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    query(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
    with claim.transaction() as tx:  # which is not retried
        tx.advance({tp: tx.lock({tp: OffsetRange(10, 20)})[tp].remaining})
    assert query("SELECT next_offset FROM kafka_partitions") == [(20,)]
