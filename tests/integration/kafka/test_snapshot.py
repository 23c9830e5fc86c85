"""An overview of many topics and groups on a real Kafka: what can't be had does not spoil the rest."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping

import confluent_kafka as ck
import pytest

from offsetstore.errors import BrokerUnavailable, ConfigurationError, TopicMissing
from offsetstore.kafka import Broker
from offsetstore.kafka.admin import Record, delete_records, delete_topic, produce
from offsetstore.local.free_ports import free_port
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.offsets import CommittedOffset, TopicPartition
from offsetstore.protocol.ports import BrokerOverview
from offsetstore.protocol.snapshot import FoundRecord, LogEnds
from offsetstore.testing.fixtures import NewTopic
from tests.support.waiting import wait_until


def test_topics_and_groups_are_told_at_once_and_a_deleted_topic_spoils_none(
    broker: Broker, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic, other, gone = offsetstore_topic(2), offsetstore_topic(1), offsetstore_topic(1)
    servers = offsetstore_kafka.bootstrap_servers
    produce(servers, topic, [Record(b"x", partition=number % 2) for number in range(10)])
    delete_records(servers, topic, {1: 2})
    broker.commit(offsetstore_group, {TopicPartition(topic, 0): CommittedOffset(3, "note")})
    delete_topic(servers, gone)
    second = f"{offsetstore_group}-2"
    member = ck.Consumer({"bootstrap.servers": servers, "group.id": second, "auto.offset.reset": "earliest"})
    member.subscribe([other])
    try:
        wait_until(lambda: (member.poll(0.1), broker.has_members(second))[1])
        port: BrokerOverview = broker
        shown = port.snapshot({offsetstore_group: [topic, gone], second: [other]})
    finally:
        member.close()
    assert shown.cluster_id == broker.view(offsetstore_group, [topic]).cluster_id
    assert shown.topics[topic].partitions == {0: LogEnds(0, 5, 5), 1: LogEnds(2, 5, 5)}
    assert shown.topics[topic].topic_id == broker.topic_ids([topic])[topic]
    assert (shown.topics[topic].partition_count, shown.topics[topic].error) == (2, None)
    assert isinstance(shown.topics[gone].error, TopicMissing)
    assert shown.topics[gone].partitions == {}
    group = shown.groups[offsetstore_group]
    assert group.committed == {TopicPartition(topic, 0): CommittedOffset(3, "note")}
    assert (group.has_members, group.error) == (False, None)
    assert (shown.groups[second].committed, shown.groups[second].has_members) == ({}, True)


def test_each_partition_is_searched_with_a_time_of_its_own_and_single_records_are_read(
    broker: Broker, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offsetstore.kafka.overview._READ_SECONDS", 60.0)
    topic, noon = offsetstore_topic(2), 1_700_000_000_000
    p0, p1 = TopicPartition(topic, 0), TopicPartition(topic, 1)
    records = [Record(b"x", partition=tp.partition, timestamp_ms=noon + 10 * at) for at in range(4) for tp in (p0, p1)]
    produce(offsetstore_kafka.bootstrap_servers, topic, records)
    found = {(p0, noon + 15): FoundRecord(2, noon + 20), (p0, noon): FoundRecord(0, noon), (p1, noon + 31): None}
    assert broker.first_records([*found, (TopicPartition(f"{topic}x", 0), 0)]) == found
    started = time.monotonic()
    assert broker.read_records({p0: 3, p1: 4}) == {p0: FoundRecord(3, noon + 30), p1: None}
    assert time.monotonic() - started < 30  # it does not wait for as long as it may
    assert broker.first_records([]) == broker.read_records({}) == {}


def test_the_requests_and_connections_do_not_grow_with_partitions_or_calls(
    offsetstore_kafka: KafkaBroker,
    offsetstore_topic: NewTopic,
    offsetstore_group: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = Broker({"bootstrap.servers": offsetstore_kafka.bootstrap_servers, "debug": "protocol"})
    groups = [f"{offsetstore_group}-{number}" for number in range(3)]
    kept: list[dict[str, object]] = []
    for partitions in (1, 40):
        asked = {group: (offsetstore_topic(partitions),) for group in groups}

        def sent(asked: Mapping[str, Collection[str]] = asked, partitions: int = partitions) -> Counter[str]:
            caplog.clear()
            with caplog.at_level(logging.DEBUG, logger="offsetstore.kafka"):
                shown = broker.snapshot(asked)
            is_whole = sum(len(topic.partitions) for topic in shown.topics.values()) == 3 * partitions
            return Counter(re.findall(r"Sent (\w+)Request", caplog.text) if is_whole else ())

        def is_constant() -> bool:
            requests = sent()
            of_kinds = requests["ListOffsets"], requests["OffsetFetch"], requests["ListGroups"]
            return of_kinds == (3, 3, 1) and requests.total() <= 20

        wait_until(is_constant)  # at first it makes the connections, and a new topic may be asked for again
        assert broker._group_connections is not None
        kept.append({**broker._group_connections._kept})
    assert kept[0] == kept[1], "the connections are used again"
    broker.snapshot({groups[0]: [offsetstore_topic(1)], groups[1]: ["no-such-topic"]})
    assert broker._group_connections is not None
    assert broker._group_connections._kept.keys() == {groups[0]}, "others are ended"
    broker.close()


def test_without_a_broker_it_is_unavailable_in_time(offsetstore_group: str) -> None:
    broker = Broker({"bootstrap.servers": f"127.0.0.1:{free_port()}"}, timeout=1)
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable):
        broker.snapshot({offsetstore_group: ["payments"]})
    with pytest.raises(BrokerUnavailable):
        broker.first_records([(TopicPartition("payments", 0), 0)])
    assert time.monotonic() - started < 10  # by default it would be 30
    with pytest.raises(ConfigurationError):
        broker.snapshot({"": ["payments"]})
