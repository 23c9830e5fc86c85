"""The SQL of an Upsert: one INSERT that combines the rows of a temporary table by key, and merges them into the target.

Rows are written in the order of their keys, so that parallel upserts lock them in one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from psycopg import sql

from offsetstore.writers.arrow.batches import STAGED_COORDINATES
from offsetstore.writers.table.catalogue import Column, TableName
from offsetstore.writers.table.roles import Roles

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


def no_coordinates() -> sql.Composed:
    """Write the temporary table's columns for Kafka's coordinates, NULL if none are copied."""
    return _NO_COORDINATES.format(**_coordinates())


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
    return _MERGE_LATEST.format(latest_first=latest_first, **parts, **_coordinates())


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


def _coordinates() -> dict[str, sql.Identifier]:
    topic, partition, offset = map(sql.Identifier, STAGED_COORDINATES)
    return {"topic": topic, "partition": partition, "offset": offset}
