"""What the store's own page shows, as the dashboard's role may read it on PostgreSQL."""

from __future__ import annotations

import psycopg
import pytest

from offsetstore import OffsetRange, OffsetStore
from offsetstore.postgres.schema import metadata
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.dashboard.conftest import GROUP
from tests.integration.transacting import P0
from tests.support.waiting import wait_until


@pytest.mark.behaviour("DASH-1")
def test_facts_of_the_store_are_those_of_the_server(
    offsetstore_database: str, store: OffsetStore, reader: OffsetStore, query: Query
) -> None:
    with OffsetStore.connect(offsetstore_database) as job:  # whose connections end: an open one may count later
        claim = job.claim(GROUP, StaticBroker.with_topics({"payments": 2}, end=100), mirror_every=None)
        for start in range(50):
            with job.transaction(claim) as tx:
                tx.lock({P0: OffsetRange(start, start + 1)})
                tx.advance({P0: OffsetRange(start, start + 1)})
    query("VACUUM ANALYZE kafka_partitions")

    def updates() -> int:
        return next(table.updates for table in reader.facts().tables if table.name == "kafka_partitions")

    wait_until(lambda: updates() >= 50, timeout=60)
    facts = reader.facts()
    assert [table.name for table in facts.tables] == sorted(metadata.tables)
    partitions = next(table for table in facts.tables if table.name == "kafka_partitions")
    assert partitions.hot_share is not None
    assert partitions.hot_share > 0.9
    assert partitions.size > 8_192
    assert partitions.vacuumed_at is not None
    assert (facts.schema, facts.revision, facts.is_as_expected, facts.is_standby) == (
        "public",
        facts.expected,
        True,
        False,
    )
    assert (facts.sees_all, store.facts().sees_all) == (False, True)


@pytest.mark.behaviour("DASH-1")
def test_an_old_transaction_is_seen_by_those_who_may(offsetstore_database: str, store: OffsetStore) -> None:
    with psycopg.connect(offsetstore_database) as other:
        other.execute("SELECT 1")
        wait_until(lambda: store.facts().oldest_transaction.total_seconds() > 0.5)
