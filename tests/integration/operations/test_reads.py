"""The state of a group, read from PostgreSQL."""

from __future__ import annotations

import pytest

from offsetstore import OffsetStore
from offsetstore.operations.people import OUTBOX_STATES
from offsetstore.protocol.outbox import OutboxState
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP


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
