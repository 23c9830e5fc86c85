"""Ranges in which not every offset has a record, or none has."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from offsetstore import Append, TopicPartition
from offsetstore.kafka import admin
from offsetstore.protocol.work import Work
from offsetstore.testing.fixtures import NewTopic
from tests.support.transactions import TransactionalProducer, hurry_the_log_cleaner, wait_until_compacted
from tests.support.transforms import EVENTS, events
from tests.support.world import World, counts

VALUES = "SELECT value FROM events ORDER BY value"
COMMITTED: dict[str, Any] = {"kafka.isolation.level": "read_committed"}


@pytest.mark.behaviour("TX-7", "SINK-4")
def test_aborted_transactions_and_their_markers_are_passed_to_the_ranges_end(world: World) -> None:
    topic = world.events_topic(partitions=2)
    producer = TransactionalProducer(world.kafka.bootstrap_servers, topic)
    producer.commit(["a", "b"])  # 0, 1, and a marker at 2
    producer.abort(["x", "y"])  # 3, 4, and a marker at 5
    producer.commit(["c"])  # 6, 7
    producer.abort(["z"])  # 8, 9: the log ends with records that nobody may read

    written: list[int] = []

    class Recording(Append):
        def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
            written.append(super().write(work, batches))
            return written[-1]

    claim = world.store.claim(world.group, world.broker(topic, **COMMITTED))
    query = world.run(claim, events, Recording("events"), maxOffsetsPerTrigger="4", **COMMITTED)

    assert counts(query) == [2, 1]
    assert written == [2, 1, 0], "the last range has no record"
    assert world.database.rows('SELECT "offset", value FROM events ORDER BY 1') == [(0, "a"), (1, "b"), (6, "c")]
    assert world.stored(topic) == {0: 10, 1: 0}
    # The next run continues behind the holes.
    producer.commit(["d"])
    claim = world.store.claim(world.group, world.broker(topic, **COMMITTED))
    world.run(claim, events, Append("events"), **COMMITTED)
    assert world.database.column(VALUES) == ["a", "b", "c", "d"]
    assert world.stored(topic) == {0: 12, 1: 0}


@pytest.mark.behaviour("TX-7", "TX-5")
def test_a_compacted_log_is_read_to_its_end_and_cropped_inside_a_hole(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    servers = world.kafka.bootstrap_servers
    hurry_the_log_cleaner(servers)
    topic = offsetstore_topic(
        1, config={"cleanup.policy": "compact", "segment.ms": "50", "min.cleanable.dirty.ratio": "0.01"}
    )
    world.produce_keyed(topic, [("key", f"old{number}") for number in range(8)])
    world.produce_keyed(topic, [("other", "b"), ("key", "c")])
    # The newest segment is never compacted; a record that comes a minute later, by its own clock, begins another.
    later = admin.Record(b"last", b"last", 0, timestamp_ms=int(time.time() * 1000) + 60_000)
    admin.produce(servers, topic, [later])
    offsets = wait_until_compacted(servers, topic, records=3)
    assert offsets == [8, 9, 10]
    claim = world.claim(topic)
    world.advance(claim, {TopicPartition(topic, 0): 5})
    seen: list[int] = []

    def transform(batch: DataFrame) -> DataFrame:
        seen.append(batch.count())
        return events(batch)

    world.run(claim, transform, Append("events"))

    assert seen == [3]
    assert world.database.column(VALUES) == ["b", "c", "last"]
    assert world.stored(topic) == {0: 11}
