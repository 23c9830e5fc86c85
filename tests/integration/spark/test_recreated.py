"""A topic that was deleted and created again has other records under the same offsets."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.sql import DataFrame

from offsetstore import Append, StartPolicy, TransactionalSink
from offsetstore.errors import TopicRecreated
from offsetstore.kafka import admin
from tests.support.gate import Gate
from tests.support.transforms import events
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World, made_unchecked

VALUES = "SELECT value FROM events ORDER BY value"
OLD = ["old-a", "old-b", "old-c"]
SHORTER = ["new-a"]
LONGER = ["new-a", "new-b", "new-c", "new-d", "new-e"]


def recreate(world: World, topic: str, values: list[str], *, partitions: int = 1) -> None:
    admin.delete_topic(world.kafka.bootstrap_servers, topic)
    admin.create_topic(world.kafka.bootstrap_servers, topic, partitions=partitions)
    world.produce(topic, values)


@pytest.mark.behaviour("START-8")
def test_a_topic_that_was_recreated_between_two_runs_stops_the_start_until_a_restart_is_asked_for(world: World) -> None:
    topic = world.events_topic(OLD, ["old-p1"])
    first = world.claim(topic)
    world.run(first, events, Append("events"))
    recreate(world, topic, LONGER)  # with one partition less

    with pytest.raises(TopicRecreated, match=topic):
        world.claim(topic)
    owner = world.store.owner(world.group)
    assert owner is not None
    assert owner.token == first.token

    world.run(world.claim(topic, policy=StartPolicy(on_recreated="restart")), events, Append("events"))

    assert world.database.column(VALUES) == [*LONGER, *OLD, "old-p1"]
    assert world.stored(topic) == {0: len(LONGER), 1: 0}
    restarts = [event for event in world.store.history(world.group) if event.event == "restart"]
    assert [(event.from_offset, event.to_offset) for event in restarts] == [(3, 0), (1, 0)]
    # And from then on the log is known: no further word is needed.
    world.produce(topic, ["new-z"])
    world.run(world.claim(topic), events, Append("events"))
    assert world.database.column(VALUES) == [*LONGER, "new-z", *OLD, "old-p1"]


@pytest.mark.behaviour("START-8")
@pytest.mark.parametrize("new", [SHORTER, LONGER], ids=["shorter", "longer"])
def test_a_topic_that_is_recreated_while_a_job_runs_ends_it_before_a_record_of_the_new_log_is_written(
    world: World, new: list[str]
) -> None:
    topic = world.events_topic(OLD)
    claim = world.claim(topic)
    sink = TransactionalSink(claim, events, into=Append("events"))
    # The trigger is long, so that the topic is gone and there again between two looks of Spark at it.
    query = world.start(
        sink,
        world.read(claim, **{"kafka.metadata.max.age.ms": "100"}),
        checkpoint=claim.checkpoint(world.checkpoints),
        trigger={"processingTime": "3 seconds"},
    )
    wait_until(lambda: world.stored(topic) == {0: 3}, timeout=SECONDS)

    recreate(world, topic, new)
    failed = world.failure(query, sink)

    # A log that is long enough is read by Spark as if nothing had happened, and refused by us; else Spark refuses it.
    if failed.error is not None:
        assert isinstance(failed.error, TopicRecreated)
        assert "TopicRecreated" in failed.text
    assert world.database.column(VALUES) == OLD
    assert world.stored(topic) == {0: 3}
    with pytest.raises(TopicRecreated):
        world.claim(topic)
    world.run(world.claim(topic, policy=StartPolicy(on_recreated="restart")), events, Append("events"))
    assert world.database.column(VALUES) == [*new, *OLD]


@pytest.mark.behaviour("START-8")
def test_a_topic_that_is_recreated_in_the_middle_of_a_batch_is_not_mixed_with_the_old_one(world: World) -> None:
    topic = world.events_topic(OLD)
    claim = world.claim(topic)
    gate = Gate(events)
    sink = made_unchecked(claim, gate, into=Append("events"))
    query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints))
    gate.wait_until_reached()

    recreate(world, topic, LONGER)
    gate.open()
    failed = world.failure(query, sink)

    assert isinstance(failed.error, TopicRecreated)
    assert "TopicRecreated" in failed.text
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("START-8")
def test_a_recreated_topic_is_noticed_also_by_a_batch_of_a_partition_that_the_claim_did_not_know(world: World) -> None:
    topic = world.events_topic()
    claim = world.claim(topic)
    batches: list[int] = []

    def transform(batch: DataFrame) -> DataFrame | Mapping[str, DataFrame]:
        batches.append(batch.count())
        if "newer" in {row.value for row in events(batch).collect()}:
            recreate(world, topic, [], partitions=2)
            world.produce(topic, ["other", "mixed"], partition=1)
        return events(batch)

    sink = made_unchecked(claim, transform, into=Append("events"))
    query = world.start(
        sink,
        world.read(claim, **{"kafka.metadata.max.age.ms": "100"}),
        checkpoint=claim.checkpoint(world.checkpoints),
        trigger={"processingTime": "100 milliseconds"},
    )
    world.produce(topic, ["known"])
    wait_until(lambda: world.stored(topic) == {0: 1}, timeout=SECONDS)
    admin.create_partitions(world.kafka.bootstrap_servers, topic, total=2)
    world.produce(topic, ["new"], partition=1)
    wait_until(lambda: world.stored(topic) == {0: 1, 1: 1}, timeout=SECONDS)
    world.produce(topic, ["newer"], partition=1)

    failed = world.failure(query, sink)

    assert isinstance(failed.error, TopicRecreated)
    assert world.database.column(VALUES) == ["known", "new"]
