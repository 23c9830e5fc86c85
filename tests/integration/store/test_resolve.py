"""The resolver on its own."""

from __future__ import annotations

import time

import pytest

from offsetstore import OffsetRange, OffsetStore, TopicPartition, resolve_starting_offsets
from offsetstore.postgres import statements
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Contents, Query
from tests.integration.store.meeting import P0, P1, advance, broker
from tests.support.trips import sent_statements


@pytest.mark.behaviour("START-23")
def test_it_writes_nothing_and_fences_nobody_and_says_for_each_partition_where_it_starts_and_why(
    store: OffsetStore, offsetstore_database: str, contents: Contents
) -> None:
    with store.claim("billing", broker()) as claim:
        advance(store, claim, OffsetRange(0, 40), P0)
    shown = StaticBroker.with_logs({"payments": {0: (0, 100), 1: (5, 100)}})
    shown.set_committed({P0: 70})
    before = contents()
    # A second proof: PostgreSQL itself refuses whoever writes here.
    read_only = f"{offsetstore_database}?options=-c%20default_transaction_read_only%3Don"

    with OffsetStore.connect(read_only) as reading:
        start = resolve_starting_offsets(shown, group="billing", store=reading)

    larger = "committed in Kafka by another tool, larger than stored (stored 40, committed 70, log [0, 100))"
    new = "a new partition of a known topic: its beginning (stored -, committed -, log [5, 100))"
    lines = [f"payments-0  starts at 70: {larger}; skips [40, 70)", f"payments-1  starts at 5: {new}"]
    assert start.explain().splitlines() == lines
    assert contents() == before

    shown.set_committed({P1: 60})
    with_nothing_stored = resolve_starting_offsets(shown, group="billing")
    assert with_nothing_stored.json() == '{"payments": {"0": 70, "1": 60}}'


@pytest.mark.behaviour("START-19")
def test_ten_thousand_partitions_are_read_in_one_statement(offsetstore_database: str, query: Query) -> None:
    query(
        "INSERT INTO kafka_partitions (consumer_group, topic, partition, next_offset, epoch, claim_id)"
        " SELECT 'billing', 'topic-' || n % 100, n / 100, n, 1, gen_random_uuid() FROM generate_series(0, 9999) AS n"
    )
    broker = StaticBroker.with_topics({f"topic-{n}": 100 for n in range(100)}, end=10_000)
    with OffsetStore.connect(offsetstore_database) as store, sent_statements() as sent:
        began = time.monotonic()

        start = resolve_starting_offsets(broker, group="billing", store=store)

        seconds = time.monotonic() - began
    assert start.offsets[TopicPartition("topic-7", 3)] == 307
    assert len(start.offsets) == 10_000
    assert len(broker.asked) == 1
    assert sent == [statements.SETTINGS, statements.READ_PARTITIONS]
    assert seconds < 5
