"""Execute: the user's own SQL on the transaction's connection."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from urllib.error import URLError

import psycopg
import pyarrow as pa
import pytest
from sqlalchemy import BigInteger, TypeDecorator, bindparam, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from offsetstore import TopicPartition
from offsetstore.errors import ConfigurationError, FunctionFailed, Outage, RecordsRejected, RowsRefused, SinkError
from offsetstore.processing.blame import speaks_for_itself
from offsetstore.protocol.outbox import outbox_record
from offsetstore.protocol.ports import Work
from offsetstore.writers import Execute
from tests.integration.writers.writing import Database, batch, kafka
from tests.support.shown import shown

CANARY = "canary-4111"


class ServiceDown(Outage):
    """A user's own."""


@pytest.mark.behaviour("SINK-2", "SINK-4")
def test_the_function_gets_the_connection_and_the_rows_once_and_is_not_called_without_rows(database: Database) -> None:
    database.run("CREATE TABLE t (n bigint)")
    left: list[Any] = []
    called: list[int] = []

    def insert(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        called.append(1)
        for rows in batches:
            work.connection.execute(text("INSERT INTO t VALUES (:n)"), rows.to_pylist())
        left.extend(batches)

    written = batch({"n": [1, 2], "_kafka": kafka(("topic", 0, 1), ("topic", 0, 2))})
    assert database.write(Execute(insert), written.slice(0, 1), written.slice(0, 0), written.slice(1)) == 2
    assert database.write(Execute(insert), written.slice(0, 0)) == 0
    assert database.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    assert (left, called) == ([], [1])
    assert not Execute(insert).uses_kafka_column(written.schema)


@pytest.mark.behaviour("DLQ-12")
def test_a_splittable_function_names_records_and_all_of_them_are_told_when_it_ends(database: Database) -> None:
    database.run("CREATE TABLE t (n bigint)")
    tp = TopicPartition("topic", 0)

    def odd(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        for row in (row for rows in batches for row in rows.to_pylist()):
            if row["n"] % 2:
                work.dead_letter(tp, row["n"], f"{row['n']} is odd", code="odd" if row["n"] == 1 else None)
            elif row["n"] == 4:
                raise ValueError("canary")
            else:
                work.connection.execute(text("INSERT INTO t VALUES (:n)"), row)

    refused = database.refusal(RecordsRejected, Execute(odd, splittable=True), batch({"n": [1, 2, 3]}))
    assert refused.reasons == {(tp, 1): "1 is odd", (tp, 3): "3 is odd"}
    assert refused.codes == {(tp, 1): "odd"}
    assert "is odd" not in str(refused)
    assert database.rows("SELECT count(*) FROM t") == [(0,)]
    assert database.write(Execute(odd, splittable=True), batch({"n": [2]})) == 1
    refused = database.refusal(RecordsRejected, Execute(odd, splittable=True), batch({"n": [1, 4]}))
    assert refused.reasons == {(tp, 1): "1 is odd"}, "what it has named counts although it fails then"


@pytest.mark.behaviour("DLQ-1")
def test_an_error_of_a_splittable_function_is_the_rows_and_quotes_none_of_them(database: Database) -> None:
    def fail(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        raise ValueError("canary")

    failed = database.refusal(FunctionFailed, Execute(fail, splittable=True), batch({"n": [1]}))
    assert (failed.error_class, failed.text) == ("ValueError", "canary")
    assert failed.traceback is not None
    assert failed.traceback.endswith("ValueError: canary\n")
    assert "canary" not in str(failed)
    assert isinstance(failed.__cause__, ValueError)
    back = pickle.loads(pickle.dumps(failed))  # noqa: S301 - our own
    assert (back.error_class, back.text, back.traceback) == ("ValueError", "canary", failed.traceback)


@pytest.mark.behaviour("DLQ-1")
def test_a_record_that_kafka_can_t_have_is_the_rows_too(database: Database) -> None:
    """Its topic is computed from the value, say. `work.produce` checks it so."""

    def fail(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        outbox_record("no topic", None, b"")

    refused = database.refusal(RowsRefused, Execute(fail, splittable=True), batch({"n": [1]}))
    assert refused.column == "topic"


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize(
    "error", [MemoryError, ModuleNotFoundError, ConnectionResetError, TimeoutError, Outage, URLError, ServiceDown]
)
def test_an_outage_that_a_splittable_function_raises_blames_no_row(database: Database, error: type[Exception]) -> None:
    def fail(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        raise error("canary")

    database.refusal(error, Execute(fail, splittable=True), batch({"n": [1]}))


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize("cause", [Outage("down"), psycopg.errors.DeadlockDetected("deadlock detected")])
def test_an_error_that_a_function_raises_from_an_outage_is_one(database: Database, cause: Exception) -> None:
    def fail(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        raise KeyError from cause

    database.refusal(KeyError, Execute(fail, splittable=True), batch({"n": [1]}))


@pytest.mark.parametrize("given", [(KeyError("id"), None), ("id", KeyError("id"))], ids=["reason", "code"])
def test_a_reason_and_a_code_are_texts(database: Database, given: tuple[Any, Any]) -> None:
    def fail(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        work.dead_letter(TopicPartition("topic", 0), 1, given[0], code=given[1])

    error = database.refusal(ConfigurationError, Execute(fail, splittable=True), batch({"n": [1]}))
    assert (error.found, "must be a text" in str(error)) == ("KeyError", True)


@pytest.mark.behaviour("DLQ-15")
@pytest.mark.parametrize("splittable", [False, True])
def test_wrong_sql_is_of_the_rows_only_where_single_ones_can_tell(database: Database, *, splittable: bool) -> None:
    def select(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        work.connection.execute(text("SELECT * FROM nowhere"))

    told = database.refusal(SinkError, Execute(select, splittable=splittable), batch({"n": [1]}))
    assert isinstance(told, RowsRefused) is splittable


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize("splittable", [False, True])
def test_an_error_that_a_function_swallows_blames_no_row(database: Database, *, splittable: bool) -> None:
    """It may have been an outage: here the server cancels a statement."""

    def swallow(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        work.connection.execute(text("SET LOCAL statement_timeout = 10"))
        with suppress(DBAPIError):
            work.connection.execute(text("SELECT pg_sleep(60)"))
        work.connection.execute(text("SELECT 1"))

    told = database.refusal(SinkError, Execute(swallow, splittable=splittable), batch({"n": [1]}))
    assert not isinstance(told, RowsRefused)
    assert "savepoint" in str(told)


@pytest.mark.behaviour("DLQ-6")
def test_nor_does_what_it_raises_from_the_next_one(database: Database) -> None:
    def swallow(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        with suppress(DBAPIError):
            work.connection.execute(text("SELECT 1 / 0"))
        try:
            work.connection.execute(text("SELECT 1"))
        except DBAPIError as error:
            raise KeyError from error

    told = database.refusal(SinkError, Execute(swallow, splittable=True), batch({"n": [1]}))
    assert not isinstance(told, RowsRefused)
    assert isinstance(told.__cause__, KeyError)


class Amount(TypeDecorator[int]):
    """A type of the user's own, with a bug or without."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: object) -> int:  # noqa: ARG002 - SQLAlchemy's
        return int(value)


@pytest.mark.behaviour("DLQ-15", "OPS-7")
@pytest.mark.parametrize("splittable", [False, True])
@pytest.mark.parametrize(("value", "name"), [("canary", "ValueError"), ([], "TypeError"), (math.inf, "OverflowError")])
def test_a_type_that_fails_in_a_functions_sql_is_an_error_of_the_function(
    database: Database, value: object, name: str, *, splittable: bool
) -> None:
    """With one record a batch, a bug in it would make a letter of each."""
    insert = text("SELECT :n").bindparams(bindparam("n", value, Amount()))

    def write(work: Work, _: object) -> None:
        work.connection.execute(insert)

    failed = database.refusal(FunctionFailed, Execute(write, splittable=splittable), batch({"n": [1]}))
    assert failed.error_class == name
    assert not speaks_for_itself(failed)
    assert "canary" not in f"{shown(failed)} {failed.text}"


@pytest.mark.behaviour("DLQ-15", "SINK-21")
@pytest.mark.parametrize("splittable", [False, True])
def test_a_value_that_psycopg_does_not_send_speaks_for_itself(database: Database, *, splittable: bool) -> None:
    def write(work: Work, _: object) -> None:
        work.connection.execute(text("SELECT :n"), {"n": f"{CANARY}\0"})

    refused = database.refusal(RowsRefused, Execute(write, splittable=splittable), batch({"n": [1]}))
    assert speaks_for_itself(refused)
    assert CANARY not in shown(refused)


def insert_or_update(work: Work) -> None:
    """Without a savepoint, so that the UPDATE tells only that the transaction has failed."""
    try:
        work.connection.execute(text("INSERT INTO t VALUES (0)"))
    except IntegrityError:
        work.connection.execute(text("UPDATE t SET n = 0"))


def insert_or_update_by_driver(work: Work) -> None:
    cursor = work.connection.connection.cursor()
    try:
        cursor.execute("INSERT INTO t VALUES (0)")
    except psycopg.IntegrityError:
        cursor.execute("UPDATE t SET n = 0")


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize("splittable", [False, True])
@pytest.mark.parametrize("sql", [insert_or_update, insert_or_update_by_driver])
def test_where_sql_goes_on_after_an_error_that_one_is_told(
    database: Database, sql: Callable[[Work], None], *, splittable: bool
) -> None:
    database.run("CREATE TABLE t (n bigint CHECK (n > 0))")

    def write(work: Work, _: object) -> None:
        sql(work)

    refused = database.refusal(RowsRefused, Execute(write, splittable=splittable), batch({"n": [1]}))
    assert (refused.sqlstate, refused.constraint) == ("23514", "t_n_check")


@pytest.mark.behaviour("DLQ-6")
@pytest.mark.parametrize("splittable", [False, True])
def test_an_outage_after_which_sql_goes_on_is_one(database: Database, *, splittable: bool) -> None:
    def write(work: Work, _: object) -> None:
        work.connection.execute(text("SET LOCAL statement_timeout = 10"))
        try:
            work.connection.execute(text("SELECT pg_sleep(60)"))
        except DBAPIError:
            work.connection.execute(text("SELECT 1"))

    told = database.refusal(DBAPIError, Execute(write, splittable=splittable), batch({"n": [1]}))
    assert isinstance(told.orig, psycopg.errors.QueryCanceled)


@pytest.mark.behaviour("DLQ-15")
def test_a_trigger_may_raise_that_a_transaction_has_failed(database: Database) -> None:
    def fail(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        work.connection.execute(text("DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '25P02'; END $$"))

    assert database.refusal(RowsRefused, Execute(fail), batch({"n": [1]})).sqlstate == "25P02"
