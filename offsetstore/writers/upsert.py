"""Upsert: one row per key, merged with what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import psycopg
import pyarrow as pa
from sqlalchemy import Connection, Table

from offsetstore.errors import KafkaColumnsMissing, RowsRefused
from offsetstore.postgres.errors import before_rows, refusals
from offsetstore.protocol.work import Work
from offsetstore.writers.arrow.copying import (
    copy_batches,
    driver_connection,
    find_misfits,
    locate_target,
    locked_target,
)
from offsetstore.writers.arrow.encoding import Encoding
from offsetstore.writers.arrow.kafka_column import (
    KAFKA,
    coordinate_matches,
    flatten_kafka,
    without_kafka,
)
from offsetstore.writers.arrow.misfits import Misfit
from offsetstore.writers.arrow.streaming import Stream
from offsetstore.writers.arrow.values import null_rows
from offsetstore.writers.table import merging
from offsetstore.writers.table.catalogue import Column, read_target, read_unique_keys
from offsetstore.writers.table.matching import Match, match_columns
from offsetstore.writers.table.names import TableName
from offsetstore.writers.table.rights import check_rights
from offsetstore.writers.table.roles import Roles
from offsetstore.writers.table.temporary import create_temporary, temporary_name


class Upsert:
    """Keeps one row per key in a table, and merges the DataFrame's rows into it.

    Rows of one key in a micro-batch are combined first, so their order does not matter. All columns that no argument
    names are replaced together, by those of the latest row.

    :param table: as `Append` takes it.
    :param key: the columns that identify a row; the table must have them unique. They may not be NULL.
    :param add: columns that are added to the stored value; NULLs are ignored.
    :param greatest: columns that keep the greatest value; NULLs are ignored. NaN is greater than any number.
    :param least: the same with the least.
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
        self.table = TableName.parse(table)
        self.roles = Roles.parse(key, add, greatest, least, version)

    def __repr__(self) -> str:
        return f"Upsert({str(self.table)!r}, key={list(self.roles.key)})"

    @property
    def replaces_in_order(self) -> bool:
        """Whether rows replace stored ones that are taken to be earlier, if any columns are replaced."""
        return self.roles.version is None

    def uses_kafka_column(self, schema: pa.Schema) -> bool:
        """Whether columns are replaced: beside a version, the offset decides between equal ones."""
        return bool(self.roles.replaced(without_kafka(schema).names))

    def resolve_table(self, connection: Connection) -> None:
        """If no schema was named, look it up in the connection's search path, and keep to it."""
        with refusals(self.table, grants=self._grants):
            self.table = locate_target(connection, self.table)

    def check(self, connection: Connection, schema: pa.Schema) -> None:
        """Compare the columns and the key with the table's.

        :raises ColumnMismatch: they don't fit, the key is not unique there, or there is no such table.
        :raises UnsafeTarget: as `Append.check`.
        :raises KafkaColumnsMissing: rows have to be ordered by offset, and ``_kafka`` is missing.
        :raises MissingPrivilege: the role may not insert these columns, update or read the table, or make temporary
            tables.
        """
        self._check_order(schema)
        driver = driver_connection(connection)
        quoted = self.table.identifier.as_string()
        with refusals(self.table, grants=self._grants), before_rows(self.table, quoted):
            matches = self._match(schema, read_target(driver, self.table).columns)
            self._check_key(driver)
            names = [match.column.name for match in matches]
            update = ["UPDATE"] if set(names) - set(self.roles.key) else []
            check_rights(driver, self.table, ["INSERT", *update, "SELECT", "TEMPORARY"], names)

    def write(self, work: Work, batches: Iterable[pa.RecordBatch]) -> int:
        """Merge the rows; return how many the batches had.

        :raises ColumnMismatch, UnsafeTarget: as `check`.
        :raises MissingPrivilege, SinkError: the database takes no rows, as without a grant or a replica identity.
        :raises KafkaColumnsMissing: as `check`.
        :raises RowsRefused: a value or a row that the table can't hold; a NULL in the key.
        """
        stream = Stream.of(batches)
        if stream is None:
            return 0
        self._check_order(stream.schema)
        driver = driver_connection(work.connection)
        temporary = temporary_name()
        merging_rows = refusals(self.table, stream.schema.names, grants=self._grants)
        with merging_rows, locked_target(driver, self.table) as target:
            matches = self._match(stream.schema, target.columns)
            self._check_key(driver)
            names = [match.column.name for match in matches]
            merge = merging.merge(temporary, self.table, self.roles, names, target.columns)
            further = [merging.no_coordinates()]
            create_temporary(driver, temporary, self.table, names, further, target=target, move=merge)
            encoding = Encoding(self.table, _with_coordinates(matches, stream.schema))
            copy_batches(driver, temporary, encoding, map(self._checked, stream))
            driver.execute(merge)
        return stream.rows

    @property
    def _grants(self) -> list[str] | None:
        return self.table.as_option("--upsert")

    def misfits(self, connection: Connection, batch: pa.RecordBatch) -> list[Misfit]:
        """Find the rows that `write` refuses because of their own values; see `MisfitsWriter`.

        A NULL in another column than the key's is none: a trigger, or a later row of the key, may fill it in.
        """
        self._check_order(batch.schema)
        driver = driver_connection(connection)
        refused = refusals(self.table, batch.schema.names, grants=self._grants)
        with refused, locked_target(driver, self.table) as target:
            encoding = Encoding(self.table, _with_coordinates(self._match(batch.schema, target.columns), batch.schema))
            flat = _flat(batch)
            found = find_misfits(driver, encoding, flat)
        keyless: dict[int, RowsRefused] = {}
        for name in self.roles.key:
            keyless = dict.fromkeys(null_rows(flat, name), self._null_in_key(name, 1)) | keyless
        found |= keyless
        return [Misfit(row, found[row]) for row in sorted(found)]

    def _check_key(self, driver: psycopg.Connection) -> None:
        self.roles.check_key(read_unique_keys(driver, self.table), self.table)

    def _check_order(self, schema: pa.Schema) -> None:
        if self.roles.version is None and self.uses_kafka_column(schema) and KAFKA not in schema.names:
            replaced = ", ".join(self.roles.replaced(schema.names))
            raise KafkaColumnsMissing(
                f"the Upsert into {self.table} replaces {replaced} by the latest row, but has nothing to order rows by",
                found=", ".join(schema.names),
                expected=KAFKA,
                next_step=f'Give version="...", or keep the column {KAFKA} in what transform returns.',
            )

    def _match(self, schema: pa.Schema, columns: Mapping[str, Column]) -> list[Match]:
        written = without_kafka(schema)
        matches = match_columns(written, columns, self.table)
        self.roles.check(written.names, columns, self.table)
        return matches

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A NULL equals nothing, itself included: such rows would pile up in the table."""
        flat = _flat(batch)
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


def _with_coordinates(matches: list[Match], schema: pa.Schema) -> list[Match]:
    return [*matches, *coordinate_matches()] if KAFKA in schema.names else matches


def _flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    return flatten_kafka(batch) if KAFKA in batch.schema.names else batch
