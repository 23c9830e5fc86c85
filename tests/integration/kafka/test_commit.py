"""A Broker that copies offsets to Kafka's group: what arrives there, and what Kafka or a deadline says no to."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from confluent_kafka import Consumer

from offsetstore.errors import BrokerUnavailable, ConfigurationError, GroupHasMembers, MetadataRefused, TopicMissing
from offsetstore.kafka import Broker
from offsetstore.local.kafka import KafkaBroker
from offsetstore.offsets import CommittedOffset, TopicPartition
from offsetstore.testing.fixtures import NewTopic
from tests.support.signals import stopped
from tests.support.waiting import wait_until


def test_what_another_commits_is_read_back_and_groups_are_apart(
    broker: Broker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic = offsetstore_topic(3)
    offsets = {TopicPartition(topic, number): CommittedOffset(7) for number in (0, 2)}
    back = {TopicPartition(topic, 0): CommittedOffset(3)}
    for given in (offsets, back, {}):
        broker.commit(offsetstore_group, given)
    broker.commit(f"{offsetstore_group}-b", back)  # another group, through the same Broker
    assert broker.view(f"{offsetstore_group}-b", [topic]).committed == back
    assert broker.view(offsetstore_group, [topic]).committed == offsets | back

    partitions = [TopicPartition(topic, number) for number in range(3)]
    client = Broker(broker._settings.config)
    client.commit(offsetstore_group, {partitions[1]: CommittedOffset(9)})  # between two commits of the first
    client.close()
    found = broker.committed_offsets(offsetstore_group, partitions[:2])
    assert found == {**back, partitions[1]: CommittedOffset(9)}
    assert broker.committed_offsets(offsetstore_group, []) == {}
    with pytest.raises(ConfigurationError):
        broker.committed_offsets("", partitions)


def test_more_of_the_longest_texts_are_committed_than_one_batch_of_kafkas_own_topic_takes(
    broker: Broker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic = offsetstore_topic(100)
    offsets = {TopicPartition(topic, number): CommittedOffset(number, "☃" * 4095) for number in range(100)}
    broker.commit(offsetstore_group, offsets)  # Kafka counts characters, and a zero byte that confluent-kafka adds
    assert broker.committed_offsets(offsetstore_group, list(offsets)) == offsets


def test_a_text_that_is_too_long_and_a_missing_partition_are_refused_and_the_next_commit_works(
    broker: Broker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic = offsetstore_topic(2)
    long, short = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with pytest.raises(MetadataRefused, match="4096 characters") as refused:
        broker.commit(offsetstore_group, {short: CommittedOffset(1), long: CommittedOffset(1, "x" * 4096)})
    assert refused.value.topic_partition == long
    broker.commit(offsetstore_group, {long: CommittedOffset(2)})
    committed = broker.view(offsetstore_group, [topic]).committed
    assert committed == {short: CommittedOffset(1), long: CommittedOffset(2)}

    gone, started = TopicPartition(topic, 7), time.monotonic()
    with pytest.raises(TopicMissing, match=str(gone)):
        broker.commit(offsetstore_group, {gone: CommittedOffset(1)})
    assert time.monotonic() - started < 10  # its limit is 15


@pytest.mark.behaviour("MIRROR-7")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_refused_with_how_to_find_them(
    protocol: str, broker: Broker, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic, offsetstore_group: str
) -> None:
    topic = offsetstore_topic(1)
    offsets = {TopicPartition(topic, 0): CommittedOffset(1)}
    member = Consumer({
        "bootstrap.servers": offsetstore_kafka.bootstrap_servers, "group.id": offsetstore_group,
        "group.protocol": protocol, "enable.auto.commit": False,
    })  # fmt: skip
    assert not broker.has_members(offsetstore_group)
    member.subscribe([topic])
    try:
        wait_until(lambda: member.poll(0.05) is None and member.assignment())
        assert broker.has_members(offsetstore_group)
        with pytest.raises(GroupHasMembers, match="has members") as refused:
            broker.commit(offsetstore_group, offsets)
        assert f"--members --group {offsetstore_group}" in refused.value.next_step
    finally:
        member.close()
    wait_until(lambda: not broker.has_members(offsetstore_group))
    broker.commit(offsetstore_group, offsets)
    assert broker.view(offsetstore_group, [topic]).committed == offsets


_LOOKS = """
import sys
from contextlib import suppress
from offsetstore.errors import BrokerUnavailable
from offsetstore.kafka import Broker

kept = Broker({"bootstrap.servers": sys.argv[1]})
found = None
while found is None:
    with suppress(BrokerUnavailable):  # the first answer may take longer
        found = kept.has_members(sys.argv[2])
print("asked", flush=True)
answers = {"none": 0, "some": 0}
while not (answers["none"] and answers["some"] > 20):  # the broker was away, and has been back for a while
    for broker in (kept, Broker({"bootstrap.servers": sys.argv[1]}, timeout=0.5)):
        try:
            broker.has_members(sys.argv[2])
            answers["some"] += bool(answers["none"])
        except BrokerUnavailable:
            answers["none"] += 1
            if answers["none"] == 1:
                print("away", flush=True)
"""


def is_answered(ask: Callable[[], object]) -> bool:
    """Whether Kafka answers in time: at first it may take longer."""
    try:
        ask()
    except BrokerUnavailable:
        return False
    return True


@pytest.mark.behaviour("MIRROR-7", "START-10")
def test_a_broker_that_is_silent_or_stops_is_unavailable_in_time_and_answers_again_when_it_is_back(
    offsetstore_kafka: KafkaBroker,
    offsetstore_topic: NewTopic,
    offsetstore_group: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The admin client's other calls about groups end the process then (docs/decisions/0010): they are another's."""
    topic, config = offsetstore_topic(1), {"bootstrap.servers": offsetstore_kafka.bootstrap_servers}
    hasty, offsets = Broker(config, timeout=1), {TopicPartition(topic, 0): CommittedOffset(1)}
    wait_until(lambda: is_answered(lambda: hasty.commit(offsetstore_group, offsets)))
    wait_until(lambda: is_answered(lambda: hasty.view(offsetstore_group, [topic])))
    [former] = hasty.view(offsetstore_group, [topic]).topics[topic].partitions.values()
    arguments = [sys.executable, "-c", _LOOKS, offsetstore_kafka.bootstrap_servers, offsetstore_group]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as asking:
        try:
            assert asking.stdout is not None
            assert asking.stdout.readline() == "asked\n"
            assert offsetstore_kafka.pid is not None
            with stopped(offsetstore_kafka.pid):
                started = time.monotonic()
                with pytest.raises(BrokerUnavailable):
                    hasty.commit(offsetstore_group, offsets)
                assert time.monotonic() - started < 5
            offsetstore_kafka.stop()
            for _attempt in range(2):  # on the connection that broke, and on a new one
                started = time.monotonic()
                with pytest.raises(BrokerUnavailable, match="committing the offsets") as unavailable:
                    hasty.commit(offsetstore_group, offsets)
                assert 0.8 < time.monotonic() - started < 5
                assert "stored offsets are unchanged" in unavailable.value.next_step
            started = time.monotonic()
            with pytest.raises(BrokerUnavailable):
                hasty.view(offsetstore_group, [topic])
            assert time.monotonic() - started < 4  # and not once for each of the three clients that it tries
            assert asking.stdout.readline() == "away\n"  # else a call may last until it is back
            offsetstore_kafka.start()
            assert asking.wait(60) == 0
        finally:
            asking.kill()
            offsetstore_kafka.start()  # unless it runs
    patient = Broker(config)
    patient.commit(offsetstore_group, offsets)  # the coordinator may still be loading
    view = patient.view(offsetstore_group, [topic])
    assert view.committed == offsets
    [log] = view.topics[topic].partitions.values()
    assert (log.leader_epoch or 0) > (former.leader_epoch or 0)
    assert replace(log, leader_epoch=former.leader_epoch) == former
    assert capfd.readouterr().err == ""
