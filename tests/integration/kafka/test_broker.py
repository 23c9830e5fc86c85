"""A Broker on a real Kafka: what it sees, how it refuses, and in how many requests."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka import admin as kafka_admin

from offsetstore.errors import BrokerRefused, BrokerUnavailable, ConfigurationError, TopicMissing
from offsetstore.kafka import Broker
from offsetstore.kafka.admin import Record, create_topic, delete_records, delete_topic, produce
from offsetstore.kafka.client import Client
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.offsets import CommittedOffset, TopicPartition, Watermarks
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


def commit(kafka: KafkaBroker, group: str, offsets: list[KafkaPartition]) -> None:
    admin: Any = kafka_admin.AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, offsets)])[group].result(30)


def test_a_view_holds_ids_log_ends_and_nothing_committed(
    broker: Broker, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic = offsetstore_topic(3)
    servers = offsetstore_kafka.bootstrap_servers
    produce(servers, topic, [Record(b"x", partition=number % 2) for number in range(10)])
    delete_records(servers, topic, {1: 2})
    view = broker.view(offsetstore_group, [topic])
    assert view.cluster_id
    assert view.topics[topic].partitions == {
        number: Watermarks(begin, end, high=end, leader_epoch=0)
        for number, (begin, end) in enumerate([(0, 5), (2, 5), (0, 0)])
    }
    assert view.committed == {}
    assert view.timestamps is None


def test_a_topic_that_is_made_anew_has_another_id(
    broker: Broker, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic
) -> None:
    topic = offsetstore_topic(1)
    before = broker.topic_ids([topic])[topic]
    assert before is not None
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", before)
    delete_topic(offsetstore_kafka.bootstrap_servers, topic)
    create_topic(offsetstore_kafka.bootstrap_servers, topic, partitions=1)
    assert broker.topic_ids([topic])[topic] not in {None, before}


def test_what_the_group_has_committed_comes_with_its_metadata(
    broker: Broker, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic, other = offsetstore_topic(3), offsetstore_topic(1)
    commit(
        offsetstore_kafka,
        offsetstore_group,
        [KafkaPartition(topic, 0, 7, metadata="hello"), KafkaPartition(topic, 2, 2**62), KafkaPartition(other, 0, 1)],
    )
    committed = broker.view(offsetstore_group, [topic]).committed
    assert committed.keys() == {TopicPartition(topic, 0), TopicPartition(topic, 2)}
    assert committed[TopicPartition(topic, 0)] == CommittedOffset(7, "hello")
    assert committed[TopicPartition(topic, 2)].next_offset == 2**62


def test_a_time_gives_the_first_offset_at_or_after_it_and_else_the_end(
    broker: Broker, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic = offsetstore_topic(2)
    noon = 1_700_000_000_000
    records = [Record(b"x", partition=0, timestamp_ms=noon + 10 * number) for number in range(4)]
    produce(offsetstore_kafka.bootstrap_servers, topic, [*records, Record(b"x", partition=1, timestamp_ms=noon)])
    view = broker.view(offsetstore_group, [topic], timestamp_ms=noon + 15)
    assert view.timestamps == {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 1}


def test_an_open_transaction_is_below_the_end_unless_the_job_reads_committed_records(
    broker: Broker, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic = offsetstore_topic(1)
    servers = offsetstore_kafka.bootstrap_servers
    produce(servers, topic, [Record(b"x")] * 2)
    writer = Producer({"bootstrap.servers": servers, "transactional.id": offsetstore_group, "log_level": 0})
    writer.init_transactions(30)
    writer.begin_transaction()
    writer.produce(topic, b"y")
    writer.flush(30)
    try:
        careful = Broker.from_spark({
            "kafka.bootstrap.servers": servers, "kafka.isolation.level": "read_committed"
        })  # fmt: skip
        assert broker.view(offsetstore_group, [topic]).topics[topic].partitions[0].end == 3
        assert careful.view(offsetstore_group, [topic]).topics[topic].partitions[0].end == 2
    finally:
        writer.abort_transaction(30)
    # The aborted record and its marker, written after the answer, are holes that a committed reader passes.
    wait_until(lambda: careful.view(offsetstore_group, [topic]).topics[topic].partitions[0].end == 4)


def test_assign_narrows_the_view_to_its_partitions(
    offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic = offsetstore_topic(3)
    broker = Broker.from_spark({
        "kafka.bootstrap.servers": offsetstore_kafka.bootstrap_servers, "assign": f'{{"{topic}": [2, 0]}}'
    })  # fmt: skip
    assert broker.topics == (topic,)
    assert list(broker.view(offsetstore_group, [topic]).topics[topic].partitions) == [0, 2]


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


@pytest.mark.behaviour("START-16")
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
    assert time.monotonic() - started < 10  # the limit of each is 15
    right = with_password(offsetstore_kafka, offsetstore_kafka.user.password, topic)
    assert right.view(offsetstore_group, [topic]).topics.keys() == {topic}
    assert capfd.readouterr().err == ""


def test_a_broker_that_stops_is_unavailable_and_answers_again_when_it_is_back(
    broker: Broker, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic = offsetstore_topic(1)
    hasty = Broker({"bootstrap.servers": offsetstore_kafka.bootstrap_servers})
    before = hasty.view(offsetstore_group, [topic])
    hasty._timeout = 1.5  # only now: the first answer may take longer
    offsetstore_kafka.stop()
    try:
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            hasty.view(offsetstore_group, [topic])
        assert time.monotonic() - started < 4  # and not once for each of the three clients that it tries
    finally:
        offsetstore_kafka.start()
    after = broker.view(offsetstore_group, [topic])
    [log], [former] = (view.topics[topic].partitions.values() for view in (after, before))
    assert (log.leader_epoch or 0) > (former.leader_epoch or 0)
    again = replace(after.topics[topic], partitions={0: replace(log, leader_epoch=former.leader_epoch)})
    assert replace(after, topics={topic: again}) == before


@pytest.fixture(scope="module")
def guarded_kafka() -> Iterator[KafkaBroker]:
    """A broker of its own, on which only the listener without passwords may do everything."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaBroker(settings=settings, heap="256m") as kafka:
        yield kafka


def allow(kafka: KafkaBroker, operation: str, kind: str, name: str) -> None:
    acl: Any = kafka_admin
    rule = acl.AclBinding(
        acl.ResourceType[kind],
        name,
        acl.ResourcePatternType.LITERAL,
        f"User:{kafka.user.name}",
        "*",
        acl.AclOperation[operation],
        acl.AclPermissionType.ALLOW,
    )
    admin = acl.AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_acls([rule])[rule].result(30)


def refusal(ask: Callable[[], object]) -> str:
    """What Kafka says no to, or nothing."""
    try:
        ask()
    except BrokerRefused as error:
        return str(error)
    return ""


def test_missing_permissions_are_refused_one_by_one(guarded_kafka: KafkaBroker) -> None:
    create_topic(guarded_kafka.bootstrap_servers, "payments", partitions=1)
    broker = with_password(guarded_kafka, guarded_kafka.user.password, "payments")

    def view() -> str:
        return refusal(lambda: broker.view("billing", ["payments"]))

    def commit() -> str:
        return refusal(lambda: broker.commit("billing", {TopicPartition("payments", 0): CommittedOffset(1)}))

    assert re.search(r"describing payments; found TOPIC_AUTHORIZATION_FAILED.*DESCRIBE the topic", view())
    allow(guarded_kafka, "DESCRIBE", "TOPIC", "payments")
    wait_until(lambda: "TOPIC_AUTHORIZATION_FAILED" not in view())
    assert re.search(r"group billing; found GROUP_AUTHORIZATION_FAILED.*DESCRIBE the consumer group", view())
    # Without that permission a commit finds no coordinator; READ brings DESCRIBE with it.
    assert re.search(r"group billing; found GROUP_AUTHORIZATION_FAILED.*READ the consumer group", commit())
    allow(guarded_kafka, "DESCRIBE", "GROUP", "billing")
    wait_until(lambda: not view())
    assert re.search(r"group billing; found GROUP_AUTHORIZATION_FAILED.*READ the consumer group", commit())
    allow(guarded_kafka, "READ", "GROUP", "billing")
    wait_until(lambda: "GROUP_AUTHORIZATION_FAILED" not in commit())
    assert re.search(r"group billing; found TOPIC_AUTHORIZATION_FAILED.*READ the topic", commit())
    allow(guarded_kafka, "READ", "TOPIC", "payments")
    wait_until(lambda: not commit())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # newer Pythons warn of what is shown here
def test_a_client_does_not_cross_a_fork(broker: Broker, offsetstore_topic: NewTopic, offsetstore_group: str) -> None:
    topic = offsetstore_topic(1)
    before = broker.view(offsetstore_group, [topic])
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            broker.view(offsetstore_group, [topic])
        except ConfigurationError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert broker.view(offsetstore_group, [topic]) == before


@pytest.mark.behaviour("START-19")
def test_two_thousand_partitions_take_as_many_requests_as_twenty(
    offsetstore_kafka: KafkaBroker,
    offsetstore_topic: NewTopic,
    offsetstore_group: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("offsetstore.kafka.committed._FIRST_PATIENCE", 60.0)  # else it may ask twice
    servers = {"bootstrap.servers": offsetstore_kafka.bootstrap_servers}
    sent: dict[int, Counter[str]] = {}
    for partitions in (20, 2000):
        topic = offsetstore_topic(partitions)
        with closing(Broker(servers, timeout=60)) as first:
            first.view(offsetstore_group, [topic])  # answers once each of them really has its leader
        caplog.clear()
        with (
            caplog.at_level(logging.DEBUG, logger="offsetstore.kafka"),
            closing(Broker({**servers, "debug": "protocol"}, timeout=60)) as broker,
        ):
            view = broker.view(offsetstore_group, [topic], timestamp_ms=0)
            client = broker._looks.client
            assert client is not None

            def is_told(client: Client = client) -> bool:
                client.forget()  # librdkafka's lines come when it is polled
                return caplog.text.count("Sent ListOffsetsRequest") >= 3

            wait_until(is_told)
        assert len(view.topics[topic].partitions) == partitions
        sent[partitions] = Counter(re.findall(r"Sent (\w+)Request", caplog.text))
    for requests in sent.values():
        assert requests["ListOffsets"] == 3  # beginning, end, time: one each, since one broker leads them all
        assert requests["OffsetFetch"] == 1
        # How often a new connection asks for its way depends on the moment, but not on the partitions.
        assert requests.total() - 4 <= 15
