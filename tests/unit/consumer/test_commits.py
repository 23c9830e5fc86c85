"""What a member commits to Kafka and tells of it, and what becomes of it while Kafka is away; without a database."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from offsetstore import OffsetRange
from offsetstore.consumer import commits as commits_module
from offsetstore.consumer import consumer as consumer_module
from offsetstore.consumer.commits import Commits
from offsetstore.errors import BrokerRefused, BrokerUnavailable, GroupBusy
from offsetstore.monitoring.health import Code, Limits, judge
from offsetstore.monitoring.supervision import FactCollector
from offsetstore.offsets import EpochPair
from offsetstore.protocol.events import MirrorTried
from offsetstore.protocol.starting import StartPolicy
from offsetstore.store.claim import ClaimRequest
from offsetstore.store.fleet import Member, join
from offsetstore.testing.memory import InMemoryOffsetStore
from tests.support.background import in_background
from tests.support.clock import Clock
from tests.support.kafka_client import FakeClient, FakeCluster
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until
from tests.unit.consumer.conftest import GROUP, P0, consumer_of, running


@contextmanager
def joined(store: InMemoryOffsetStore, cluster: FakeCluster) -> Generator[Member]:
    asked = ClaimRequest(GROUP, cluster, ("payments",), StartPolicy(), "refuse", 30.0, GROUP)
    with join(store, asked) as member:
        member.assign([P0])
        yield member


@pytest.fixture
def member(store: InMemoryOffsetStore, cluster: FakeCluster) -> Iterator[Member]:
    with joined(store, cluster) as member:
        yield member


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits_module, "INTERVAL", 0.01)


def advance(store: InMemoryOffsetStore, member: Member, begin: int, end: int) -> None:
    with store.transaction(member) as tx:
        tx.lock({P0: OffsetRange(begin, end)})
        tx.advance({P0: OffsetRange(begin, end)})


@pytest.mark.behaviour("CONS-5", "CONS-8")
def test_nothing_is_committed_while_kafka_is_away_and_health_tells_it(
    store: InMemoryOffsetStore, cluster: FakeCluster, recorder: Recorder
) -> None:
    clock = Clock(1000.0)
    facts = FactCollector(clock, Limits())
    store.observers = store.observers.with_one(facts)

    def turns() -> None:
        commits.turn(client, member.partitions)

    def is_unreachable() -> bool:
        return Code.KAFKA_UNREACHABLE in judge(facts.facts(), Limits(), clock.now).codes

    with joined(store, cluster) as member:
        client, commits = FakeClient(), Commits(member, cluster, GROUP)
        advance(store, member, 0, 5)
        wait_until(lambda: turns() or client.committed == [5])
        commits.answered(None, [confluent_kafka.TopicPartition("payments", 0, 5)])
        assert not is_unreachable()

        cluster.is_away = True
        advance(store, member, 5, 7)
        wait_until(lambda: turns() or len(recorder.of(MirrorTried, "failed")) > 2)
        recorder.events.clear()
        clock.now += 20
        wait_until(lambda: turns() or len(recorder.of(MirrorTried)) > 2)
        assert {type(one.error) for one in recorder.of(MirrorTried)} == {BrokerUnavailable}
        assert is_unreachable()
        commits.last(client, [P0])
        assert client.committed == [5]

        cluster.is_away = False
        wait_until(lambda: turns() or client.committed[-1:] == [7])
        commits.answered(None, [confluent_kafka.TopicPartition("payments", 0, 7)])
        assert not is_unreachable()
    facts.close()


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


@pytest.mark.behaviour("CONS-8")
def test_wrong_credentials_end_the_consumer(
    store: InMemoryOffsetStore, cluster: FakeCluster, client: FakeClient
) -> None:
    client.reports = [KafkaError(KafkaError._AUTHENTICATION), KafkaError(KafkaError._ALL_BROKERS_DOWN)]
    with pytest.raises(BrokerRefused, match="refused the credentials"), running(consumer_of(store, cluster)) as ended:
        wait_until(ended.done)


@pytest.mark.behaviour("CONS-8")
def test_the_end_does_not_wait_for_a_kafka_that_is_away(
    store: InMemoryOffsetStore, cluster: FakeCluster, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_LEAVING", 0.2)
    client.closing.clear()
    with running(consumer := consumer_of(store, cluster)) as ended:
        wait_until(lambda: client.config)
        consumer.stop()
        wait_until(ended.done, timeout=30.0)  # less than the client takes
        client.closing.set()


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
    wait_until(lambda: client.config)  # it has joined
    waiting.stop()
    ended.result(timeout=60)
