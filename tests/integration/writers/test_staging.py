"""Staging tables: filled by several, moved once; and only what was reported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from offsetstore import Token, Work
from offsetstore.errors import ColumnMismatch, RowsRefused
from offsetstore.postgres.schema import STAGING_SCHEMA
from offsetstore.writers import Append, Execute, Upsert
from offsetstore.writers.staging import Staged, StagedRowsLost, Staging
from offsetstore.writers.staging_schema import StagingOwner, StagingWriter, can_stage, drop
from tests.integration.writers.writing import Database, batch, kafka

ROWS = "SELECT id, n, name FROM t ORDER BY id, name"


@pytest.fixture
def staging(database: Database) -> Staging:
    database.run(f"DROP SCHEMA IF EXISTS {STAGING_SCHEMA} CASCADE; CREATE SCHEMA {STAGING_SCHEMA}")
    return StagingOwner.of(uuid4(), "group", Token(7, uuid4())).fresh()


def rows(*values: tuple[int | None, int | None, str]) -> pa.RecordBatch:
    """With the offset, which grows, as the sink hands it."""
    ids, numbers, names = zip(*values, strict=True)
    coordinates = kafka(*(("topic", 0, offset) for offset in range(len(values))))
    return batch(
        {"id": ids, "n": numbers, "name": names, "_kafka": coordinates}, {"id": pa.int64(), "n": pa.int32()}
    )  # fmt: skip


def create(database: Database, writer: StagingWriter, staging: Staging, like: pa.RecordBatch) -> None:
    with database.engine.begin() as connection:
        writer.create_staging(connection, staging, like.schema)


def stage(database: Database, writer: StagingWriter, staging: Staging, *batches: pa.RecordBatch) -> tuple[UUID, int]:
    """As a task does it, in a transaction of its own."""
    attempt = uuid4()
    with database.engine.begin() as connection:
        return attempt, writer.stage(connection, staging, attempt, iter(batches))


def move(database: Database, writer: StagingWriter, staging: Staging, *reported: tuple[UUID, int]) -> int:
    staged = Staged(staging, tuple(attempt for attempt, _ in reported), sum(count for _, count in reported))
    with database.engine.begin() as connection:
        return writer.move(connection, staged)


@pytest.mark.behaviour("SINK-2")
@pytest.mark.parametrize(
    ("writer", "expected"),
    [
        (Append("t"), [(1, 1, "a"), (1, 2, "b"), (1, 4, "c"), (2, None, "d")]),
        (Upsert("t", key=["id"], add=["n"]), [(1, 7, "c"), (2, None, "d")]),
        (Upsert("t", key=["id"], add=["n"], version="name"), [(1, 7, "c"), (2, None, "d")]),
        (Upsert("t", key=["id"], greatest=["n"], least=["name"]), [(1, 4, "a"), (2, None, "d")]),
    ],
    ids=["append", "upsert by offset", "upsert by version", "upsert of extremes"],
)
def test_rows_of_reported_attempts_are_moved_and_no_others(
    database: Database, staging: Staging, writer: StagingWriter, expected: list[Any]
) -> None:
    key = "" if isinstance(writer, Append) else "PRIMARY KEY"
    database.run(f"CREATE TABLE t (id bigint {key}, n bigint, name text, made text DEFAULT 'by default')")
    first, second = rows((1, 1, "a"), (1, 2, "b")), rows((0, 0, ""), (0, 0, ""), (1, 4, "c"), (2, None, "d")).slice(2)
    create(database, writer, staging, first)
    reported = stage(database, writer, staging, first)
    stage(database, writer, staging, first)  # committed, and its outcome never came
    with database.engine.connect() as connection:
        writer.stage(connection, staging, uuid4(), [first])
        connection.rollback()
    others = stage(database, writer, staging, second.slice(0, 1), second.slice(0, 0), second.slice(1))

    assert move(database, writer, staging, reported, others) == 4

    assert database.rows(ROWS) == expected
    assert set(database.rows("SELECT made FROM t")) == {("by default",)}


def test_a_column_of_each_kind_is_staged_as_the_target_has_it(database: Database, staging: Staging) -> None:
    database.run(
        "CREATE DOMAIN short AS varchar(3) NOT NULL;"
        'CREATE TABLE t (id bigint NOT NULL, name short, "a %s" numeric(5,2))'
    )
    written = batch({"id": [1], "name": ["abc"], "a %s": pa.array([125], pa.int32())})
    create(database, Append("t"), staging, written)
    assert database.rows(
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attnum > 0 AND attrelid = "
        f"(SELECT oid FROM pg_class WHERE relname = '{staging.name}' AND relpersistence = 'u') ORDER BY attnum"
    ) == [("bigint",), ("short",), ("numeric(5,2)",), ("uuid",)]
    assert move(database, Append("t"), staging, stage(database, Append("t"), staging, written)) == 1
    assert database.rows("SELECT * FROM t") == [(1, "abc", 125)]


def test_rows_that_are_lost_or_too_many_are_noticed(database: Database, staging: Staging) -> None:
    database.run("CREATE TABLE t (id bigint, n bigint, name text)")
    create(database, Append("t"), staging, rows((1, 1, "a")))
    attempt, count = stage(database, Append("t"), staging, rows((1, 1, "a")))
    with pytest.raises(StagedRowsLost, match="2 rows were staged, but the table holds 1"):
        move(database, Append("t"), staging, (attempt, count + 1))
    database.run(f'TRUNCATE {STAGING_SCHEMA}."{staging.name}"')
    with pytest.raises(StagedRowsLost, match="1 rows were staged, but the table holds 0"):
        move(database, Append("t"), staging, (attempt, count))
    with database.engine.begin() as connection:
        drop(connection, staging)
        drop(connection, staging)
    with pytest.raises(StagedRowsLost, match="is gone"):
        move(database, Append("t"), staging, (attempt, count))
    with pytest.raises(StagedRowsLost, match="is gone"):
        stage(database, Append("t"), staging, rows((1, 1, "a")))
    assert database.rows(ROWS) == []


@pytest.mark.parametrize("change", ["ALTER TABLE t ALTER n TYPE numeric(9,1)", "ALTER TABLE t RENAME n TO m"])
def test_a_target_that_was_changed_since_is_noticed(database: Database, staging: Staging, change: str) -> None:
    database.run("CREATE TABLE t (id bigint PRIMARY KEY, n bigint, name text)")
    writer = Upsert("t", key=["id"])
    create(database, writer, staging, rows((1, 1, "a")))
    reported = stage(database, writer, staging, rows((1, 1, "a")))
    database.run(change)
    with pytest.raises(StagedRowsLost, match="the column n was changed"):
        move(database, writer, staging, reported)


def test_what_a_target_refuses_is_typed_wherever_it_is_found_out(database: Database, staging: Staging) -> None:
    database.run("CREATE TABLE t (id bigint PRIMARY KEY, n bigint CHECK (n > 0), name text)")
    writer = Upsert("t", key=["id"])
    with database.engine.begin() as connection, pytest.raises(ColumnMismatch):
        writer.create_staging(connection, staging, pa.schema({"id": pa.int64(), "other": pa.int64()}))
    create(database, writer, staging, rows((1, 1, "a")))
    with pytest.raises(RowsRefused, match="NULL in id"):
        stage(database, writer, staging, rows((None, 1, "a")))
    with pytest.raises(RowsRefused) as caught:
        move(database, writer, staging, stage(database, writer, staging, rows((1, 0, "a"))))
    assert (caught.value.table, caught.value.constraint) == ("public.t", "t_n_check")


def test_a_task_without_rows_does_nothing(database: Database, staging: Staging) -> None:
    assert stage(database, Append("t"), staging)[1] == 0
    assert stage(database, Upsert("t", key=["id"]), staging, rows((1, 1, "a")).slice(0, 0))[1] == 0


class Counting(Append):
    written = 0

    def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
        self.written += super().write(work, batches)
        return self.written


def test_only_writers_for_which_a_move_is_all_are_staged() -> None:
    assert can_stage(Append("t"))
    assert can_stage(Upsert("t", key=["id"]))
    assert not can_stage(Execute(print))
    assert not can_stage(Counting("t"))


def test_an_append_that_is_staged_needs_no_more_rights_on_its_table_than_insert(
    database: Database, staging: Staging
) -> None:
    database.run("CREATE TABLE t (id bigint, n bigint, name text)")
    role, attempt, written = f"role_{uuid4().hex[:12]}", uuid4(), rows((1, 1, "a"))
    with database.engine.connect() as connection:
        connection.exec_driver_sql(
            f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA public TO {role}; GRANT INSERT ON t TO {role};"
            f"GRANT ALL ON SCHEMA {STAGING_SCHEMA} TO {role}; SET LOCAL ROLE {role}"
        )
        Append("t").create_staging(connection, staging, written.schema)
        count = Append("t").stage(connection, staging, attempt, [written])
        assert Append("t").move(connection, Staged(staging, (attempt,), count)) == 1
        connection.rollback()
