"""Dead letters that are requested go through the job's transform and writers once, and are marked."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.errors import NumberFormatException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, Claim, DeadLetters, LetterFilter, TopicPartition, TransactionalSink, Upsert
from offsetstore.errors import ConfigurationError
from offsetstore.protocol.letters import digest
from offsetstore.spark.function_errors import LOGGERS
from offsetstore.spark.kafka_columns import KAFKA_COLUMNS, letters_frame
from offsetstore.testing.fixtures import NewTopic
from tests.integration.spark.test_dead_letters import AT_ONCE, VALUES
from tests.support.transforms import EVENTS, traced
from tests.support.waiting import wait_until
from tests.support.world import World

STATES = "SELECT record_offset, state FROM dead_letters ORDER BY 1"
SEQUENCES = "SELECT DISTINCT sequence FROM dead_letters"
SHORT = "ALTER TABLE events ADD CONSTRAINT rule CHECK (length(value) < 4)"


def sink(claim: Claim, into: Any = None, transform: Any = traced, **settings: Any) -> TransactionalSink:
    return TransactionalSink(
        claim, transform, into=into or Append("events"), dead_letters=DeadLetters(max_retries=0, **settings)
    )


@pytest.mark.behaviour("DLQ-7")
def test_requested_letters_are_written_before_the_next_batch_and_marked(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    world.database.execute(SHORT)
    topic = offsetstore_topic(2)
    world.produce(topic, ["a", "long 1", "b", "long 2"])
    world.produce(topic, ["long 3"], partition=1)
    world.run(world.claim(topic), traced, Append("events"), dead_letters=AT_ONCE)
    assert world.database.column(VALUES) == ["a", "b"]

    world.database.execute("ALTER TABLE events DROP CONSTRAINT rule")
    world.store.request_replay(world.group, LetterFilter(topic=topic), reason="the rule is gone")
    world.produce(topic, ["c"])
    world.run(world.claim(topic), traced, Append("events"), dead_letters=AT_ONCE)

    assert world.database.column(VALUES) == ["a", "long 1", "b", "long 2", "c", "long 3"]
    assert world.database.column("SELECT DISTINCT state FROM dead_letters") == ["replayed"]
    assert world.stored(topic) == {0: 5, 1: 1}

    with world.claim(topic) as claim:
        assert sink(claim).drain(world.spark) == 0
    assert world.database.column(VALUES) == ["a", "long 1", "b", "long 2", "c", "long 3"]
    with world.claim(topic) as claim, pytest.raises(ConfigurationError, match="dead_letters"):
        TransactionalSink(claim, traced, into=Append("events")).drain(world.spark)


@pytest.mark.behaviour("DLQ-7", "OPS-7")
def test_an_idle_job_replays_what_is_requested_and_pyspark_logs_no_value(
    world: World, offsetstore_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.database.execute(EVENTS)
    world.database.execute(SHORT)
    topic = offsetstore_topic(1)
    world.produce(topic, ["1", "1000", "twelve"])

    def transform(batch: DataFrame) -> DataFrame:
        return traced(batch).withColumn("value", F.col("value").cast("int").cast("string"))

    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    for name in LOGGERS:
        monkeypatch.setattr(PySparkLogger.getLogger(name), "handlers", [handler])
    claim = world.claim(topic)
    replaying = sink(claim, transform=transform)
    query = world.start(
        replaying,
        world.read(claim),
        checkpoint=claim.checkpoint(world.checkpoints),
        trigger={"processingTime": "0 seconds"},
    )
    try:
        wait_until(lambda: world.database.rows(STATES) == [(1, "dead"), (2, "dead")])
        world.database.execute("ALTER TABLE events DROP CONSTRAINT rule")
        world.store.request_replay(world.group, LetterFilter(topic=topic), reason="the rule is gone")

        wait_until(lambda: world.database.rows(STATES) == [(1, "replayed"), (2, "dead")])
    finally:
        query.stop()
    assert world.database.column(VALUES) == ["1", "1000"]

    world.store.request_replay(world.group, LetterFilter(topic=topic, states=("dead",)), reason="again")
    assert replaying.drain(world.spark) == 0
    assert not logged, "PySpark's log has the record's value"
    with pytest.raises(NumberFormatException):
        world.spark.range(1).selectExpr("CAST('twelve' AS int)").collect()
    assert logged, "what others do is logged"


@pytest.mark.behaviour("DLQ-11")
def test_the_letters_of_a_key_are_replayed_in_order_and_stop_at_the_first_that_fails(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    world.database.execute("ALTER TABLE events ADD CONSTRAINT rule CHECK (value NOT IN ('1', '3'))")
    topic = offsetstore_topic(1)
    world.produce_keyed(topic, [("k", "1"), ("k", "2"), ("k", "3"), ("k", "4"), ("other", "5")])
    claim = world.claim(topic)
    world.run(claim, traced, Append("events"), dead_letters=DeadLetters(max_retries=0, sequence="key"))
    assert world.database.column(VALUES) == ["5"]
    # Spark makes the digests of keys in SQL.
    assert world.database.rows(SEQUENCES) == [(digest(TopicPartition(topic, 0), b"k"),)]

    world.database.execute(
        "ALTER TABLE events DROP CONSTRAINT rule, ADD CONSTRAINT rule CHECK (value <> '3'), ADD COLUMN id serial"
    )
    world.store.request_replay(world.group, LetterFilter(topic=topic), reason="the rule is better")
    with world.claim(topic) as claim:
        assert sink(claim, sequence="key").drain(world.spark) == 2

    assert world.database.column("SELECT value FROM events ORDER BY id") == ["5", "1", "2"]
    assert world.database.rows(STATES) == [(0, "replayed"), (1, "replayed"), (2, "dead"), (3, "requested")]


@pytest.mark.behaviour("DLQ-7")
def test_an_older_row_replaces_no_newer_one_unless_it_is_forced_to(world: World, offsetstore_topic: NewTopic) -> None:
    world.database.execute("CREATE TABLE latest (name text PRIMARY KEY, amount int CHECK (amount <> 7))")
    topic = offsetstore_topic(1)
    world.produce_keyed(topic, [("a", "7"), ("a", "8")])

    def transform(batch: DataFrame) -> DataFrame:
        return batch.selectExpr("string(key) AS name", "int(string(value)) AS amount", "_kafka")

    into = Upsert("latest", key=["name"])
    world.run(world.claim(topic), transform, into, dead_letters=AT_ONCE, maxOffsetsPerTrigger="1")
    assert world.database.rows("SELECT name, amount FROM latest") == [("a", 8)]
    world.database.execute("ALTER TABLE latest DROP CONSTRAINT latest_amount_check")

    world.store.request_replay(world.group, LetterFilter(topic=topic), reason="try")
    with world.claim(topic) as claim:
        assert sink(claim, into, transform).drain(world.spark) == 0
    assert world.database.rows("SELECT state, error_class FROM dead_letters") == [("dead", "ReplayOutOfOrder")]

    world.store.request_replay(world.group, LetterFilter(topic=topic), reason="it is right", forced=True)
    with world.claim(topic) as claim:
        assert sink(claim, into, transform).drain(world.spark) == 1
    assert world.database.rows("SELECT name, amount FROM latest") == [("a", 7)]


@pytest.mark.behaviour("DLQ-1", "DLQ-7")
def test_a_replayed_record_is_as_the_source_had_it(world: World, offsetstore_topic: NewTopic) -> None:
    """With the reader's columns and no others, and without a query that could tell which they are."""
    world.database.execute('CREATE TABLE seen ("offset" bigint, as_json text)')
    topic = offsetstore_topic(1)
    world.produce_whole(
        topic,
        [
            (None, b"bad \0\xff", None, 1),
            (b"", None, [("h", b"1"), ("é", b"\0\xff"), ("h", None)], 1_700_000_000_123),
            (b"\0k", b"", [], 86_400_000),
        ],
    )

    def described(batch: DataFrame) -> DataFrame:
        everything = F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("as_json")
        return batch.select("offset", everything, "_kafka")

    def rejected(batch: DataFrame) -> DataFrame:
        return described(batch).withColumn("_reject", F.lit("not yet"))

    into = Append("seen")
    world.run(world.claim(topic, group="direct"), described, into, dead_letters=DeadLetters(), includeHeaders="true")
    direct = world.database.rows('SELECT "offset", as_json FROM seen ORDER BY 1')
    world.database.execute("TRUNCATE seen")

    world.run(world.claim(topic), rejected, into, dead_letters=DeadLetters(), includeHeaders="true")
    world.store.request_replay(world.group, LetterFilter(topic=topic), reason="now")
    with world.claim(topic) as claim:
        assert sink(claim, into, described).drain(world.spark) == 3
    assert world.database.rows('SELECT "offset", as_json FROM seen ORDER BY 1') == direct
    assert len(direct) == 3
    assert letters_frame(world.spark, [], None).columns == [*KAFKA_COLUMNS[:-1]]  # of a reader without headers
