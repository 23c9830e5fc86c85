"""How groups are beside Kafka: of rows as the store may have them, and with a broker that is told what to say."""

from __future__ import annotations

import time
from collections import UserDict
from collections.abc import Mapping, ValuesView
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from offsetstore import GroupState, Lag, PartitionState, StoredOffset, Token, TopicPartition, TopicState, Watermarks
from offsetstore.errors import (
    BrokerRefused,
    BrokerUnavailable,
    OffsetStoreError,
    TopicMissing,
    TopicRecreated,
    WrongCluster,
)
from offsetstore.offsets import BrokerView, CommittedOffset, Suspect, TopicLog
from offsetstore.operations.group_state import beyond_end, lag_of, measure
from offsetstore.operations.group_status import LagLimit, judge_group, judge_lag
from offsetstore.operations.people import StoreOverview
from offsetstore.protocol.database import GroupRow
from offsetstore.protocol.ports import LogEnds
from offsetstore.testing import StaticBroker

P0, P1, P2 = (TopicPartition("payments", number) for number in range(3))
R0 = TopicPartition("refunds", 0)
HOUR = 3600
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TOKEN = Token(3, UUID(int=3))
OWNER = GroupRow(TOKEN, "ana@host:7", NOW - timedelta(hours=2), timedelta(seconds=3))
BILLING = {P0: 4, P1: 10, R0: 7}
LOGS = {number: Watermarks(0, 500) for number in (0, 1)}


@pytest.fixture
def broker() -> StaticBroker:
    """Ten records in each partition, one an hour, the newest an hour old."""
    broker = StaticBroker.with_topics({"payments": 3, "refunds": 1}, end=10)
    now = int(time.time() * 1000)
    for tp in (P0, P1, P2, R0):
        broker.records[tp] = {offset: now - (10 - offset) * HOUR * 1000 for offset in range(10)}
    return broker


def row(next_offset: int, tp: TopicPartition = P0, **more: Any) -> StoredOffset:
    """One that has changed seven seconds ago."""
    at = NOW - timedelta(seconds=7)
    return StoredOffset(next_offset, TOKEN, topic_id=f"{tp.topic}-id", cluster_id="cluster", updated_at=at, **more)


def stored(**groups: Mapping[TopicPartition, int | StoredOffset]) -> StoreOverview:
    """What the store has of groups with a live job, by default of `BILLING`."""
    rows = {
        name: {tp: row(one, tp) if isinstance(one, int) else one for tp, one in offsets.items()}
        for name, offsets in (groups or {"billing": BILLING}).items()
    }
    return StoreOverview(NOW, dict.fromkeys(rows, OWNER), rows, {}, timedelta(0), {})


def lag(broker: StaticBroker, **groups: Mapping[TopicPartition, int | StoredOffset]) -> Lag:
    return measure(stored(**groups), broker, {})


def billing(broker: StaticBroker, offsets: Mapping[TopicPartition, int | StoredOffset] = BILLING) -> GroupState:
    return lag(broker, billing=offsets).groups["billing"]


def hours(one: PartitionState | TopicState) -> float | None:
    return None if one.lag_seconds is None else one.lag_seconds / HOUR


@pytest.mark.behaviour("OPS-16")
def test_an_offset_beyond_the_end_has_no_lag_and_what_is_behind_a_transaction_is_unread() -> None:
    assert (lag_of(11, Watermarks(5, 10)), beyond_end(11, Watermarks(5, 10))) == (None, 1)
    hanging = Watermarks(5, 10, high=30)
    assert (lag_of(10, hanging), beyond_end(10, hanging)) == (20, 0)


@pytest.mark.behaviour("OPS-12")
def test_it_is_told_in_records_and_in_time_for_each_partition_topic_and_group(broker: StaticBroker) -> None:
    found = lag(broker)
    group = found.groups["billing"]
    payments, refunds = group.topics["payments"], group.topics["refunds"]
    assert [one.lag for one in payments.partitions.values()] == [6, 0, None]
    assert hours(payments.partitions[P0]) == pytest.approx(6, rel=0.02)
    assert (payments.partitions[P1].lag_seconds, payments.partitions[P2].lag_seconds) == (0, None)
    assert (payments.lag, refunds.lag, group.lag) == (6, 3, 9)
    assert payments.lag_seconds == group.lag_seconds == payments.partitions[P0].lag_seconds
    assert hours(refunds.partitions[R0]) == pytest.approx(3, rel=0.02)
    assert (payments.without_offset, refunds.without_offset) == (1, 0)
    assert (payments.headroom, payments.is_bound, found.broker_error) == (4, False, None)


def test_it_holds_the_owner_and_what_is_stored_committed_and_in_the_log(broker: StaticBroker) -> None:
    broker.set_committed({P0: 2, P2: 9})
    found = measure(stored(billing={P1: 0, P0: 4}), broker, {}, in_time=False).groups["billing"]
    ends, age = LogEnds(0, 10, 10), timedelta(seconds=7)
    assert found.partitions == {
        P0: PartitionState(row(4), ends, CommittedOffset(2), age=age),
        P1: PartitionState(row(0), ends, age=age),
        P2: PartitionState(log=ends, committed=CommittedOffset(9)),
    }
    assert list(found.partitions) == [P0, P1, P2]
    assert (found.group, found.owner, found.read_at, found.is_live, found.lag) == ("billing", OWNER, NOW, True, 16)
    assert broker.lookups == 0

    alone = measure(stored(), None, {}).groups["billing"]
    assert (alone.kafka, alone.broker_error, alone.lag) == (None, None, None)


@pytest.mark.behaviour("OPS-16")
def test_a_stored_offset_beyond_the_end_of_the_log_is_never_lag_0_nor_is_the_group_s_that_of_the_others(
    broker: StaticBroker,
) -> None:
    broker.set_log(P1, 0, 8)
    group = billing(broker)
    short = group.topics["payments"].partitions[P1]
    assert (short.lag, short.lag_seconds, short.headroom, short.beyond_end) == (None, None, None, 2)
    assert (group.topics["payments"].lag, group.beyond_end) == (None, 2)
    assert (group.lag, group.lag_seconds, group.known_lag) == (None, None, 3)
    assert judge_lag(group, LagLimit(records=1000)) == ("lag-unknown",)
    assert judge_group(group) == ("log-lost-records",)


@pytest.mark.behaviour("OPS-16")
def test_a_group_whose_log_lost_records_and_has_grown_again_is_not_well(broker: StaticBroker) -> None:
    assert judge_group(billing(broker)) == ()
    suspect = Suspect("the log ended at 3, below the stored offset 4", NOW)
    group = billing(broker, {P0: row(4, suspect=suspect)})
    assert (group.topics["payments"].partitions[P0].lag, group.beyond_end) == (6, 0)
    assert judge_group(group) == ("log-lost-records",)


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
            BrokerView(None, {"payments": TopicLog(None, {0: LOGS[0]})}, {}),
            TopicRecreated("Kafka no longer has payments-1, and offset 10 is stored for it"),
        ),
    ],
)
def test_a_log_that_the_stored_offset_does_not_belong_to_gives_no_lag(
    broker: StaticBroker, view: BrokerView, error: OffsetStoreError
) -> None:
    broker.current = view
    group = billing(broker, {P1: 10})
    found = group.partitions[P1]
    assert (found.log, found.lag, found.headroom, group.lag) == (None, None, None, None)
    assert found.error is group.topics["payments"].error
    assert found.error is not None
    assert (type(found.error), found.error.what) == (type(error), error.what)


@pytest.mark.behaviour("OPS-12")
def test_a_partition_that_the_new_topic_lacks_leaves_the_lag_of_the_others_known(broker: StaticBroker) -> None:
    """It was created anew with fewer partitions, and a restart has set the others to 0."""
    broker.current = BrokerView(None, {"payments": TopicLog("payments-id", {0: LOGS[0]})}, {})
    group = billing(broker, {P0: 4, P1: 0})
    assert (list(group.partitions), group.lag, group.topics["payments"].error) == ([P0], 496, None)
    alone = measure(stored(billing={P0: 4, P1: 0}), None, {}).groups["billing"]
    assert (list(alone.partitions), alone.lag) == ([P0, P1], None)


@pytest.mark.behaviour("OPS-12")
def test_groups_and_partitions_share_the_rounds_and_an_idle_group_asks_for_no_times(broker: StaticBroker) -> None:
    idle = lag(broker, idle={P0: 10}).groups["idle"]
    assert (idle.lag, idle.lag_seconds, idle.topics["payments"].headroom) == (0, 0, None)
    assert broker.lookups == 0
    billing(broker)
    alone, broker.lookups = broker.lookups, 0
    copies = {f"copy-{number}": {P0: 4 + number, P1: 2} for number in range(5)}
    found = lag(broker, billing=BILLING, idle={P0: 10}, **copies).groups
    behind = [hours(found[name].partitions[P0]) for name in copies]
    assert [round(one or 0) for one in behind] == [6, 5, 4, 3, 2]
    assert broker.lookups <= alone + 3


@pytest.mark.behaviour("OPS-12")
def test_where_kafkas_answers_do_not_tell_a_few_records_are_read(broker: StaticBroker) -> None:
    del broker.records[P0][4], broker.records[P0][5]  # compacted: the next record is the one at 6
    partition = billing(broker).partitions[P0]
    assert (hours(partition), partition.is_bound) == (pytest.approx(4, rel=0.02), False)

    broker.may_read = False
    topic = billing(broker).topics["payments"]
    assert (hours(topic.partitions[P0]), topic.is_bound) == (pytest.approx(7, rel=0.02), True), "as old as the one read"

    broker.may_read = True
    broker.records[P0] = {offset: at for offset, at in broker.records[P0].items() if offset < 4}
    nothing = billing(broker).partitions[P0]
    assert (nothing.lag, nothing.lag_seconds) == (6, 0), "no record is unread: compaction has removed them"


def test_no_more_than_twenty_records_are_read(broker: StaticBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    now = int(time.time() * 1000)
    many = [TopicPartition("events", number) for number in range(30)]
    for tp in many:
        broker.set_log(tp, 0, 10)
        broker.records[tp] = {3: now - (100 - tp.partition) * HOUR * 1000, 9: now - HOUR * 1000}
    asked: list[dict[TopicPartition, int]] = []

    def read(wanted: dict[TopicPartition, int]) -> dict[TopicPartition, None]:
        asked.append(wanted)
        return {}

    monkeypatch.setattr(broker, "read_records", read)
    billing(broker, dict.fromkeys(many, 6))
    assert asked == [dict.fromkeys(many[:20], 6)], "those that may be the oldest"


def test_a_topic_or_group_without_an_answer_leaves_the_others_alone(broker: StaticBroker) -> None:
    gone = TopicPartition("gone", 0)
    broker.unanswered["audit"] = BrokerRefused("no DESCRIBE")
    found = lag(broker, billing=BILLING, audit={R0: 2, gone: 1})
    audit = found.groups["audit"]
    assert isinstance(audit.topics["gone"].error, TopicMissing)
    assert (audit.topics["gone"].lag, audit.topics["gone"].lag_seconds) == (None, None)
    assert isinstance(audit.partitions[gone].stored, StoredOffset)
    assert (audit.lag, audit.known_lag, audit.mirror_lag) == (None, 8, None)
    assert audit.kafka is not None
    assert isinstance(audit.kafka.error, BrokerRefused)
    assert found.groups["billing"].lag == 9
    assert found.broker_error is None


def test_without_kafka_what_is_stored_is_there_and_one_that_goes_away_meanwhile_costs_the_times_alone(
    broker: StaticBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = broker.error = BrokerUnavailable("down")
    found = lag(broker)
    group = found.groups["billing"]
    assert (found.kafka, found.broker_error, group.broker_error) == (None, down, down)
    assert group == replace(measure(stored(), None, {}).groups["billing"], broker_error=down), "nothing is hidden"
    assert (group.lag, group.lag_seconds, group.known_lag, group.mirror_lag, group.headroom) == (None,) * 5
    assert list(group.topics["payments"].partitions) == [P0, P1]

    def fail(_asked: object) -> None:
        raise down

    broker.error = None
    monkeypatch.setattr(broker, "first_records", fail)
    found = lag(broker)
    group = found.groups["billing"]
    assert (group.lag, group.lag_seconds, group.topics["refunds"].lag_seconds) == (9, None, None)
    assert found.broker_error is group.broker_error is down


def test_a_record_that_was_removed_unread_is_a_headroom_below_0(broker: StaticBroker) -> None:
    broker.set_log(P0, 7, 10)
    group = billing(broker, {P0: 4, P1: 0})
    assert (group.partitions[P0].headroom, group.partitions[P0].lag, group.partitions[P1].headroom) == (-3, 6, 0)
    assert group.headroom == -3


def test_copies_are_compared_under_the_groups_name_in_kafka_and_a_missing_one_is_behind(broker: StaticBroker) -> None:
    assert billing(broker).mirror_lag is None
    part = {P0: 1, P1: 8}
    broker.set_committed({P0: 1})
    assert billing(broker, part).mirror_lag == 8
    broker.unanswered["payments"] = BrokerUnavailable("payments has no leader")
    assert billing(broker, part).mirror_lag == 0, "nothing is known of its log"

    broker.unanswered.clear()
    broker.set_committed({P0: 1, P1: 12, P2: 3, R0: 7})
    group = billing(broker)
    assert (group.mirror_lag, group.mirror_lead) == (3, 2), "ahead of the store does not make up for it"
    broker.members = {"spark-billing"}
    other = measure(stored(), broker, {"billing": "spark-billing"}).groups["billing"]
    assert (other.mirror_lag, other.kafka and other.kafka.has_members) == (3, True)
    assert group.kafka is not None
    assert group.kafka.has_members is False


@pytest.mark.behaviour("DASH-1")
def test_a_sample_is_of_what_is_stored_and_has_no_more_than_is_known(broker: StaticBroker) -> None:
    measured = lag(broker)
    sample = measured.samples()["billing"]
    assert (sample.at, sample.stored, sample.log_end, sample.lag, sample.headroom) == (NOW, 21, 30, 9, 4)
    assert sample.lag_seconds == measured.groups["billing"].lag_seconds
    assert (sample.batches, sample.batch_seconds, sample.rows, sample.memory) == (None,) * 4, "no run has this epoch"
    assert sample.epoch == TOKEN.epoch

    broker.unanswered["refunds"] = BrokerUnavailable("refunds has no leader")
    partial = lag(broker).samples()["billing"]
    assert (partial.stored, partial.log_end, partial.lag, partial.headroom) == (21, None, None, None)
    assert lag(broker, deleted={}).samples() == {}


class Walked(UserDict[TopicPartition, PartitionState]):
    """Partitions, and how often they were gone through."""

    times = 0

    def values(self) -> ValuesView[PartitionState]:
        self.times += 1
        return super().values()


@pytest.mark.behaviour("DASH-1")
def test_a_bound_among_thousands_of_partitions_is_found_by_going_through_them_once_or_twice() -> None:
    parts = Walked(
        {
            TopicPartition("payments", number): PartitionState(row(4), lag_seconds=float(number), is_bound=True)
            for number in range(50)
        }
    )
    assert TopicState(parts).is_bound
    assert parts.times <= 2
