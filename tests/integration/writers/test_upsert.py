"""Upsert: one row a key, whatever comes together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest

from offsetstore.errors import ColumnMismatch, ConfigurationError, KafkaColumnsMissing, RowsRefused
from offsetstore.writers import Upsert
from tests.integration.writers.writing import Database, batch
from tests.support.work import work_on


@pytest.mark.behaviour("SINK-2")
@pytest.mark.parametrize("replaced", [[], ["note"]])
def test_null_counts_as_nothing_in_a_sum_that_can_not_be_null(database: Database, replaced: list[str]) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, n numeric(5, 1) NOT NULL, note text)")
    writer = Upsert("t", key=["id"], add=["n"], version="note" if replaced else None)
    rows: dict[str, list[Any]] = {"id": [1, 2], "n": [None, Decimal("1.5")]}
    rows |= {name: ["a", "b"] for name in replaced}
    types = {"n": pa.decimal128(5, 1)}
    for _ in range(2):
        database.write(writer, batch(rows, types))
    assert database.rows("SELECT id, n FROM t ORDER BY id") == [(1, Decimal(0)), (2, Decimal("3.0"))]


def test_columns_that_are_not_supplied_stay_as_they_are(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, n bigint, note text DEFAULT 'default')")
    writer = Upsert("t", key=["id"], add=["n"])
    database.run("INSERT INTO t VALUES (1, 1, 'mine')")
    database.write(writer, batch({"id": [1, 2], "n": [1, 1]}))
    assert database.rows("SELECT * FROM t ORDER BY id") == [(1, 2, "mine"), (2, 1, "default")]


def test_nothing_but_a_key_keeps_each_once(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY)")
    writer = Upsert("t", key=["id"])
    written = batch({"id": [2, 1, 2]})
    assert not writer.uses_kafka_column(written.schema)
    database.write(writer, written)
    database.write(writer, written)
    assert database.rows("SELECT id FROM t ORDER BY id") == [(1,), (2,)]


def test_two_upserts_and_their_temporary_tables_in_one_transaction(database: Database) -> None:
    database.run('CREATE TABLE "weird ""Name"" %s" ("Key %s" text COLLATE "C" UNIQUE, "a:b" numeric(6,2))')
    writer = Upsert('weird "Name" %s', key=["Key %s"], add=["a:b"])
    written = batch({"Key %s": ["x", "x"], "a:b": [1, 2]})
    with database.engine.begin() as connection:
        writer.write(work_on(connection), [written])
        writer.write(work_on(connection), [written])
    assert database.rows('SELECT * FROM "weird ""Name"" %s"') == [("x", Decimal("6.00"))]
    assert database.rows("SELECT count(*) FROM pg_class WHERE relname LIKE 'offsetstore%'") == [(0,)]


def test_a_text_copy_stages_what_pgpq_does_not_know(database: Database) -> None:
    database.run("CREATE TABLE t (address inet PRIMARY KEY, n int)")
    database.write(Upsert("t", key=["address"], add=["n"]), batch({"address": ["10.0.0.1", "10.0.0.1"], "n": [1, 2]}))
    assert database.rows("SELECT address::text, n FROM t") == [("10.0.0.1/32", 3)]


def test_an_overflowing_sum_is_refused(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, n smallint)")
    writer = Upsert("t", key=["id"], add=["n"])
    assert database.refusal(RowsRefused, writer, batch({"id": [1, 1], "n": [30_000, 30_000]})).sqlstate == "22003"
    database.write(writer, batch({"id": [1], "n": [30_000]}))
    assert database.refusal(RowsRefused, writer, batch({"id": [1], "n": [30_000]})).sqlstate == "22003"
    assert database.rows("SELECT n FROM t") == [(30_000,)]


@pytest.mark.behaviour("SINK-10")
@pytest.mark.parametrize(
    "constraint",
    [
        "",
        ", UNIQUE (a)",
        ", UNIQUE (a, b, n)",
        ", UNIQUE (a, b) DEFERRABLE",
        "); CREATE UNIQUE INDEX ON t (a, b) WHERE n > 0; CREATE UNIQUE INDEX ON t (a, (b + 1)",
    ],
    ids=["none", "too few", "too many", "deferrable", "partial and expression"],
)
def test_a_key_that_the_table_does_not_have_unique_is_refused_with_the_ddl(database: Database, constraint: str) -> None:
    database.run(f"CREATE TABLE t (a int, b int, n int{constraint})")
    error = database.refusal(
        ColumnMismatch, Upsert("t", key=["b", "a"], add=["n"]), batch({"a": [1], "b": [1], "n": [1]})
    )
    assert error.expected == "(b, a)"
    assert 'ALTER TABLE "t" ADD UNIQUE ("b", "a");' in error.next_step


def test_the_ddl_of_a_missing_unique_key_can_be_pasted(database: Database) -> None:
    database.run('CREATE SCHEMA "weird Schema"; CREATE TABLE "weird Schema"."My Table" ("a""b" int)')
    writer, rows = Upsert("weird Schema.My Table", key=['a"b']), batch({'a"b': [1]})
    step = database.refusal(ColumnMismatch, writer, rows).next_step
    database.run(step[step.index("ALTER") :])
    assert database.write(writer, rows) == 1


@pytest.mark.parametrize(
    "constraint",
    [", UNIQUE (b, a)", ", PRIMARY KEY (a, b)", "); CREATE UNIQUE INDEX ON t (b, a) INCLUDE (n"],
    ids=["constraint", "primary key", "index that includes"],
)
def test_any_unique_index_on_the_key_will_do(database: Database, constraint: str) -> None:
    database.run(f"CREATE TABLE t (a int, b int, n int{constraint})")
    database.write(Upsert("t", key=["a", "b"], add=["n"]), batch({"a": [1, 1], "b": [1, 1], "n": [1, 2]}))
    assert database.rows("SELECT * FROM t") == [(1, 1, 3)]


@pytest.mark.behaviour("SINK-10")
def test_replacing_without_version_or_offsets_is_refused(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, status text)")
    error = database.refusal(KafkaColumnsMissing, Upsert("t", key=["id"]), batch({"id": [1], "status": ["a"]}))
    assert "replaces status" in str(error)
    assert 'version="..."' in error.next_step


@pytest.mark.behaviour("SINK-10")
def test_columns_that_the_upsert_names_have_to_be_there_and_of_the_right_kind(database: Database) -> None:
    database.run("CREATE TABLE t (id int PRIMARY KEY, name text, document jsonb, single real)")
    absent = database.refusal(ColumnMismatch, Upsert("t", key=["id"], add=["n"], version="at"), batch({"id": [1]}))
    assert "n, at" in str(absent)
    add = database.refusal(ColumnMismatch, Upsert("t", key=["id"], add=["name"]), batch({"id": [1], "name": ["x"]}))
    assert add.found == {"name": "text"}
    singles = batch({"id": [1, 1], "single": [16777216.0, 1.0]}, {"single": pa.float32()})
    single = database.refusal(ColumnMismatch, Upsert("t", key=["id"], add=["single"]), singles)
    assert (single.found, single.next_step) == ({"single": "real"}, "Use double precision or numeric.")
    assert database.write(Upsert("t", key=["id"], greatest=["single"]), singles) == 2
    written = batch({"id": [1], "document": ["{}"]})
    most = database.refusal(ColumnMismatch, Upsert("t", key=["id"], greatest=["document"]), written)
    assert most.found == {"document": "jsonb"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"key": []},
        {"key": "id"},
        {"key": ["id"], "add": "n"},
        {"key": ["id", "id"]},
        {"key": ["id"], "add": ["n"], "greatest": ["n"]},
        {"key": ["id"], "version": "id"},
    ],
    ids=str,
)
def test_arguments_that_can_t_be_meant_are_refused_at_once(arguments: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        Upsert("t", **arguments)


KEYS = 2_000
ROUNDS = 10


def test_upserts_in_opposite_order_neither_deadlock_nor_lose(database: Database) -> None:
    database.run("CREATE TABLE t (a int, b int, n bigint, PRIMARY KEY (b, a))")
    forwards = list(range(KEYS))
    together = Barrier(2)

    def job(numbers: list[int], key: list[str]) -> None:
        written = batch({"a": [n % 7 for n in numbers], "b": numbers, "n": [1] * KEYS})
        for _ in range(ROUNDS):
            together.wait(timeout=60)
            database.write(Upsert("t", key=key, add=["n"]), written)

    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(job, forwards, ["a", "b"]), pool.submit(job, forwards[::-1], ["b", "a"])]
        for each in jobs:
            each.result(timeout=120)
    assert database.rows("SELECT count(*), min(n), max(n) FROM t") == [(KEYS, 2 * ROUNDS, 2 * ROUNDS)]
