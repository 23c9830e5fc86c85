"""Upsert: one row per key, merged with what is stored."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pyarrow as pa
from sqlalchemy import Table

from offsetstore.errors import KafkaColumnsMissing, RowsRefused
from offsetstore.writers.arrow.batches import (
    KAFKA,
    Stream,
    coordinate_matches,
    flatten_kafka,
    without_kafka,
)
from offsetstore.writers.arrow.copying import copy_batches, create_temporary, temporary_name
from offsetstore.writers.arrow.encoding import Encoding
from offsetstore.writers.arrow.values import null_rows
from offsetstore.writers.into_table import IntoTable
from offsetstore.writers.table import merging
from offsetstore.writers.table.catalogue import Target, read_unique_keys
from offsetstore.writers.table.matching import Match
from offsetstore.writers.table.roles import Roles


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
