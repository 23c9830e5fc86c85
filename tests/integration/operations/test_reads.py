"""The state of a group, read from PostgreSQL by its clock."""

from __future__ import annotations

from datetime import timedelta

import pytest

from offsetstore import OffsetRange, OffsetStore, Watermarks
from offsetstore.operations.people import OUTBOX_STATES
from offsetstore.protocol.outbox import OutboxState
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP, P0, P1, process


def test_the_ages_are_of_the_databases_clock_and_the_rows_are_the_stored_ones(
    store: OffsetStore, results: str, query: Query
) -> None:
    broker = StaticBroker.with_topics({"payments": 2}, end=10)
    broker.set_committed({P1: 3})
    claim = store.claim(GROUP, broker, mirror_every=None)
    process(store, claim, P0, range_=OffsetRange(0, 4))
    query("UPDATE kafka_partitions SET contested = true, pinned = true, updated_at = updated_at - interval '1 hour'")
    [(before,)] = query("SELECT clock_timestamp()")

    state = store.group_state(GROUP, broker)

    [(after,)] = query("SELECT clock_timestamp()")
    assert before < state.read_at < after
    assert state.owner is not None
    assert state.owner.token == claim.token
    assert state.is_live
    rows = store.offsets(GROUP)
    for tp, one in state.partitions.items():
        assert one.stored == rows[tp]
        assert timedelta(hours=1) < (one.age or timedelta()) < timedelta(hours=2)
        assert (one.pinned, one.contested, one.log) == (True, True, Watermarks(0, 10, high=10, leader_epoch=0))
    assert [(tp, one.lag) for tp, one in state.partitions.items()] == [(P0, 6), (P1, 7)]
    assert [one.committed and one.committed.next_offset for one in state.partitions.values()] == [None, 3]


@pytest.mark.behaviour("OUT-7")
def test_of_a_large_outbox_only_the_first_rows_are_read(store: OffsetStore, query: Query) -> None:
    """A probe asks every few seconds, and a relay may have been down for a night."""
    store.claim(GROUP, topics=["payments"]).close()
    query("INSERT INTO outbox (consumer_group, topic) VALUES ('another', 'a')")
    few = store.group_state("another").outbox
    assert few is not None
    assert (few.rows, few.more) == (1, False)

    query(f"INSERT INTO outbox (consumer_group, topic) SELECT '{GROUP}', 'a' FROM generate_series(1, 300000)")
    query("INSERT INTO outbox_refused (id, consumer_group, topic, created_at, error) "
          f"SELECT n, '{GROUP}', 'a', now(), '' FROM generate_series(1, 300000) AS n")  # fmt: skip
    query("ANALYZE outbox, outbox_refused")
    state = store.group_state(GROUP).outbox
    assert state == OutboxState(99_999, state.oldest if state else None, 100_000, more=True, row=2, topic="a")

    asked = OUTBOX_STATES.format(s="").replace(":groups", "NULL")
    plan = "\n".join(line for (line,) in query(f"EXPLAIN {asked}"))
    assert "Seq Scan on outbox" not in plan, plan
