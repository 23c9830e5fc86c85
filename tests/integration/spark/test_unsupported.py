"""Queries from which exactly-once can't be had: refused by name, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, TopicPartition, TransactionalSink
from offsetstore.errors import KafkaColumnsMissing, UnsupportedQuery
from offsetstore.spark.plans import analyzed
from offsetstore.spark.plans.admission import admit, admit_stateful
from offsetstore.testing import InMemoryOffsetStore
from offsetstore.testing.fixtures import NewTopic
from tests.support.transforms import events
from tests.support.windows import windows
from tests.support.world import SECONDS, World

VALUES = "SELECT value FROM events ORDER BY value"


@pytest.mark.behaviour("SINK-15")
def test_spark_connect_is_refused_when_the_sink_is_made_and_when_it_would_be_sent_elsewhere(
    offsetstore_spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickler: Any = cloudpickle
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        sink = TransactionalSink(claim, events, into=Append("events"))
        with pytest.raises(UnsupportedQuery, match="Spark Connect"):
            pickler.dumps(sink)
        monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        with pytest.raises(UnsupportedQuery, match="Spark Connect"):
            TransactionalSink(claim, events, into=Append("events"))


@pytest.mark.behaviour("SINK-15")
def test_real_time_mode_fails_inside_spark_and_nothing_is_written(world: World) -> None:
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    sink = TransactionalSink(claim, events, into=Append("events"))

    checkpoint, trigger = claim.checkpoint(world.checkpoints), {"realTime": "5 minutes"}
    with pytest.raises(PySparkException, match="STREAMING_REAL_TIME_MODE"):
        world.start(sink, world.read(claim), checkpoint=checkpoint, trigger=trigger).awaitTermination(SECONDS)

    assert sink.error is None
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("SINK-15", "START-28")
def test_a_reader_that_may_skip_lost_records_is_refused_at_the_first_batch(world: World) -> None:
    topic = world.events_topic(["a"])
    failed = world.run_to_failure(world.claim(topic), events, Append("events"), failondataloss="false")
    assert isinstance(failed.error, UnsupportedQuery)
    assert "failOnDataLoss=false" in failed.text
    assert 'StartPolicy(on_data_loss="earliest")' in failed.text
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("SINK-15")
def test_the_same_topic_twice_or_one_that_the_claim_does_not_have_is_refused(
    world: World, offsetstore_topic: NewTopic
) -> None:
    """Also where one of the two sources has nothing new. Nobody has resolved where another topic starts."""
    topic, other = world.events_topic(["a", "b"]), offsetstore_topic(1)
    world.produce(other, ["c"])

    def read(start: str, *topics: str) -> DataFrame:
        options = world.options(*topics, startingOffsets=start)
        return world.spark.readStream.format("kafka").options(**options).load()

    claim = world.claim(topic)
    twice = read("earliest", topic).union(read("latest", topic))
    failed = world.run_to_failure(claim, events, Append("events"), stream=twice)
    assert isinstance(failed.error, UnsupportedQuery)
    assert "two sources of the query read the same topic" in failed.text

    stream, checkpoint = read("earliest", topic, other), f"{world.checkpoints}/own"
    failed = world.run_to_failure(claim, events, Append("events"), stream=stream, checkpoint=checkpoint)
    assert isinstance(failed.error, UnsupportedQuery)
    assert "topics that its claim does not have" in failed.text
    assert failed.error.topic_partition == TopicPartition(other, 0)
    assert "the checkpoint is another query's" in failed.error.next_step
    assert world.database.column(VALUES) == []
    assert (world.stored(topic), world.stored(other)) == ({0: 0}, {})


# -- what is seen in a query's plan, before it is started


class Items:
    """As Scala's collections are."""

    def __init__(self, *items: Any) -> None:
        self._left = [*items]

    def iterator(self) -> Items:
        return self

    def hasNext(self) -> bool:  # noqa: N802 - Scala's
        return bool(self._left)

    def next(self) -> Any:
        return self._left.pop(0)


class Execution:
    """Spark's own object for a query with this stream."""

    def __init__(self, stream: DataFrame, *sources: Any) -> None:
        self._plan, self._sources = analyzed(stream), sources

    def analyzedPlan(self) -> Any:  # noqa: N802 - Spark's
        return self._plan

    def sources(self) -> Items:
        return Items(*self._sources)


def read(spark: SparkSession, **options: str) -> DataFrame:
    given = {"kafka.bootstrap.servers": "nowhere:9092", "subscribe": "payments", **options}
    return spark.readStream.format("kafka").options(**given).load()


def check(stream: DataFrame, *sources: Any, **arguments: Any) -> None:
    admit(Execution(stream, *sources), stream.columns, **arguments)


@pytest.mark.behaviour("SINK-15", "START-28")
@pytest.mark.parametrize("option", ["startingtimestamp", "endingTimestamp", "failondataloss"])
def test_a_reader_with_another_start_or_an_end_is_refused(offsetstore_spark: SparkSession, option: str) -> None:
    value = "false" if option == "failondataloss" else "0"
    stream = read(offsetstore_spark, **{option: value})
    with pytest.raises(UnsupportedQuery, match=f"(?i){option}={value}"):
        check(stream)
    with pytest.raises(UnsupportedQuery, match=f"(?i){option}={value}"):
        admit_stateful(Execution(stream), stream.columns)


def test_a_source_that_is_not_kafka_is_refused(offsetstore_spark: SparkSession) -> None:
    rate = SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: "RateStream"))
    with pytest.raises(UnsupportedQuery, match="reads from a source other than Kafka; found RateStream"):
        check(read(offsetstore_spark), rate)


CHANGES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "another offset": lambda stream: stream.withColumn("offset", F.lit(0).cast("bigint")),
    "another topic": lambda stream: stream.withColumn("topic", F.upper("topic")),
    "another partition under an alias": lambda stream: stream.withColumn("copy", F.col("partition") + 1).selectExpr(
        "topic", "copy AS partition", "offset", "timestamp", "value"
    ),
    "an exploded offset": lambda stream: stream.select(
        "topic", "partition", "timestamp", "value", F.explode(F.array(F.lit(0).cast("bigint"))).alias("offset")
    ),
    "a union by position": lambda stream: (
        stream.select("topic", "partition", "offset", "timestamp", "value")
        .where("false")
        .union(stream.select("topic", "partition", F.lit(0).cast("bigint").alias("o"), "timestamp", "value"))
    ),
    "a state": lambda stream: stream.dropDuplicates(["value"]),
    "a limit": lambda stream: stream.limit(1),
}


@pytest.mark.behaviour("SINK-6")
def test_without_a_kept_checkpoint_a_query_with_state_is_told_how(offsetstore_spark: SparkSession) -> None:
    with pytest.raises(UnsupportedQuery) as refused:
        check(windows(read(offsetstore_spark)))
    assert "claim.checkpoint(base, keep=True)" in str(refused.value)


def test_a_stream_whose_rows_no_longer_are_kafkas_records_of_this_batch_is_refused(
    offsetstore_spark: SparkSession,
) -> None:
    """Each would be cropped by wrong coordinates, or keep records in a state that the next claim does not have."""
    for change in CHANGES.values():
        with pytest.raises(UnsupportedQuery, match="Do it in the sink's transform"):
            check(change(read(offsetstore_spark)))


WITH_LETTERS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "another value": lambda stream: stream.withColumn("value", F.upper("value")),
    "another key": lambda stream: stream.withColumn("key", F.col("value")),
    "headers of its own": lambda stream: stream.withColumn("headers", F.array()),
    "several rows of a record": lambda stream: stream.withColumn("value", F.explode(F.array("value", "value"))),
    "a record several times": lambda stream: stream.withColumn("one", F.explode(F.array(F.lit(1), F.lit(2)))).drop(
        "one"
    ),
}


@pytest.mark.behaviour("DLQ-1")
def test_where_a_row_is_a_record_it_is_as_kafka_has_it_and_once(offsetstore_spark: SparkSession) -> None:
    for change in WITH_LETTERS.values():
        check(change(read(offsetstore_spark)))
        with pytest.raises(UnsupportedQuery, match="Do it in the sink's transform"):
            check(change(read(offsetstore_spark)), whole_records=True)


UNCHANGED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a filter": lambda stream: stream.where("value IS NOT NULL"),
    "an explode": lambda stream: stream.withColumn("one", F.explode(F.array(F.lit(1)))),
    "there and back": lambda stream: stream.withColumnRenamed("offset", "o").withColumnRenamed("o", "offset"),
}


def test_a_stream_whose_rows_still_are_kafkas_records_is_taken(offsetstore_spark: SparkSession) -> None:
    for change in UNCHANGED.values():
        check(change(read(offsetstore_spark)))


def test_a_stream_that_has_lost_kafkas_columns_is_refused(offsetstore_spark: SparkSession) -> None:
    stream = read(offsetstore_spark)
    for columns in (
        ["CAST(value AS string) AS value"],
        ["Topic AS Topic", "partition", "offset", "timestamp", "value"],
    ):
        with pytest.raises(KafkaColumnsMissing, match="also topic"):
            check(stream.selectExpr(*columns))


def test_the_sink_is_refused_outside_of_a_streaming_query(offsetstore_spark: SparkSession) -> None:
    with InMemoryOffsetStore() as store:
        sink = TransactionalSink(store.claim("billing", topics=["payments"]), events, into=Append("events"))
        with pytest.raises(UnsupportedQuery, match="outside of a running streaming query"):
            sink(offsetstore_spark.range(1), 0)
        assert isinstance(sink.error, UnsupportedQuery)
