"""Execute: the user's own SQL on the transaction's connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlalchemy import text

from offsetstore.writers import Execute
from tests.integration.writers.writing import batch, kafka

if TYPE_CHECKING:
    from collections.abc import Iterable

    from offsetstore.protocol.work import Work
    from tests.integration.writers.writing import Database


@pytest.mark.behaviour("SINK-2")
def test_the_function_gets_the_connection_and_the_rows_once(database: Database) -> None:
    database.run("CREATE TABLE t (n bigint)")
    left: list[Any] = []

    def insert(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        for rows in batches:
            work.connection.execute(text("INSERT INTO t VALUES (:n)"), rows.to_pylist())
        left.extend(batches)

    written = batch({"n": [1, 2], "_kafka": kafka(("topic", 0, 1), ("topic", 0, 2))})
    assert database.write(Execute(insert), written.slice(0, 1), written.slice(0, 0), written.slice(1)) == 2
    assert database.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,)]
    assert left == []


@pytest.mark.behaviour("SINK-4")
def test_without_rows_the_function_is_not_called(database: Database) -> None:
    def never(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        pytest.fail("called")

    assert database.write(Execute(never), batch({"n": pa.array([], pa.int64())})) == 0
    assert not Execute(never).uses_kafka_column(pa.schema({"n": pa.int64()}))


def test_an_error_of_the_function_is_passed_on_and_nothing_stays(database: Database) -> None:
    database.run("CREATE TABLE t (n bigint)")

    def fail(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
        work.connection.execute(text("INSERT INTO t VALUES (1)"))
        raise ZeroDivisionError

    database.refusal(ZeroDivisionError, Execute(fail), batch({"n": [1]}))
    assert database.rows("SELECT count(*) FROM t") == [(0,)]
