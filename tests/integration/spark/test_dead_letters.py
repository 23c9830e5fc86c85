"""Records that can't be written become dead letters, which are put back if that is asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import NumberFormatException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import (
    Append,
    Claim,
    DeadLetters,
    Execute,
    LetterFilter,
    OffsetRange,
    TopicPartition,
    TransactionalSink,
    Work,
)
from offsetstore.errors import ConfigurationError, ExitCode, FunctionFailed, UnsupportedQuery, exit_code
from offsetstore.local.jars import SCALA, Artifact, JarSet, jars
from offsetstore.protocol.events import BatchEnded
from offsetstore.protocol.letters import Payload, digest
from offsetstore.protocol.observers import Observers
from offsetstore.spark.careful import Careful
from offsetstore.spark.columns import (
    KAFKA_COLUMNS,
    REJECT_COLUMN,
    count_accepted,
    kafka_frame,
    letters_frame,
    rename_reject,
    with_coordinates,
)
from offsetstore.spark.function_errors import LOGGERS
from offsetstore.spark.outputs import SparkOutputs
from offsetstore.testing import InMemoryOffsetStore
from offsetstore.testing.fixtures import NewTopic
from tests.support.recorder import Recorder
from tests.support.transforms import EVENTS, traced
from tests.support.waiting import wait_until
from tests.support.world import World

VALUES = 'SELECT value FROM events ORDER BY partition, "offset", value'
LETTERS = "SELECT partition, record_offset, cause, convert_from(value, 'UTF8') FROM dead_letters ORDER BY 1, 2"
AT_ONCE = DeadLetters(max_retries=0)
QUOTED = """ValueError
Traceback (most recent call last):
ConnectionError: offsetstore.errors.Outage
Job aborted due to stage failure: Total size of serialized results of spark.driver.maxResultSize
[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] java.net.ConnectException"""
"""A record that holds what errors look like."""
WAYS: dict[str, dict[str, Any]] = {
    "batch": {},
    "partition": {"atomicity": "partition"},
}
# What is violated, and when it is noticed; the values that the table has are single letters.
CONSTRAINTS = {
    "checked": "ADD CONSTRAINT rule CHECK (length(value) = 1)",
    "deferred": "ADD CONSTRAINT rule UNIQUE (value) DEFERRABLE INITIALLY DEFERRED",
}


def letters(world: World, topic: str) -> list[tuple[int, int, str, str]]:
    assert world.database.column("SELECT DISTINCT topic FROM dead_letters") in ([topic], [])
    return world.database.rows(LETTERS)


def judged(batch: DataFrame) -> DataFrame:
    """Rejects some values with a reason, of which some have a code.

    The structs of good rows are not NULL: both of their fields are.
    """
    value = F.col("value").cast("string")
    is_bad = value.startswith("bad")
    reason = F.when(is_bad | (value == "worse"), F.concat(F.lit("found "), value))
    reject = F.struct(reason.alias("reason"), F.when(is_bad, F.lit("bad-value")).alias("code"))
    return traced(batch).withColumn("_reject", reject)


@pytest.mark.behaviour("DLQ-1", "DLQ-8", "DLQ-12", "OPS-7")
@pytest.mark.parametrize(("way", "constraint"), [("batch", "deferred"), ("partition", "checked")])
def test_records_that_are_refused_or_rejected_are_letters_and_their_neighbours_are_written(
    world: World, way: str, constraint: str
) -> None:
    refused = {"checked": "toxic", "deferred": "x"}[constraint]
    # What is not UTF-8 is decoded: Spark does not look.
    topic = world.events_topic(["a", refused, "b", "bad 1"], ["c", b"bad \xff", "d", "worse", refused])
    world.database.execute("INSERT INTO events (partition, value) VALUES (9, 'x')")
    world.database.execute(f"ALTER TABLE events {CONSTRAINTS[constraint]}")
    seen = Recorder()
    world.store.observers = Observers([seen])

    world.run(world.claim(topic), judged, Append("events"), dead_letters=AT_ONCE, **WAYS[way])

    assert world.database.column(VALUES) == ["a", "b", "c", "d", "x"]
    # Rows that tasks have stored count with those that the driver writes.
    assert [written.rows for written in seen.of(BatchEnded, "written")] == [{"": 4}]
    found = "SELECT partition, record_offset, cause, value, error_class, attempts FROM dead_letters ORDER BY 1, 2"
    assert world.database.rows(found) == [
        (0, 1, "refused", refused.encode(), "RowsRefused", 1),
        (0, 3, "rejected", b"bad 1", "bad-value", 0),
        (1, 1, "rejected", b"bad \xff", "bad-value", 0),
        (1, 3, "rejected", b"worse", "Rejected", 0),
        (1, 4, "refused", refused.encode(), "RowsRefused", 1),
    ]
    texts = "SELECT error_text FROM dead_letters WHERE cause = 'rejected' ORDER BY partition, record_offset"
    assert world.database.column(texts) == ["found bad 1", "found bad \ufffd", "found worse"]
    named = "SELECT DISTINCT constraint_name, table_name, times FROM dead_letters WHERE cause = 'refused'"
    assert world.database.rows(named) == [("rule", "public.events", 1)]
    assert world.stored(topic) == {0: 4, 1: 5}


def test_a_transform_that_makes_rows_of_several_records_is_refused(offsetstore_spark: SparkSession) -> None:
    def transform(batch: DataFrame) -> DataFrame:
        return batch.groupBy("_kafka").agg(F.count("*").alias("number"))

    batch = with_coordinates(kafka_frame(offsetstore_spark, [], KAFKA_COLUMNS))
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        with pytest.raises(UnsupportedQuery, match="dead_letters="):
            SparkOutputs(claim, transform, Append("counts"), can_reject=True).transform(batch)


@pytest.mark.behaviour("DLQ-15")
def test_a_reject_does_not_show_that_another_record_was_accepted(offsetstore_spark: SparkSession) -> None:
    """Yet what can't be computed for it fails, as it does when all are computed."""
    number = F.col("id")
    reason = F.when(number > 0, F.lit("too large"))
    structs = F.struct(F.lit(None).cast("string").alias("code"), reason.alias("reason"))
    frame = rename_reject(offsetstore_spark.range(3).withColumn("_reject", structs))
    assert count_accepted(rename_reject(offsetstore_spark.range(3).withColumn("_reject", reason))) == 1
    assert count_accepted(frame) == 1
    assert count_accepted(frame.drop(REJECT_COLUMN)) == 3
    failing = frame.withColumn("n", F.when(number == 2, F.raise_error(F.lit("no"))).otherwise(F.lit(1)))
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION"):
        count_accepted(failing)


@pytest.mark.behaviour("DLQ-1", "DLQ-12")
def test_records_are_rejected_whole_from_all_outputs_and_letters_that_the_driver_cant_hold_are_written_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.database.execute("CREATE TABLE words (word text)")
    topic = world.events_topic(["a b c", "d bad e", "f", "bad"])
    read = Careful.payloads
    context: Any = world.spark.sparkContext
    conf = context._jsc.sc().conf()  # which Spark reads anew for each job

    def transform(batch: DataFrame) -> dict[str, DataFrame]:
        words = batch.select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("word"), "_kafka")
        reason = F.when(F.col("word") == "bad", F.lit("a bad word"))
        return {"events": traced(batch), "words": words.withColumn("_reject", reason)}

    def payloads(part: Careful, numbers: Sequence[int]) -> Mapping[int, Payload]:
        conf.set("spark.driver.maxResultSize", "1k" if len(numbers) > 1 else "1g")
        try:
            if len(numbers) > 1:
                world.spark.range(10_000).toArrow()
            return read(part, numbers)
        finally:
            conf.remove("spark.driver.maxResultSize")

    monkeypatch.setattr(Careful, "payloads", payloads)
    into = {"events": Append("events"), "words": Append("words")}
    world.run(world.claim(topic), transform, into, dead_letters=AT_ONCE)

    assert world.database.column("SELECT word FROM words ORDER BY 1") == ["a", "b", "c", "f"]
    assert world.database.column(VALUES) == ["a b c", "f"]
    assert letters(world, topic) == [(0, 1, "rejected", "d bad e"), (0, 3, "rejected", "bad")]
    assert world.stored(topic) == {0: 4}


AVRO = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}'
# A decoder, a record that it can read, one that it can't, and the error's name.
DECODERS = {
    "json": ("from_json(text, 'a int', map('mode', 'FAILFAST')).a", '{"a": 1}', '{"a":', "MALFORMED_RECORD_IN_PARSING"),
    "cast": ("CAST(text AS int)", "1", QUOTED, "CAST_INVALID_INPUT"),
    "avro": (f"from_avro(CAST(text AS binary), '{AVRO}', map('mode', 'FAILFAST')).a", "\x02", "", "EOFException"),
}


@pytest.fixture
def avro(offsetstore_spark: SparkSession) -> None:
    """Spark's own Avro, which is no part of PySpark."""
    artifact = Artifact("org.apache.spark", f"spark-avro_{SCALA}", offsetstore_spark.version, transitive=False)
    session: Any = offsetstore_spark
    for jar in jars(JarSet("spark-avro", (artifact,))):
        session.sql(f"ADD JAR '{jar}'")


def decoded(batch: DataFrame) -> DataFrame:
    """Reads each record with the decoder that its key names."""
    key, value = (F.col(name).cast("string") for name in ("key", "value"))
    number = F.lit(None).cast("int")
    for name, (decoder, *_) in DECODERS.items():
        number = F.when(key == name, F.expr(decoder).cast("int")).otherwise(number)
    return batch.withColumn("text", value).select(number.alias("number"), key.alias("name"), "_kafka")


@pytest.mark.behaviour("DLQ-1", "DLQ-15", "DLQ-16")
@pytest.mark.usefixtures("avro")
def test_a_record_that_a_decoder_cant_read_is_a_letter_whatever_the_error(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute("CREATE TABLE numbers (number int, name text)")
    topic = offsetstore_topic(1)
    good = [(name, text) for name, (_, text, _, _) in DECODERS.items()]
    bad = [(name, text) for name, (_, _, text, _) in DECODERS.items()]
    world.produce_keyed(topic, [*bad, *good])

    world.run(world.claim(topic), decoded, Append("numbers"), dead_letters=AT_ONCE)

    written = "SELECT name, number FROM numbers ORDER BY 1"
    assert world.database.rows(written) == [(name, 1) for name in sorted(DECODERS)]
    assert world.database.rows(
        "SELECT convert_from(key, 'UTF8'), replace(error_class, '.WITHOUT_SUGGESTION', ''), attempts FROM dead_letters "
        "WHERE cause = 'raised' ORDER BY record_offset"
    ) == [(name, error, 1) for name, (_, _, _, error) in DECODERS.items()]
    assert world.stored(topic) == {0: 2 * len(DECODERS)}


@pytest.mark.behaviour("DLQ-15", "SINK-1")
def test_a_function_gets_one_partition_at_once_also_of_what_comes_before_a_record_that_cant_be_computed(
    world: World,
) -> None:
    def note(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        assert len(work.ranges) == 1
        work.connection.exec_driver_sql("INSERT INTO calls VALUES (%s)", (sum(rows.num_rows for rows in batches),))

    world.database.execute("CREATE TABLE calls (records int)")
    topic = world.topic(["1", "1", "1"], ["1", "1", QUOTED, "1"])
    # Without types, from which Spark would guess another kind of function.
    parsed: Any = F.udf(lambda value: int(value))  # noqa: PLW0108 # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    def transform(batch: DataFrame) -> DataFrame:
        return batch.select(parsed(F.col("value").cast("string")).alias("number"), "_kafka")

    failed = world.run_to_failure(world.claim(topic), transform, Execute(note), atomicity="partition")

    assert isinstance(failed.error, FunctionFailed)
    assert failed.error.error_class == "ValueError"
    assert (failed.error.topic_partition, failed.error.offsets) == (TopicPartition(topic, 1), OffsetRange(2, 3))
    assert f"{topic}-1@2" in str(failed.error)
    assert exit_code(failed.error) == ExitCode.OTHER
    assert world.stored(topic) == {0: 3, 1: 2}
    assert world.database.one("SELECT sum(records) FROM calls") == 5


@pytest.mark.behaviour("DLQ-15")
def test_a_record_that_sparks_source_cant_read_is_named_with_the_way_past_it(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    latest = str(2**63 - 1)
    topic = offsetstore_topic(1, config={"message.timestamp.after.max.ms": latest})
    world.produce_whole(topic, [(None, b"a", [], 1), (None, b"b", [], int(latest)), (None, b"c", [], 1)])

    failed = world.run_to_failure(world.claim(topic), traced, Append("events"))

    assert isinstance(failed.error, FunctionFailed)
    assert failed.error.offsets == OffsetRange(0, 3)
    assert "maxOffsetsPerTrigger=1" in str(failed.error)
    assert world.stored(topic) == {0: 0}

    failed = world.run_to_failure(world.claim(topic), traced, Append("events"), maxOffsetsPerTrigger="1")

    assert isinstance(failed.error, FunctionFailed)
    assert failed.error.offsets == OffsetRange(1, 2)
    assert "--from-offset 1 --to-offset 2" in str(failed.error)
    assert (world.stored(topic), world.database.column(VALUES)) == ({0: 1}, ["a"])


STATES = "SELECT record_offset, state FROM dead_letters ORDER BY 1"


def sink(claim: Claim, into: Any = None, transform: Any = traced, **settings: Any) -> TransactionalSink:
    return TransactionalSink(
        claim, transform, into=into or Append("events"), dead_letters=DeadLetters(max_retries=0, **settings)
    )


@pytest.mark.behaviour("DLQ-7", "DLQ-11")
def test_requested_letters_are_written_before_the_next_batch_in_the_order_of_their_key(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute(EVENTS)
    world.database.execute(
        "ALTER TABLE events ADD CONSTRAINT rule CHECK (value NOT IN ('1', '3')), ADD COLUMN id serial"
    )
    topic = offsetstore_topic(1)
    world.produce_keyed(topic, [("k", "1"), ("k", "2"), ("k", "3"), ("k", "4"), ("other", "5")])
    letters = DeadLetters(max_retries=0, sequence="key")
    world.run(world.claim(topic), traced, Append("events"), dead_letters=letters)
    assert world.database.column(VALUES) == ["5"]
    # Spark makes the digests of keys in SQL.
    digests = world.database.column("SELECT DISTINCT sequence FROM dead_letters")
    assert digests == [digest(TopicPartition(topic, 0), b"k")]

    world.database.execute("ALTER TABLE events DROP CONSTRAINT rule, ADD CONSTRAINT rule CHECK (value <> '3')")
    world.store.request_replay(world.group, LetterFilter(topic=topic), reason="the rule is better")
    world.produce_keyed(topic, [("other", "6")])
    world.run(world.claim(topic), traced, Append("events"), dead_letters=letters)

    written = "SELECT value FROM events ORDER BY id"
    assert world.database.column(written) == ["5", "1", "2", "6"]
    assert world.database.rows(STATES) == [(0, "replayed"), (1, "replayed"), (2, "dead"), (3, "requested")]
    with world.claim(topic) as claim:
        assert sink(claim, sequence="key").drain(world.spark) == 0
        with pytest.raises(ConfigurationError, match="dead_letters"):
            TransactionalSink(claim, traced, into=Append("events")).drain(world.spark)
    assert world.database.column(written) == ["5", "1", "2", "6"]


@pytest.mark.behaviour("DLQ-7", "OPS-7")
def test_an_idle_job_replays_what_is_requested_and_pyspark_logs_no_value(
    world: World, offsetstore_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.database.execute(EVENTS)
    world.database.execute("ALTER TABLE events ADD CONSTRAINT rule CHECK (length(value) < 4)")
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
