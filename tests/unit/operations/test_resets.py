"""What a reset refuses, and what it takes for all topics."""

from __future__ import annotations

import pytest

from offsetstore import OffsetRange, TopicPartition
from offsetstore.errors import ConfigurationError
from offsetstore.testing import InMemoryOffsetStore, StaticBroker


@pytest.mark.parametrize("named", [{"payments": [-1]}, {"payments": [2**31]}, {"": [0]}])
def test_what_is_no_partition_is_refused(named: dict[str, list[int]]) -> None:
    with InMemoryOffsetStore() as store:
        store.claim(
            "billing", StaticBroker.with_topics({"payments": 1}, end=100), topics=["payments"], mirror_every=None
        )
        with pytest.raises(ConfigurationError, match="not partitions of a topic"):
            store.reset("billing", 4, partitions=named, reason="a slip")


@pytest.mark.behaviour("OPS-1", "OPS-10")
def test_all_topics_are_those_that_are_stored_under_the_lock_and_kafka_was_asked_about() -> None:
    broker = StaticBroker.with_topics({"payments": 1, "refunds": 1}, end=100)
    payments, refunds = TopicPartition("payments", 0), TopicPartition("refunds", 0)
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments", "refunds"])

        def advance(tp: TopicPartition) -> None:
            with store.transaction(claim) as tx:
                tx.advance({tp: tx.lock({tp: OffsetRange(0, 7)})[tp].remaining})

        advance(payments)
        broker.script = [lambda: advance(refunds)]
        with pytest.raises(ConfigurationError, match="refunds-0: a job has stored an offset of another topic since"):
            store.reset("billing", "latest", partitions="all", broker=broker, reason="ticket 17")
        assert {row.next_offset for row in store.offsets("billing").values()} == {7}

        done = store.reset("billing", "latest", partitions="all", broker=broker, reason="ticket 17")
        assert {move.topic_partition: move.to_offset for move in done.moves} == {payments: 100, refunds: 100}


def test_partitions_are_all_or_named() -> None:
    with InMemoryOffsetStore() as store, pytest.raises(ConfigurationError, match='must be "all", or numbers by topic'):
        store.reset("billing", 4, partitions="payments", reason="a slip")  # pyright: ignore[reportArgumentType]
