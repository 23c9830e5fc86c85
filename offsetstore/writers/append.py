"""Append: every row is inserted as a new one.

Where row-level security applies to the role, PostgreSQL refuses COPY into the table. There the rows are copied to a
temporary table, and inserted from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import psycopg
import pyarrow as pa
from psycopg import sql

from offsetstore.errors import RowsRefused
from offsetstore.postgres.errors import null_refused
from offsetstore.writers.arrow.batches import Stream
from offsetstore.writers.arrow.copying import copy_batches, create_temporary, temporary_name
from offsetstore.writers.arrow.values import null_rows
from offsetstore.writers.into_table import IntoTable
from offsetstore.writers.table.catalogue import Target, locate
from offsetstore.writers.table.matching import Match

_MOVE = sql.SQL("INSERT INTO {table} ({columns}) SELECT {columns} FROM {temporary}")


class Append(IntoTable):
    """Adds each row to a table, by COPY; where row-level security applies, by way of a temporary table.

    :param table: ``"payments"``, ``"schema.payments"`` or a SQLAlchemy ``Table``. Columns are matched by their exact
        names; a column that the rows do not have gets its default. If no schema is named, a sink looks it up once,
        in the search path of the driver's connection, and keeps to it, on executors too. The table and its partitions
        must survive a crash and be in this database; what its triggers write to is up to you.
    :raises ConfigurationError: not a valid table name.
    """

    appends = True

    def __repr__(self) -> str:
        return f"Append({str(self.table)!r})"

    @property
    def option(self) -> str:
        """See `IntoTable`."""
        return "--append"

    def uses_kafka_column(self, schema: pa.Schema) -> bool:  # noqa: ARG002 - the Protocol's
        """Never: rows are not compared."""
        return False

    def rights(self, target: Target, names: Sequence[str]) -> list[str]:  # noqa: ARG002 - Upsert's
        """See `IntoTable`."""
        return ["INSERT", *(["TEMPORARY"] if target.has_policies else [])]

    def send(self, driver: psycopg.Connection, target: Target, matches: list[Match], stream: Stream) -> None:
        """See `IntoTable`."""
        encoding, rows = self.encoding(matches, stream.schema), map(self.flat, stream)
        # Where policies apply, PostgreSQL refuses COPY, but not INSERT.
        if not target.has_policies:
            copy_batches(driver, self.table.identifier, encoding, rows)
            return
        temporary, columns = temporary_name(), sql.SQL(", ").join(map(sql.Identifier, encoding.columns))
        move = _MOVE.format(table=self.table.identifier, columns=columns, temporary=temporary)
        create_temporary(driver, temporary, self.table, encoding.columns, target=target, move=move)
        copy_batches(driver, temporary, encoding, rows)
        driver.execute(move)

    def with_nulls(
        self, found: dict[int, RowsRefused], driver: psycopg.Connection, matches: list[Match], rows: pa.RecordBatch
    ) -> dict[int, RowsRefused]:
        """See `IntoTable`: rows with NULL where no trigger could fill it in."""
        # The database checks the columns in the table's order. Its own error would name a partition.
        columns = [match.column for match in matches if match.column.refuses_null]
        for column in sorted(columns, key=attrgetter("number")):
            if null := null_rows(rows, column.name):
                error = null_refused(self.table, str(locate(driver, self.table)), column.name)
                found = dict.fromkeys(null, error) | found
        return found
