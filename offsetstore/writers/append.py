"""Append: every row is a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore.writers.catalogue import read_columns
from offsetstore.writers.copying import copy_batches, driver_connection, lock_against_change
from offsetstore.writers.encoding import Encoding
from offsetstore.writers.kafka_column import drop_kafka, without_kafka
from offsetstore.writers.matching import Match, match_columns
from offsetstore.writers.names import TableName
from offsetstore.writers.refusals import refusals

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg
    import pyarrow as pa
    from sqlalchemy import Connection, Table


class Append:
    """Adds each row of the DataFrame to a table, by COPY.

    :param table: ``"payments"``, ``"schema.payments"`` or a SQLAlchemy ``Table``. Columns go by name, exactly; those
        that the DataFrame does not have get their default.
    :raises ConfigurationError: that can't be a table's name.
    """

    def __init__(self, table: str | Table) -> None:
        self.table = TableName.parse(table)

    def __repr__(self) -> str:
        return f"Append({str(self.table)!r})"

    def needs_offset(self, schema: pa.Schema) -> bool:  # noqa: ARG002 - the Protocol's
        """Never: rows are not compared."""
        return False

    def uses_offset(self, schema: pa.Schema) -> bool:  # noqa: ARG002 - the Protocol's
        """Never: rows are not compared."""
        return False

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Compare the columns with the table's.

        :raises ColumnMismatch: they don't fit, or there is no such table.
        """
        with refusals(self.table):
            self._match(driver_connection(connection), schema)

    def write(self, connection: Connection, batches: Sequence[pa.RecordBatch]) -> int:
        """Add the rows; return how many.

        :raises ColumnMismatch: as `check`.
        :raises RowsRefused: a value or a row that the table can't hold.
        """
        filled = [drop_kafka(batch) for batch in batches if batch.num_rows]
        if not filled:
            return 0
        driver = driver_connection(connection)
        with refusals(self.table, filled[0].schema.names):
            lock_against_change(driver, self.table)
            encoding = Encoding(self.table, self._match(driver, filled[0].schema))
            copy_batches(driver, self.table.identifier, encoding, filled)
        return sum(batch.num_rows for batch in filled)

    def _match(self, driver: psycopg.Connection, schema: pa.Schema) -> list[Match]:
        return match_columns(without_kafka(schema), read_columns(driver, self.table), self.table)
