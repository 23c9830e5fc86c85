"""Lag in records and in time on a real Kafka, of records whose timestamps are planted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pytest

from offsetstore import Broker, OffsetRange, OffsetStore, TopicLag, TopicPartition
from offsetstore.kafka.admin import Record, create_topic, produce
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.testing.fixtures import NewTopic
from tests.support.consumer_groups import consumer_groups_tool
from tests.support.waiting import wait_until

HOUR = 3600
DAY = 24 * HOUR
# What `compact` needs to remove records within seconds.
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "max.compaction.lag.ms": "100",
    "delete.retention.ms": "100",
}


def give(store: OffsetStore, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Let a job process the partitions up to these offsets."""
    with store.claim(group, topics=sorted({tp.topic for tp in offsets}), mirror_every=None) as claim:
        ranges = {tp: OffsetRange(0, until) for tp, until in offsets.items()}
        with store.transaction(claim) as tx:
            tx.lock(ranges)
            tx.advance(ranges)


@pytest.fixture(autouse=True)
def _whatever_is_to_be_read_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """After two seconds an age would be a bound, on a busy machine."""
    monkeypatch.setattr("offsetstore.kafka.overview._READ_SECONDS", 60.0)


def plant(kafka: KafkaBroker, topic: str, ages: Mapping[int, Sequence[float]]) -> float:
    """Produce records of these ages, in seconds, to each partition; return the time at which they have these ages."""
    now = time.time()
    records = (
        Record(b"x", key=b"k%d" % number, partition=partition, timestamp_ms=int((now - age) * 1000))
        for partition, of_partition in ages.items()
        for number, age in enumerate(of_partition)
    )
    produce(kafka.bootstrap_servers, topic, records)
    return now


def within(age: float, since: float) -> object:
    """The age is right within a second or two percent, and the seconds that the test has taken since that time."""
    taken = time.time() - since
    return pytest.approx(age + taken / 2, abs=1 + taken / 2 + 0.02 * age)


@pytest.mark.behaviour("OPS-12")
def test_planted_ages_are_found_however_the_records_came(
    broker: Broker, store: OffsetStore, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic
) -> None:
    topic = offsetstore_topic(7)
    old = [10 * DAY - number * HOUR for number in range(240)]
    jitter = [3 * DAY - number * 60 + (number * 37 % 11) * 5 for number in range(1000)]
    since = plant(
        offsetstore_kafka,
        topic,
        {
            0: old,
            1: [60.0] * 500,
            2: [2 * HOUR - 0.01 * number for number in range(1000)],
            3: jitter,
            4: old,
            5: old,
        },
    )
    stored = {0: 168, 1: 250, 2: 999, 3: 500, 4: 0, 5: 240, 6: 0}
    give(store, "billing", {TopicPartition(topic, number): offset for number, offset in stored.items()})

    lag = store.lag(["billing"], broker).groups["billing"].topics[topic]
    assert [one.records for one in lag.partitions.values()] == [72, 250, 1, 500, 240, 0, 0]
    seconds = [one.seconds for one in lag.partitions.values()]
    assert seconds[0] == within(3 * DAY, since), "three days old"
    assert seconds[1] == within(60, since), "records of one timestamp"
    assert seconds[2] == within(2 * HOUR - 10, since), "records every ten milliseconds"
    assert seconds[3] == pytest.approx(jitter[500], abs=60 + 0.02 * jitter[500]), "out of order by 50 s"
    assert seconds[4] == within(10 * DAY, since), "just started"
    assert seconds[5:] == [0, 0], "idle, and empty"
    assert not any(one.is_bound for one in lag.partitions.values())
    assert lag.seconds == seconds[4]


@pytest.mark.behaviour("OPS-12")
def test_a_broker_s_own_timestamps_do_as_well(
    broker: Broker, store: OffsetStore, offsetstore_kafka: KafkaBroker, offsetstore_group: str
) -> None:
    topic = f"{offsetstore_group}-append-time"
    servers = offsetstore_kafka.bootstrap_servers
    create_topic(servers, topic, config={"message.timestamp.type": "LogAppendTime"})
    since = plant(offsetstore_kafka, topic, {0: [5 * DAY] * 10})
    give(store, "billing", {TopicPartition(topic, 0): 5})
    assert store.lag(None, broker).groups["billing"].seconds == within(0, since)


@pytest.mark.behaviour("OPS-12")
def test_where_compaction_has_removed_the_first_unread_records_the_next_one_counts(
    broker: Broker,
    store: OffsetStore,
    offsetstore_kafka: KafkaBroker,
    offsetstore_group: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = f"{offsetstore_group}-compacted"
    servers = offsetstore_kafka.bootstrap_servers
    create_topic(servers, topic, config=COMPACTED)
    now = time.time()

    def keyed(key: bytes, age: float) -> Record:
        return Record(b"x", key=key, timestamp_ms=int((now - age) * 1000))

    # Offsets 0 to 9; those from 2 to 5 are of one key, and only its last record, at 8, stays.
    ages = [5 * DAY, 4 * DAY, *[3 * DAY] * 4, 6 * HOUR, 5 * HOUR, 4 * HOUR, 3 * HOUR]
    keys = [b"a", b"b", *[b"c"] * 4, b"d", b"e", b"c", b"f"]
    produce(servers, topic, [keyed(key, age) for key, age in zip(keys, ages, strict=True)])
    p0 = TopicPartition(topic, 0)

    def is_compacted() -> bool:
        produce(servers, topic, [keyed(b"roll", 0)])  # a segment is closed by the next record
        return broker.read_records({p0: 2})[p0] == broker.read_records({p0: 6})[p0]

    wait_until(is_compacted, timeout=60)
    give(store, "billing", {p0: 2})
    found = store.lag(None, broker).groups["billing"].topics[topic].partitions[0]
    assert (found.seconds, found.is_bound) == (within(6 * HOUR, now), False), "the record was read"

    def may_not_read(_wanted: object) -> dict[TopicPartition, None]:
        return {}

    monkeypatch.setattr(broker, "read_records", may_not_read)
    bound = store.lag(None, broker).groups["billing"].topics[topic].partitions[0]
    assert (bound.seconds, bound.is_bound) == (within(4 * DAY, now), True), "as old as the last one below"


@pytest.mark.behaviour("OPS-12")
def test_at_rest_it_agrees_with_kafkas_own_tool(
    broker: Broker,
    store: OffsetStore,
    offsetstore_kafka: KafkaBroker,
    offsetstore_topic: NewTopic,
    offsetstore_group: str,
) -> None:
    topic = offsetstore_topic(3)
    plant(offsetstore_kafka, topic, {0: [60.0] * 10, 1: [50.0] * 7, 2: [40.0] * 3})
    with store.claim(offsetstore_group, broker, topics=[topic]) as claim:  # copies to Kafka when it is closed
        ranges = {TopicPartition(topic, number): OffsetRange(0, until) for number, until in enumerate((4, 7, 1))}
        with store.transaction(claim) as tx:
            tx.lock(ranges)
            tx.advance(ranges)
    shown = consumer_groups_tool(offsetstore_kafka, offsetstore_group)
    of_tool = {number: int(shown[topic, str(number)]["LAG"]) for number in range(3)}
    assert of_tool == {0: 6, 1: 0, 2: 2}
    assert records(store.lag(None, broker).groups[offsetstore_group].topics[topic]) == of_tool


def records(topic: TopicLag) -> dict[int, int | None]:
    return {number: one.records for number, one in topic.partitions.items()}
