"""Rows that are in memory, into a table, without Spark: raw COPY, our writers, and the same statements by hand.

What is timed is one transaction, from BEGIN to COMMIT, on a connection that is open.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, cast

import psycopg
import pyarrow as pa
import pyarrow.compute
from sqlalchemy import Connection

from benchmarks.shapes import Shape
from offsetstore import Append, Upsert
from offsetstore.postgres.url import make_engine
from tests.support.work import work_on

TOTALS: Final = "CREATE TABLE totals (customer text PRIMARY KEY, amount numeric, at timestamptz)"

_MERGE: Final = """
INSERT INTO totals AS stored (customer, amount, at)
SELECT customer, sum(amount), max(at) FROM staged GROUP BY customer ORDER BY customer
ON CONFLICT (customer) DO UPDATE SET
    amount = stored.amount + excluded.amount, at = greatest(stored.at, excluded.at)
"""
_CHUNK: Final = 1 << 18


class FromMemory:
    """The rows of one shape, in every form that a job takes.

    :param table: the rows. They are written and read back once, so that PostgreSQL encodes the bytes of the plain
        COPY.
    """

    def __init__(self, url: str, shape: Shape, table: Any) -> None:
        self._engine = make_engine(url)
        self._table = shape.table
        self._batches: list[pa.RecordBatch] = table.to_batches()
        self._totals: list[pa.RecordBatch] = []
        self.append()
        self._bytes = self._encoded(shape.table, "*")
        if {"customer", "amount", "at"} <= shape.columns.keys():
            self._totals = table.select(["customer", "amount", "at"]).to_batches()
            compute: Any = pyarrow.compute
            self._expected = (compute.count_distinct(table["customer"]).as_py(), compute.sum(table["amount"]).as_py())
            self._total_bytes = self._encoded(shape.table, "customer, amount, at")

    def run(self, job: str) -> float:
        """Return the job's seconds."""
        jobs = {"append": self.append, "copy": self._copy}
        jobs |= {"upsert": self._upsert, "merge by hand": self._merge}
        seconds = jobs[job]()
        if job in {"upsert", "merge by hand"}:
            self._check_totals()
        return seconds

    def append(self) -> float:
        """Write the rows with our writer."""
        return self._timed(lambda connection: Append(self._table).write(work_on(connection), self._batches))

    def close(self) -> None:
        """Close the connection."""
        self._engine.dispose()

    def _copy(self) -> float:
        return self._timed(lambda connection: _copy(_driver(connection), self._table, self._bytes))

    def _upsert(self) -> float:
        upsert = Upsert("totals", key=["customer"], add=["amount"], greatest=["at"])
        return self._timed(lambda connection: upsert.write(work_on(connection), self._totals))

    def _merge(self) -> float:
        def write(connection: Connection) -> None:
            driver = _driver(connection)
            driver.execute("CREATE TEMPORARY TABLE staged (LIKE totals) ON COMMIT DROP")
            _copy(driver, "staged", self._total_bytes)
            driver.execute(_MERGE)

        return self._timed(write)

    def _check_totals(self) -> None:
        with self._engine.connect() as connection:
            found = connection.exec_driver_sql("SELECT count(*), sum(amount) FROM totals").one()
        assert tuple(found) == self._expected, f"expected {self._expected} in totals, found {found}"

    def _timed(self, write: Callable[[Connection], object]) -> float:
        with self._engine.connect() as connection:
            began = time.perf_counter()
            with connection.begin():
                write(connection)
            return time.perf_counter() - began

    def _encoded(self, table: str, columns: str) -> list[bytes]:
        """Let PostgreSQL encode the table's rows; in chunks."""
        with self._engine.connect() as connection:
            query = f"COPY (SELECT {columns} FROM {table}) TO STDOUT (FORMAT BINARY)"  # noqa: S608 - our own names
            with _driver(connection).cursor().copy(query.encode()) as copy:
                data = b"".join(copy)
        return [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]


def _driver(connection: Connection) -> psycopg.Connection:
    return cast("psycopg.Connection", connection.connection.driver_connection)


def _copy(driver: psycopg.Connection, table: str, chunks: list[bytes]) -> None:
    with driver.cursor().copy(f"COPY {table} FROM STDIN (FORMAT BINARY)".encode()) as copy:
        for chunk in chunks:
            copy.write(chunk)
