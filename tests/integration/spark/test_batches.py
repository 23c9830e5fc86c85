"""Ordinary batches: what the job makes of them lands with its offsets, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Thread

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, OffsetRange, TopicPartition, TransactionalSink
from offsetstore.protocol.events import BatchEnded, BatchStarted
from offsetstore.protocol.observers import Observers
from offsetstore.protocol.work import Work
from offsetstore.testing.fixtures import NewTopic
from tests.support.gate import Gate
from tests.support.recorder import Recorder
from tests.support.transforms import EVENTS, events, traced
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World, counts, made_unchecked

PHASES = ["plan", "compute", "write", "commit"]
VALUES = "SELECT value FROM events ORDER BY value"


@pytest.mark.behaviour("SINK-3")
def test_a_filter_that_drops_everything_still_advances_also_one_on_the_stream_itself(world: World) -> None:
    topic = world.events_topic(["a", "b", "c"], partitions=2)
    claim = world.claim(topic)
    stream = world.read(claim).where(F.col("value").cast("string") == "b").select(
        "value", "timestamp", "offset", "partition", "topic"
    )  # fmt: skip
    world.run(claim, lambda batch: events(batch).where("value = 'c'"), Append("events"), stream=stream)
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 3, 1: 0}


@pytest.mark.behaviour("SINK-8", "TX-1")
def test_several_topics_and_tables_are_seen_together_with_their_offsets_or_not_at_all(
    world: World, offsetstore_topic: NewTopic, offsetstore_database: str
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

    into = {"events": Watched("events"), "payments": Watched("payments"), "refunds": Watched("refunds")}
    query = world.run(world.claim(payments, refunds), transform, into)

    assert seen == [(0, 0, 0, 0)] * 3
    assert world.database.rows(state) == [(3, 2, 1, 3)]
    assert world.stored(payments) == {0: 2, 1: 0}
    assert world.stored(refunds) == {0: 1}
    assert counts(query) == [3]  # three outputs, and Kafka was read once


@pytest.mark.behaviour("SINK-8", "START-12")
def test_two_sources_in_one_query_are_one_transaction(world: World, offsetstore_topic: NewTopic) -> None:
    world.database.execute(EVENTS)
    one, other = offsetstore_topic(1), offsetstore_topic(2)
    world.produce(one, ["a", "b"])
    world.produce(other, ["c"], partition=1)
    claim = world.claim(one, other)
    streams = [
        world.spark.readStream.format("kafka")
        .options(**world.options(topic))
        .option("startingOffsets", "earliest")
        .load()
        for topic in (one, other)
    ]
    world.run(claim, events, Append("events"), stream=streams[0].union(streams[1]))
    assert world.database.column(VALUES) == ["a", "b", "c"]
    assert world.stored(one) == {0: 2}
    assert world.stored(other) == {0: 0, 1: 1}


@pytest.mark.behaviour("SINK-9", "START-12")
def test_two_jobs_of_two_groups_read_one_topic_at_once_and_each_has_its_own_offsets(world: World) -> None:
    world.database.execute(EVENTS)
    world.database.execute("CREATE TABLE copies (value text)")
    topic = world.topic([f"a{number}" for number in range(5)], [f"b{number}" for number in range(5)])
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
    claim = world.claim(topic)
    gate = Gate(events)
    sink = made_unchecked(claim, gate, into=Append("events"))
    query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints))
    gate.wait_until_reached()
    stop = Thread(target=query.stop)  # waits for the batch
    stop.start()
    wait_until(lambda: not query.isActive, timeout=SECONDS)
    gate.open()
    stop.join(SECONDS)
    assert not stop.is_alive()
    assert (sink.error, query.exception()) == (None, None)
    state = (len(world.database.column(VALUES)), world.stored(topic)[0])
    assert state in {(0, 0), (2, 2)}

    world.produce(topic, ["c"])
    world.run(world.claim(topic), events, Append("events"))

    assert world.database.column(VALUES) == ["a", "b", "c"]
    assert world.stored(topic) == {0: 3}


@pytest.mark.behaviour("TX-10")
def test_the_sink_alone_takes_over_where_a_checkpoint_of_ones_own_stands(world: World) -> None:
    """Without a broker the claim knows no partitions: each gets a row that starts at its first range."""
    topic = world.events_topic(partitions=2)
    own = f"{world.checkpoints}/own"
    reader = world.spark.readStream.format("kafka").options(**world.options(topic))
    world.produce(topic, ["before"])
    ignore = reader.option("startingOffsets", "earliest").load().writeStream.foreachBatch(lambda _batch, _id: None)
    ignore.option("checkpointLocation", own).trigger(availableNow=True).start().awaitTermination(SECONDS)
    for values in (["a"], ["b"]):
        world.produce(topic, values)
        claim = world.store.claim(world.group, topics=[topic])
        world.run(claim, events, Append("events"), stream=reader.load(), checkpoint=own)
    assert world.database.column(VALUES) == ["a", "b"]
    assert world.stored(topic) == {0: 3}
    adopted = [event for event in world.store.history(world.group) if event.event == "adopt"]
    assert [(event.from_offset, event.to_offset) for event in adopted] == [(None, 1)]


@pytest.mark.behaviour("OPS-15", "SINK-4")
def test_each_batch_is_told_to_observers_with_its_rows_and_phases(world: World) -> None:
    seen = Recorder()
    world.store.observers = Observers([seen])
    topic = world.events_topic()
    p0 = TopicPartition(topic, 0)
    world.run(world.claim(topic), traced, Append("events"))  # over an empty topic
    assert seen.of(BatchStarted) == []
    for number, (way, phases) in enumerate((("batch", PHASES), ("partition", ["plan", "tasks"]))):
        world.produce(topic, ["a", "b"])
        claim = world.claim(topic)
        world.run(claim, traced, Append("events"), atomicity=way)
        started, written = seen.of(BatchStarted)[-1], seen.of(BatchEnded, "written")[-1]
        assert started.ranges == written.ranges == {p0: OffsetRange(2 * number, 2 * number + 2)}
        assert list(written.rows.values()) == [2]
        assert list(written.seconds) == phases
        assert all(seconds > 0 for seconds in written.seconds.values())

    world.produce(topic, ["c"])
    claim = world.claim(topic)
    stream = world.read(claim)
    world.advance(claim, {p0: 5})
    world.run(claim, traced, Append("events"), stream=stream)
    assert [event.ranges for event in seen.of(BatchEnded, "skipped")] == [{p0: OffsetRange(4, 5)}]
    assert len(seen.of(BatchEnded, "written")) == 2
