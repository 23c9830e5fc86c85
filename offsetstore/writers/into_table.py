"""What `Append` and `Upsert` share: one table, found by its name, and rows that are checked before COPY."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager

import psycopg
import pyarrow as pa
from sqlalchemy import Connection, Table

from offsetstore.errors import RowsRefused
from offsetstore.postgres.errors import before_rows, refusals
from offsetstore.protocol.work import Work
from offsetstore.writers.arrow.batches import Stream, drop_kafka, without_kafka
from offsetstore.writers.arrow.copying import driver_connection, find_misfits, locate_target, locked_target
from offsetstore.writers.arrow.encoding import Encoding
from offsetstore.writers.arrow.misfits import Misfit
from offsetstore.writers.table.catalogue import TableName, Target, check_rights, read_target
from offsetstore.writers.table.conversions import RowMaker
from offsetstore.writers.table.matching import Match, match_columns


class IntoTable(ABC):
    """Writes rows to one table.

    ``words``: the API in which errors say how to convert a column, by what makes the rows.
    """

    words: RowMaker = "spark"

    def __init__(self, table: str | Table) -> None:
        self.table = TableName.parse(table)

    def resolve_table(self, connection: Connection) -> None:
        """If no schema was named, look it up in the connection's search path, and keep to it."""
        # A sink asks once, on the driver: executors may have another search path (decision 0024).
        with self._refusals():
            self.table = locate_target(connection, self.table)

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Compare the columns with the table's, and the role's privileges with those that it needs.

        :raises ColumnMismatch: the columns don't fit, the key of an `Upsert` is not unique, or there is no such table.
        :raises UnsafeTarget: the table, or a partition of it, is UNLOGGED, temporary or foreign.
        :raises KafkaColumnsMissing: rows have to be ordered by offset, and ``_kafka`` is missing.
        :raises MissingPrivilege: the role may not insert these columns, use the schema or the sequence of a default, or
            do something else that the writer needs.
        """
        self.check_order(schema)
        driver = driver_connection(connection)
        with self._refusals(), before_rows(self.table, self.table.identifier.as_string()):
            target = read_target(driver, self.table)
            names = [match.column.name for match in self.match(driver, target, schema)]
            check_rights(driver, self.table, self.rights(target, names), names)

    def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
        """Write the rows; return how many the batches had.

        :raises ColumnMismatch, UnsafeTarget, KafkaColumnsMissing: as `check`.
        :raises MissingPrivilege, SinkError: the database takes no rows, as without a grant or a replica identity.
        :raises RowsRefused: a value or a row does not fit the table.
        """
        stream = Stream.of(batches)
        if stream is None:
            return 0
        self.check_order(stream.schema)
        driver = driver_connection(work.connection)
        refused = self._refusals(stream.schema.names, copied=self.table.name)
        with refused, locked_target(driver, self.table) as target:
            self.send(driver, target, self.match(driver, target, stream.schema), stream)
        return stream.rows

    def misfits(self, connection: Connection, batch: pa.RecordBatch) -> list[Misfit]:
        """Find the rows that `write` refuses because of their own values; see `MisfitsWriter`."""
        self.check_order(batch.schema)
        driver = driver_connection(connection)
        with self._refusals(batch.schema.names), locked_target(driver, self.table) as target:
            matches, rows = self.match(driver, target, batch.schema), self.flat(batch)
            found = find_misfits(driver, self.encoding(matches, batch.schema), rows)
            found = self.with_nulls(found, driver, matches, rows)
        return [Misfit(row, found[row]) for row in sorted(found)]

    def _refusals(self, names: Collection[str] = (), *, copied: str | None = None) -> AbstractContextManager[None]:
        return refusals(self.table, names, copied=copied, grants=self.table.as_option(self.option))

    @property
    @abstractmethod
    def option(self) -> str:
        """The option of `offsetstore grants` for the privileges on this writer's table."""

    @abstractmethod
    def uses_kafka_column(self, schema: pa.Schema) -> bool:
        """See `Writer`."""

    @abstractmethod
    def rights(self, target: Target, names: Sequence[str]) -> list[str]:
        """The privileges that the role needs to write these columns; see `check_rights`."""

    @abstractmethod
    def send(self, driver: psycopg.Connection, target: Target, matches: list[Match], stream: Stream) -> None:
        """Write the rows into the table, which is locked."""

    @abstractmethod
    def with_nulls(
        self, found: dict[int, RowsRefused], driver: psycopg.Connection, matches: list[Match], rows: pa.RecordBatch
    ) -> dict[int, RowsRefused]:
        """Add to the misfits the rows that are certain to be refused because of a NULL."""

    def check_order(self, schema: pa.Schema) -> None:  # noqa: B027 - Append has none
        """Refuse rows of this schema if they have to be ordered by ``_kafka``, and it is missing."""

    def match(self, driver: psycopg.Connection, target: Target, schema: pa.Schema) -> list[Match]:  # noqa: ARG002 - Upsert's
        """Match the columns that are written with the table's."""
        return match_columns(without_kafka(schema), target.columns, self.table, self.words)

    def encoding(self, matches: list[Match], schema: pa.Schema) -> Encoding:  # noqa: ARG002 - Upsert's
        """How `flat` batches are encoded."""
        return Encoding(self.table, matches)

    def flat(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of a batch that are copied."""
        return drop_kafka(batch)
