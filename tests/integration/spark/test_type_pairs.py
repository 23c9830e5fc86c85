"""Each pair of a Spark type and a column type, computed by one Spark job and compared in PostgreSQL: docs/types.md."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql import types as spark_types

from offsetstore.errors import ColumnMismatch
from offsetstore.postgres.url import make_engine
from offsetstore.spark.schemas import arrow_schema, table_schema, variants_as_json
from offsetstore.writers import Append
from offsetstore.writers.table.catalogue import TableName, read_target
from tests.support import type_pairs
from tests.support.postgres import Database
from tests.support.type_pairs import COLUMNS, SOURCES, VALUES, ZONE
from tests.support.work import work_on

WIDTH = 200
"""The columns of a table: many more would not fit a page."""

BY_VALUE = {"real", "double precision", "numeric", "numeric(12,2)", "numeric(50,2)"}
"""Equal as values, and not always as texts."""


SETTINGS = {
    "spark.sql.session.timeZone": ZONE,
    "spark.sql.preserveCharVarcharTypeInfo": "true",  # otherwise a column of type varchar(n) is one of strings
    "spark.sql.timeType.enabled": "true",
}


@pytest.fixture
def spark(offsetstore_spark: SparkSession) -> Generator[SparkSession]:
    before = {name: offsetstore_spark.conf.get(name, None) for name in SETTINGS}
    for name, value in SETTINGS.items():
        offsetstore_spark.conf.set(name, value)
    yield offsetstore_spark
    for name, value in before.items():
        offsetstore_spark.conf.unset(name)
        if value is not None:
            offsetstore_spark.conf.set(name, value)


@pytest.fixture
def database(offsetstore_database: str) -> Generator[Database]:
    with closing(Database(offsetstore_database)) as database:
        yield database


def known(source: str) -> bool:
    """Whether this Spark has the type."""
    return all(hasattr(spark_types, since) for name, since in type_pairs.SINCE.items() if name in source)


def samples(spark: SparkSession) -> DataFrame:
    """Each sample as a column, in the first row; the second one is all NULL."""
    wanted = [sample for source in VALUES if known(source) for sample in VALUES[source]]
    columns = (f"if(id = 0, {sample}, NULL) AS `{names()[sample]}`" for sample in wanted)
    return spark.range(0, 2, 1, 1).selectExpr(*columns)


def names() -> dict[str, str]:
    return {sample: f"c{n}" for n, sample in enumerate(sample for of in VALUES.values() for sample in of)}


def evaluated(expression: str) -> Column:
    """What a user gets who pastes it."""
    return eval(expression, vars(F) | {})  # noqa: S307 - our own text


def test_the_columns_are_those_of_the_catalogue(database: Database) -> None:
    database.execute(type_pairs.TYPES)
    database.execute(f"CREATE TABLE t ({', '.join(f'c{n} {name}' for n, name in enumerate(COLUMNS))})")
    with psycopg.connect(database.url) as connection:
        read = read_target(connection, TableName.parse("t")).columns.values()
    assert [(one.kind, one.element, one.modifier) for one in read] == [
        (one.kind, one.element, one.modifier) for one in COLUMNS.values()
    ]


@pytest.mark.behaviour("SINK-23")
def test_what_holds_a_variant_becomes_a_string_of_json(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr(
        "parse_json('1') AS `a.b`", "array(parse_json('1')) AS deep", "id", "array(id) AS n"
    )
    made = variants_as_json(frame, table_schema(frame))
    assert made.columns == frame.columns
    assert [field.dataType.simpleString() for field in made.schema] == ["string", "string", "bigint", "array<bigint>"]


def test_two_fields_of_one_name_are_refused_before_a_record_is_blamed(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("array(named_struct('id', id, 'id', 'x')) AS pair")
    with pytest.raises(ColumnMismatch, match=r"two fields of one name; found struct<id:bigint,id:string>"):
        table_schema(frame)


def test_the_cast_of_a_column_that_arrow_lacks_can_be_pasted(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("make_interval(1) AS `a.b`")
    with pytest.raises(ColumnMismatch) as caught:
        arrow_schema(frame)
    [cast] = re.findall(r"col\(.*\)", caught.value.next_step)
    assert frame.select(evaluated(cast)).first() == ("1 years",)


@pytest.mark.behaviour("SINK-22", "SINK-23")
def test_what_every_pair_stores_is_the_value_that_was_there(spark: SparkSession, database: Database) -> None:
    given = samples(spark)
    named = names()
    pairs = [pair for pair in type_pairs.pairs(named.__getitem__) if known(pair.source)]
    found = dict(zip(given.columns, table_schema(given).types, strict=True))
    assert {pair.sample: found[named[pair.sample]] for pair in pairs} == {
        pair.sample: SOURCES[pair.source] for pair in pairs
    }

    cases = [
        (pair.column.type_name, expression, value)
        for pair in pairs
        for expression, value in zip(pair.expressions, pair.values, strict=True)
    ]
    made = given.select([evaluated(expression).alias(f"p{n}") for n, (_, expression, _) in enumerate(cases)])
    [rows] = variants_as_json(made, table_schema(made)).toArrow().combine_chunks().to_batches()

    engine = make_engine(database.url)
    database.execute(type_pairs.TYPES)
    for first in range(0, len(cases), WIDTH):
        numbers = range(first, min(first + WIDTH, len(cases)))
        database.execute(f"CREATE TABLE t{first} ({', '.join(f'p{n} {cases[n][0]}' for n in numbers)})")
        with engine.begin() as connection:
            Append(f"t{first}").write(work_on(connection), [rows.select([f"p{n}" for n in numbers])])
    engine.dispose()

    different = database.rows(" UNION ALL ".join(different_of(n, *case) for n, case in enumerate(cases)))
    assert "\n".join(f"{cases[n]}: {stored}" for n, stored in different) == ""


def different_of(number: int, type_name: str, _: str, value: str | None) -> str:
    """Select what is neither the value in one row nor NULL in the other."""
    stored, expected = f"p{number}", f"{sql.Literal(value).as_string()}::{type_name}"
    kind = {"json": "jsonb", "jsonb": "jsonb"}.get(type_name, type_name if type_name in BY_VALUE else "text")
    is_right = f"bool_or({stored}::{kind} IS NOT DISTINCT FROM {expected}::{kind}) AND bool_or({stored} IS NULL)"
    return f"SELECT {number}, max({stored}::text) FROM t{number // WIDTH * WIDTH} HAVING NOT ({is_right})"
