"""The state of a group, read from PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from offsetstore import GroupState, OffsetStore, TopicPartition
from offsetstore.operations.people import OUTBOX_STATES
from offsetstore.protocol.outbox import OutboxState
from offsetstore.protocol.ports import KafkaSnapshot
from offsetstore.testing import StaticBroker
from tests.integration.conftest import Query
from tests.integration.transacting import GROUP

P0 = TopicPartition("payments", 0)


def state(store: OffsetStore, group: str = GROUP) -> GroupState:
    found = store.group_state(group)
    assert found is not None
    return found


@pytest.mark.behaviour("OUT-7")
def test_of_a_large_outbox_only_the_first_rows_are_read(store: OffsetStore, query: Query) -> None:
    """A probe asks every few seconds, and a relay may have been down for a night."""
    for group in (GROUP, "another"):
        store.claim(group, topics=["payments"]).close()
    query("INSERT INTO outbox (consumer_group, topic) VALUES ('another', 'a')")
    few = state(store, "another").outbox
    assert few is not None
    assert (few.rows, few.more) == (1, False)

    query(f"INSERT INTO outbox (consumer_group, topic) SELECT '{GROUP}', 'a' FROM generate_series(1, 300000)")
    query("INSERT INTO outbox_refused (id, consumer_group, topic, created_at, error) "
          f"SELECT n, '{GROUP}', 'a', now(), '' FROM generate_series(1, 300000) AS n")  # fmt: skip
    query("ANALYZE outbox, outbox_refused")
    found = state(store).outbox
    assert found == OutboxState(99_999, found.oldest if found else None, 100_000, more=True, row=2, topic="a")

    asked = OUTBOX_STATES.format(s="").replace(":groups", "NULL")
    plan = "\n".join(line for (line,) in query(f"EXPLAIN {asked}"))
    assert "Seq Scan on outbox" not in plan, plan


def test_a_decision_shows_until_the_next_claim_and_a_group_that_is_not_known_has_no_state(store: OffsetStore) -> None:
    assert store.group_state(GROUP) is None
    broker = StaticBroker.with_topics({"payments": 2}, end=10)
    store.claim(GROUP, broker, mirror_every=None).close()
    assert state(store).decision is None
    store.reset(GROUP, {P0: 2}, reason="ticket 17", actor="alice")
    store.pause(GROUP, reason="ticket 18")
    found = state(store)
    assert (found.owner.owner, found.decision, found.is_live) == ("alice", "reset", False)
    assert [row.pinned for row in found.rows.values()] == [True, False]

    store.claim(GROUP, broker, mirror_every=None).close()
    assert (state(store).decision, state(store).is_live) == (None, False)


def test_the_store_is_read_before_kafka_so_that_a_job_in_between_does_not_make_the_lag_too_small(
    store: OffsetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = StaticBroker.with_topics({"payments": 1}, end=10)
    store.claim(GROUP, broker, mirror_every=None).close()
    found, snapshot = store.lag(None, broker).groups, broker.snapshot
    assert {name: one.owner for name, one in found.items()} == {GROUP: store.owner(GROUP)}

    def meanwhile(groups: Mapping[str, Collection[str]]) -> KafkaSnapshot:
        store.reset(GROUP, {P0: 9}, reason="meanwhile")
        return snapshot(groups)

    monkeypatch.setattr(broker, "snapshot", meanwhile)
    assert store.lag([GROUP, "nobody"], broker).groups[GROUP].lag == 10


def test_an_offset_that_a_smaller_topic_no_longer_has_is_stored_all_the_same(store: OffsetStore) -> None:
    """Its letters are replayed, so its row counts for whoever asks what the job has."""
    store.claim(GROUP, StaticBroker.with_topics({"payments": 2}), mirror_every=None).close()
    found = store.group_state(GROUP, StaticBroker.with_topics({"payments": 1}))
    assert found is not None
    assert (set(found.stored), set(found.rows)) == ({P0, TopicPartition("payments", 1)}, {P0})


def test_kafka_is_not_asked_about_a_group_without_offsets(store: OffsetStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.claim(GROUP, topics=["payments"]).close()
    broker = StaticBroker.with_topics({"payments": 1})
    monkeypatch.setattr(broker, "snapshot", None)  # a call would raise
    found = store.group_state(GROUP, broker)
    assert found is not None
    assert (found.topics, found.kafka, found.broker_error) == ({}, None, None)
