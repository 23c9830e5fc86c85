"""A job with the recommended settings."""

from __future__ import annotations

from importlib.metadata import version

from offsetstore import Append
from offsetstore.spark.settings import MANAGER, tuned
from tests.support.transforms import events
from tests.support.world import World

PACKAGE = "org.apache.spark.sql.execution.streaming" + ("" if version("pyspark") < "4.1" else ".checkpointing")
FILE_MANAGER = f"{PACKAGE}.FileSystemBasedCheckpointFileManager"  # as docs/performance.md says


def test_a_job_with_the_recommended_settings_lands_each_record_once_over_restarts(world: World) -> None:
    topic = world.events_topic(partitions=2)
    options = tuned(world.spark, world.options(topic))
    assert world.spark.conf.get(MANAGER, None) is None
    world.spark.conf.set(MANAGER, FILE_MANAGER)
    try:
        for number, value in enumerate("abc"):
            world.produce(topic, [value] * 3, partition=number % 2)
            claim = world.claim(topic)
            reader = world.spark.readStream.format("kafka").options(**options)
            stream = reader.option("startingOffsets", claim.starting_offsets).load()
            world.run(claim, events, Append("events"), stream=stream)
    finally:
        world.spark.conf.unset(MANAGER)
    assert world.database.column("SELECT value FROM events ORDER BY value") == list("aaabbbccc")
    assert world.stored(topic) == {0: 6, 1: 3}
