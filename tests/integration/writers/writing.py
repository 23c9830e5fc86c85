"""What the writers' tests do again and again: make a table, write a batch to it in a transaction, look at it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from uuid import uuid4

import pyarrow as pa
import pytest
from sqlalchemy import Engine

from offsetstore.local.postgres import PostgresServer
from offsetstore.postgres.url import make_engine
from offsetstore.protocol.ports import Writer
from tests.support.work import work_on

E = TypeVar("E", bound=Exception)

KAFKA = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


@dataclass(frozen=True)
class Database:
    engine: Engine

    def run(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.connection.cursor().execute(statement)  # as it is: no parameters, so % is no placeholder

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            cursor = connection.connection.cursor()
            cursor.execute(query)
            return list(cursor.fetchall())

    def write(self, writer: Writer, *batches: pa.RecordBatch) -> int:
        """As the sink does it: check, then write, in one transaction."""
        with self.engine.begin() as connection:
            writer.check(connection, batches[0].schema)
            return writer.write(work_on(connection), batches)

    def refusal(self, error: type[E], writer: Writer, *batches: pa.RecordBatch) -> E:
        """Return the error with which the batches are refused, after the transaction was rolled back."""
        with pytest.raises(error) as caught:
            self.write(writer, *batches)
        return caught.value


@contextmanager
def new_database(server: PostgresServer) -> Generator[Database]:
    """A database without tables, which is dropped in the end."""
    name = f"test_{uuid4().hex[:12]}"
    engine = make_engine(server.create_database(name))
    yield Database(engine)
    engine.dispose()
    server.drop_database(name)


def batch(columns: Mapping[str, Any], types: Mapping[str, pa.DataType] | None = None) -> pa.RecordBatch:
    """Make a record batch of Python's lists or Arrow's arrays."""
    arrays: list[Any] = [cast("Any", pa).array(values, (types or {}).get(name)) for name, values in columns.items()]
    return pa.record_batch(arrays, names=list(columns))


def kafka(*coordinates: tuple[str, int, int]) -> pa.Array[Any]:
    """Make the sink's column of (topic, partition, offset)."""
    values = [
        {"topic": topic, "partition": partition, "offset": offset, "timestamp": None}
        for topic, partition, offset in coordinates
    ]
    return cast("Any", pa).array(values, KAFKA)


def column(values: Sequence[Any], kind: pa.DataType) -> pa.RecordBatch:
    """Make a batch of one column, named ``value``."""
    return batch({"value": cast("Any", pa).array(values, kind)})
