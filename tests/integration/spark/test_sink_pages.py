"""The blocks of docs/stateful.md, and the sink alone of docs/parts.md."""

from __future__ import annotations

import shutil
from typing import Any

from offsetstore import TopicPartition
from tests.integration.spark.conftest import execute_block
from tests.support.transforms import traced
from tests.support.world import SECONDS, World

MINUTE = 60_000
NINE = 1_735_722_000_000
"""2025-01-01 09:00 UTC, in milliseconds."""


def test_each_minute_is_written_once_it_is_over(world: World) -> None:
    world.database.execute("CREATE TABLE per_minute (start timestamptz, records bigint)")
    topic = world.topic()
    replaced = {
        '"billing"': repr(world.group),
        '"/checkpoints"': repr(world.checkpoints),
        ".start()": ".trigger(availableNow=True).start()",
    }

    def run(*minutes: int) -> list[Any]:
        world.produce_whole(topic, [(None, b"", [], NINE + minute * MINUTE) for minute in minutes])
        execute_block("stateful.md", 0, replaced, store=world.store, spark=world.spark, kafka=world.options(topic))
        return world.database.rows("SELECT to_char(start AT TIME ZONE 'UTC', 'HH24:MI'), records FROM per_minute")

    assert run(0, 0, 3) == [("09:00", 2)]
    assert run(9) == [("09:00", 2), ("09:03", 1)]

    # Its checkpoint is moved away: the window that was open is lost, until its record is read again as the page says.
    shutil.rmtree(world.checkpoints)
    assert run(12) == [("09:00", 2), ("09:03", 1)]
    shutil.rmtree(world.checkpoints)
    world.store.reset(world.group, {TopicPartition(topic, 0): 3}, reason="read the lost window again")
    world.database.execute("DELETE FROM per_minute WHERE start > '2025-01-01 09:03Z'")
    assert sorted(run(15)) == [("09:00", 2), ("09:03", 1), ("09:09", 1), ("09:12", 1)]


def test_the_sink_alone_reads_all_records_and_goes_on_with_its_own_checkpoint(world: World) -> None:
    topic = world.events_topic(["a", "b"])
    replaced = {
        'Append("payments")': 'Append("events")',
        '["payments"]': repr([topic]),
        '"billing"': repr(world.group),
        '"/checkpoints/billing"': repr(f"{world.checkpoints}/own"),
        ".start()": ".trigger(availableNow=True).start()",
    }

    def run() -> list[str]:
        given: dict[str, Any] = {"store": world.store, "spark": world.spark, "kafka": world.options(topic)}
        names = execute_block("parts.md", 0, replaced, parse=traced, **given)
        assert names["query"].awaitTermination(SECONDS)
        assert names["sink"].error is None
        return world.database.column('SELECT value FROM events ORDER BY "offset"')

    assert run() == ["a", "b"]
    world.produce(topic, ["c"])
    assert run() == ["a", "b", "c"]
