"""Digests of plans; what is in which is the contract's."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest

from offsetstore import OffsetRange, TopicPartition
from offsetstore.errors import ConfigurationError, PlanChanged
from offsetstore.operations.operation import digest_of
from offsetstore.testing import InMemoryOffsetStore, StaticBroker

AT = datetime(2025, 3, 1, 12, 0, 0, 1, tzinfo=UTC)


@pytest.mark.behaviour("OPS-10")
def test_a_time_is_the_same_in_all_zones_and_another_microsecond_is_another() -> None:
    """Two connections may read it in two zones: the one that shows a plan, and the one that carries it out."""
    digest = digest_of("pause", "billing", AT)
    assert digest == digest_of("pause", "billing", AT.astimezone(timezone(timedelta(hours=-7))))
    assert digest != digest_of("pause", "billing", AT + timedelta(microseconds=1))


@pytest.mark.behaviour("OPS-10")
def test_facts_are_told_apart() -> None:
    facts: list[list[object]] = [[], [None], ["None"], [["a", "b"]], [["a,b"]], ["a", "b"], [1], ["1"], [{"a": 1}]]
    digests = {digest_of("reset", "billing", *one) for one in facts}
    assert len({*digests, digest_of("reset", "billin", "g"), digest_of("resetbilling", "")}) == len(facts) + 2
    with pytest.raises(TypeError, match="not a fact of a plan: set"):
        digest_of("reset", "billing", {1})


@pytest.mark.behaviour("DLQ-18")
def test_the_error_takes_the_new_plan_along() -> None:
    with InMemoryOffsetStore() as store:
        store.claim("billing", topics=["payments"])
        with pytest.raises(PlanChanged) as caught:
            store.resume("billing", reason="ticket 17", if_plan="0" * 16)
        planned = store.resume("billing", reason="ticket 17", dry_run=True)
        assert not store.offsets("billing").keys() & {TopicPartition("payments", 0)}
    error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
    assert (error.plan, error.args, error.expected) == (caught.value.plan, caught.value.args, "0" * 16)
    assert error.plan.digest == planned.digest


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
