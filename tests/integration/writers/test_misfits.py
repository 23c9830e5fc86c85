"""Misfits: the rows that a writer refuses for their own values, found all at once, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import cast

import pyarrow as pa
import pytest

from offsetstore.errors import RowsRefused
from offsetstore.protocol.ports import Work, Writer
from offsetstore.writers import Append, Execute, Upsert
from offsetstore.writers.arrow.misfits import Misfit, MisfitsWriter, finds_misfits
from tests.integration.writers.writing import Database, batch


def misfits(database: Database, writer: MisfitsWriter, rows: pa.RecordBatch) -> list[Misfit]:
    with database.engine.begin() as connection:
        return writer.misfits(connection, rows)


def described(error: RowsRefused) -> dict[str, object]:
    names = ("table", "column", "constraint", "sqlstate", "found", "expected", "next_step")
    return {"text": str(error), **{name: getattr(error, name) for name in names}}


def expect_as_written(database: Database, writer: MisfitsWriter, rows: pa.RecordBatch) -> list[int]:
    """Write each misfit alone, which must raise its error, and the others together; return the misfits' rows."""
    found = misfits(database, writer, rows)
    for misfit in found:
        alone = database.refusal(RowsRefused, writer, rows.slice(misfit.row, 1))
        assert described(alone) == described(misfit.error)
    bad = [misfit.row for misfit in found]
    good = [rows.slice(row, 1) for row in range(rows.num_rows) if row not in bad]
    assert database.write(writer, *good) == len(good)
    return bad


@pytest.mark.behaviour("DLQ-8")
def test_a_letter_that_the_connection_s_encoding_lacks_makes_a_misfit(database: Database) -> None:
    database.run("CREATE TABLE t (id integer, value text)")
    rows = batch({"id": [1, 2, 2**40], "value": ["é", "canary 🛬", "🛬"]})
    with database.engine.connect() as connection:
        connection.exec_driver_sql("SET client_encoding TO latin1")
        found = Append("t").misfits(connection, rows)
        connection.invalidate()
    assert [(misfit.row, misfit.error.column) for misfit in found] == [(1, "value"), (2, "id")]


@pytest.mark.behaviour("DLQ-8")
def test_a_null_in_an_upsert_s_key_is_a_misfit_before_all_others(database: Database) -> None:
    database.run("CREATE TABLE t (a bigint, b integer, c integer, PRIMARY KEY (a, b))")
    rows = batch({"a": [1, None, None, 4], "b": [1, None, 2**40, 4], "c": [1, 2, 3, 2**40]})
    found = misfits(database, Upsert("t", key=["b", "a"], version="c"), rows)
    assert [(misfit.row, misfit.error.column) for misfit in found] == [(1, "b"), (2, "a"), (3, "c")]
    assert expect_as_written(database, Upsert("t", key=["b", "a"], version="c"), rows) == [1, 2, 3]


@pytest.mark.behaviour("DLQ-8")
@pytest.mark.parametrize("named", ["t", "public.t"])
def test_a_null_in_a_column_that_is_not_null_is_an_append_s_misfit_with_the_database_s_error(
    database: Database, named: str
) -> None:
    database.run("CREATE TABLE t (b integer NOT NULL, a integer NOT NULL DEFAULT 7, c integer)")
    rows = batch({"a": [1, None, None, 4], "b": [1, 2, None, 2**40], "c": [None] * 4})
    assert expect_as_written(database, Append(named), rows) == [1, 2, 3]
    found = misfits(database, Append(named), rows)
    assert [(misfit.error.column, misfit.error.sqlstate) for misfit in found[:2]] == [("a", "23502"), ("b", "23502")]


FILLS = """
    CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.value = 7; RETURN NEW; END $$;
    CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
"""
BEFORE_EACH = "CREATE TRIGGER one BEFORE INSERT ON t_all FOR EACH ROW EXECUTE FUNCTION fill()"
OF_TRIGGERS: dict[str, tuple[str, list[int]]] = {
    "none": ("", [1]),
    "before each row": ("CREATE TRIGGER one BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fill()", []),
    "of a partition": (BEFORE_EACH, []),
    "in replicas only": (BEFORE_EACH + "; ALTER TABLE t_all ENABLE REPLICA TRIGGER one", [1]),
    "disabled": (BEFORE_EACH + "; ALTER TABLE t_all DISABLE TRIGGER one", [1]),
    "after each row": ("CREATE TRIGGER one AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION fill()", [1]),
    "before an update": ("CREATE TRIGGER one BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION fill()", [1]),
    "before the statement": ("CREATE TRIGGER one BEFORE INSERT ON t EXECUTE FUNCTION pass()", [1]),
}
IN_DOUBT = {"in replicas only"}


@pytest.mark.behaviour("DLQ-8")
@pytest.mark.parametrize("trigger", OF_TRIGGERS)
def test_a_trigger_may_fill_in_a_null(database: Database, trigger: str) -> None:
    statement, refused = OF_TRIGGERS[trigger]
    database.run(
        "CREATE TABLE t (id integer, value integer NOT NULL) PARTITION BY RANGE (id);"
        "CREATE TABLE t_all PARTITION OF t FOR VALUES FROM (0) TO (100)"
    )
    database.run(FILLS + statement)
    rows = batch({"id": [1, 2], "value": [1, None]}, {"value": pa.int32()})
    found = [misfit.row for misfit in misfits(database, Append("t"), rows)]
    if refused:
        database.refusal(RowsRefused, Append("t"), rows.slice(1, 1))
    else:
        assert database.write(Append("t"), rows) == rows.num_rows
    assert found == ([] if trigger in IN_DOUBT else refused)


@pytest.mark.behaviour("DLQ-8")
def test_a_null_is_left_to_the_database_by_an_upsert_and_for_a_domain(database: Database) -> None:
    database.run("CREATE DOMAIN amount AS integer NOT NULL")
    database.run("CREATE TABLE t (id integer PRIMARY KEY, a amount, b amount NOT NULL, c integer NOT NULL)")
    rows = batch({"id": [1, 2], "a": [1, None], "b": [1, None], "c": [1, 2]}, {"a": pa.int32(), "b": pa.int32()})
    assert misfits(database, Append("t"), rows) == []
    with_null = batch({"id": [1, 2], "a": [1, 2], "b": [1, 2], "c": [1, None]}, {"c": pa.int32()})
    assert misfits(database, Upsert("t", key=["id"], version="c"), with_null) == []
    assert [misfit.row for misfit in misfits(database, Append("t"), with_null)] == [1]


def test_the_table_can_t_change_until_the_transaction_ends(database: Database) -> None:
    database.run("CREATE TABLE t (id integer)")
    with database.engine.begin() as connection:
        assert Append("t").misfits(connection, batch({"id": [1]})) == []
        locks = connection.exec_driver_sql("SELECT mode FROM pg_locks WHERE relation = 't'::regclass").scalars().all()
    assert locks == ["RowExclusiveLock"]


class Halves(Append):
    """Writes what it likes, which `Append.misfits` can't know."""

    def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
        return super().write(work, (rows.slice(0, rows.num_rows // 2) for rows in batches))


class Named(Append):
    """Overrides nothing that matters."""

    def __repr__(self) -> str:
        return "Named()"


def nothing(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """Write nothing."""


def test_a_writer_that_has_a_write_of_its_own_is_not_asked() -> None:
    asked: list[Writer] = [Append("t"), Upsert("t", key=["id"]), Named("t")]
    not_asked = cast("list[Writer]", [Execute(nothing), Halves("t")])
    assert [finds_misfits(writer) for writer in asked] == [True, True, True]
    assert [finds_misfits(writer) for writer in not_asked] == [False, False]


@pytest.mark.behaviour("DLQ-8")
@pytest.mark.parametrize(
    ("declared", "largest", "too_large"),
    [("numeric(5,2)", "999.99", "1000"), ("numeric(2,4)", "0.0099", "0.01"), ("numeric(3,-2)", "99900", "100000")],
)
def test_a_number_with_too_many_digits_is_one_and_the_largest_that_fits_is_not(
    database: Database, declared: str, largest: str, too_large: str
) -> None:
    database.run(f"CREATE TABLE amounts (amount {declared})")
    numbers = [Decimal(f"{sign}{number}") for number in (largest, too_large) for sign in ("", "-")]
    rows = pa.record_batch({"amount": pa.array(numbers, pa.decimal128(20, 4))})

    assert expect_as_written(database, Append("amounts"), rows) == [2, 3]
