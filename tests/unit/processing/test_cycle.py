"""The cycle of a batch on a store in memory, without Spark: the rows are the offsets of the records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import Mock

import pytest

from offsetstore import Claim, OffsetRange, TopicPartition
from offsetstore.errors import StaleClaim, TopicRecreated
from offsetstore.offsets import BrokerView, TopicLog, Watermarks
from offsetstore.processing.plan import DeliveryPlan, check_topics
from offsetstore.processing.runner import with_replanning
from offsetstore.processing.unit import UNNAMED, PlanOutdated, Written
from offsetstore.testing import InMemoryOffsetStore, StaticBroker
from tests.support.units import commit_rows

P0, P1 = (TopicPartition("payments", number) for number in range(2))
BATCH = {P0: OffsetRange(0, 3), P1: OffsetRange(10, 12)}


@dataclass
class Records:
    """The records of the ranges."""

    ranges: Mapping[TopicPartition, OffsetRange]

    def write(self, work: Any) -> int:
        rows = [(tp, offset) for tp, range_ in self.ranges.items() for offset in range(range_.from_, range_.until)]
        work.connection.extend("results", rows)
        return len(rows)


def view(topic_id: str = "one") -> BrokerView:
    return BrokerView("cluster", {"payments": TopicLog(topic_id, {0: Watermarks(0, 100), 1: Watermarks(10, 100)})}, {})


@pytest.fixture
def broker() -> StaticBroker:
    return StaticBroker(view())


@pytest.fixture
def claim(store: InMemoryOffsetStore, broker: StaticBroker) -> Claim:
    return store.claim("billing", broker, topics=["payments"], mirror_every=None)


def process(claim: Claim, *, meanwhile: Callable[[], object] = lambda: None) -> Written | None:
    """Plan, compute and commit `BATCH`, as a job would; ``meanwhile`` happens when the rows are computed."""
    plan = DeliveryPlan.of(claim, BATCH)
    computed = None
    if plan.is_worth_computing(claim):
        computed = {UNNAMED: Records(plan.remaining())}
        meanwhile()
    return commit_rows(claim, plan, computed)


def advance(claim: Claim, tp: TopicPartition, until: int) -> None:
    with claim.transaction() as tx:
        start = BATCH[tp].from_
        tx.advance({tp: tx.lock({tp: OffsetRange(start, until)})[tp].remaining})


def test_a_batch_is_planned_again_if_a_stored_offset_changed_while_it_was_computed(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    changes = iter([lambda: advance(claim, P0, 2), lambda: advance(claim, P1, 11)])
    written = with_replanning(lambda: process(claim, meanwhile=next(changes, lambda: None)), "batch 1")
    assert written is not None
    assert store.rows("results") == [(P0, 2), (P1, 11)]
    assert process(claim, meanwhile=lambda: pytest.fail("computed")) is None  # nor is it written again


def test_what_was_not_computed_is_planned_again_if_it_remains_after_all(claim: Claim) -> None:
    with pytest.raises(PlanOutdated):
        commit_rows(claim, DeliveryPlan.of(claim, BATCH), None)


def test_a_claim_that_was_taken_over_while_it_computed_writes_nothing(
    store: InMemoryOffsetStore, broker: StaticBroker, claim: Claim
) -> None:
    def take_over() -> None:
        store.claim("billing", broker, topics=["payments"], mirror_every=None)

    with pytest.raises(StaleClaim):
        process(claim, meanwhile=take_over)
    with pytest.raises(StaleClaim):  # and computes nothing from then on
        process(claim, meanwhile=lambda: pytest.fail("computed"))
    assert store.rows("results") == []


def test_a_topic_that_is_recreated_while_the_batch_is_computed_stops_it(
    store: InMemoryOffsetStore, broker: StaticBroker, claim: Claim
) -> None:
    def recreate() -> None:
        broker.current = view("another")

    with pytest.raises(TopicRecreated, match="topic id another"):
        process(claim, meanwhile=recreate)
    assert store.rows("results") == []


def test_a_broker_is_not_asked_for_the_ids_of_topics_that_have_none_stored(
    store: InMemoryOffsetStore, broker: StaticBroker, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "topic_ids", Mock(side_effect=AssertionError("asked")))
    without = {tp: replace(row, topic_id=None) for tp, row in store.offsets("billing").items()}
    check_topics(claim, without, BATCH)
