"""What goes from Kafka through Spark into a table arrives as it was, whichever writer takes it there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore import Append, Upsert
from offsetstore.protocol.ports import Writer
from offsetstore.spark import collecting
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


WRITERS: dict[str, Writer] = {
    "append": Append("appended"),
    "upsert": Upsert("upserted", key=["number"], version="big"),
}
TABLES = {"append": "appended", "upsert": "upserted"}
SETTINGS = "spark.sql.session.timeZone", "spark.sql.execution.arrow.useLargeVarTypes"

ROUTES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "in a file": ({}, [*WRITERS, "documents"]),
    "partition by partition": ({}, [*WRITERS, "documents"]),
    "tasks": ({"atomicity": "partition"}, ["append"]),
    "tasks with documents": ({"atomicity": "partition"}, ["documents"]),
}
"""How the rows go from Spark to the database: the sink's arguments, and what is written."""


def documents(batch: DataFrame) -> DataFrame:
    """JSON of every kind."""
    texts = "array('{\"a\": [1, 0.1, null]}', NULL, 'null')"
    variant = F.parse_json(F.expr(f"element_at({texts}, int(offset % 3) + 1)"))
    tenth, length = F.lit(0.1).cast("float"), F.expr("make_dt_interval(-1, 2, 3, 4.5)")
    deep = F.struct(F.array(variant).alias("v"), F.lit(None).cast("int").alias("n"), tenth.alias("f"))
    plain = F.struct(F.array(tenth).alias("l"), F.create_map(tenth, tenth).alias("m"), length.alias("i"))
    frame = batch.select("_kafka", variant.alias("variant"), deep.alias("deep"), plain.alias("plain"))
    return frame.withColumn("by_spark", F.to_json("plain")).withColumn("nothing", F.lit(None))


@pytest.fixture(params=ROUTES)
def route(world: World, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """One of the routes, in another time zone, and for half of them with Arrow's large types."""
    if request.param == "in a file":
        monkeypatch.setattr(collecting, "IN_MEMORY", 0)
    if request.param == "partition by partition":
        monkeypatch.setattr(collecting, "collect", collecting.collect_by_partition)
    values = ("Pacific/Chatham", "true" if request.param in {"in a file", "tasks"} else "false")
    before = {name: str(world.spark.conf.get(name)) for name in SETTINGS}
    for name, value in zip(SETTINGS, values, strict=True):
        world.spark.conf.set(name, value)
    yield request.param
    for name, value in before.items():
        world.spark.conf.set(name, value)


@pytest.mark.behaviour("SINK-2", "SINK-22", "SINK-23", "TX-7")
def test_every_type_and_a_null_of_each_arrives_as_it_was_in_any_time_zone(world: World, route: str) -> None:
    """Also in a batch of nulls alone, and where a column has no type."""
    for table in TABLES.values():
        world.database.execute(f"CREATE TABLE {table} (number bigint PRIMARY KEY, {TABLE})")
    world.database.execute(
        "CREATE TABLE documents (variant jsonb, deep json, plain jsonb, by_spark jsonb, nothing jsonb)"
    )
    topic = world.topic([None, "{}", json.dumps(FULL), json.dumps(FULL)])
    arguments, names = ROUTES[route]
    into: dict[str, Writer] = {name: WRITERS.get(name, Append("documents")) for name in names}

    def transform(batch: DataFrame) -> dict[str, DataFrame]:
        return {name: documents(batch) if name == "documents" else typed(batch) for name in names}

    def single(batch: DataFrame) -> DataFrame:
        return transform(batch)[names[0]]

    job: Any = (single, into[names[0]]) if len(names) == 1 else (transform, into)
    world.run(world.claim(topic), *job, maxOffsetsPerTrigger="2", **arguments)

    for name in set(names) - {"documents"}:
        assert world.database.rows(f"SELECT * FROM {TABLES[name]} ORDER BY number") == [
            (0, *NULLS),
            (1, *NULLS),
            (2, *AS_READ),
            (3, *AS_READ),
        ]
    if "documents" in names:
        kinds = "SELECT variant, jsonb_typeof(variant), deep FROM documents WHERE plain = by_spark AND nothing IS NULL"
        found = sorted(world.database.rows(kinds), key=str)
        full = {"a": [1, 0.1, None]}
        assert found == sorted(
            [
                (variant, kind, {"v": [variant], "n": None, "f": 0.1})
                for variant, kind in ((full, "object"), (None, None), (None, "null"), (full, "object"))
            ],
            key=str,
        )
    assert world.stored(topic) == {0: 4}
