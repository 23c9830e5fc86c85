"""Where a job begins to read, with a real Spark that has to accept it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from offsetstore import Append, StartPolicy, TopicPartition, TransactionalSink, resolve_starting_offsets
from offsetstore.errors import OffsetOutOfRange
from offsetstore.kafka import admin
from offsetstore.testing.fixtures import NewTopic
from tests.support.transforms import EVENTS, events
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World

VALUES = "SELECT value FROM events ORDER BY value"


def decisions(world: World, topic: str) -> list[tuple[Any, ...]]:
    """The history of the topic's offsets: event, from, to."""
    history = world.store.history(world.group)
    return [
        (event.event, event.from_offset, event.to_offset)
        for event in history
        if event.topic_partition is not None and event.topic_partition.topic == topic
    ]


@pytest.mark.behaviour("START-5")
def test_a_new_group_begins_where_it_asks_to(world: World) -> None:
    topic = world.topic(partitions=2)
    noon = datetime(2024, 7, 1, 12, tzinfo=UTC)
    at = int(noon.timestamp() * 1000)
    records = [admin.Record(name.encode(), None, 0, at + minutes * 60_000) for name, minutes in (("a", -1), ("b", 0))]
    admin.produce(world.kafka.bootstrap_servers, topic, [*records, admin.Record(b"c", None, 1, at - 1)])
    for reset, expected in (("earliest", (0, 0)), ("latest", (2, 1)), (noon, (1, 1))):
        policy = StartPolicy(auto_offset_reset=reset)  # pyright: ignore[reportArgumentType] - of a tuple
        claim = world.claim(topic, group=f"{world.group} {reset}", policy=policy)
        assert json.loads(claim.starting_offsets) == {topic: {"0": expected[0], "1": expected[1]}}


@pytest.mark.behaviour("START-7")
def test_records_that_were_removed_before_they_were_read_stop_the_start_unless_that_is_accepted(world: World) -> None:
    topic = world.events_topic(["a", "b"])
    first = world.claim(topic)
    world.advance(first, {TopicPartition(topic, 0): 2})
    world.produce(topic, ["c", "d", "e"])
    admin.delete_records(world.kafka.bootstrap_servers, topic, {0: 4})

    with pytest.raises(OffsetOutOfRange) as error:
        world.claim(topic)
    assert error.value.topic_partition == TopicPartition(topic, 0)
    assert "[2, 4)" in str(error.value)
    owner = world.store.owner(world.group)
    assert owner is not None
    assert owner.token == first.token

    world.run(world.claim(topic, policy=StartPolicy(on_data_loss="earliest")), events, Append("events"))
    assert world.database.column(VALUES) == ["e"]
    assert decisions(world, topic)[-1] == ("skip", 2, 4)


@pytest.mark.behaviour("START-7")
def test_records_that_are_removed_while_the_job_stands_still_end_it_instead_of_a_silent_skip(world: World) -> None:
    topic = world.events_topic(["a", "b", "c"])
    claim = world.claim(topic)
    admin.delete_records(world.kafka.bootstrap_servers, topic, {0: 2})

    world.run_to_failure(claim, events, Append("events"))

    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("START-11")
def test_a_partition_that_is_created_between_claim_and_start_makes_spark_refuse_and_a_new_claim_works(
    world: World,
) -> None:
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    admin.create_partitions(world.kafka.bootstrap_servers, topic, total=2)
    world.produce(topic, ["b"], partition=1)

    failed = world.run_to_failure(claim, events, Append("events"))

    assert failed.error is None  # the sink was never called: this is Spark's own refusal
    assert "startingOffsets" in failed.text or "must be specified" in failed.text
    assert f"{topic}-1" in failed.text
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}
    assert json.loads(world.claim(topic).starting_offsets) == {topic: {"0": 0, "1": 0}}


@pytest.mark.behaviour("START-23", "START-5")
def test_the_resolver_alone_gives_json_that_spark_reads_from_and_writes_nothing(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    topic, fresh = offsetstore_topic(2), offsetstore_topic(1)
    world.produce(topic, ["a", "b"])
    claim = world.claim(topic)
    world.advance(claim, {TopicPartition(topic, 0): 2})
    world.produce(topic, ["c"])
    world.produce(topic, ["d"], partition=1)
    noon = datetime(2024, 7, 1, 12, tzinfo=UTC)
    at = int(noon.timestamp() * 1000)
    records = [admin.Record(name.encode(), None, 0, at + seconds) for name, seconds in (("e", -1), ("f", 0))]
    admin.produce(world.kafka.bootstrap_servers, fresh, records)
    before = world.database.rows("SELECT * FROM kafka_partitions ORDER BY partition")

    start = resolve_starting_offsets(world.broker(topic, fresh), group=world.group, store=world.store)

    options = world.options(topic, fresh, startingOffsets=start.json())
    batch = world.spark.read.format("kafka").options(**options).load()
    assert sorted(row.value for row in events(batch).collect()) == ["c", "d", "e", "f"]
    assert f"{topic}-0" in start.explain()
    assert world.database.rows("SELECT * FROM kafka_partitions ORDER BY partition") == before
    assert claim.token == world.store.offsets(world.group)[TopicPartition(topic, 0)].token
    # A start by time can be left to Spark.
    start = resolve_starting_offsets(world.broker(fresh), group=world.group, policy=StartPolicy(auto_offset_reset=noon))
    options = world.options(fresh, startingOffsetsByTimestamp=start.timestamps_json())
    batch = world.spark.read.format("kafka").options(**options).load()
    assert [row.value for row in events(batch).collect()] == ["f"]


@pytest.mark.behaviour("TX-10", "START-11")
def test_a_partition_that_is_added_while_the_job_runs_is_read_from_its_beginning(world: World) -> None:
    topic = world.events_topic(["a"])
    claim = world.claim(topic, policy=StartPolicy(auto_offset_reset="latest"))
    sink = TransactionalSink(claim, events, into=Append("events"))
    stream = world.read(claim, **{"kafka.metadata.max.age.ms": "100"})
    query = world.start(
        sink, stream, checkpoint=claim.checkpoint(world.checkpoints), trigger={"processingTime": "100 milliseconds"}
    )
    world.produce(topic, ["b"])
    wait_until(lambda: world.stored(topic) == {0: 2}, timeout=SECONDS)

    admin.create_partitions(world.kafka.bootstrap_servers, topic, total=2)
    world.produce(topic, ["c", "d"], partition=1)
    wait_until(lambda: world.stored(topic) == {0: 2, 1: 2}, timeout=SECONDS)
    query.stop()

    assert sink.error is None
    assert world.database.column(VALUES) == ["b", "c", "d"]
    assert decisions(world, topic)[-1] == ("adopt", None, 0)


def commit_by_java(world: World, topic: str, texts: Mapping[int, str]) -> None:
    """Commit offset 1 with a text, by partition, as a Java program does: texts do not end with a zero byte."""
    context: Any = world.spark.sparkContext
    java, kafka = context._jvm.java, context._jvm.org.apache.kafka
    settings, offsets = java.util.HashMap(), java.util.HashMap()
    settings.put("bootstrap.servers", world.kafka.bootstrap_servers)
    for partition, text in texts.items():
        committed = kafka.clients.consumer.OffsetAndMetadata(1, text)
        offsets.put(kafka.common.TopicPartition(topic, partition), committed)
    admin = kafka.clients.admin.Admin.create(settings)
    admin.alterConsumerGroupOffsets(world.group, offsets).all().get()
    admin.close()


def test_texts_of_other_programs_do_not_stop_a_start(world: World, offsetstore_topic: NewTopic) -> None:
    topic = offsetstore_topic(60)
    # librdkafka keeps them without an end: for some lengths, what follows in memory is no text.
    commit_by_java(world, topic, {partition: "x" * partition for partition in range(60)})
    committed = world.broker(topic).view(world.group, [topic]).committed
    assert {tp.partition for tp in committed} == set(range(60))
    assert {offset.next_offset for offset in committed.values()} == {1}
