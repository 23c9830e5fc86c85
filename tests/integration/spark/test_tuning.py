"""A job with the recommended settings."""

from __future__ import annotations

from pathlib import Path

from offsetstore import Append
from offsetstore.spark import tuned
from tests.support.transforms import events
from tests.support.world import FILE_MANAGER, MANAGER, World

PAGE = Path(__file__).parents[3] / "docs" / "performance.md"


def test_a_job_with_the_recommended_settings_lands_each_record_once_over_a_restart(world: World) -> None:
    topic = world.events_topic(partitions=2)
    options = tuned(world.spark, world.options(topic))
    assert world.spark.conf.get(MANAGER) == FILE_MANAGER  # as all tests with this world have it
    assert FILE_MANAGER.rpartition(".")[2] in PAGE.read_text(encoding="utf-8")
    for number, value in enumerate("ab"):
        world.produce(topic, [value] * 3, partition=number % 2)
        claim = world.claim(topic)
        reader = world.spark.readStream.format("kafka").options(**options)
        stream = reader.option("startingOffsets", claim.starting_offsets).load()
        world.run(claim, events, Append("events"), stream=stream)
    assert world.database.column("SELECT value FROM events ORDER BY value") == list("aaabbb")
    assert world.stored(topic) == {0: 3, 1: 3}
