"""What other programs have committed for the group, with texts of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offsetstore.testing.fixtures import NewTopic
from tests.support.world import World


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
