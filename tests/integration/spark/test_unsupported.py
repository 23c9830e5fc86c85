"""Queries from which exactly-once can't be had: refused by name, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, DeadLetters, TopicPartition, TransactionalSink
from offsetstore.errors import ConfigurationError, KafkaColumnsMissing, ProtocolMisuse, UnsupportedQuery
from offsetstore.testing.fixtures import NewTopic
from tests.support.transforms import EVENTS, events, traced
from tests.support.world import SECONDS, World

VALUES = "SELECT value FROM events ORDER BY value"


@pytest.mark.behaviour("SINK-15")
def test_spark_connect_is_refused_when_the_sink_is_made(
    world: World, offsetstore_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = world.claim(offsetstore_topic(1))
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(UnsupportedQuery, match="Spark Connect"):
        TransactionalSink(claim, events, into=Append("events"))


@pytest.mark.behaviour("SINK-15")
def test_spark_connect_is_refused_when_it_would_send_the_sink_elsewhere(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    sink = TransactionalSink(world.claim(offsetstore_topic(1)), events, into=Append("events"))
    pickler: Any = cloudpickle
    with pytest.raises(UnsupportedQuery, match="Spark Connect"):
        pickler.dumps(sink)


def test_a_claim_that_was_closed_writes_nothing(world: World) -> None:
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    claim.close()

    failed = world.run_to_failure(claim, events, Append("events"))

    assert isinstance(failed.error, ProtocolMisuse)
    assert "inside the store's with block" in str(failed.error)
    assert world.database.column(VALUES) == []


@pytest.mark.behaviour("SINK-15")
def test_real_time_mode_fails_inside_spark_and_nothing_is_written(world: World) -> None:
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    sink = TransactionalSink(claim, events, into=Append("events"))

    with pytest.raises(PySparkException) as refused:
        world.start(
            sink,
            world.read(claim),
            checkpoint=claim.checkpoint(world.checkpoints),
            trigger={"realTime": "5 minutes"},
        ).awaitTermination(SECONDS)

    assert "STREAMING_REAL_TIME_MODE" in str(refused.value)
    assert sink.error is None
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("SINK-15")
def test_a_reader_that_may_skip_lost_records_is_refused_at_the_first_batch(world: World) -> None:
    topic = world.events_topic(["a"])
    failed = world.run_to_failure(world.claim(topic), events, Append("events"), failondataloss="false")
    assert isinstance(failed.error, UnsupportedQuery)
    assert "failOnDataLoss=false" in failed.text
    assert 'StartPolicy(on_data_loss="earliest")' in failed.text
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("START-28")
@pytest.mark.parametrize("option", ["startingtimestamp", "endingTimestamp"])
def test_a_reader_with_another_start_or_an_end_is_refused_at_the_first_batch(world: World, option: str) -> None:
    topic = world.events_topic(["a"])
    options: dict[str, Any] = {option: "0"}
    failed = world.run_to_failure(world.claim(topic), events, Append("events"), **options)
    assert isinstance(failed.error, UnsupportedQuery)
    assert f"{option}=0".lower() in failed.text.lower()
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


def by_two_sources(world: World, topic: str) -> DataFrame:
    def read(**options: str) -> DataFrame:
        reader = world.spark.readStream.format("kafka").options(**world.options(topic, **options))
        return reader.option("startingOffsets", "earliest").load()

    return read().union(read(maxOffsetsPerTrigger="1"))


def by_one_source_twice(world: World, topic: str) -> DataFrame:
    reader = world.spark.readStream.format("kafka").options(**world.options(topic))
    stream = reader.option("startingOffsets", "earliest").load()
    return stream.union(stream)


def by_one_source_that_has_nothing_new(world: World, topic: str) -> DataFrame:
    def read(start: str) -> DataFrame:
        reader = world.spark.readStream.format("kafka").options(**world.options(topic))
        return reader.option("startingOffsets", start).load()

    return read("earliest").union(read("latest"))


@pytest.mark.behaviour("SINK-15")
@pytest.mark.parametrize("twice", [by_two_sources, by_one_source_twice, by_one_source_that_has_nothing_new])
def test_the_same_topic_twice_in_one_query_is_refused(world: World, twice: Callable[[World, str], DataFrame]) -> None:
    topic = world.events_topic(["a", "b"])
    failed = world.run_to_failure(world.claim(topic), events, Append("events"), stream=twice(world, topic))
    assert isinstance(failed.error, UnsupportedQuery)
    assert "two sources of the query read the same topic" in failed.text
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


def test_a_source_that_is_not_kafka_is_refused(world: World, offsetstore_topic: NewTopic) -> None:
    world.database.execute(EVENTS)
    stream = world.spark.readStream.format("rate").option("rowsPerSecond", "50").load()
    sink = TransactionalSink(world.claim(offsetstore_topic(1)), events, into=Append("events"))
    query = world.start(sink, stream, checkpoint=f"{world.checkpoints}/rate", trigger={"processingTime": "0 seconds"})
    failed = world.failure(query, sink)
    assert isinstance(failed.error, UnsupportedQuery)
    assert "the query reads from a source other than Kafka" in failed.text


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


@pytest.mark.parametrize("change", CHANGES)
def test_a_stream_whose_rows_no_longer_are_kafkas_records_of_this_batch_is_refused(world: World, change: str) -> None:
    """Each would be cropped by wrong coordinates, or keep records in a state that the next claim does not have."""
    topic = world.events_topic(["a", "b"])
    claim = world.claim(topic)
    failed = world.run_to_failure(claim, events, Append("events"), stream=CHANGES[change](world.read(claim)))
    assert isinstance(failed.error, UnsupportedQuery)
    assert "Do it in the sink's transform" in failed.text
    assert world.database.column(VALUES) == []
    assert world.stored(topic) == {0: 0}


UNCHANGED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "a filter": lambda stream: stream.where("value IS NOT NULL"),
    "an explode": lambda stream: stream.withColumn("one", F.explode(F.array(F.lit(1)))),
    "there and back": lambda stream: stream.withColumnRenamed("offset", "o").withColumnRenamed("o", "offset"),
}


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
@pytest.mark.parametrize("change", WITH_LETTERS)
def test_with_dead_letters_each_row_of_the_stream_is_a_record_as_kafka_has_it(world: World, change: str) -> None:
    """Letters would keep something else, and a record's rows would be written several times."""
    topic = world.events_topic(["a", "b"])
    claim = world.claim(topic)
    stream = WITH_LETTERS[change](world.read(claim))
    failed = world.run_to_failure(claim, traced, Append("events"), stream=stream, dead_letters=DeadLetters())
    assert isinstance(failed.error, UnsupportedQuery)
    assert "Do it in the sink's transform" in failed.text
    assert world.database.column(VALUES) == []


@pytest.mark.parametrize("change", UNCHANGED)
def test_a_stream_whose_rows_still_are_kafkas_records_is_taken(world: World, change: str) -> None:
    topic = world.events_topic(["a", "b"])
    claim = world.claim(topic)
    world.run(claim, events, Append("events"), stream=UNCHANGED[change](world.read(claim)))
    assert world.database.column(VALUES) == ["a", "b"]
    assert world.stored(topic) == {0: 2}


def test_a_topic_that_the_claim_does_not_have_is_refused(world: World, offsetstore_topic: NewTopic) -> None:
    """Nobody has resolved where it starts, and nobody would notice if it was recreated."""
    world.database.execute(EVENTS)
    claimed, other = offsetstore_topic(1), offsetstore_topic(1)
    world.produce(claimed, ["a"])
    world.produce(other, ["b"])
    reader = world.spark.readStream.format("kafka").options(**world.options(claimed, other))
    stream = reader.option("startingOffsets", "earliest").load()
    failed = world.run_to_failure(world.claim(claimed), events, Append("events"), stream=stream)
    assert isinstance(failed.error, UnsupportedQuery)
    assert "topics that its claim does not have" in failed.text
    assert failed.error.topic_partition == TopicPartition(other, 0)
    assert "the checkpoint is another query's" in failed.error.next_step
    assert world.database.column(VALUES) == []
    assert world.stored(other) == {}


@pytest.mark.parametrize(
    "columns",
    [["CAST(value AS string) AS value"], ["Topic AS Topic", "partition", "offset", "timestamp", "value"]],
    ids=["dropped", "in another case"],
)
def test_a_stream_that_has_lost_kafkas_columns_is_refused(world: World, columns: list[str]) -> None:
    topic = world.events_topic(["a"])
    claim = world.claim(topic)
    failed = world.run_to_failure(claim, events, Append("events"), stream=world.read(claim).selectExpr(*columns))
    assert isinstance(failed.error, KafkaColumnsMissing)
    assert "also topic" in failed.text
    assert world.stored(topic) == {0: 0}


def test_the_sink_is_refused_outside_of_a_streaming_query(world: World) -> None:
    topic = world.events_topic()
    sink = TransactionalSink(world.claim(topic), events, into=Append("events"))
    with pytest.raises(UnsupportedQuery, match="outside of a running streaming query"):
        sink(world.spark.read.format("kafka").options(**world.options(topic)).load(), 0)
    assert isinstance(sink.error, UnsupportedQuery)


def test_a_sink_without_a_writer_is_refused(world: World, offsetstore_topic: NewTopic) -> None:
    with pytest.raises(ConfigurationError, match=r"must be a writer.*found \{\}"):
        TransactionalSink(world.claim(offsetstore_topic(1)), events, into={})
