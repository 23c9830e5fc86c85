"""A topic that was deleted and created again has other records under the same offsets."""

from __future__ import annotations

import pytest

from offsetstore import Append, StartPolicy, TransactionalSink
from offsetstore.errors import TopicRecreated
from offsetstore.kafka import admin
from tests.support.transforms import events
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World

VALUES = "SELECT value FROM events ORDER BY value"
OLD = ["old-a", "old-b", "old-c"]
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


@pytest.mark.behaviour("START-8")
def test_a_topic_that_is_recreated_while_a_job_runs_ends_it_before_a_record_of_the_new_log_is_written(
    world: World,
) -> None:
    """The new log is longer, so that Spark reads it as if nothing had happened. A shorter one, Spark refuses."""
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

    recreate(world, topic, LONGER)
    failed = world.failure(query, sink)

    assert isinstance(failed.error, TopicRecreated)
    assert "TopicRecreated" in failed.text
    assert world.database.column(VALUES) == OLD
    assert world.stored(topic) == {0: 3}
