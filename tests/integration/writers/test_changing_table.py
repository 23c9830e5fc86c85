"""A table that is altered while the job runs: the rows go in as the new type wants them, or not at all."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from offsetstore.errors import ColumnMismatch
from offsetstore.writers import Append, Upsert
from tests.integration.writers.writing import Database, batch


def test_a_type_that_changes_while_the_writer_waits_is_noticed(database: Database) -> None:
    """A binary COPY would put the eight bytes of a bigint into the numeric, as another number."""
    database.run("CREATE TABLE t (n bigint)")
    with ThreadPoolExecutor(1) as pool:
        with database.engine.begin() as migration:
            migration.exec_driver_sql("ALTER TABLE t ALTER COLUMN n TYPE numeric")
            writing = pool.submit(database.write, Append("t"), batch({"n": [4711]}))
            _wait_until_somebody_waits(database)
        writing.result(timeout=30)
    assert database.rows("SELECT n::text FROM t") == [("4711",)]


def test_a_dropped_and_an_added_column_are_noticed_in_the_next_batch(database: Database) -> None:
    database.run("CREATE TABLE t (old text, n bigint)")
    writer = Append("t")
    database.write(writer, batch({"n": [1]}))
    database.run("ALTER TABLE t DROP COLUMN old, ADD COLUMN new text")
    database.write(writer, batch({"n": [2], "new": ["x"]}))
    assert database.rows("SELECT n, new FROM t ORDER BY n") == [(1, None), (2, "x")]


def test_an_upserts_key_that_is_no_longer_unique_is_noticed_in_the_next_batch(database: Database) -> None:
    database.run("CREATE TABLE t (id bigint CONSTRAINT once UNIQUE, n bigint)")
    writer = Upsert("t", key=["id"], add=["n"])
    database.write(writer, batch({"id": [1], "n": [1]}))
    database.run("ALTER TABLE t DROP CONSTRAINT once")
    with pytest.raises(ColumnMismatch, match="no unique constraint or index on exactly the key"):
        database.write(writer, batch({"id": [1], "n": [2]}))
    assert database.rows("SELECT id, n FROM t") == [(1, 1)]


def _wait_until_somebody_waits(database: Database) -> None:
    deadline = time.monotonic() + 30
    while not database.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
