"""Records that can't be written become dead letters, in the transaction that passes over them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, DeadLetters, Execute, OffsetRange, TopicPartition, Work
from offsetstore.errors import ExitCode, FunctionFailed, Outage, UnsupportedQuery, exit_code
from offsetstore.local.spark.artifacts import SCALA, Artifact, JarSet
from offsetstore.local.spark.jars import jars
from offsetstore.protocol.events import BatchEnded
from offsetstore.protocol.letters import Payload
from offsetstore.protocol.observers import Observers
from offsetstore.spark.careful import Careful
from offsetstore.spark.kafka_columns import KAFKA_COLUMNS, kafka_frame, with_coordinates
from offsetstore.spark.outputs import Outputs
from offsetstore.spark.rejects import COLUMN, count_accepted, rename
from offsetstore.testing import InMemoryOffsetStore
from offsetstore.testing.fixtures import NewTopic
from tests.support.recorder import Recorder
from tests.support.transforms import EVENTS, traced
from tests.support.world import World

Sent: TypeAlias = "tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]"
VALUES = 'SELECT value FROM events ORDER BY partition, "offset", value'
LETTERS = "SELECT partition, record_offset, cause, convert_from(value, 'UTF8') FROM dead_letters ORDER BY 1, 2"
AT_ONCE = DeadLetters(max_retries=0)

WAYS: dict[str, dict[str, Any]] = {
    "batch": {},
    "partition": {"atomicity": "partition"},
}
# What is violated, and when it is noticed; the values that the table has are single letters.
CONSTRAINTS = {
    "checked": "ADD CONSTRAINT rule CHECK (length(value) = 1)",
    "deferred": "ADD CONSTRAINT rule UNIQUE (value) DEFERRABLE INITIALLY DEFERRED",
}


def rejecting(batch: DataFrame) -> DataFrame:
    """Rejects values that begin with "bad"."""
    value = F.col("value").cast("string")
    reason = F.when(value.startswith("bad"), F.concat(F.lit("is bad: "), value))
    return traced(batch).withColumn("_reject", reason)


def letters(world: World, topic: str) -> list[tuple[int, int, str, str]]:
    assert world.database.column("SELECT DISTINCT topic FROM dead_letters") in ([topic], [])
    return world.database.rows(LETTERS)


@pytest.mark.behaviour("DLQ-1", "DLQ-8")
@pytest.mark.parametrize(("way", "constraint"), [("batch", "deferred"), ("partition", "checked")])
def test_refused_records_are_letters_and_their_neighbours_are_written(world: World, way: str, constraint: str) -> None:
    world.database.execute(EVENTS)
    world.database.execute("INSERT INTO events (partition, value) VALUES (9, 'x')")
    world.database.execute(f"ALTER TABLE events {CONSTRAINTS[constraint]}")
    bad = {"checked": "toxic", "deferred": "x"}[constraint]
    topic = world.topic(["a", bad, "b"], ["c", "d", bad, "e", bad])

    seen = Recorder()
    world.store.observers = Observers([seen])

    world.run(world.claim(topic), traced, Append("events"), dead_letters=AT_ONCE, **WAYS[way])

    assert world.database.column(VALUES) == ["a", "b", "c", "d", "e", "x"]
    # Rows that tasks have stored count with those that the driver writes.
    assert [written.rows for written in seen.of(BatchEnded, "written")] == [{"": 5}]
    assert letters(world, topic) == [(0, 1, "refused", bad), (1, 2, "refused", bad), (1, 4, "refused", bad)]
    assert world.stored(topic) == {0: 3, 1: 5}
    [[constraint_name, table, attempts, times]] = world.database.rows(
        "SELECT DISTINCT constraint_name, table_name, attempts, times FROM dead_letters"
    )
    assert (constraint_name, table, attempts, times) == ("rule", "public.events", 1, 1)


@pytest.mark.behaviour("DLQ-12", "OPS-7")
def test_a_record_that_transform_rejects_is_a_letter_with_its_code_and_the_reason(world: World) -> None:
    """The structs of good rows are not NULL: both of their fields are."""
    topic = world.events_topic(["a", "bad 1", "worse", "b"], [b"bad \xff"])  # which is not UTF-8: Spark does not look

    def transform(batch: DataFrame) -> DataFrame:
        value = F.col("value").cast("string")
        code = F.when(value.startswith("bad"), F.lit("bad-value"))
        reason = F.when(value.startswith("bad") | (value == "worse"), F.concat(F.lit("found "), value))
        return traced(batch).withColumn("_reject", F.struct(reason.alias("reason"), code.alias("code")))

    world.run(world.claim(topic), transform, Append("events"), dead_letters=DeadLetters(), **WAYS["partition"])

    assert world.database.column(VALUES) == ["a", "b"]
    found = (
        "SELECT partition, cause, value, error_class, error_text, attempts FROM dead_letters ORDER BY 1, record_offset"
    )
    assert world.database.rows(found) == [
        (0, "rejected", b"bad 1", "bad-value", "found bad 1", 0),
        (0, "rejected", b"worse", "Rejected", "found worse", 0),
        (1, "rejected", b"bad \xff", "bad-value", "found bad \ufffd", 0),
    ]
    assert world.stored(topic) == {0: 4, 1: 1}


def test_a_transform_that_makes_rows_of_several_records_is_refused(offsetstore_spark: SparkSession) -> None:
    def transform(batch: DataFrame) -> DataFrame:
        return batch.groupBy("_kafka").agg(F.count("*").alias("number"))

    batch = with_coordinates(kafka_frame(offsetstore_spark, [], KAFKA_COLUMNS))
    with InMemoryOffsetStore() as store:
        claim = store.claim("billing", topics=["payments"])
        with pytest.raises(UnsupportedQuery, match="dead_letters="):
            Outputs(claim, transform, Append("counts"), can_reject=True).transform(batch)


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("is_struct", [False, True])
def test_a_reject_does_not_show_that_another_record_was_accepted(
    offsetstore_spark: SparkSession, *, is_struct: bool
) -> None:
    """Yet what can't be computed for it fails, as it does when all are computed."""
    number = F.col("id")
    reason = F.when(number > 0, F.lit("too large"))
    reject = F.struct(F.lit(None).cast("string").alias("code"), reason.alias("reason")) if is_struct else reason
    frame = rename(offsetstore_spark.range(3).withColumn("_reject", reject))
    assert count_accepted(frame) == 1
    assert count_accepted(frame.drop(COLUMN)) == 3
    failing = frame.withColumn("n", F.when(number == 2, F.raise_error(F.lit("no"))).otherwise(F.lit(1)))
    with pytest.raises(Exception, match="USER_RAISED_EXCEPTION"):
        count_accepted(failing)


@pytest.mark.behaviour("DLQ-12")
def test_a_record_is_rejected_whole_from_all_its_rows_and_outputs(world: World) -> None:
    world.database.execute(EVENTS)
    world.database.execute("CREATE TABLE words (word text)")
    topic = world.topic(["a b c", "d bad e", "f"])

    def transform(batch: DataFrame) -> dict[str, DataFrame]:
        words = batch.select(F.explode(F.split(F.col("value").cast("string"), " ")).alias("word"), "_kafka")
        reason = F.when(F.col("word") == "bad", F.lit("a bad word"))
        return {"events": traced(batch), "words": words.withColumn("_reject", reason)}

    world.run(
        world.claim(topic), transform, {"events": Append("events"), "words": Append("words")}, dead_letters=AT_ONCE
    )

    assert world.database.column("SELECT word FROM words ORDER BY 1") == ["a", "b", "c", "f"]
    assert world.database.column(VALUES) == ["a b c", "f"]
    assert letters(world, topic) == [(0, 1, "rejected", "d bad e")]


@pytest.mark.behaviour("DLQ-1")
def test_letters_that_the_driver_can_not_hold_at_once_are_written_one_after_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.events_topic(["bad 1", "a", "bad 2", "bad 3"])
    read = Careful.payloads
    conf = spark_conf(world)

    def payloads(part: Careful, numbers: Sequence[int]) -> Mapping[int, Payload]:
        conf.set("spark.driver.maxResultSize", "1k" if len(numbers) > 1 else "1g")
        try:
            if len(numbers) > 1:
                world.spark.range(10_000).toArrow()
            return read(part, numbers)
        finally:
            conf.remove("spark.driver.maxResultSize")

    monkeypatch.setattr(Careful, "payloads", payloads)
    world.run(world.claim(topic), rejecting, Append("events"), dead_letters=AT_ONCE)

    assert world.database.column(VALUES) == ["a"]
    assert letters(world, topic) == [(0, n, "rejected", f"bad {i}") for i, n in enumerate((0, 2, 3), 1)]
    assert world.stored(topic) == {0: 4}


def spark_conf(world: World) -> Any:
    """Spark's own settings, which it reads anew for each job."""
    context: Any = world.spark.sparkContext
    return context._jsc.sc().conf()


AVRO = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}'

# A decoder, a record that it can't read, and Spark's name for that.
DECODERS = {
    "json": ("from_json(text, 'a int', map('mode', 'FAILFAST')).a", '{"a": 1}', '{"a":', "MALFORMED_RECORD_IN_PARSING"),
    "csv": ("from_csv(text, 'a int', map('mode', 'FAILFAST')).a", "1", "x", "MALFORMED_RECORD_IN_PARSING"),
    "xml": (
        "from_xml(text, 'a int', map('mode', 'FAILFAST')).a",
        "<p><a>1</a></p>",
        "<a>",
        "MALFORMED_RECORD_IN_PARSING",
    ),
    "variant": ("variant_get(parse_json(text), '$.a', 'int')", '{"a": 1}', '{"a":', "MALFORMED_RECORD_IN_PARSING"),
    "number": ("to_number(text, '9')", "1", "x", "INVALID_FORMAT.MISMATCH_INPUT"),
    "map": ("size(str_to_map(text))", "a:1", "a:1,a:2", "DUPLICATED_MAP_KEY"),
    "cast": ("CAST(text AS int)", "1", "x", "CAST_INVALID_INPUT"),
    "java": (
        "length(reflect('java.util.UUID', 'fromString', text)) - 35",
        "1-1-1-1-1",
        "x",
        "IllegalArgumentException",
    ),
    "avro": (
        f"from_avro(CAST(text AS binary), '{AVRO}', map('mode', 'FAILFAST')).a",
        "\x02",
        "",
        "EOFException",
    ),
}
QUOTED = """ValueError
Traceback (most recent call last):
ConnectionError: offsetstore.errors.Outage
Job aborted due to stage failure: Total size of serialized results of spark.driver.maxResultSize
[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] java.net.ConnectException"""
"""A record that holds what errors look like."""


@pytest.fixture
def avro(offsetstore_spark: SparkSession) -> None:
    """Spark's own Avro, which is no part of PySpark."""
    artifact = Artifact("org.apache.spark", f"spark-avro_{SCALA}", offsetstore_spark.version, transitive=False)
    session: Any = offsetstore_spark
    for jar in jars(JarSet("spark-avro", (artifact,))):
        session.sql(f"ADD JAR '{jar}'")


def decoded(batch: DataFrame, names: Iterable[str] = DECODERS) -> DataFrame:
    """Reads each record with the decoder that its key names."""
    key, value = (F.col(name).cast("string") for name in ("key", "value"))
    number = F.lit(None).cast("int")
    for name in names:
        number = F.when(key == name, F.expr(DECODERS[name][0]).cast("int")).otherwise(number)
    return batch.withColumn("text", value).select(number.alias("number"), key.alias("name"), "_kafka")


@pytest.mark.behaviour("DLQ-15", "DLQ-16")
@pytest.mark.usefixtures("avro")
def test_a_record_that_a_decoder_cant_read_is_a_letter_whatever_the_error(
    world: World, offsetstore_topic: NewTopic
) -> None:
    names = sorted(DECODERS)
    world.database.execute("CREATE TABLE numbers (number int, name text)")
    topic = offsetstore_topic(1)
    good = [(name, DECODERS[name][1]) for name in names]
    bad = [(name, DECODERS[name][2]) for name in names] + [("cast", QUOTED)]
    world.produce_keyed(topic, [*bad, *good])

    world.run(world.claim(topic), decoded, Append("numbers"), dead_letters=AT_ONCE)

    assert world.database.rows("SELECT name, number FROM numbers ORDER BY 1") == [(name, 1) for name in names]
    assert world.database.rows(
        "SELECT convert_from(key, 'UTF8'), replace(error_class, '.WITHOUT_SUGGESTION', '') FROM dead_letters "
        "WHERE cause = 'raised' ORDER BY record_offset"
    ) == [(name, DECODERS[name][3]) for name, _ in bad]
    assert world.stored(topic) == {0: len(bad) + len(good)}


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("way", WAYS)
def test_without_dead_letters_the_error_names_the_record_that_cant_be_computed(
    world: World, offsetstore_topic: NewTopic, way: str
) -> None:
    world.database.execute("CREATE TABLE numbers (number int, name text)")
    topic = offsetstore_topic(1)
    world.produce_keyed(
        topic, [("cast", "1"), ("json", '{"a": 1}')] * 2 + [("json", '{"a":'), ("cast", "1"), ("cast", "x")]
    )

    failed = world.run_to_failure(
        world.claim(topic), lambda batch: decoded(batch, ["cast", "json"]), Append("numbers"), **WAYS[way]
    )

    assert isinstance(failed.error, FunctionFailed)
    assert failed.error.error_class.startswith("MALFORMED_RECORD_IN_PARSING")
    assert (failed.error.topic_partition, failed.error.offsets) == (TopicPartition(topic, 0), OffsetRange(4, 5))
    assert f"{topic}-0@4" in str(failed.error)
    assert exit_code(failed.error) == ExitCode.OTHER
    assert world.stored(topic) == {0: 4}
    assert world.database.one("SELECT count(*) FROM numbers") == 4


@pytest.mark.behaviour("DLQ-15", "SINK-1")
def test_a_function_gets_one_partition_at_once_also_of_what_comes_before_a_record_that_cant_be_computed(
    world: World, offsetstore_topic: NewTopic
) -> None:
    def note(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        assert len(work.ranges) == 1
        work.connection.exec_driver_sql("INSERT INTO calls VALUES (%s)", (sum(rows.num_rows for rows in batches),))

    world.database.execute("CREATE TABLE calls (records int)")
    topic = offsetstore_topic(2)
    world.produce_keyed(topic, [("cast", "1")] * 3, partition=0)
    world.produce_keyed(topic, [("cast", "1"), ("cast", "1"), ("cast", "x"), ("cast", "1")], partition=1)

    failed = world.run_to_failure(
        world.claim(topic), lambda batch: decoded(batch, ["cast"]), Execute(note), atomicity="partition"
    )

    assert isinstance(failed.error, FunctionFailed)
    assert f"{topic}-1@2" in str(failed.error)
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


def _parsed(value: str) -> int:
    if value == QUOTED:
        raise ValueError(value)
    if value == "down":
        raise Outage("the service for numbers is down")
    if value == "leave":
        sys.exit(3)
    return int(value)


def numbers_of(how: str) -> Any:
    """A transform that can't compute every record."""

    # Without types, from which Spark would guess another kind of function.
    parsed: Any = F.udf(lambda value: _parsed(value), "int")  # noqa: PLW0108 # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]

    def transform(batch: DataFrame) -> DataFrame:
        value = F.col("value").cast("string")
        number = {
            "function": lambda: parsed(value),
            "raise_error": lambda: F.when(~value.rlike("^[0-9]$"), F.raise_error(value)).otherwise(
                F.try_to_number(value, F.lit("9"))
            ),
        }[how]()
        return batch.select(number.alias("number"), "_kafka")

    return transform


@pytest.mark.behaviour("DLQ-1", "DLQ-16")
@pytest.mark.parametrize(("way", "how"), [("batch", "function"), ("partition", "raise_error")])
def test_a_record_that_cant_be_computed_is_a_letter_after_its_retries(world: World, way: str, how: str) -> None:
    world.database.execute("CREATE TABLE numbers (number int)")
    topic = world.topic(["1", "2", "x", "4"], ["5", QUOTED, "leave"])

    settings = DeadLetters(max_retries=1, independent=True)
    world.run(world.claim(topic), numbers_of(how), Append("numbers"), dead_letters=settings, **WAYS[way])

    assert world.database.column("SELECT number FROM numbers ORDER BY 1") == [1, 2, 4, 5]
    assert letters(world, topic) == [(0, 2, "raised", "x"), (1, 1, "raised", QUOTED), (1, 2, "raised", "leave")]
    names = {"function": ["SystemExit", "ValueError"], "raise_error": ["USER_RAISED_EXCEPTION"]}[how]
    found = world.database.rows("SELECT DISTINCT error_class, attempts FROM dead_letters ORDER BY 1")
    assert found == [(name, 2) for name in names]
    assert world.stored(topic) == {0: 4, 1: 3}


@pytest.mark.behaviour("DLQ-6")
def test_an_outage_that_a_function_raises_ends_the_query_and_blames_no_record(world: World) -> None:
    world.database.execute("CREATE TABLE numbers (number int)")
    topic = world.topic(["1", "down", "x"])

    given: dict[str, Any] = {"dead_letters": AT_ONCE, **WAYS["partition"]}
    failed = world.run_to_failure(world.claim(topic), numbers_of("function"), Append("numbers"), **given)

    assert "Outage" in failed.text
    assert letters(world, topic) == []
    assert world.database.rows("SELECT 1 FROM failures") == []


@pytest.mark.behaviour("DLQ-1", "DLQ-12")
def test_a_function_names_records_and_fails_for_others(world: World) -> None:
    world.database.execute("CREATE TABLE numbers (number int CHECK (number < 100))")
    topic = world.topic(["1", "odd", "x", "500", "2"], ["odd", "3"])

    def transform(batch: DataFrame) -> DataFrame:
        place = (F.col(f"_kafka.{name}").alias(name) for name in ("topic", "partition", "offset"))
        return batch.select(F.col("value").cast("string").alias("text"), *place, "_kafka")

    def insert(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        for row in (row for rows in batches for row in rows.to_pylist()):
            if row["text"] == "odd":
                tp = TopicPartition(row["topic"], row["partition"])
                work.dead_letter(tp, row["offset"], "no number at all", code="no-number")
            else:
                work.connection.exec_driver_sql("INSERT INTO numbers VALUES (%s)", (int(row["text"]),))

    into = Execute(insert, splittable=True)
    world.run(world.claim(topic), transform, into, dead_letters=AT_ONCE, **WAYS["partition"])

    assert world.database.column("SELECT number FROM numbers ORDER BY 1") == [1, 2, 3]
    assert letters(world, topic) == [
        (0, 1, "rejected", "odd"),
        (0, 2, "raised", "x"),
        (0, 3, "refused", "500"),
        (1, 0, "rejected", "odd"),
    ]
    assert world.database.rows(
        "SELECT DISTINCT error_class, error_text FROM dead_letters WHERE cause != 'refused' ORDER BY 1"
    ) == [("ValueError", "invalid literal for int() with base 10: 'x'"), ("no-number", "no number at all")]
    assert world.stored(topic) == {0: 5, 1: 2}
