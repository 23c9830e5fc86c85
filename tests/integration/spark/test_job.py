"""A whole job: what is checked before its query has records, what ends it, and what is left then."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

import offsetstore.spark
from offsetstore import Append, Claim, OffsetStore, TopicPartition, TransactionalSink, Upsert
from offsetstore.errors import ColumnMismatch, KafkaColumnsMissing
from offsetstore.protocol.events import BatchEnded
from offsetstore.protocol.ports import Writer
from offsetstore.spark.kafka_columns import KAFKA_COLUMNS
from offsetstore.spark.plans.admission import check_connector
from offsetstore.spark.sink import Transform
from tests.support.gate import Gate
from tests.support.recorder import Recorder
from tests.support.transforms import EVENTS, events
from tests.support.waiting import wait_until
from tests.support.world import World, made_unchecked

VALUES = "SELECT value FROM events ORDER BY value"
FOREVER = {"processingTime": "0 seconds"}


def sink_of(claim: Claim, transform: Transform = events, into: Writer | None = None) -> TransactionalSink:
    return TransactionalSink(claim, transform, into=Append("events") if into is None else into)


@pytest.mark.behaviour("START-30", "DX-1")
def test_a_query_that_starts_at_the_end_of_the_topic_is_told_at_its_first_trigger(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = world.events_topic(["a", "b"])
    claim = world.claim(topic)
    sink = sink_of(claim)
    stream = world.spark.readStream.format("kafka").options(**world.options(topic)).load()
    query = world.start(sink, stream, checkpoint=claim.checkpoint(world.checkpoints), trigger=FOREVER)

    with pytest.raises(SystemExit) as ended, offsetstore.spark.job() as job:
        job.run(query, sink)

    assert ended.value.code == 5
    said = capsys.readouterr().err
    assert f"Error: {topic}-0: the query starts above the stored offset: [0, 2) is missing" in said
    assert '.option("startingOffsets", claim.starting_offsets)' in said
    assert claim.is_closed
    assert not query.isActive
    assert world.store.errors(world.group)[-1].error_class == "OffsetGap"


@pytest.mark.behaviour("START-30")
def test_a_query_that_starts_below_is_warned_about_once_and_writes_nothing_twice(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does a transform that fails on an empty batch do more than warn."""
    topic = world.events_topic(["a", "b", "c"])
    claim = world.claim(topic)
    world.advance(claim, {TopicPartition(topic, 0): 2})
    claim = world.claim(topic)

    def first(batch: DataFrame) -> DataFrame:
        least: Any = batch.first()
        return events(batch.where(F.col("offset") >= least["offset"]))

    sink = sink_of(claim, first)
    reader = world.spark.readStream.format("kafka").options(**world.options(topic, startingOffsets="earliest"))
    with offsetstore.spark.job() as job:
        job.run(world.start(sink, reader.load(), checkpoint=claim.checkpoint(world.checkpoints)), sink)
    assert world.database.column(VALUES) == ["c"]
    [said] = [one for one in caplog.messages if "below the claim's offset" in one]
    assert said.startswith(f"{topic}-0: the query starts at 0, below the claim's offset 2")
    [said] = [one for one in caplog.messages if "empty batch" in one]
    assert said.endswith("tables are checked at the first batch: TypeError")


def test_sigterm_stops_after_the_batch_closes_the_claim_and_copies_its_offsets(
    world: World, offsetstore_database: str
) -> None:
    topic = world.events_topic(["a", "b"])
    recorder, gate = Recorder(), Gate(events)
    broker = world.broker(topic)
    with OffsetStore.connect(offsetstore_database, observers=[recorder]) as store:
        claim = store.claim(world.group, broker, mirror_every=3600)
        sink = made_unchecked(claim, gate, into=Append("events"))
        query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints), trigger=FOREVER)
        with offsetstore.spark.job() as job:

            def terminate() -> None:
                gate.wait_until_reached()
                wait_until(lambda: job._is_running)  # before that, the signal would end the block
                os.kill(os.getpid(), signal.SIGTERM)
                threading.Timer(0.5, gate.open).start()

            stopping = threading.Thread(target=terminate)
            stopping.start()
            job.run(query, sink)
        stopping.join()

        assert claim.is_closed
        assert not query.isActive
    assert world.database.column(VALUES) == ["a", "b"]
    assert recorder.of(BatchEnded, "interrupted") == []
    committed = broker.committed_offsets(world.group, claim.partitions)
    assert [one.next_offset for one in committed.values()] == [2]


def test_a_batch_that_takes_too_long_is_left_to_the_next_start(world: World) -> None:
    topic = world.events_topic(["a"])
    claim, gate = world.claim(topic), Gate(events)
    sink = made_unchecked(claim, gate, into=Append("events"))
    query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints), trigger=FOREVER)
    gate.wait_until_reached()
    threading.Timer(0.5, gate.open).start()  # Spark does not interrupt Python

    sink.stop(query, timeout=0.01)

    assert not query.isActive
    assert sink.error is None
    assert (world.database.column(VALUES), world.stored(topic)) in (([], {0: 0}), (["a"], {0: 1}))


# -- what is checked when the sink is made


@pytest.mark.behaviour("START-30")
def test_a_sink_is_refused_with_a_table_that_does_not_fit_before_any_job_is_run(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def jobs_run() -> int:
        context: Any = world.spark.sparkContext._jsc
        return int(context.sc().dagScheduler().numTotalJobs())

    check_connector(world.spark)  # that of this Spark is found
    topic = world.topic()
    claim = world.claim(topic)
    before = jobs_run()
    with pytest.raises(ColumnMismatch, match=r"no table events; .* while trying the transform on an empty batch"):
        sink_of(claim)
    world.database.execute(EVENTS)
    with pytest.raises(ColumnMismatch, match="vaule"):
        sink_of(claim, lambda batch: events(batch).withColumnRenamed("value", "vaule"))
    world.database.execute("CREATE TABLE totals (topic text PRIMARY KEY, last text)")
    latest = Upsert("totals", key=["topic"])
    with pytest.raises(KafkaColumnsMissing):
        sink_of(claim, lambda batch: batch.selectExpr("topic", "CAST(value AS STRING) AS last"), latest)
    sink_of(claim, lambda batch: batch.selectExpr("topic", "CAST(value AS STRING) AS last", "_kafka"), latest)
    sink_of(claim)
    sink_of(claim, lambda batch: batch)  # of a query that makes the columns itself
    # Headers are there if the claim's options ask for them.
    world.database.execute("CREATE TABLE counted (headers int)")
    seen: list[list[str]] = []

    def count(batch: DataFrame) -> DataFrame:
        seen.append(batch.columns)
        return batch.selectExpr("size(headers) AS headers")

    caplog.clear()
    with_headers = world.broker(topic, includeHeaders="true")
    sink_of(world.store.claim(world.group, with_headers, mirror_every=None), count, Append("counted"))
    assert [one for one in caplog.messages if "empty batch" in one] == []
    sink_of(world.claim(topic), count, Append("counted"))
    assert seen == [[*KAFKA_COLUMNS, "_kafka"], [*KAFKA_COLUMNS[:-1], "_kafka"]]
    # The first claim may log meanwhile that it is lost.
    [said] = [one for one in caplog.messages if "empty batch" in one]
    assert "AnalysisException: [UNRESOLVED_COLUMN" in said
    kept = world.claim(topic)
    kept.checkpoint(world.checkpoints, keep=True)
    sink_of(kept, count, Append("counted"))
    assert len(seen) == 2  # a query with state has columns of its own
    assert jobs_run() == before
