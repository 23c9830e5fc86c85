"""A Broker on a real Kafka: what it sees, how it refuses, and in how many requests."""

from __future__ import annotations

import os
import sys
import time

import pytest
from confluent_kafka import Producer

from offsetstore.errors import BrokerRefused, ConfigurationError, TopicMissing
from offsetstore.kafka import Broker
from offsetstore.kafka.admin import NewRecord, delete_records, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.offsets import CommittedOffset, TopicPartition, Watermarks
from offsetstore.protocol.ports import LogEnds
from offsetstore.testing.fixtures import NewTopic
from tests.support.waiting import wait_until


def with_password(kafka: KafkaBroker, password: str, topic: str) -> Broker:
    return Broker.from_spark(
        {
            "kafka.bootstrap.servers": kafka.sasl_bootstrap_servers,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'username="{kafka.user.name}" password="{password}";'
            ),
            "subscribe": topic,
        }
    )


def test_a_view_holds_ids_log_ends_and_what_is_committed_with_its_metadata(
    broker: Broker, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic, other, servers = offsetstore_topic(3), offsetstore_topic(1), offsetstore_kafka.bootstrap_servers
    noon = 1_700_000_000_000
    produce(servers, topic, [NewRecord(b"x", partition=n % 2, timestamp_ms=noon + 10 * n) for n in range(10)])
    delete_records(servers, topic, {1: 2})
    view = broker.view(offsetstore_group, [topic], timestamp_ms=noon + 35)
    assert view.cluster_id
    assert view.topics[topic].partitions == {
        number: Watermarks(begin, end, high=end, leader_epoch=0)
        for number, (begin, end) in enumerate([(0, 5), (2, 5), (0, 0)])
    }
    assert view.committed == {}
    # The first offset at or after the time, and else the end.
    assert view.timestamps == {TopicPartition(topic, number): offset for number, offset in enumerate([2, 2, 0])}

    of_topic = {
        TopicPartition(topic, 0): CommittedOffset(7, "größer ☃"),
        TopicPartition(topic, 2): CommittedOffset(2**62),
    }
    broker.commit(offsetstore_group, {**of_topic, TopicPartition(other, 0): CommittedOffset(0, "{}")})
    narrowed = Broker.from_spark({"kafka.bootstrap.servers": servers, "assign": f'{{"{topic}": [2, 0]}}'})
    assert narrowed.topics == (topic,)
    view = narrowed.view(offsetstore_group, [topic])
    assert view.timestamps is None
    assert list(view.topics[topic].partitions) == [0, 2]
    assert view.committed == of_topic


def test_an_open_transaction_is_below_the_end_unless_the_job_reads_committed_records(
    broker: Broker, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic, group, servers = offsetstore_topic(1), offsetstore_group, offsetstore_kafka.bootstrap_servers
    produce(servers, topic, [NewRecord(b"x")] * 2)
    writer = Producer({"bootstrap.servers": servers, "transactional.id": group, "log_level": 0})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(topic, b"y")
    writer.flush(30)
    careful = Broker.from_spark({"kafka.bootstrap.servers": servers, "kafka.isolation.level": "read_committed"})
    try:
        for one, end in ((broker, 3), (careful, 2)):
            assert one.view(group, [topic]).topics[topic].partitions[0].end == end
            assert one.snapshot({group: [topic]}).topics[topic].partitions[0] == LogEnds(0, 3, 2)
    finally:
        writer.abort_transaction(30)
    # The aborted record and its marker, written after the answer, are holes that a committed reader passes.
    wait_until(lambda: careful.view(group, [topic]).topics[topic].partitions[0].end == 4)
    careful.close()


@pytest.mark.behaviour("START-16")
def test_a_missing_topic_is_named_with_the_one_that_was_meant(
    broker: Broker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic = offsetstore_topic(1)
    started = time.monotonic()
    with pytest.raises(TopicMissing, match=f"Kafka has no topic {topic}x") as error:
        broker.view(offsetstore_group, [topic, f"{topic}x"])
    assert time.monotonic() - started < 10  # its limit is 15
    assert topic in error.value.next_step.split("?")[0]
    assert broker.topic_ids([topic])
    with pytest.raises(TopicMissing):
        broker.topic_ids([f"{topic}x"])


@pytest.mark.behaviour("START-16", "OPS-7")
def test_wrong_credentials_are_refused_promptly_and_the_right_ones_are_let_in(
    offsetstore_kafka: KafkaBroker,
    offsetstore_topic: NewTopic,
    offsetstore_group: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    topic = offsetstore_topic(1)
    wrong = with_password(offsetstore_kafka, "not-the-password", topic)
    started = time.monotonic()
    for _attempt in range(2):  # the second one asks Kafka again, and does not repeat what the first was told
        with pytest.raises(BrokerRefused, match="credentials") as refused:
            wrong.view(offsetstore_group, [topic])
        assert "not-the-password" not in str(refused.value)
    with pytest.raises(BrokerRefused, match="credentials") as refused:
        wrong.snapshot({offsetstore_group: [topic]})
    assert "not-the-password" not in str(refused.value)
    assert time.monotonic() - started < 15  # the limit of each
    right = with_password(offsetstore_kafka, offsetstore_kafka.user.password, topic)
    assert right.view(offsetstore_group, [topic]).topics.keys() == {topic}
    assert capfd.readouterr().err == ""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # newer Pythons warn of what is shown here
def test_a_client_does_not_cross_a_fork(broker: Broker, offsetstore_topic: NewTopic, offsetstore_group: str) -> None:
    topic = offsetstore_topic(1)
    offsets = {TopicPartition(topic, 0): CommittedOffset(1)}
    broker.commit(offsetstore_group, offsets)
    before = broker.view(offsetstore_group, [topic])
    for ask in (lambda: broker.view(offsetstore_group, [topic]), lambda: broker.commit(offsetstore_group, offsets)):
        sys.stdout.flush()
        child = os.fork()
        if not child:
            try:
                ask()
            except ConfigurationError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    broker.commit(offsetstore_group, offsets)
    assert broker.view(offsetstore_group, [topic]) == before
