"""Ordinary batches: what the job makes of them lands with its offsets, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, TransactionalSink
from offsetstore.protocol.ports import Work
from offsetstore.testing.fixtures import NewTopic
from tests.support.gate import Gate
from tests.support.transforms import EVENTS, events
from tests.support.world import SECONDS, World, counts, made_unchecked

VALUES = "SELECT value FROM events ORDER BY value"


@pytest.mark.behaviour("SINK-8", "START-12", "TX-1")
def test_several_sources_and_tables_are_seen_together_with_their_offsets_or_not_at_all(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    world.database.execute("CREATE TABLE payments (value text); CREATE TABLE refunds (value text)")
    payments, refunds = offsetstore_topic(2), offsetstore_topic(1)
    world.produce(payments, ["p1", "p2"])
    world.produce(refunds, ["r1"])
    seen: list[tuple[int, ...]] = []
    state = """
        SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM payments), (SELECT count(*) FROM refunds),
               (SELECT sum(next_offset)::int FROM kafka_partitions)
    """

    class Watched(Append):
        """Looks with a second connection when it has written, and the others have or have not."""

        def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
            written = super().write(work, batches)
            seen.extend(world.database.rows(state))
            return written

    def of(topic: str, batch: DataFrame) -> DataFrame:
        return batch.where(F.col("topic") == topic).select(F.col("value").cast("string").alias("value"))

    def transform(batch: DataFrame) -> dict[str, DataFrame]:
        return {"events": events(batch), "payments": of(payments, batch), "refunds": of(refunds, batch)}

    def read(topic: str) -> DataFrame:
        options = world.options(topic, startingOffsets="earliest")
        return world.spark.readStream.format("kafka").options(**options).load()

    into = {"events": Watched("events"), "payments": Watched("payments"), "refunds": Watched("refunds")}
    stream = read(payments).union(read(refunds))
    query = world.run(world.claim(payments, refunds), transform, into, stream=stream)

    assert seen == [(0, 0, 0, 0)] * 3
    assert world.database.rows(state) == [(3, 2, 1, 3)]
    assert world.stored(payments) == {0: 2, 1: 0}
    assert world.stored(refunds) == {0: 1}
    assert counts(query) == [3]  # three outputs, and Kafka was read once


@pytest.mark.behaviour("SINK-9", "START-12")
def test_two_jobs_of_two_groups_read_one_topic_at_once_and_each_has_its_own_offsets(world: World) -> None:
    world.database.execute("CREATE TABLE copies (value text)")
    topic = world.events_topic([f"a{number}" for number in range(5)], [f"b{number}" for number in range(5)])
    other = f"{world.group}-2"
    claims = [world.claim(topic), world.claim(topic, group=other)]
    sinks = [
        TransactionalSink(claims[0], events, into=Append("events")),
        TransactionalSink(claims[1], lambda batch: events(batch).select("value"), into=Append("copies")),
    ]

    queries = [
        world.start(sink, world.read(claim, maxOffsetsPerTrigger="4"), checkpoint=claim.checkpoint(world.checkpoints))
        for sink, claim in zip(sinks, claims, strict=True)
    ]
    assert all(query.awaitTermination(SECONDS) for query in queries)

    expected = [f"{letter}{number}" for letter in "ab" for number in range(5)]
    assert world.database.column(VALUES) == expected
    assert world.database.column("SELECT value FROM copies ORDER BY value") == expected
    # One group runs again, and the other one's offsets stay.
    world.produce(topic, ["a5"])
    world.run(world.claim(topic), events, Append("events"))
    assert world.stored(topic) == {0: 6, 1: 5}
    assert world.stored(topic, group=other) == {0: 5, 1: 5}


@pytest.mark.behaviour("SINK-11")
def test_a_stop_in_the_middle_of_a_batch_leaves_all_of_it_or_nothing(world: World) -> None:
    topic = world.events_topic(["a", "b"])
    claim, gate = world.claim(topic), Gate(events)
    sink = made_unchecked(claim, gate, into=Append("events"))
    query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints))
    gate.wait_until_reached()
    threading.Timer(0.5, gate.open).start()  # Spark does not interrupt Python

    sink.stop(query, timeout=0.01)

    assert not query.isActive
    assert (sink.error, query.exception()) == (None, None)
    assert (world.database.column(VALUES), world.stored(topic)) in (([], {0: 0}), (["a", "b"], {0: 2}))

    world.produce(topic, ["c"])
    world.run(world.claim(topic), events, Append("events"))

    assert world.database.column(VALUES) == ["a", "b", "c"]
    assert world.stored(topic) == {0: 3}
