"""Kafka's own offsets of the group, as other tools see them, while a job runs, dies, or is set back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer

from offsetstore import Broker, OffsetStore, TopicPartition, errors, resolve_starting_offsets
from offsetstore.kafka.admin import NewRecord, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.protocol.store_facts import MAX_COMMITTED_BYTES, Stamp, digest
from offsetstore.testing.fixtures import NewTopic
from tests.support.background import in_background
from tests.support.consumer_groups import consumer_groups_tool
from tests.support.mirrored_job import OFTEN, copied, process
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]


@pytest.fixture
def topic(offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic) -> str:
    """Two partitions with fifty records each."""
    name = offsetstore_topic(2)
    produce(offsetstore_kafka.bootstrap_servers, name, [NewRecord(b"x", partition=i % 2) for i in range(100)])
    return name


@pytest.fixture
def store(offsetstore_database: str) -> Iterator[OffsetStore]:
    with psycopg.connect(offsetstore_database, autocommit=True) as connection:
        connection.execute("CREATE TABLE results (record bigint NOT NULL)")
    with OffsetStore.connect(offsetstore_database) as connected:
        yield connected


def test_a_closed_claim_leaves_no_client_of_kafka_behind(
    store: OffsetStore, broker: Broker, topic: str, offsetstore_group: str
) -> None:
    """Spark keeps the sink of a query that has ended: a process that starts its job again and again would fill up."""
    before = kafkas_threads()
    for turn in range(3):
        with store.claim(offsetstore_group, broker, topics=[topic]) as claim:
            process(store, claim, TopicPartition(topic, 0), 10 * (turn + 1))
        wait_until(lambda: kafkas_threads() <= before)
    assert copied(broker, offsetstore_group, topic)[0] == 30


def kafkas_threads() -> int:
    """How many threads librdkafka has in this process."""
    names: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            names.append((task / "comm").read_text())
    return sum(name.startswith("rdk:") for name in names)


@pytest.mark.behaviour("MIRROR-1")
def test_wherever_the_job_is_killed_kafka_has_no_more_than_the_store(
    store: OffsetStore, broker: Broker, topic: str, offsetstore_database: str, offsetstore_group: str
) -> None:
    p0 = TopicPartition(topic, 0)
    with store.claim(offsetstore_group, broker, topics=[topic]) as claim:
        process(store, claim, p0, 3)
    stored = copied(broker, offsetstore_group, topic)[0]
    assert stored == 3

    job = [offsetstore_database, offsetstore_group, broker._settings.config["bootstrap.servers"], topic]
    for point in ("before_commit", "before_mirror"):  # the copy is of what is committed
        before = stored
        killed = subprocess.run(
            [sys.executable, "-m", "tests.support.mirrored_job", *job, str(stored + 17)],
            cwd=ROOT,
            env={**os.environ, "OFFSETSTORE_FAILPOINT": f"{point}:4"},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert f"failpoint {point}: kill" in killed.stderr

        stored, found = store.offsets(offsetstore_group)[p0].next_offset, copied(broker, offsetstore_group, topic)
        assert before <= found[0] <= stored
        assert before < stored < before + 17
        with store.claim(offsetstore_group, broker, topics=[topic]) as claim:
            assert claim.starting is not None
            assert claim.starting.offsets[p0] == stored


@pytest.mark.behaviour("MIRROR-1", "MIRROR-2", "MIRROR-3", "MIRROR-4")
def test_while_the_job_runs_kafka_is_never_ahead_of_the_store_and_its_own_tool_shows_the_lag_at_the_end(
    store: OffsetStore, broker: Broker, topic: str, offsetstore_group: str, offsetstore_kafka: KafkaBroker
) -> None:
    p0 = TopicPartition(topic, 0)
    seen: list[int] = []
    with store.claim(offsetstore_group, broker, topics=[topic], mirror_every=OFTEN) as claim:

        def work() -> None:
            for until in range(1, 50):
                process(store, claim, p0, until)
                if until % 10 == 0:  # so that the mirror is seen at work, however slow it is
                    wait_until(lambda until=until: seen[-1:] >= [until])

        done = in_background(work)
        while not done.done():
            found = copied(broker, offsetstore_group, topic).get(0, 0)  # asked first: the store only grows meanwhile
            assert found <= store.offsets(offsetstore_group)[p0].next_offset
            seen.append(found)
        done.result()

    assert seen == sorted(seen)
    assert len(set(seen)) > 3, "the mirror was not seen at work"
    shown = consumer_groups_tool(offsetstore_kafka, offsetstore_group)
    assert {key: (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) for key, row in shown.items()} == {
        (topic, "0"): ("49", "50", "1"),
        (topic, "1"): ("0", "50", "50"),
    }


@pytest.mark.behaviour("MIRROR-7")
def test_another_application_in_the_group_resumes_where_it_was_and_nothing_of_it_is_adopted(
    store: OffsetStore, broker: Broker, topic: str, offsetstore_group: str, offsetstore_kafka: KafkaBroker
) -> None:
    """The old consumer "billing" and the new job side by side, under the job's default group."""
    group, partitions = offsetstore_group, [TopicPartition(topic, number) for number in range(2)]

    def old_consumer() -> Consumer:
        member = Consumer({
            "bootstrap.servers": offsetstore_kafka.bootstrap_servers, "group.id": group,
            "auto.offset.reset": "earliest", "enable.auto.commit": False,
        })  # fmt: skip
        member.subscribe([topic])
        return member

    member = old_consumer()
    take(member, 10)
    claim = store.claim(group, broker, topics=[topic], mirror_every=OFTEN)
    for tp in partitions:
        process(store, claim, tp, 50)
    take(member, 20)
    left_at = broker.view(group, [topic]).committed
    member.close()
    claim.close()

    assert broker.view(group, [topic]).committed == left_at
    redeployed = old_consumer()
    positions = [left_at[tp].next_offset if tp in left_at else 0 for tp in partitions]
    assert take(redeployed, 100 - sum(positions)) == list(range(positions[0], 50))
    redeployed.close()
    assert {line.event for line in store.history(group)} >= {"contested"}
    with pytest.raises(errors.KafkaGroupContested):
        store.claim(group, broker, topics=[topic])
    with pytest.raises(errors.KafkaGroupContested):
        resolve_starting_offsets(broker, group=group, topics=[topic], store=store)


def take(member: Consumer, count: int) -> list[int]:
    """Read records, and commit the last; return the offsets in partition 0."""
    messages: list[Any] = []
    wait_until(lambda: len(messages.extend(member.consume(count - len(messages), 0.1)) or messages) == count)
    member.commit(asynchronous=False)
    return [message.offset() for message in messages if message.partition() == 0]


@pytest.mark.behaviour("MIRROR-6", "META-11")
def test_metadata_goes_with_the_stamp_as_long_as_kafka_takes_it(
    store: OffsetStore, broker: Broker, topic: str, offsetstore_group: str
) -> None:
    p0 = TopicPartition(topic, 0)
    for over in (-1, 0, 1):
        with store.claim(offsetstore_group, broker, topics=[topic]) as claim:
            stamp = Stamp(store.database.store_id(), claim.token.epoch, digest(offsetstore_group))
            room = MAX_COMMITTED_BYTES - len(stamp.text()) - 2  # as JSON it has quotes
            process(store, claim, p0, 40 + over, metadata="x" * (room + over))
        assert claim.mirror is not None
        assert not claim.mirror._stamp_only, "Kafka has refused it"

        found = broker.view(offsetstore_group, [topic]).committed[p0]
        assert found.next_offset == 40 + over
        assert Stamp.of(found) == stamp
        assert (found.metadata == stamp.text()) == (over > 0)
