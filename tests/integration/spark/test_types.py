"""What goes from Kafka through Spark into a table arrives as it was, whichever writer takes it there."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from sqlalchemy import text

from offsetstore import Append, Execute, Upsert
from offsetstore.errors import ColumnMismatch
from offsetstore.protocol.ports import Writer
from offsetstore.protocol.work import Work
from offsetstore.spark import collecting
from offsetstore.testing.fixtures import NewTopic
from tests.support.server_errors import OF_SERVER, held
from tests.support.world import World

# Column: Spark's type, PostgreSQL's type, and a value as JSON has it and as psycopg reads it.
TYPES: dict[str, tuple[str, str, Any, Any]] = {
    "tiny": ("smallint", "smallint", -32768, -32768),
    "small": ("int", "integer", 2**31 - 1, 2**31 - 1),
    "big": ("bigint", "bigint", -(2**62), -(2**62)),
    "single": ("float", "real", 0.5, 0.5),
    "double": ("double", "double precision", 0.1, 0.1),
    "price": ("decimal(12,2)", "numeric(12,2)", "1234567890.12", Decimal("1234567890.12")),
    "amount": ("bigint", "numeric", 12345678901, Decimal(12345678901)),
    "name": ("string", "text", "naïve ☃ 'quoted'\t\\", "naïve ☃ 'quoted'\t\\"),
    "code": ("string", "varchar(3)", "abc", "abc"),
    "raw": ("binary", "bytea", "AP8K", b"\x00\xff\n"),
    "flag": ("boolean", "boolean", True, True),
    "day": ("date", "date", "2024-02-29", date(2024, 2, 29)),
    "at": ("timestamp", "timestamptz", "2024-07-01T12:00:00.123456Z", datetime(2024, 7, 1, 12, 0, 0, 123456, UTC)),
    "local": ("timestamp_ntz", "timestamp", "2024-07-01T02:30:00", datetime(2024, 7, 1, 2, 30)),  # noqa: DTZ001
    "id": (
        "string",
        "uuid",
        "12345678-9abc-def0-1234-56789abcdef0",
        UUID("12345678-9abc-def0-1234-56789abcdef0"),
    ),
    "document": ("string", "jsonb", '{"a": [1, null, "☃"]}', {"a": [1, None, "☃"]}),
    "shape": ("struct<x:int,y:string>", "jsonb", {"x": 1, "y": None}, {"x": 1, "y": None}),
    "numbers": ("array<bigint>", "bigint[]", [1, None, 2**40], [1, None, 2**40]),
    "labels": ("array<string>", "text[]", ["a", None, "b,c"], ["a", None, "b,c"]),
}

TABLE = ", ".join(f'"{name}" {postgres}' for name, (_, postgres, _, _) in TYPES.items())
FULL = {name: value for name, (_, _, value, _) in TYPES.items()}
AS_READ = tuple(value for _, _, _, value in TYPES.values())
NULLS = (None,) * len(TYPES)


def typed(batch: DataFrame) -> DataFrame:
    """Parse the records' JSON into the columns of `TYPES`, and number them."""
    schema = ", ".join(f"{name} {spark}" for name, (spark, _, _, _) in TYPES.items())
    parsed = batch.select(
        "_kafka", F.from_json(F.col("value").cast("string"), schema).alias("r"), F.col("offset").alias("number")
    )
    return parsed.select("_kafka", "number", "r.*")


@contextmanager
def session_time_zone(spark: SparkSession, zone: str) -> Generator[None]:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def insert_one_by_one(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """What a user may write with `Execute`."""
    columns = ", ".join(f'"{name}"' for name in TYPES)
    values = ", ".join(
        f"CAST(:{name} AS jsonb)" if postgres == "jsonb" else f"CAST(:{name} AS {postgres})"
        for name, (_, postgres, _, _) in TYPES.items()
    )
    statement = text(f"INSERT INTO everything (number, {columns}) VALUES (:number, {values})")
    for batch in batches:
        rows = batch.to_pylist()
        for row in rows:
            row["shape"] = None if row["shape"] is None else json.dumps(row["shape"])
        work.connection.execute(statement, rows)


WRITERS: dict[str, Writer] = {
    "append": Append("everything"),
    "upsert": Upsert("everything", key=["number"], version="big"),
    "execute": Execute(insert_one_by_one),
}


ROUTES: dict[str, dict[str, Any]] = {
    "in memory": {},
    "in a file": {},
    "partition by partition": {},
    "tasks": {"atomicity": "partition"},
}


@pytest.fixture
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How the rows go from Spark to the database: the sink's arguments."""
    if request.param == "in a file":
        monkeypatch.setattr(collecting, "IN_MEMORY", 0)
    if request.param == "partition by partition":
        monkeypatch.setattr(collecting, "collect", collecting.collect_by_partition)
    return ROUTES[request.param]


@contextmanager
def large_types(spark: SparkSession) -> Generator[None]:
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "TRUE")
    try:
        yield
    finally:
        spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


# Each two of writer, types and route come together once.
PAIRS = [
    pytest.param(writer, types, route, id=f"{writer}-{route}-{types.__name__}")
    for w, writer in enumerate(WRITERS)
    for r, route in enumerate(ROUTES)
    for types in [(nullcontext, large_types)[(w + r) % 2]]
]


@pytest.mark.behaviour("SINK-2")
@pytest.mark.parametrize(("writer", "types", "route"), PAIRS, indirect=["route"])
def test_every_type_and_a_null_of_each_arrives_as_it_was_in_any_time_zone(
    world: World,
    writer: str,
    types: Callable[[SparkSession], AbstractContextManager[None]],
    route: dict[str, Any],
) -> None:
    world.database.execute(f"CREATE TABLE everything (number bigint PRIMARY KEY, {TABLE})")
    topic = world.topic([json.dumps(FULL), "{}", json.dumps(FULL)])

    with session_time_zone(world.spark, "Pacific/Chatham"), types(world.spark):
        world.run(world.claim(topic), typed, WRITERS[writer], **route)

    assert world.database.rows("SELECT * FROM everything ORDER BY number") == [
        (0, *AS_READ),
        (1, *NULLS),
        (2, *AS_READ),
    ]
    assert world.stored(topic) == {0: 3}


@pytest.mark.behaviour("SINK-2", "TX-7")
def test_a_whole_batch_of_nulls_and_a_column_without_a_type_go_in(world: World) -> None:
    world.database.execute(f"CREATE TABLE everything (number bigint, nothing jsonb, {TABLE})")
    topic = world.topic([None, "{}"])
    world.run(world.claim(topic), lambda batch: typed(batch).withColumn("nothing", F.lit(None)), Append("everything"))
    assert world.database.rows("SELECT * FROM everything ORDER BY number") == [(0, None, *NULLS), (1, None, *NULLS)]


@pytest.mark.behaviour("SINK-22", "SINK-23")
@pytest.mark.parametrize("route", ROUTES, indirect=True)
def test_json_of_every_kind_is_what_to_json_makes_of_it(world: World, route: dict[str, Any]) -> None:
    world.database.execute("CREATE TABLE documents (variant jsonb, deep json, plain jsonb, by_spark jsonb)")
    topic = world.topic(['{"a": [1, 0.1, null]}', None, "null"])

    def transform(batch: DataFrame) -> DataFrame:
        variant = F.parse_json(F.col("value").cast("string"))
        tenth, length = F.lit(0.1).cast("float"), F.expr("make_dt_interval(-1, 2, 3, 4.5)")
        deep = F.struct(F.array(variant).alias("v"), F.lit(None).cast("int").alias("n"), tenth.alias("f"))
        plain = F.struct(F.array(tenth).alias("l"), F.create_map(tenth, tenth).alias("m"), length.alias("i"))
        frame = batch.select("_kafka", variant.alias("variant"), deep.alias("deep"), plain.alias("plain"))
        return frame.withColumn("by_spark", F.to_json("plain"))

    world.run(world.claim(topic), transform, Append("documents"), **route)

    variants = [{"a": [1, 0.1, None]}, None, None]
    assert world.database.rows("SELECT variant, jsonb_typeof(variant), deep FROM documents") == [
        (variant, kind, {"v": [variant], "n": None, "f": 0.1})
        for variant, kind in zip(variants, ["object", None, "null"], strict=True)
    ]
    assert world.database.column("SELECT count(*) FROM documents WHERE plain = by_spark") == [3]


@pytest.mark.behaviour("SINK-22")
@pytest.mark.parametrize(
    ("writer", "found", "made"),
    [
        (
            Append("spans"),
            "Spark's interval",
            '; in Spark: regexp_replace(col("length").cast("string"), "(^| )([0-9])", "$1+$2")',
        ),
        (Execute(lambda _, batches: list(batches)), "interval", ': col("length").cast("string")'),
    ],
    ids=["append", "execute"],
)
def test_a_type_that_arrow_does_not_have_is_refused_before_anything_is_computed(
    world: World, writer: Writer, found: str, made: str
) -> None:
    world.database.execute("CREATE TABLE spans (at timestamptz, length interval)")
    topic = world.topic(["a"])
    failed = world.run_to_failure(
        world.claim(topic),
        lambda batch: batch.select(F.col("timestamp").alias("at"), F.expr("make_interval(1)").alias("length")),
        writer,
    )
    assert isinstance(failed.error, ColumnMismatch)
    assert failed.error.found == {"length": found}
    assert failed.error.next_step == f"Convert it in the transform{made}."
    assert world.stored(topic) == {0: 0}


@pytest.mark.behaviour("SINK-12", "SINK-2")
def test_upsert_by_offset_keeps_the_newest_of_a_key_also_where_it_is_twice_in_a_batch(
    world: World, offsetstore_topic: NewTopic
) -> None:
    world.database.execute("CREATE TABLE latest (key text PRIMARY KEY, value text, seen timestamptz)")
    topic = offsetstore_topic(1)
    world.produce_keyed(topic, [(key, f"{key}{number}") for number in range(20) for key in "ab"])

    def transform(batch: DataFrame) -> DataFrame:
        rows = batch.select(
            "_kafka",
            F.col("key").cast("string").alias("key"),
            F.col("value").cast("string").alias("value"),
            F.col("timestamp").alias("seen"),
        )
        return rows.orderBy(F.rand())  # the order of the rows must not matter

    writer = Upsert("latest", key=["key"])
    world.run(world.claim(topic), transform, writer)
    assert world.database.rows("SELECT key, value FROM latest ORDER BY key") == [("a", "a19"), ("b", "b19")]

    world.produce_keyed(topic, [("b", "b20"), ("b", "b21")])
    world.run(world.claim(topic), transform, writer)
    assert world.database.rows("SELECT key, value FROM latest ORDER BY key") == [("a", "a19"), ("b", "b21")]


@pytest.mark.behaviour("SINK-2")
def test_execute_gets_the_rows_once_and_none_of_kafkas_columns(world: World) -> None:
    topic = world.topic(["a", "b"], ["c"])
    calls: list[list[dict[str, Any]]] = []

    def execute(_work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        calls.append([row for batch in batches for row in batch.to_pylist()])
        assert list(batches) == []

    world.run(world.claim(topic), lambda batch: batch.select("_kafka", "offset", "value"), Execute(execute))

    [rows] = calls
    assert sorted(rows, key=lambda row: row["value"]) == [
        {"offset": 0, "value": b"a"},
        {"offset": 1, "value": b"b"},
        {"offset": 0, "value": b"c"},
    ]


@pytest.mark.behaviour("TX-12")
def test_execute_is_repeated_with_all_rows_after_a_lock_timeout_and_its_first_try_is_gone(world: World) -> None:
    world.database.execute("CREATE TABLE events (value text)")
    topic = world.topic(["a", "b"])
    computed: list[DataFrame] = []
    attempts: list[int] = []

    def transform(batch: DataFrame) -> DataFrame:
        computed.append(batch)
        return batch.select(F.col("value").cast("string").alias("value"))

    def execute(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        rows = [row for batch in batches for row in batch.to_pylist()]
        work.connection.execute(text("INSERT INTO events VALUES (:value)"), rows)
        attempts.append(len(rows))
        if len(attempts) == 1:
            work.connection.execute(text(f"DO $$ BEGIN {OF_SERVER['55P03']} END $$"))

    with psycopg.connect(world.database.url) as other, held(other):
        world.run(world.claim(topic), transform, Execute(execute))

    assert attempts == [2, 2]
    assert len(computed) == 1  # the rows are kept, not computed again
    assert world.database.column("SELECT value FROM events ORDER BY value") == ["a", "b"]
