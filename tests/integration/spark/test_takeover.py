"""Two jobs of one group: the later claim wins, and the earlier one writes nothing more."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from offsetstore import Append, Claim, TopicPartition, TransactionalSink
from offsetstore.errors import BrokerRefused, BrokerUnavailable, ClaimInUse, GroupBusy, StaleClaim, TopicMissing
from offsetstore.kafka import Broker, admin
from offsetstore.protocol import runs as protocol_runs
from offsetstore.spark.sink import Transform
from offsetstore.store import heartbeat
from tests.support.transforms import events
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World, made_unchecked

VALUES = "SELECT value FROM events ORDER BY value"


def run_on(world: World, claim: Claim, transform: Transform) -> tuple[StreamingQuery, TransactionalSink]:
    """Start a job that goes on until it is stopped."""
    sink = made_unchecked(claim, transform, into=Append("events"))
    query = world.start(
        sink,
        world.read(claim, **{"kafka.metadata.max.age.ms": "100"}),
        checkpoint=claim.checkpoint(world.checkpoints),
        trigger={"processingTime": "100 milliseconds"},
    )
    return query, sink


@pytest.mark.behaviour("START-14")
def test_the_first_jobs_next_batch_ends_with_stale_claim_and_writes_nothing(world: World) -> None:
    topic = world.events_topic(["a"], partitions=2)
    query, sink = run_on(world, world.claim(topic), events)
    wait_until(lambda: world.stored(topic) == {0: 1, 1: 0}, timeout=SECONDS)

    second = world.claim(topic)
    world.produce(topic, ["b"], partition=1)
    failed = world.failure(query, sink)

    assert isinstance(failed.error, StaleClaim)
    assert failed.error.topic_partition == TopicPartition(topic, 1)
    assert "StaleClaim" in failed.text
    assert "claimed, reset or renamed since" in failed.text
    assert world.database.column(VALUES) == ["a"]
    world.run(second, events, Append("events"))
    assert world.database.column(VALUES) == ["a", "b"]
    assert world.stored(topic) == {0: 1, 1: 1}


@pytest.mark.behaviour("START-14", "TX-10")
def test_a_stale_job_that_is_the_first_to_see_a_new_partition_is_fenced_there_too(world: World) -> None:
    topic = world.events_topic()
    query, sink = run_on(world, world.claim(topic), events)
    world.produce(topic, ["a"])
    wait_until(lambda: world.stored(topic) == {0: 1}, timeout=SECONDS)

    world.claim(topic)
    admin.create_partitions(world.kafka.bootstrap_servers, topic, total=2)
    world.produce(topic, ["b"], partition=1)
    failed = world.failure(query, sink)

    assert isinstance(failed.error, StaleClaim)
    assert world.database.column(VALUES) == ["a"]
    assert world.stored(topic) == {0: 1}  # not even a row for the new partition
    world.run(world.claim(topic), events, Append("events"))
    assert world.database.column(VALUES) == ["a", "b"]


@pytest.mark.behaviour("START-22")
def test_a_second_query_on_one_claim_is_refused_and_the_first_goes_on(world: World) -> None:
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    query, sink = run_on(world, claim, events)
    wait_until(lambda: world.stored(topic) == {0: 1}, timeout=SECONDS)

    failed = world.run_to_failure(claim, events, Append("events"), checkpoint=f"{world.checkpoints}/second")

    assert isinstance(failed.error, ClaimInUse)
    assert "ClaimInUse" in failed.text
    world.produce(topic, ["b"])
    wait_until(lambda: world.stored(topic) == {0: 2}, timeout=SECONDS)
    query.stop()
    assert sink.error is None
    assert world.database.column(VALUES) == ["a", "b"]


@pytest.mark.behaviour("START-22")
def test_a_query_that_has_ended_does_not_keep_its_claim_alive_in_a_driver_that_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    query, _ = run_on(world, claim, events)
    wait_until(lambda: world.stored(topic) == {0: 1}, timeout=SECONDS)
    for _ in range(10):  # it is idle, and runs
        last = last_beat(world)
        wait_until(lambda last=last: last_beat(world) > last)
    with pytest.raises(GroupBusy):
        world.claim(topic, takeover="wait", takeover_timeout=2)

    monkeypatch.setattr(protocol_runs, "LIVE", timedelta(seconds=1))
    query.stop()
    wait_until(lambda: not is_live(world))
    query, _ = run_on(world, claim, events)  # with no records to write yet
    wait_until(lambda: is_live(world))
    query.stop()

    assert world.claim(topic, takeover="wait", takeover_timeout=SECONDS).token.epoch == claim.token.epoch + 1


def last_beat(world: World) -> datetime:
    return world.database.one("SELECT max(beat_at) FROM heartbeats")


def is_live(world: World) -> bool:
    owner = world.store.owner(world.group)
    return owner is not None and owner.is_live


def a_missing_topic(world: World, topic: str) -> Broker:
    return Broker.from_spark(world.options(f"{topic}-is-missing"), timeout=120)


def a_broker_that_is_down(world: World, topic: str) -> Broker:
    return Broker.from_spark({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": topic}, timeout=2)


def a_wrong_password(world: World, topic: str) -> Broker:
    return Broker.from_spark(
        {
            "kafka.bootstrap.servers": world.kafka.sasl_bootstrap_servers,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'username="{world.kafka.user.name}" password="guessed";'
            ),
            "subscribe": topic,
        },
        timeout=120,
    )


@pytest.mark.behaviour("START-16")
@pytest.mark.parametrize(
    ("broker", "error", "advice"),
    [
        (a_missing_topic, TopicMissing, "Create the topic or correct its name"),
        (a_broker_that_is_down, BrokerUnavailable, "Check bootstrap.servers"),
        (a_wrong_password, BrokerRefused, "sasl"),
    ],
)
def test_a_claim_that_kafka_refuses_fences_nobody_and_the_running_job_goes_on(
    world: World,
    broker: Callable[[World, str], Broker],
    error: type[Exception],
    advice: str,
) -> None:
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    wrong = broker(world, topic)
    history = world.store.history(world.group)
    started = time.monotonic()

    with pytest.raises(error) as refused:
        world.store.claim(world.group, wrong)
    wrong.close()

    assert time.monotonic() - started < 60  # not only when the time is up
    assert advice in str(refused.value)
    assert "guessed" not in str(refused.value)
    assert world.store.history(world.group) == history
    owner = world.store.owner(world.group)
    assert owner is not None
    assert owner.token == claim.token
    world.run(claim, events, Append("events"))
    assert world.database.column(VALUES) == ["a"]
