"""An overview of many topics and groups on a real Kafka: what can't be had does not spoil the rest."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from contextlib import closing

import confluent_kafka as ck
import pytest

from offsetstore.errors import TopicMissing
from offsetstore.kafka import Broker
from offsetstore.kafka.admin import NewRecord, create_topic, delete_records, delete_topic, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.offsets import CommittedOffset, TopicPartition
from offsetstore.protocol.ports import BrokerOverview, FoundRecord, LogEnds
from offsetstore.testing.fixtures import NewTopic
from tests.support.waiting import wait_until


def test_topics_and_groups_are_told_at_once_and_a_deleted_topic_spoils_none(
    broker: Broker, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic, other, gone = offsetstore_topic(2), offsetstore_topic(1), offsetstore_topic(1)
    servers = offsetstore_kafka.bootstrap_servers
    produce(servers, topic, [NewRecord(b"x", partition=number % 2) for number in range(10)])
    delete_records(servers, topic, {1: 2})
    broker.commit(offsetstore_group, {TopicPartition(topic, 0): CommittedOffset(3, "note")})
    former_id = broker.topic_ids([gone])[gone]
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", former_id or "")
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
    create_topic(servers, gone, partitions=1)
    assert broker.topic_ids([gone])[gone] not in {None, former_id}
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
    records = [
        NewRecord(b"x", partition=tp.partition, timestamp_ms=noon + 10 * at) for at in range(4) for tp in (p0, p1)
    ]
    produce(offsetstore_kafka.bootstrap_servers, topic, records)
    found = {(p0, noon + 15): FoundRecord(2, noon + 20), (p0, noon): FoundRecord(0, noon), (p1, noon + 31): None}
    assert broker.first_records([*found, (TopicPartition(f"{topic}x", 0), 0)]) == found
    started = time.monotonic()
    assert broker.read_records({p0: 3, p1: 4}) == {p0: FoundRecord(3, noon + 30), p1: None}
    assert time.monotonic() - started < 30  # it does not wait for as long as it may
    assert broker.first_records([]) == broker.read_records({}) == {}


@pytest.mark.behaviour("START-19")
def test_the_requests_and_connections_do_not_grow_with_partitions_or_calls(
    offsetstore_kafka: KafkaBroker,
    offsetstore_topic: NewTopic,
    offsetstore_group: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of an overview, and of a start's look."""
    monkeypatch.setattr("offsetstore.kafka.group_offsets._FIRST_PATIENCE", 60.0)  # else it may ask twice
    config = {"bootstrap.servers": offsetstore_kafka.bootstrap_servers, "debug": "protocol"}
    broker = Broker(config)
    groups = [f"{offsetstore_group}-{number}" for number in range(3)]
    kept: list[dict[str, object]] = []

    def sent() -> Counter[str]:
        return Counter(re.findall(r"Sent (\w+)Request", caplog.text))

    caplog.set_level(logging.DEBUG, logger="offsetstore.kafka")
    for partitions in (1, 40):
        topics = [offsetstore_topic(partitions) for _ in groups]

        def is_constant(topics: list[str] = topics, partitions: int = partitions) -> bool:
            caplog.clear()
            shown = broker.snapshot({group: [topic] for group, topic in zip(groups, topics, strict=True)})
            requests = sent()
            of_kinds = requests["ListOffsets"], requests["OffsetFetch"], requests["ListGroups"]
            is_whole = sum(len(topic.partitions) for topic in shown.topics.values()) == 3 * partitions
            return is_whole and of_kinds == (3, 3, 1) and requests.total() <= 20

        wait_until(is_constant)  # at first it makes the connections, and a new topic may be asked for again
        assert broker._group_connections is not None
        kept.append({**broker._group_connections._kept})

        caplog.clear()
        with closing(Broker(config, timeout=60)) as fresh:
            view = fresh.view(groups[0], topics, timestamp_ms=0)

            def is_told(fresh: Broker = fresh) -> bool:
                assert fresh._looks.client is not None
                fresh._looks.client.forget()  # librdkafka's lines come when it is polled
                return sent()["ListOffsets"] >= 3

            wait_until(is_told)
        assert sum(len(topic.partitions) for topic in view.topics.values()) == 3 * partitions
        # Beginning, end, time: one each, since one broker leads them all.
        assert (sent()["ListOffsets"], sent()["OffsetFetch"]) == (3, 1)
        # How often a new connection asks for its way depends on the moment, but not on the partitions.
        assert sent().total() - 4 <= 15
    assert kept[0] == kept[1], "the connections are used again"
    broker.snapshot({groups[0]: [offsetstore_topic(1)], groups[1]: ["no-such-topic"]})
    assert broker._group_connections is not None
    assert broker._group_connections._kept.keys() == {groups[0]}, "others are ended"
    broker.close()
