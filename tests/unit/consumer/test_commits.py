"""What a member commits to Kafka and tells of it, and what becomes of it while Kafka is away; without a database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from offsetstore import Append, OffsetRange, TopicPartition
from offsetstore.consumer import Consumer
from offsetstore.consumer import commits as commits_module
from offsetstore.consumer import consumer as consumer_module
from offsetstore.consumer.commits import Commits
from offsetstore.errors import BrokerRefused, BrokerUnavailable, GroupBusy
from offsetstore.monitoring.health import Code, Limits, judge
from offsetstore.monitoring.supervision import FactCollector
from offsetstore.offsets import EpochPair
from offsetstore.protocol.events import MirrorTried
from offsetstore.protocol.policy import StartPolicy
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import Member, join
from offsetstore.testing.memory import InMemoryOffsetStore
from tests.support.background import in_background
from tests.support.kafka_client import FakeClient, FakeCluster
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

GROUP = "billing"
P0 = TopicPartition("payments", 0)


@pytest.fixture
def facts() -> Iterator[FactCollector]:
    collector = FactCollector(Clock(), Limits())
    yield collector
    collector.close()


class Clock:
    """Time passes when a test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return Clock.now


@pytest.fixture
def store(recorder: Recorder, facts: FactCollector) -> InMemoryOffsetStore:
    return InMemoryOffsetStore(observers=[recorder, facts])


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster.with_topics({"payments": 1}, end=100)


@pytest.fixture
def member(store: InMemoryOffsetStore, cluster: FakeCluster) -> Iterator[Member]:
    asked = ClaimRequest(GROUP, cluster, ("payments",), StartPolicy(), "refuse", 30.0, GROUP)
    with join(store, asked) as one:
        one.assign([P0])
        yield one


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits_module, "INTERVAL", 0.01)


def advance(store: InMemoryOffsetStore, member: Member, begin: int, end: int) -> None:
    with store.transaction(member) as tx:
        tx.lock({P0: OffsetRange(begin, end)})
        tx.advance({P0: OffsetRange(begin, end)})


@pytest.mark.behaviour("CONS-5", "CONS-8")
def test_nothing_is_committed_while_kafka_is_away_and_health_tells_it(
    store: InMemoryOffsetStore, member: Member, cluster: FakeCluster, recorder: Recorder, facts: FactCollector
) -> None:
    client, commits = FakeClient(), Commits(member, cluster, GROUP)

    def turns() -> None:
        commits.turn(client, member.partitions)

    def codes() -> tuple[Code, ...]:
        return judge(facts.facts(), Limits(), Clock.now).codes

    advance(store, member, 0, 5)
    wait_until(lambda: turns() or client.committed == [5], timeout=60.0)
    commits.answered(None, [confluent_kafka.TopicPartition("payments", 0, 5)])
    assert Code.KAFKA_UNREACHABLE not in codes()

    cluster.is_away = True
    advance(store, member, 5, 7)
    wait_until(lambda: turns() or len(recorder.of(MirrorTried, "failed")) > 2, timeout=60.0)
    recorder.events.clear()
    Clock.now += 20
    wait_until(lambda: turns() or len(recorder.of(MirrorTried)) > 2, timeout=60.0)
    assert {type(one.error) for one in recorder.of(MirrorTried)} == {BrokerUnavailable}
    assert Code.KAFKA_UNREACHABLE in codes()
    commits.last(client, [P0])
    assert client.committed == [5]

    cluster.is_away = False
    wait_until(lambda: turns() or client.committed[-1:] == [7], timeout=60.0)
    commits.answered(None, [confluent_kafka.TopicPartition("payments", 0, 7)])
    assert Code.KAFKA_UNREACHABLE not in codes()


@pytest.mark.behaviour("CONS-5")
def test_a_commit_that_had_no_answer_is_told_as_an_outage_and_one_that_was_refused_is_not(
    member: Member, cluster: FakeCluster, recorder: Recorder
) -> None:
    commits = Commits(member, cluster, GROUP)
    for code, kind in [
        (KafkaError._TRANSPORT, BrokerUnavailable),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, BrokerRefused),
    ]:
        commits.answered(KafkaError(code), [])
        assert type(recorder.of(MirrorTried, "failed")[-1].error) is kind


@pytest.mark.behaviour("CONS-13", "START-26", "START-31")
def test_how_far_each_log_was_read_is_kept_beside_the_stored_offset_and_at_the_end_without_kafka(
    store: InMemoryOffsetStore, member: Member, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits_module, "LOOK_SECONDS", 0.01)
    read = {P0: EpochPair(5, 0)}
    client, commits = FakeClient(), Commits(member, cluster, GROUP, lambda: read)
    advance(store, member, 0, 5)
    wait_until(lambda: commits.turn(client, member.partitions) or store.offsets(GROUP)[P0].pair == read[P0])
    cluster.is_away = True
    advance(store, member, 5, 7)
    read = {P0: EpochPair(7, 0)}
    commits.last(client, [P0])
    assert store.offsets(GROUP)[P0].pair == read[P0]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    made = FakeClient()
    monkeypatch.setattr(confluent_kafka, "Consumer", made.made)
    return made


def consumer_of(store: InMemoryOffsetStore, cluster: FakeCluster, **changes: Any) -> Consumer:
    given: Any = store
    made = Consumer(
        given,
        GROUP,
        topics=["payments"],
        kafka={"bootstrap.servers": "localhost:1"},
        transform=lambda records: records,
        into=Append("rows"),
        **changes,
    )
    made.request = replace(made.request, broker=cluster)
    made.asked = cluster  # type: ignore[assignment]
    return made


@pytest.mark.behaviour("CONS-8")
def test_wrong_credentials_end_the_consumer(
    store: InMemoryOffsetStore, cluster: FakeCluster, client: FakeClient
) -> None:
    client.reports = [
        KafkaError(KafkaError._AUTHENTICATION),
        KafkaError(KafkaError._ALL_BROKERS_DOWN),
    ]
    consumer = consumer_of(store, cluster)
    ended = in_background(consumer.run)
    try:
        wait_until(ended.done, timeout=60.0)
    finally:
        consumer.stop()
    with pytest.raises(BrokerRefused, match="refused the credentials"):
        ended.result()


@pytest.mark.behaviour("CONS-8")
def test_the_end_does_not_wait_for_a_kafka_that_is_away(
    store: InMemoryOffsetStore, cluster: FakeCluster, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_LEAVING", 0.2)
    client.closing.clear()
    consumer = consumer_of(store, cluster)
    ended = in_background(consumer.run)
    try:
        wait_until(lambda: client.config, timeout=60.0)
        consumer.stop()
        wait_until(ended.done, timeout=30.0)  # less than the client takes
    finally:
        client.closing.set()
    ended.result()


@pytest.mark.behaviour("CONS-8")
def test_a_consumer_that_was_stopped_before_it_began_fences_nobody(
    store: InMemoryOffsetStore, cluster: FakeCluster, client: FakeClient
) -> None:
    with store.claim(GROUP, cluster, topics=["payments"]) as job:
        consumer = consumer_of(store, cluster, takeover="fence")
        consumer.stop()
        consumer.run()
        owner = store.owner(GROUP)
        assert owner is not None
        assert owner.token == job.token
        assert not client.config


@pytest.mark.behaviour("CONS-4")
def test_a_consumer_waits_for_a_job_as_long_as_it_lives_and_ends_when_it_is_stopped(
    store: InMemoryOffsetStore, cluster: FakeCluster, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_SOON", 0.05)
    with store.claim(GROUP, cluster, topics=["payments"]):
        waiting = consumer_of(store, cluster, takeover="wait")
        waiting.request = replace(waiting.request, takeover_timeout=0.1)  # that of an assignment
        ended = in_background(waiting.run)
        time.sleep(0.5)
        assert not ended.done()
        waiting.stop()
        ended.result(timeout=60)
        with pytest.raises(GroupBusy):
            consumer_of(store, cluster).run()
        ended = in_background(waiting.run)
    wait_until(lambda: client.config, timeout=60.0)  # it has joined
    waiting.stop()
    ended.result(timeout=60)
