"""The state of a group, as the dashboard and the command line read it; in memory, by a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from offsetstore import Claim, OffsetRange, PartitionState, StartPolicy, TopicPartition, Watermarks
from offsetstore.errors import BrokerUnavailable, StartError, TopicRecreated, UncertainBatch, WrongCluster
from offsetstore.offsets import BrokerView, CommittedOffset, TopicLog
from offsetstore.operations.reads import beyond_end, lag_of, read_adoption
from offsetstore.store.adoption import QueryCheckpoint
from offsetstore.testing import InMemoryOffsetStore, MemoryDatabase, StaticBroker

P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOGS = {number: Watermarks(0, 500) for number in (0, 1)}


class Clock:
    now = NOW

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[InMemoryOffsetStore]:
    with InMemoryOffsetStore(MemoryDatabase(clock)) as made:
        yield made


@pytest.fixture
def broker() -> StaticBroker:
    return StaticBroker.with_topics({"payments": 2}, end=10)


@pytest.fixture
def claim(store: InMemoryOffsetStore, broker: StaticBroker) -> Claim:
    """A live job that has stored 4 of partition 0 and 0 of partition 1."""
    claim = store.claim("billing", broker, mirror_every=None)
    advance(store, claim, OffsetRange(0, 4))
    return claim


def advance(store: InMemoryOffsetStore, claim: Claim, range_: OffsetRange) -> None:
    with store.transaction(claim) as tx:
        tx.advance({P0: tx.lock({P0: range_})[P0].remaining})


@pytest.mark.behaviour("OPS-16")
def test_an_offset_beyond_the_end_has_no_lag_and_what_is_behind_a_transaction_is_unread() -> None:
    assert (lag_of(11, Watermarks(5, 10)), beyond_end(11, Watermarks(5, 10))) == (None, 1)
    hanging = Watermarks(5, 10, high=30)
    assert (lag_of(10, hanging), beyond_end(10, hanging)) == (20, 0)


@pytest.mark.behaviour("OPS-16")
def test_a_state_with_an_offset_beyond_the_end_has_no_lag_of_the_others(
    store: InMemoryOffsetStore, broker: StaticBroker, claim: Claim
) -> None:
    broker.set_log(P0, 0, 3)
    state = store.group_state("billing", broker)
    assert (state.partitions[P0].lag, state.partitions[P0].beyond_end, state.lag) == (None, 1, None)


@pytest.mark.behaviour("OPS-12", "OPS-16")
@pytest.mark.parametrize(
    ("view", "error"),
    [
        (
            BrokerView("another", {"payments": TopicLog("payments-id", LOGS)}, {}),
            WrongCluster("stored offsets of payments belong to another Kafka cluster"),
        ),
        (
            BrokerView(None, {"payments": TopicLog("another", LOGS)}, {}),
            TopicRecreated("the topic payments was created anew: stored offsets belong to the log that was deleted"),
        ),
        (
            BrokerView(None, {"payments": TopicLog(None, {1: LOGS[1]})}, {}),
            TopicRecreated("Kafka no longer has payments-0, and offset 4 is stored for it"),
        ),
    ],
)
def test_a_log_that_the_stored_offset_does_not_belong_to_gives_no_lag(
    store: InMemoryOffsetStore, broker: StaticBroker, claim: Claim, view: BrokerView, error: StartError
) -> None:
    broker.current = view
    state = store.group_state("billing", broker)
    found = state.partitions[P0]
    assert (found.log, found.lag, found.headroom, state.lag) == (None, None, None, None)
    assert found.error is not None
    assert (type(found.error), found.error.what) == (type(error), error.what)


@pytest.mark.behaviour("OPS-12")
def test_a_partition_that_the_new_topic_lacks_leaves_the_lag_of_the_others_known(
    store: InMemoryOffsetStore, broker: StaticBroker, claim: Claim
) -> None:
    broker.current = BrokerView(None, {"payments": TopicLog("another", {1: LOGS[1]})}, {})
    policy = StartPolicy(on_recreated="restart")
    store.claim("billing", broker, topics=["payments"], policy=policy, mirror_every=None).close()
    state = store.group_state("billing", broker)
    assert (state.partitions[P0].lag, state.partitions[P0].error, state.lag) == (None, None, state.partitions[P1].lag)
    assert state.lag is not None
    assert store.group_state("billing").lag is None


def test_it_holds_the_owner_and_what_is_stored_committed_and_in_the_log(
    store: InMemoryOffsetStore, broker: StaticBroker, claim: Claim, clock: Clock
) -> None:
    broker.current = replace(broker.current, committed={P0: CommittedOffset(2, "theirs")})
    clock.now += timedelta(seconds=7)

    state = store.group_state("billing", broker)

    rows, log = store.offsets("billing"), Watermarks(0, 10, high=10, leader_epoch=0)
    assert state.partitions == {
        P0: PartitionState(rows[P0], timedelta(seconds=7), CommittedOffset(2, "theirs"), log),
        P1: PartitionState(rows[P1], timedelta(seconds=7), None, log),
    }
    assert (state.group, state.read_at, state.decision, state.broker_error) == ("billing", clock.now, None, None)
    assert state.owner is not None
    assert (state.owner.token, state.owner.alive_for) == (claim.token, timedelta(seconds=7))
    assert [one.lag for one in state.partitions.values()] == [6, 10]
    assert (state.lag, state.is_live, state.is_known) == (16, True, True)


def test_a_partition_that_only_the_log_has_has_no_lag_and_a_broker_that_is_silent_hides_nothing_of_the_store(
    store: InMemoryOffsetStore, broker: StaticBroker, claim: Claim
) -> None:
    logs = {number: Watermarks(0, 10) for number in (2, 1, 0)}
    broker.current = replace(broker.current, topics={"payments": TopicLog("payments-id", logs)})
    state = store.group_state("billing", broker)
    assert list(state.partitions) == [P0, P1, P2]
    found = state.partitions[P2]
    assert found == PartitionState(log=Watermarks(0, 10, high=10, leader_epoch=0))
    assert (found.lag, found.pinned, found.contested, state.lag) == (None, False, False, 16)

    broker.set_log(P0, 7, 10)
    parts = store.group_state("billing", broker).partitions
    assert (parts[P0].headroom, parts[P0].lag, parts[P1].headroom) == (-3, 6, 0), "records were removed unread"

    broker.error = BrokerUnavailable("no answer")
    state = store.group_state("billing", broker)
    assert state == replace(store.group_state("billing"), broker_error=broker.error), "nothing of the store is hidden"


def test_a_decision_shows_until_the_next_claim(store: InMemoryOffsetStore, broker: StaticBroker, claim: Claim) -> None:
    store.reset("billing", {P0: 2}, reason="ticket 17", actor="alice")
    state = store.group_state("billing")
    assert state.owner is not None
    assert (state.owner.owner, state.decision, state.is_live) == ("alice", "reset", False)
    assert [one.pinned for one in state.partitions.values()] == [True, False]

    store.claim("billing", broker, mirror_every=None).close()
    state = store.group_state("billing")
    assert (state.decision, state.is_live) == (None, False)


def test_an_adoption_that_is_refused_still_shows_the_partitions_that_are_certain(
    store: InMemoryOffsetStore, claim: Claim
) -> None:
    ends = {P0: 20, P1: 30, P2: 40, TopicPartition("refunds", 0): 50}
    checkpoint = QueryCheckpoint("/old", 11, ends, 12, {P1: OffsetRange(30, 35), P2: OffsetRange(40, 45)})
    stored = {P0: store.offsets("billing")[P0], P1: store.offsets("billing")[P1]}

    refused = read_adoption(checkpoint, stored, "fail")
    assert isinstance(refused.refusal, UncertainBatch)
    assert refused.adopted == {TopicPartition("refunds", 0): 50}
    assert [refused.start(tp) for tp in ends] == [4, 0, None, 50]

    replayed, skipped = read_adoption(checkpoint, stored, "replay"), read_adoption(checkpoint, stored, "skip")
    assert (replayed.refusal, [replayed.start(tp) for tp in ends]) == (None, [4, 0, 40, 50])
    assert (skipped.refusal, [skipped.start(tp) for tp in ends]) == (None, [4, 0, 45, 50])

    without_records = read_adoption(QueryCheckpoint("/old", 11, {P0: 20, P1: 30}, 12, {}), {}, "fail")
    assert without_records.refusal is not None
    assert without_records.adopted == {}
