"""`Upsert`, which merges one row per key with what is stored, the roles of its columns, and its SQL.

One INSERT combines the rows of a temporary table by key, and merges them into the target. Rows are written in the order
of their keys, so that parallel upserts lock them in one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql
from sqlalchemy import Table

from offsetstore.errors import ColumnMismatch, ConfigurationError, KafkaColumnsMissing, RowsRefused
from offsetstore.postgres.schema import quoted
from offsetstore.writers.arrow.batches import KAFKA, Stream, drop_kafka, without_kafka
from offsetstore.writers.arrow.casts import Cast, Match
from offsetstore.writers.arrow.copying import Encoding, copy_batches, create_temporary, temporary_name
from offsetstore.writers.arrow.values import null_rows
from offsetstore.writers.into_table import IntoTable
from offsetstore.writers.table.catalogue import Column, TableName, Target, read_unique_keys

# In the order that decides which of two rows is later. Staged under names that no table is likely to have.
_COORDINATES = {
    "topic": Column(name=f"{KAFKA}.topic", type_name="text", kind="text"),
    "partition": Column(name=f"{KAFKA}.partition", type_name="integer", kind="int4"),
    "offset": Column(name=f"{KAFKA}.offset", type_name="bigint", kind="int8"),
}
_COORDINATE_TYPES = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
# The coordinates' columns in the temporary table: NULL if none are copied.
_NO_COORDINATES = sql.SQL(
    """NULL::text COLLATE "C" AS {topic}, NULL::integer AS {partition}, NULL::bigint AS {offset}"""
)

_MERGE_COMBINED = sql.SQL("""
INSERT INTO {table} AS stored ({columns})
SELECT {values}
FROM {temporary} AS staged
GROUP BY {key}
ORDER BY {key}
ON CONFLICT ({conflict}) {action}
""")

# The latest row per key: DISTINCT ON keeps the first. A ctid is the place in the temporary table, so the order of the
# batch: it decides between rows that are otherwise equal.
_MERGE_LATEST = sql.SQL("""
INSERT INTO {table} AS stored ({columns})
SELECT DISTINCT ON ({key}) {values}
FROM {temporary} AS staged
WINDOW same_key AS (PARTITION BY {key})
ORDER BY {key}, {latest_first}staged.{topic} DESC NULLS LAST, staged.{partition} DESC NULLS LAST,
    staged.{offset} DESC NULLS LAST, staged.ctid DESC
ON CONFLICT ({conflict}) {action}
""")

# How rows of one key are combined; aggregates ignore NULLs, as do GREATEST and LEAST below.
_COMBINED = {"add": sql.SQL("sum({})"), "greatest": sql.SQL("max({})"), "least": sql.SQL("min({})")}

# How stored and incoming values are merged: `excluded` is the row that could not be inserted.
_MERGED = {
    "add": sql.SQL("{0} = coalesce(stored.{0} + excluded.{0}, stored.{0}, excluded.{0})"),
    "greatest": sql.SQL("{0} = greatest(stored.{0}, excluded.{0})"),
    "least": sql.SQL("{0} = least(stored.{0}, excluded.{0})"),
    "replaced": sql.SQL("{0} = excluded.{0}"),
}
# If no version is stored, any row is newer; a row without a version is never newer.
_REPLACED_IF_NEWER = sql.SQL(
    "{0} = CASE WHEN stored.{1} IS NULL OR excluded.{1} >= stored.{1} THEN excluded.{0} ELSE stored.{0} END"
)

# Not float4, in which 16777216 + 1 is 16777216.
_SUMMABLE = frozenset({"int2", "int4", "int8", "float8", "numeric"})
_ORDERED = _SUMMABLE | {
    "bpchar", "date", "enum", "float4", "interval", "text", "time", "timestamp", "timestamptz", "varchar",
}  # fmt: skip


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

    option = "--upsert"

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
        move = merge(temporary, self.table, self.roles, names, target.columns)
        further = [_NO_COORDINATES.format(**_staged_coordinates())]
        create_temporary(driver, temporary, self.table, names, further, target=target, move=move)
        copy_batches(driver, temporary, self.encoding(matches, stream.schema), map(self._keyed, stream))
        driver.execute(move)

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
        if KAFKA not in schema.names:
            return Encoding(self.table, matches)
        coordinates = [Match(column, Cast(_COORDINATE_TYPES[field])) for field, column in _COORDINATES.items()]
        return Encoding(self.table, [*matches, *coordinates])

    def flat(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """See `IntoTable`; topic, partition and offset are in columns of their own, after the others."""
        if KAFKA not in batch.schema.names:
            return batch
        flat, coordinates = drop_kafka(batch), cast("Any", batch).column(KAFKA)
        for field, column in _COORDINATES.items():
            values = cast("Any", pc).struct_field(coordinates, field)
            flat = flat.append_column(column.name, values.cast(_COORDINATE_TYPES[field]))
        return flat

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


@dataclass(frozen=True, slots=True)
class Roles:
    """The columns by role; all other columns of the rows are replaced."""

    key: tuple[str, ...]
    add: tuple[str, ...]
    greatest: tuple[str, ...]
    least: tuple[str, ...]
    version: str | None

    @classmethod
    def parse(
        cls,
        key: Sequence[str],
        add: Sequence[str],
        greatest: Sequence[str],
        least: Sequence[str],
        version: str | None,
    ) -> Roles:
        """Take an Upsert's arguments.

        :raises ConfigurationError: no key, a string where a list should be, or a column in two roles.
        """
        for role, names in {"key": key, "add": add, "greatest": greatest, "least": least}.items():
            if isinstance(names, str):
                raise ConfigurationError(
                    f"{role} of an Upsert takes a list of columns",
                    found=repr(names),
                    next_step=f"Write {role}=[{names!r}].",
                )
        if not key:
            raise ConfigurationError("an Upsert needs the columns of a key", expected='key=["id"]')
        roles = cls(tuple(key), tuple(add), tuple(greatest), tuple(least), version)
        named = roles.named
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise ConfigurationError(
                "a column can have only one role in an Upsert",
                found=f"{', '.join(twice)} twice",
                expected="each column once",
            )
        return roles

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that the Upsert's arguments name, and that the rows must have."""
        version = () if self.version is None else (self.version,)
        return self.key + self.add + self.greatest + self.least + version

    def replaced(self, names: Iterable[str]) -> list[str]:
        """The columns that are taken from one row, the latest; ``version`` is among them."""
        merged = self.key + self.add + self.greatest + self.least
        return [name for name in names if name not in merged]

    def check(self, names: Sequence[str], columns: Mapping[str, Column], table: TableName) -> None:
        """Check the roles against the rows' names and the table's types.

        :raises ColumnMismatch: a column is missing, or has a type that its role does not allow.
        """
        if absent := [name for name in self.named if name not in names]:
            raise ColumnMismatch(
                f"the Upsert into {table} names columns that the rows do not have: {', '.join(absent)}",
                found=", ".join(names),
                next_step="Keep them in the transform.",
            )
        ordered = (*self.greatest, *self.least, *([] if self.version is None else [self.version]))
        _check_kinds("add", self.add, _SUMMABLE, columns, table)
        _check_kinds("greatest, least and version", ordered, _ORDERED, columns, table)

    def check_key(self, unique: Sequence[frozenset[str]], table: TableName) -> None:
        """Check the key against the table's unique sets of columns.

        :raises ColumnMismatch: the key is not among them, so ON CONFLICT could not use it.
        """
        if frozenset(self.key) not in unique:
            key = ", ".join(self.key)
            named = table.identifier.as_string()
            what = f"the table {table} has no unique constraint or index on exactly the key ({key})"
            found = "; ".join(f"({', '.join(sorted(columns))})" for columns in unique) or "none"
            columns = ", ".join(map(quoted, self.key))
            raise ColumnMismatch(
                what,
                found=found,
                expected=f"({key})",
                next_step=f"Add it (not partial, not deferrable): ALTER TABLE {named} ADD UNIQUE ({columns});",
            )


def _check_kinds(
    role: str, names: Iterable[str], kinds: frozenset[str], columns: Mapping[str, Column], table: TableName
) -> None:
    if wrong := {name: columns[name].type_name for name in names if columns[name].kind not in kinds}:
        raise ColumnMismatch(
            f"columns of {table} have types that {role} does not allow: {', '.join(wrong)}",
            found=wrong,
            expected=f"one of {', '.join(sorted(kinds))}",
            next_step="Use double precision or numeric."
            if any(columns[name].kind == "float4" for name in wrong)
            else None,
        )


def merge(
    temporary: sql.Identifier,
    table: TableName,
    roles: Roles,
    names: Sequence[str],
    columns: Mapping[str, Column],
) -> sql.Composed:
    """Write the statement that moves the rows from the temporary table into the target.

    :param names: the columns that the rows have.
    :param columns: the target's.
    """
    replaced = roles.replaced(names)
    role_of = dict.fromkeys(replaced, "replaced")
    role_of |= dict.fromkeys(roles.add, "add") | dict.fromkeys(roles.greatest, "greatest")
    role_of |= dict.fromkeys(roles.least, "least")
    # In the table's order, whatever the order of a job's arguments: all upserts must lock rows in one order.
    key = sorted(roles.key, key=lambda name: columns[name].number)
    values = [_value(columns[name], role_of.get(name), windowed=bool(replaced)) for name in names]
    assignments = [_assignment(name, role_of[name], roles.version) for name in names if name in role_of]
    parts = {
        "table": table.identifier,
        "columns": _list(names),
        "values": sql.SQL(", ").join(values),
        "temporary": temporary,
        "key": sql.SQL(", ").join(map(_staged, key)),
        "conflict": _list(key),
        "action": sql.SQL("DO UPDATE SET ") + sql.SQL(", ").join(assignments) if assignments else sql.SQL("DO NOTHING"),
    }
    if not replaced:
        return _MERGE_COMBINED.format(**parts)
    latest_first = sql.SQL("")
    if roles.version is not None:
        latest_first = sql.SQL("{} DESC NULLS LAST, ").format(_staged(roles.version))
    return _MERGE_LATEST.format(latest_first=latest_first, **parts, **_staged_coordinates())


def _value(column: Column, role: str | None, *, windowed: bool) -> sql.Composable:
    if role not in _COMBINED:
        return _staged(column.name)
    combined = _COMBINED[role].format(_staged(column.name))
    combined = combined + sql.SQL(" OVER same_key") if windowed else combined
    # Otherwise a sum of NULLs alone would be refused, though it adds nothing.
    if role == "add" and column.not_null:
        return sql.SQL("coalesce({}, CAST('0' AS {}))").format(combined, sql.SQL(column.type_name))  # type: ignore[arg-type]
    return combined


def _assignment(name: str, role: str, version: str | None) -> sql.Composed:
    if role == "replaced" and version is not None:
        return _REPLACED_IF_NEWER.format(sql.Identifier(name), sql.Identifier(version))
    return _MERGED[role].format(sql.Identifier(name))


def _staged(name: str) -> sql.Identifier:
    return sql.Identifier("staged", name)


def _list(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _staged_coordinates() -> dict[str, sql.Identifier]:
    return {field: sql.Identifier(column.name) for field, column in _COORDINATES.items()}
