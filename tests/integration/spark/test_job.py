"""A whole job: what is checked before its query has records, what ends it, and what is left then."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from sqlalchemy import make_url

import offsetstore.spark
from offsetstore import Append, Claim, OffsetStore, TopicPartition, TransactionalSink, Upsert
from offsetstore.errors import ColumnMismatch, KafkaColumnsMissing, MissingPrivilege, OffsetGap
from offsetstore.protocol.events import BatchEnded
from offsetstore.protocol.ports import Writer
from offsetstore.spark.continuity import check_start
from offsetstore.spark.plans.admission import check_connector
from offsetstore.spark.plans.query import RunningQuery
from offsetstore.spark.sink import Transform
from offsetstore.testing.fixtures import NewTopic
from tests.support.recorder import Recorder
from tests.support.transforms import EVENTS, events
from tests.support.waiting import wait_until
from tests.support.world import SECONDS, World

VALUES = "SELECT value FROM events ORDER BY value"
FOREVER = {"processingTime": "0 seconds"}


def sink_of(claim: Claim, transform: Transform = events, into: Writer | None = None) -> TransactionalSink:
    return TransactionalSink(claim, transform, into=Append("events") if into is None else into)


# -- where the query starts


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
def test_without_the_job_the_first_batch_tells_it_of_a_partition_without_records(world: World) -> None:
    topic = world.events_topic(["a", "b"], ["c"])
    elsewhere = f'{{"{topic}": {{"0": 2, "1": 0}}}}'
    reader = world.spark.readStream.format("kafka").options(**world.options(topic, startingOffsets=elsewhere))
    failure = world.run_to_failure(world.claim(topic), events, Append("events"), stream=reader.load())
    assert isinstance(failure.error, OffsetGap)
    assert failure.error.topic_partition is not None
    assert failure.error.topic_partition.partition == 0
    assert world.database.column(VALUES) == []


@pytest.mark.behaviour("START-30")
def test_a_query_that_starts_below_is_warned_about_once_and_writes_nothing_twice(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(claim: Claim, query: RunningQuery) -> bool:
        is_known = check_start(claim, query)
        time.sleep(1)  # the job and the query's first batch check it at the same time
        return is_known

    monkeypatch.setattr("offsetstore.spark.sink.check_start", slowly)
    topic = world.events_topic(["a", "b"])
    world.run(world.claim(topic), events, Append("events"))
    world.produce(topic, ["c"])
    claim = world.claim(topic)
    sink = sink_of(claim)
    reader = world.spark.readStream.format("kafka").options(**world.options(topic, startingOffsets="earliest"))
    caplog.clear()
    with offsetstore.spark.job() as job:
        job.run(world.start(sink, reader.load(), checkpoint=claim.checkpoint(world.checkpoints)), sink)
    assert world.database.column(VALUES) == ["a", "b", "c"]
    [said] = [one.getMessage() for one in caplog.records if "below the claim's offset" in one.getMessage()]
    assert said.startswith(f"{topic}-0: the query starts at 0, below the claim's offset 2")


@pytest.mark.behaviour("START-30")
def test_one_with_another_checkpoint_that_has_ended_without_a_batch_is_told_too(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    topic, own = offsetstore_topic(1), f"{world.checkpoints}/own"
    world.produce(topic, ["a", "b"])
    world.run(world.claim(topic), events, Append("events"), checkpoint=own)
    world.store.reset(world.group, {TopicPartition(topic, 0): 0}, reason="the database was restored")
    claim = world.claim(topic)
    sink = sink_of(claim)
    query = world.start(sink, world.read(claim), checkpoint=own)
    assert query.awaitTermination(SECONDS)
    with pytest.raises(OffsetGap, match=r"\[0, 2\) is missing"):
        offsetstore.spark.job().run(query, sink)


# -- signals


class Slow:
    """A transform that takes a second, once it is told to, and says that it has begun."""

    def __init__(self) -> None:
        self.is_armed = False
        self.has_begun = threading.Event()

    def __call__(self, batch: DataFrame) -> DataFrame:
        if self.is_armed:
            self.has_begun.set()
            time.sleep(1)
        return events(batch)


def test_sigterm_stops_after_the_batch_closes_the_claim_and_copies_its_offsets(
    world: World, offsetstore_database: str
) -> None:
    topic = world.events_topic(["a", "b"])
    recorder, slow = Recorder(), Slow()
    broker = world.broker(topic)
    with OffsetStore.connect(offsetstore_database, observers=[recorder]) as store:
        claim = store.claim(world.group, broker, mirror_every=3600)
        sink = sink_of(claim, slow)
        slow.is_armed = True
        query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints), trigger=FOREVER)
        with offsetstore.spark.job() as job:

            def terminate() -> None:
                assert slow.has_begun.wait(SECONDS)
                wait_until(lambda: job._is_running)  # before that, the signal would end the block
                os.kill(os.getpid(), signal.SIGTERM)

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
    slow = Slow()
    claim = world.claim(topic)
    sink = sink_of(claim, slow)
    slow.is_armed = True
    query = world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints), trigger=FOREVER)
    assert slow.has_begun.wait(SECONDS)

    sink.stop(query, timeout=0.01)

    assert not query.isActive
    assert sink.error is None
    assert world.database.column(VALUES) in ([], ["a"])  # Spark does not interrupt Python
    world.run(world.claim(topic), events, Append("events"))
    assert world.database.column(VALUES) == ["a"]


# -- what is checked when the sink is made


def jobs_run(world: World) -> int:
    context: Any = world.spark.sparkContext._jsc
    return int(context.sc().dagScheduler().numTotalJobs())


@pytest.mark.behaviour("START-30")
def test_a_sink_is_refused_with_a_table_that_does_not_fit_before_any_job_is_run(
    world: World, offsetstore_topic: NewTopic
) -> None:
    claim = world.claim(offsetstore_topic(1))
    before = jobs_run(world)
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
    assert jobs_run(world) == before


@pytest.mark.behaviour("START-30")
def test_a_transform_that_fails_on_an_empty_batch_is_only_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    topic = world.events_topic(["a"])
    claim = world.claim(topic)

    def first(batch: DataFrame) -> DataFrame:
        least: Any = batch.first()
        return events(batch.where(F.col("offset") >= least["offset"]))

    sink = sink_of(claim, first)
    with offsetstore.spark.job() as job:
        job.run(world.start(sink, world.read(claim), checkpoint=claim.checkpoint(world.checkpoints)), sink)
    [said] = [one.getMessage() for one in caplog.records if "empty batch" in one.getMessage()]
    assert said.endswith("tables are checked at the first batch: TypeError")
    assert world.database.column(VALUES) == ["a"]


@pytest.mark.behaviour("START-30")
def test_headers_are_there_if_the_claims_options_ask_for_them(
    world: World, offsetstore_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    world.database.execute("CREATE TABLE counted (headers int)")
    topic = offsetstore_topic(1)
    seen: list[list[str]] = []

    def count(batch: DataFrame) -> DataFrame:
        seen.append(batch.columns)
        return batch.selectExpr("size(headers) AS headers")

    claim = world.store.claim(world.group, world.broker(topic, includeHeaders="true"), mirror_every=None)
    sink_of(claim, count, Append("counted"))
    assert seen[0] == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
        "_kafka",
    ]
    assert [one for one in caplog.messages if "empty batch" in one] == []
    sink_of(world.claim(topic), count, Append("counted"))
    assert "headers" not in seen[1]
    # The first claim may log meanwhile that it is lost.
    [said] = [one for one in caplog.messages if "empty batch" in one]
    assert "AnalysisException: [UNRESOLVED_COLUMN" in said
    kept = world.claim(topic)
    kept.checkpoint(world.checkpoints, keep=True)
    sink_of(kept, count, Append("counted"))
    assert len(seen) == 2  # a query with state has columns of its own


@pytest.mark.behaviour("START-30")
def test_a_role_without_the_rights_is_told_what_to_grant(
    world: World, offsetstore_topic: NewTopic, offsetstore_database: str
) -> None:
    role = f"role_{uuid4().hex[:12]}"
    tables = 'CREATE TABLE app.totals (topic text PRIMARY KEY, last text, "at" timestamptz DEFAULT now())'
    world.database.execute(
        f"CREATE SCHEMA app; {tables}; CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA app TO {role}"
    )
    world.database.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    world.database.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
    topic = offsetstore_topic(1)

    def last(batch: DataFrame) -> DataFrame:
        return batch.selectExpr("topic", "CAST(value AS STRING) AS last", "_kafka")

    try:
        with OffsetStore.connect(make_url(offsetstore_database).set(username=role).render_as_string()) as store:
            claim = store.claim(world.group, world.broker(topic), mirror_every=None)
            with pytest.raises(MissingPrivilege) as append:
                sink_of(claim, last, Append("app.totals"))
            with pytest.raises(MissingPrivilege) as upsert:
                sink_of(claim, last, Upsert("app.totals", key=["topic"]))
            assert f"`offsetstore grants --role {role} --append app.totals`" in append.value.next_step
            assert f"`offsetstore grants --role {role} --upsert app.totals`" in upsert.value.next_step
            assert upsert.value.found == "no INSERT, UPDATE, SELECT"
            world.database.execute(f"GRANT INSERT (topic, last) ON app.totals TO {role}")
            with pytest.raises(MissingPrivilege):  # LOCK TABLE wants it on the whole table
                sink_of(claim, last, Append("app.totals"))
            world.database.execute(f"GRANT INSERT, UPDATE, SELECT ON app.totals TO {role}")
            sink_of(claim, last, Upsert("app.totals", key=["topic"]))
    finally:
        world.database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_the_connector_of_this_spark_is_found(world: World) -> None:
    check_connector(world.spark)
