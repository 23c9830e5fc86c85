"""`Append` inserts every row as a new one; `Upsert` merges one row per key with what is stored.

Both write to one table, found by its name, and check rows before COPY (`IntoTable`). Where row-level security applies
to the role, PostgreSQL refuses COPY into the table: there the rows are copied to a temporary table, and inserted from
that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter

import psycopg
import pyarrow as pa
from psycopg import sql
from sqlalchemy import Connection, Table

from offsetstore.errors import KafkaColumnsMissing, RowsRefused
from offsetstore.postgres.errors import before_rows, null_refused, refusals
from offsetstore.protocol.ports import Work
from offsetstore.writers.arrow.batches import (
    KAFKA,
    Stream,
    coordinate_matches,
    drop_kafka,
    flatten_kafka,
    without_kafka,
)
from offsetstore.writers.arrow.copying import (
    copy_batches,
    create_temporary,
    driver_connection,
    find_misfits,
    locate_target,
    locked_target,
    temporary_name,
)
from offsetstore.writers.arrow.encoding import Encoding
from offsetstore.writers.arrow.misfits import Misfit
from offsetstore.writers.arrow.values import null_rows
from offsetstore.writers.table import merging
from offsetstore.writers.table.catalogue import TableName, Target, check_rights, locate, read_target, read_unique_keys
from offsetstore.writers.table.conversions import RowMaker
from offsetstore.writers.table.matching import Match, match_columns
from offsetstore.writers.table.roles import Roles


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
        """Compare the columns with the table's, and the role's privileges with the required ones.

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


class Upsert(IntoTable):
    """Keeps one row per key in a table, and merges the rows into it.

    Rows of one key that are written together are combined first, so their order does not matter. All columns that no
    argument names are replaced together, by those of the latest row.

    :param table: as `Append` takes it.
    :param key: the columns that identify a row; the table must have them unique. They may not be NULL.
    :param add: columns that are added to the stored value; NULLs are ignored, and are 0 where the column is NOT NULL,
        before any trigger. Not ``real``, which drops the 1 of 16777216 + 1. A CHECK of such a column is asked about
        what is added, before it is added: PostgreSQL checks the row that it would insert. So write one that the sum
        must hold as a constraint trigger.
    :param greatest: columns that keep the greatest value; NULLs are ignored. NaN is greater than any number.
    :param least: columns that keep the least value; as ``greatest``.
    :param version: the column whose highest value marks the latest row, stored rows included. If two are equal, the
        incoming row wins; NULL is the lowest. Without a version, the latest row is the one with the highest offset, and
        it is later than the stored one, which is true while a key stays in one Kafka partition; for this, the transform
        must keep ``_kafka``. Rows of one batch with equal versions are ordered by ``_kafka`` if it is kept, else the
        last of them wins.
    :raises ConfigurationError: no key, or a column with two roles.
    """

    def __init__(
        self,
        table: str | Table,
        *,
        key: Sequence[str],
        add: Sequence[str] = (),
        greatest: Sequence[str] = (),
        least: Sequence[str] = (),
        version: str | None = None,
    ) -> None:
        super().__init__(table)
        self.roles = Roles.parse(key, add, greatest, least, version)

    def __repr__(self) -> str:
        return f"Upsert({str(self.table)!r}, key={list(self.roles.key)})"

    @property
    def replaces_in_order(self) -> bool:
        """Whether rows replace stored rows as later ones by their order in Kafka, if they replace any columns."""
        return self.roles.version is None

    @property
    def option(self) -> str:
        """See `IntoTable`."""
        return "--upsert"

    def uses_kafka_column(self, schema: pa.Schema) -> bool:
        """Whether columns are replaced: the latest row does so, and the offset decides between equal versions."""
        return bool(self.roles.replaced(without_kafka(schema).names))

    def rights(self, target: Target, names: Sequence[str]) -> list[str]:  # noqa: ARG002 - Append's
        """See `IntoTable`."""
        update = ["UPDATE"] if set(names) - set(self.roles.key) else []
        return ["INSERT", *update, "SELECT", "TEMPORARY"]

    def send(self, driver: psycopg.Connection, target: Target, matches: list[Match], stream: Stream) -> None:
        """See `IntoTable`."""
        temporary, names = temporary_name(), [match.column.name for match in matches]
        merge = merging.merge(temporary, self.table, self.roles, names, target.columns)
        create_temporary(driver, temporary, self.table, names, [merging.no_coordinates()], target=target, move=merge)
        copy_batches(driver, temporary, self.encoding(matches, stream.schema), map(self._keyed, stream))
        driver.execute(merge)

    def with_nulls(
        self,
        found: dict[int, RowsRefused],
        driver: psycopg.Connection,  # noqa: ARG002 - Append's
        matches: list[Match],  # noqa: ARG002 - Append's
        rows: pa.RecordBatch,
    ) -> dict[int, RowsRefused]:
        """See `IntoTable`: rows with NULL in the key; elsewhere, a trigger or a later row of the key may replace it."""
        keyless: dict[int, RowsRefused] = {}
        for name in self.roles.key:
            keyless = dict.fromkeys(null_rows(rows, name), self._null_in_key(name, 1)) | keyless
        return found | keyless

    def check_order(self, schema: pa.Schema) -> None:
        """See `IntoTable`."""
        if self.roles.version is None and self.uses_kafka_column(schema) and KAFKA not in schema.names:
            replaced = ", ".join(self.roles.replaced(schema.names))
            raise KafkaColumnsMissing(
                f"the Upsert into {self.table} replaces {replaced} by the latest row, but has nothing to order rows by",
                found=", ".join(schema.names),
                expected=KAFKA,
                next_step=f'Give version="...", or keep the column {KAFKA} in what transform returns.',
            )

    def match(self, driver: psycopg.Connection, target: Target, schema: pa.Schema) -> list[Match]:
        """Match the columns, and check each one's role and the key."""
        matches = super().match(driver, target, schema)
        self.roles.check(without_kafka(schema).names, target.columns, self.table)
        self.roles.check_key(read_unique_keys(driver, self.table), self.table)
        return matches

    def encoding(self, matches: list[Match], schema: pa.Schema) -> Encoding:
        """See `IntoTable`; the coordinates are copied too, if there are any."""
        return Encoding(self.table, [*matches, *(coordinate_matches() if KAFKA in schema.names else ())])

    def flat(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """See `IntoTable`."""
        return flatten_kafka(batch) if KAFKA in batch.schema.names else batch

    def _keyed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        flat = self.flat(batch)
        # A NULL equals nothing, not even itself: such rows would pile up in the table.
        for name in self.roles.key:
            if count := flat.column(name).null_count:
                raise self._null_in_key(name, count)
        return flat

    def _null_in_key(self, name: str, count: int) -> RowsRefused:
        return RowsRefused(
            f"at least {count} rows have NULL in {name}, part of the key of the Upsert into {self.table}",
            table=str(self.table),
            column=name,
            next_step="Filter such rows, or fill them, in the transform.",
        )
