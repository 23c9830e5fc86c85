"""The broker in memory, where it is told what to say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from offsetstore.errors import BrokerRefused, BrokerUnavailable, MetadataRefused, TopicMissing
from offsetstore.offsets import BrokerView, CommittedOffset, TopicLog, TopicPartition, Watermarks
from offsetstore.protocol.ports import BrokerOverview, FoundRecord, GroupSnapshot, LogEnds
from offsetstore.testing import StaticBroker

P0, P1 = TopicPartition("payments", 0), TopicPartition("payments", 1)


def test_it_refuses_what_kafka_refuses() -> None:
    broker = StaticBroker.with_topics({"payments": 1})
    broker.commit("billing", {P0: CommittedOffset(1, "☃" * 4095)})
    with pytest.raises(MetadataRefused):
        broker.commit("billing", {P0: CommittedOffset(1, "x" * 4096)})
    with pytest.raises(TopicMissing):
        broker.commit("billing", {TopicPartition("refunds", 0): CommittedOffset(1)})


def test_it_follows_its_script_then_shows_what_is_current() -> None:
    log = TopicLog("payments-id", {0: Watermarks(5, 10, high=10, leader_epoch=0)})
    broker = StaticBroker(BrokerView("cluster", {"payments": log}, {}))
    earlier = replace(broker.current, committed={P0: CommittedOffset(7)})
    broker.script = [BrokerUnavailable("down"), earlier, lambda: broker.set_log(P1, 0, 3), None]
    with pytest.raises(BrokerUnavailable):
        broker.view("billing", ["payments"])
    assert broker.view("billing", ["payments"]) == earlier
    grown = broker.view("billing", ["payments"])
    assert grown.topics["payments"].partitions == {
        0: Watermarks(5, 10, high=10, leader_epoch=0),
        1: Watermarks(0, 3, high=3, leader_epoch=0),
    }
    assert broker.view("billing", ["payments"]) == broker.view("billing", ["payments"]) == grown
    assert broker.asked == ["billing"] * 5


def test_a_snapshot_has_what_can_be_had() -> None:
    broker = StaticBroker.with_topics({"payments": 2, "refunds": 1}, end=10)
    overview: BrokerOverview = broker
    broker.set_committed({P0: 4})
    broker.members.add("audit")
    broker.last_stable[P1] = 7
    broker.unanswered = {"refunds": BrokerUnavailable("no leader"), "billing-2": BrokerRefused("no")}
    shown = overview.snapshot({"billing": ["payments", "gone"], "billing-2": ["payments"], "audit": ["refunds"]})
    assert shown.topics["payments"].partitions == {0: LogEnds(0, 10, 10), 1: LogEnds(0, 10, 7)}
    assert shown.topics["payments"].error is None
    assert isinstance(shown.topics["gone"].error, TopicMissing)
    assert isinstance(shown.topics["refunds"].error, BrokerUnavailable)
    assert shown.groups["billing"] == GroupSnapshot({P0: CommittedOffset(4)}, has_members=False)
    assert shown.groups["audit"].has_members
    assert shown.groups["billing-2"].committed is None
    broker.error = BrokerUnavailable("down")
    with pytest.raises(BrokerUnavailable):
        overview.snapshot({})


def test_it_finds_records_by_time_and_by_offset() -> None:
    broker = StaticBroker.with_logs({"payments": {0: (3, 9)}})
    broker.records[P0] = {2: 500, 3: 1000, 6: 3000, 8: 2000}
    overview: BrokerOverview = broker
    found = {(P0, 400): FoundRecord(3, 1000), (P0, 1001): FoundRecord(6, 3000), (P0, 3001): None}
    assert overview.first_records([*found, (TopicPartition("gone", 0), 0)]) == found
    assert broker.lookups == 1
    assert overview.read_records({P0: 7}) == {P0: FoundRecord(8, 2000)}
    assert overview.read_records({P0: 9}) == {P0: None}
    broker.may_read = False
    assert overview.read_records({P0: 7}) == {}
