"""Append: every row is inserted as a new one.

Where row-level security applies to the role, PostgreSQL refuses COPY into the table. There the rows are copied to a
temporary table, and inserted from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

import psycopg
import pyarrow as pa
from psycopg import sql
from sqlalchemy import Connection, Table

from offsetstore.errors import RowsRefused
from offsetstore.postgres.errors import before_rows, null_refused, refusals
from offsetstore.protocol.work import Work
from offsetstore.writers.arrow.copying import (
    copy_batches,
    driver_connection,
    find_misfits,
    locate_target,
    locked_target,
)
from offsetstore.writers.arrow.encoding import Encoding
from offsetstore.writers.arrow.kafka_column import drop_kafka, without_kafka
from offsetstore.writers.arrow.misfits import Misfit
from offsetstore.writers.arrow.streaming import Stream
from offsetstore.writers.arrow.values import null_rows
from offsetstore.writers.table.catalogue import Column, locate, read_target
from offsetstore.writers.table.matching import Match, match_columns
from offsetstore.writers.table.names import TableName
from offsetstore.writers.table.rights import check_rights
from offsetstore.writers.table.temporary import create_temporary, temporary_name

_MOVE = sql.SQL("INSERT INTO {table} ({columns}) SELECT {columns} FROM {temporary}")


class Append:
    """Adds each row of the DataFrame to a table, by COPY; see the module where row-level security applies.

    :param table: ``"payments"``, ``"schema.payments"`` or a SQLAlchemy ``Table``. Columns are matched by their exact
        names; those that the DataFrame does not have get their default. If no schema is named, a sink looks it up once,
        in the search path of the driver's connection, and keeps to it, on executors too. The table and its partitions
        must survive a crash and be in this database; what its triggers write to is up to you.
    :raises ConfigurationError: not a valid table name.
    """

    appends = True

    def __init__(self, table: str | Table) -> None:
        self.table = TableName.parse(table)

    def __repr__(self) -> str:
        return f"Append({str(self.table)!r})"

    def uses_kafka_column(self, schema: pa.Schema) -> bool:  # noqa: ARG002 - the Protocol's
        """Never: rows are not compared."""
        return False

    def resolve_table(self, connection: Connection) -> None:
        """If no schema was named, look it up in the connection's search path, and keep to it."""
        with refusals(self.table, grants=self._grants):
            self.table = locate_target(connection, self.table)

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Compare the columns with the table's.

        :raises ColumnMismatch: they don't fit, or there is no such table.
        :raises UnsafeTarget: the table, or a partition of it, is UNLOGGED, temporary or foreign.
        :raises MissingPrivilege: the role may not insert these columns, use the schema, or the sequence of a default.
        """
        driver, quoted = driver_connection(connection), self.table.identifier.as_string()
        with refusals(self.table, grants=self._grants), before_rows(self.table, quoted):
            target = read_target(driver, self.table)
            matches = self._match(target.columns, schema)
            wanted = ["INSERT", *(["TEMPORARY"] if target.has_policies else [])]
            check_rights(driver, self.table, wanted, [match.column.name for match in matches])

    def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
        """Add the rows; return how many.

        :raises ColumnMismatch, UnsafeTarget: as `check`.
        :raises MissingPrivilege: the role may not write to the table, or create the temporary one.
        :raises RowsRefused: a value or a row that the table can't hold.
        """
        stream = Stream.of(batches)
        if stream is None:
            return 0
        driver = driver_connection(work.connection)
        copying = refusals(self.table, stream.schema.names, copied=self.table.name, grants=self._grants)
        with copying, locked_target(driver, self.table) as target:
            matches = self._match(target.columns, stream.schema)
            encoding, rows = Encoding(self.table, matches), map(drop_kafka, stream)
            if not target.has_policies:
                copy_batches(driver, self.table.identifier, encoding, rows)
                return stream.rows
            temporary, names = temporary_name(), [match.column.name for match in matches]
            columns = sql.SQL(", ").join(map(sql.Identifier, names))
            move = _MOVE.format(table=self.table.identifier, columns=columns, temporary=temporary)
            create_temporary(driver, temporary, self.table, names, target=target, move=move)
            copy_batches(driver, temporary, encoding, rows)
            driver.execute(move)
        return stream.rows

    @property
    def _grants(self) -> list[str] | None:
        return self.table.as_option("--append")

    def misfits(self, connection: Connection, batch: pa.RecordBatch) -> list[Misfit]:
        """Find the rows that `write` refuses because of their own values; see `MisfitsWriter`."""
        driver = driver_connection(connection)
        refused = refusals(self.table, batch.schema.names, grants=self._grants)
        with refused, locked_target(driver, self.table) as target:
            matches = self._match(target.columns, batch.schema)
            rows = drop_kafka(batch)
            found = find_misfits(driver, Encoding(self.table, matches), rows)
            for row, error in self._nulls(driver, matches, rows).items():
                found.setdefault(row, error)
        return [Misfit(row, found[row]) for row in sorted(found)]

    def _nulls(self, driver: psycopg.Connection, matches: list[Match], rows: pa.RecordBatch) -> dict[int, RowsRefused]:
        """Find the rows with a NULL that the database is certain to refuse; it checks the table's columns in order.

        Its own error would name the partition, if there is one.
        """
        found: dict[int, RowsRefused] = {}
        columns = [match.column for match in matches if match.column.refuses_null]
        for column in sorted(columns, key=attrgetter("number")):
            if null := null_rows(rows, column.name):
                error = null_refused(self.table, str(locate(driver, self.table)), column.name)
                found = dict.fromkeys(null, error) | found
        return found

    def _match(self, columns: Mapping[str, Column], schema: pa.Schema) -> list[Match]:
        return match_columns(without_kafka(schema), columns, self.table)
