"""Lag in records and in time on a real Kafka, of records whose timestamps are planted."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pytest

from offsetstore import Broker, OffsetRange, OffsetStore, TopicLag, TopicPartition
from offsetstore.kafka.admin import Record, produce
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.testing.fixtures import NewTopic
from tests.support.consumer_groups import consumer_groups_tool

HOUR = 3600
DAY = 24 * HOUR


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
