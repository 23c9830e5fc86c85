"""A whole job: what is checked before its query has records, what ends it, and what is left then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.streaming.query import StreamingQuery

import offsetstore.spark
from offsetstore import Append, Claim, OffsetStore, TopicPartition, TransactionalSink, Upsert
from offsetstore.errors import ColumnMismatch, KafkaColumnsMissing
from offsetstore.protocol.events import BatchEnded, BatchStarted, PauseChanged
from offsetstore.protocol.ports import Writer
from offsetstore.spark.columns import KAFKA_COLUMNS
from offsetstore.spark.plans.admission import check_connector
from offsetstore.spark.sink import SparkTransform
from tests.support.recorder import Recorder
from tests.support.transforms import EVENTS, events, traced
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World

VALUES = "SELECT value FROM events ORDER BY value"
FOREVER = {"processingTime": "0 seconds"}


def sink_of(claim: Claim, transform: SparkTransform = events, into: Writer | None = None) -> TransactionalSink:
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


@pytest.mark.behaviour("OPS-2", "OPS-15", "SINK-11")
def test_a_paused_job_holds_no_lock_ends_soon_if_it_is_stopped_and_goes_on_when_it_is_resumed(world: World) -> None:
    told = Recorder()
    world.store.close()
    world.store = OffsetStore.connect(world.database.url, observers=[told])
    topic = world.events_topic(["a", "b"])
    claim = world.claim(topic)
    checkpoint = claim.checkpoint(world.checkpoints)
    pause = world.store.pause(world.group, reason="ticket 17").after

    def start() -> tuple[StreamingQuery, TransactionalSink]:
        sink = TransactionalSink(claim, traced, into=Append("events"), atomicity="partition", task_threshold=0)
        stream = world.read(claim, **{"kafka.metadata.max.age.ms": "100"})
        return world.start(sink, stream, checkpoint=checkpoint, trigger={"processingTime": "100 milliseconds"}), sink

    query, sink = start()
    [paused] = wait_until(lambda: told.of(PauseChanged), timeout=SECONDS)
    assert paused == PauseChanged(group=world.group, pause=pause)
    for table in ("consumer_groups", "kafka_partitions"):
        world.database.execute(f"SELECT 1 FROM {table} FOR UPDATE NOWAIT")
    owner = world.store.owner(world.group)
    assert owner is not None
    assert (owner.is_live, owner.token) == (True, claim.token)

    query.stop()
    assert query.awaitTermination(1)
    assert (query.exception(), sink.error, told.of(BatchEnded, "failed")) == (None, None, [])
    assert [(one.batch, one.ranges) for one in told.of(BatchEnded, "interrupted")] == [
        (one.batch, one.ranges) for one in told.of(BatchStarted)
    ]
    assert not (Path(checkpoint) / "commits" / "0").exists()
    assert (Path(checkpoint) / "offsets" / "0").exists()
    assert (world.database.column(VALUES), world.stored(topic)) == ([], {0: 0})

    query, sink = start()  # on the same checkpoint
    wait_until(lambda: len(told.of(BatchStarted)) == 2, timeout=SECONDS)
    world.store.resume(world.group, reason="done")
    wait_until(lambda: told.of(BatchEnded, "written"), timeout=SECONDS)
    query.stop()
    assert sink.error is None
    assert (world.database.column(VALUES), world.stored(topic)) == (["a", "b"], {0: 2})
    assert told.of(PauseChanged)[-1].pause is None
