"""Recipes of docs/consumer.md: from another consumer's committed offsets, and between a Spark job and consumers."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from pyspark.sql import DataFrame

from offsetstore import Append, Flush, TopicPartition
from offsetstore.consumer import Consumer
from offsetstore.errors import GroupBusy, StaleClaim
from tests.support.background import in_background
from tests.support.consumer_job import parse
from tests.support.waiting import wait_until
from tests.support.world import World

RECORDS = "SELECT record FROM results ORDER BY record"


def rows(batch: DataFrame) -> DataFrame:
    return batch.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS record")


def consumer_of(world: World, topic: str) -> Consumer:
    kafka: dict[str, Any] = {
        "bootstrap.servers": world.kafka.bootstrap_servers,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
    }
    settings: dict[str, Any] = {"transform": parse, "into": Append("results"), "flush": Flush(rows=100, seconds=0.2)}
    return Consumer(world.store, world.group, topics=[topic], kafka=kafka, **settings)


def produce(world: World, topic: str, *numbers: int) -> None:
    for number in numbers:
        world.produce(topic, [str(number)], partition=number % 2)


def has(world: World, *numbers: int) -> bool:
    return world.database.column(RECORDS) == list(numbers)


def copied(world: World, topic: str) -> dict[int, int]:
    tps = [TopicPartition(topic, number) for number in range(2)]
    found = world.broker(topic).committed_offsets(world.group, tps)
    return {tp.partition: offset.next_offset for tp, offset in found.items()}


@pytest.mark.behaviour("CONS-2", "CONS-14")
def test_a_group_moves_from_another_consumer_to_ours_to_spark_and_back_without_a_gap_or_a_double(world: World) -> None:
    world.database.execute("CREATE TABLE results (record bigint)")
    topic = world.topic(partitions=2)
    produce(world, topic, *range(10))
    theirs = confluent_kafka.Consumer({"bootstrap.servers": world.kafka.bootstrap_servers, "group.id": world.group})
    theirs.commit(
        offsets=[confluent_kafka.TopicPartition(topic, 0, 3), confluent_kafka.TopicPartition(topic, 1, 2)],
        asynchronous=False,
    )
    theirs.close()

    first = consumer_of(world, topic)
    running = in_background(first.run)
    wait_until(lambda: has(world, 5, 6, 7, 8, 9), timeout=60)
    first.stop()
    running.result(timeout=60)
    assert {line.event for line in world.store.history(world.group)} >= {"adopt"}

    produce(world, topic, 10, 11)
    with world.claim(topic, mirror_every=1.0) as claim:
        world.run(claim, rows, Append("results"))
        assert has(world, *range(5, 12))
        with pytest.raises(GroupBusy):
            consumer_of(world, topic).run()

    produce(world, topic, 12, 13)
    second = consumer_of(world, topic)
    running = in_background(second.run)
    wait_until(lambda: has(world, *range(5, 14)), timeout=60)
    # It still runs: the mirror waits until its members have left.
    with world.claim(topic, mirror_every=0.2) as claim:
        produce(world, topic, 14, 15)
        with pytest.raises(StaleClaim):
            running.result(timeout=60)
        world.run(claim, rows, Append("results"))
    assert has(world, *range(5, 16))
    assert world.stored(topic) == {0: 8, 1: 8}
    assert copied(world, topic) == {0: 8, 1: 8}

    third = consumer_of(world, topic)
    running = in_background(third.run)
    produce(world, topic, 16, 17)
    wait_until(lambda: running.done() or has(world, *range(5, 18)), timeout=60)
    third.stop()
    running.result(timeout=60)
    assert has(world, *range(5, 18))
    assert not any(row.contested for row in world.store.offsets(world.group).values())
