"""Two jobs of one group: the later claim wins, and the earlier one writes nothing more."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyspark.sql.streaming.query import StreamingQuery

from offsetstore import Append, Claim, TopicPartition, TransactionalSink
from offsetstore.errors import ClaimInUse, GroupBusy, StaleClaim
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


@pytest.mark.behaviour("START-14", "OPS-25")
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
    assert f"claimed by {second.owner}, {second.token}, since " in failed.text
    assert world.database.column(VALUES) == ["a"]
    world.run(second, events, Append("events"))
    assert world.database.column(VALUES) == ["a", "b"]
    assert world.stored(topic) == {0: 1, 1: 1}


@pytest.mark.behaviour("START-22")
def test_a_second_query_on_one_claim_is_refused_and_one_that_has_ended_keeps_the_claim_alive_no_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a driver that goes on."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    query, sink = run_on(world, claim, events)
    wait_until(lambda: world.stored(topic) == {0: 1}, timeout=SECONDS)

    failed = world.run_to_failure(claim, events, Append("events"), checkpoint=f"{world.checkpoints}/second")
    assert isinstance(failed.error, ClaimInUse)
    assert "ClaimInUse" in failed.text
    world.produce(topic, ["b"])
    wait_until(lambda: world.stored(topic) == {0: 2}, timeout=SECONDS)
    assert world.database.column(VALUES) == ["a", "b"]

    beats = "SELECT max(beat_at) FROM heartbeats"
    for _ in range(3):  # it is idle, and runs
        last = world.database.one(beats)
        wait_until(lambda last=last: world.database.one(beats) > last)
    with pytest.raises(GroupBusy):
        world.claim(topic, takeover="wait", takeover_timeout=2)

    monkeypatch.setattr(protocol_runs, "LIVE", timedelta(seconds=1))
    query.stop()
    assert sink.error is None
    wait_until(lambda: not is_live(world))
    query, _ = run_on(world, claim, events)  # with no records to write yet
    wait_until(lambda: is_live(world))
    query.stop()

    assert world.claim(topic, takeover="wait", takeover_timeout=SECONDS).token.epoch == claim.token.epoch + 1


def is_live(world: World) -> bool:
    owner = world.store.owner(world.group)
    return owner is not None and owner.is_live
