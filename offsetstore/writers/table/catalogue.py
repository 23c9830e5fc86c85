"""The name of a target table, and what PostgreSQL's catalogue says about it and about the role's rights.

Columns are read again in each transaction: tables change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg import Connection, sql
from sqlalchemy import Table

from offsetstore.errors import ColumnMismatch, ConfigurationError, MissingPrivilege, UnsafeTarget

# Tables and partitioned tables: COPY and LOCK TABLE know both. No check can tell where the rows of a view end up
# (decision 0061).
_TABLES = ("r", "p")
_OTHERS = {"v": "a view", "m": "a materialized view"}

# A domain's values are sent as its base type's, so domains are resolved to that, also those of an array's elements. An
# array's modifier is its elements'.
# `kind` is a built-in type's name, 'enum', or '' if only the type's text form is known.
#
# `refuses_null`: no trigger BEFORE INSERT FOR EACH ROW (bits 2, 4 and 1), of the table or a partition, can fill it in.
#
# `unsafe`: the relations, of the table and all its partitions, that lose rows or commit separately (decision 0024). A
# partitioned table itself holds no rows, so it may be UNLOGGED (up to PostgreSQL 17). pg_partition_tree() would lock
# each partition.
_COLUMNS = """
WITH RECURSIVE target AS (
    SELECT oid, relkind, relpersistence, relnamespace, relname, ARRAY(
        SELECT rulename::text FROM pg_catalog.pg_rewrite
        WHERE ev_class = pg_class.oid AND ev_type = '3' AND ev_enabled IN ('O', 'A')
        ORDER BY rulename
    ) AS insert_rules
    FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(%(name)s)
), tree AS (
    SELECT 'table' AS part, oid, relkind, relpersistence, relnamespace, relname FROM target
  UNION ALL
    SELECT 'partition', child.oid, child.relkind, child.relpersistence, child.relnamespace, child.relname
    FROM tree
    JOIN pg_catalog.pg_inherits ON inhparent = tree.oid AND tree.relkind = 'p'
    JOIN pg_catalog.pg_class AS child ON child.oid = inhrelid
), typed AS (
    SELECT attnum, atttypid AS type, atttypmod AS modifier, false AS is_array, false AS of_domain
    FROM pg_catalog.pg_attribute JOIN target ON attrelid = target.oid
    WHERE attnum > 0 AND NOT attisdropped
  UNION ALL
    SELECT attnum, CASE typtype WHEN 'd' THEN typbasetype ELSE typelem END,
        CASE typtype WHEN 'd' THEN typtypmod ELSE modifier END, is_array OR typtype <> 'd', is_array AND typtype = 'd'
    FROM typed JOIN pg_catalog.pg_type ON pg_type.oid = typed.type
    WHERE typtype = 'd' OR typcategory = 'A' AND NOT is_array
)
SELECT target.relkind, target.insert_rules,
    ARRAY(
        SELECT ARRAY[
            part, (SELECT nspname FROM pg_catalog.pg_namespace WHERE oid = relnamespace), relname,
            CASE WHEN relkind = 'f' THEN 'foreign' WHEN relpersistence = 't' THEN 'temporary' ELSE 'unlogged' END
        ]
        FROM tree WHERE relkind = 'f' OR relpersistence = 't' OR relpersistence = 'u' AND relkind <> 'p'
        ORDER BY part DESC, relname
    ) AS unsafe,
    pg_catalog.row_security_active(target.oid) AS has_policies,
    pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY') AS allows_temporary,
    a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), CASE WHEN is_array THEN 'array' ELSE base.kind END,
    a.attnum, typed.modifier, CASE WHEN is_array THEN base.kind END, of_domain,
    a.attnotnull OR declared.typnotnull,
    a.attnotnull AND declared.typtype <> 'd' AND NOT EXISTS (
        SELECT FROM tree JOIN pg_catalog.pg_trigger ON tgrelid = tree.oid
        WHERE tgtype & 7 = 7 AND tgenabled <> 'D'
    ) AS refuses_null,
    a.atthasdef OR a.attidentity <> '' OR declared.typdefault IS NOT NULL,
    a.attgenerated <> '' OR a.attidentity = 'a',
    CASE WHEN a.atthasdef THEN (
        SELECT min(pg_class.oid::regclass::text)
        FROM pg_catalog.pg_attrdef JOIN pg_catalog.pg_depend
            ON classid = 'pg_catalog.pg_attrdef'::regclass AND objid = pg_attrdef.oid
        JOIN pg_catalog.pg_class ON refclassid = 'pg_catalog.pg_class'::regclass AND pg_class.oid = refobjid
        WHERE adrelid = target.oid AND adnum = a.attnum
            -- By a function of one's own, or by another than nextval, it may be allowed.
            AND pg_catalog.strpos(pg_catalog.pg_get_expr(adbin, adrelid), 'nextval(') > 0 AND NOT EXISTS (
                SELECT FROM pg_catalog.pg_depend AS called
                WHERE called.classid = 'pg_catalog.pg_attrdef'::regclass AND called.objid = pg_attrdef.oid
                    AND called.refclassid = 'pg_catalog.pg_proc'::regclass
            ) AND CASE WHEN pg_class.relkind = 'S' -- the function fails for a table
                THEN NOT pg_catalog.has_sequence_privilege(pg_class.oid, 'USAGE, UPDATE') END
    ) END AS denied
FROM target
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = target.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_type AS declared ON declared.oid = a.atttypid
LEFT JOIN (
    typed JOIN (
        SELECT oid, typcategory, typtype,
            CASE WHEN typtype = 'e' THEN 'enum' WHEN typnamespace = 'pg_catalog'::regnamespace THEN typname ELSE '' END
        FROM pg_catalog.pg_type
    ) AS base(oid, typcategory, typtype, kind)
    ON base.oid = typed.type AND base.typtype <> 'd' AND (is_array OR base.typcategory <> 'A')
) ON typed.attnum = a.attnum
ORDER BY a.attnum
"""

# The indexes that ON CONFLICT (columns) can infer: complete, immediate, over plain columns.
_UNIQUE_KEYS = """
SELECT array_agg(a.attname::text ORDER BY a.attnum)
FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid
    AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = pg_catalog.to_regclass(%(name)s)
    AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""

# A temporary table gets no schema name here; the next check refuses it.
_PLACE = """
SELECT nspname, relname
FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = pg_catalog.to_regclass(%(name)s) AND relpersistence <> 't'
"""

_SHOWN = 3
_WHY_UNSAFE = {
    "unlogged": "is UNLOGGED: a crash of the database empties it, but the stored offsets stay",
    "temporary": "is temporary: it ends with its connection, but the stored offsets stay",
    "foreign": "is a foreign table: its server commits separately from the stored offsets",
}


_MAX_PARTS = 2


@dataclass(frozen=True, slots=True)
class TableName:
    """A table's name, exactly as the catalogue spells it: ``Payments`` is not ``payments``.

    Without a schema, the connection's ``search_path`` decides; see `locate`.
    """

    schema: str | None
    name: str

    @classmethod
    def parse(cls, table: str | Table) -> TableName:
        """Take ``"payments"``, ``"schema.payments"`` or a SQLAlchemy ``Table``, which may hold any name.

        :raises ConfigurationError: an empty part, or more than one dot.
        """
        if isinstance(table, Table):
            return cls(None if table.schema is None else str(table.schema), str(table.name))
        parts = table.split(".")
        if len(parts) > _MAX_PARTS or not all(parts):
            raise ConfigurationError(
                "not a valid table name",
                found=repr(table),
                expected='"table" or "schema.table"',
                next_step="For a name that contains a dot, give a sqlalchemy.Table.",
            )
        return cls(parts[0] if len(parts) == _MAX_PARTS else None, parts[-1])

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.name) if self.schema is None else sql.Identifier(self.schema, self.name)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a target; its fields are in the order of the query.

    :param type_name: as written in SQL: ``numeric(10,2)``.
    :param kind: the built-in type's name (``int8``, ``varchar``), ``enum``, ``array``, or ``""`` for any other.
    :param element: the elements' kind, for arrays.
    :param of_domain: the elements are of a domain, which an array's binary form would have to name.
    :param modifier: PostgreSQL's ``atttypmod``: length, precision or -1.
    :param refuses_null: every row with NULL in it is refused, which NOT NULL alone doesn't tell: a trigger may fill it
        in. False for a column of a domain, where that is not known.
    :param computed: always computed by the database, so never written.
    :param denied: the sequence of its default, if the role may not use it.
    """

    name: str
    type_name: str
    kind: str
    number: int = 0
    modifier: int = -1
    element: str | None = None
    of_domain: bool = False
    not_null: bool = False
    refuses_null: bool = False
    has_default: bool = False
    computed: bool = False
    denied: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A table that results can be written to.

    :param has_policies: row-level security applies to the role; PostgreSQL refuses COPY then.
    :param allows_temporary: whether the role may create temporary tables in the database.
    """

    columns: dict[str, Column]
    is_partitioned: bool
    has_policies: bool
    allows_temporary: bool


def locate(connection: Connection, table: TableName) -> TableName:
    """Add the schema in which the connection's search path finds the table.

    The name stays as it is if it has a schema, or if there is no such table except a temporary one.
    """
    if table.schema is not None:
        return table
    row = connection.execute(_PLACE, {"name": table.identifier.as_string(connection)}).fetchone()
    return table if row is None else TableName(*row)


def target_query(connection: Connection, table: TableName) -> str:
    """Return the query of `read_target`, for a message with other statements."""
    return _COLUMNS % {"name": sql.Literal(table.identifier.as_string(connection)).as_string(connection)}


def read_target(connection: Connection, table: TableName, rows: Sequence[tuple[Any, ...]] | None = None) -> Target:
    """Read the table that results are written to.

    :param rows: the rows of `target_query`, if it was sent before.
    :raises UnsafeTarget: the table, or any of its partitions, is UNLOGGED, temporary or foreign.
    :raises ColumnMismatch: there is no such table, it is a view, or it has rules that COPY would bypass.
    """
    if rows is None:
        rows = connection.execute(_COLUMNS, {"name": table.identifier.as_string(connection)}).fetchall()
    if not rows:
        raise missing(table, connection.info.dbname)
    kind, rules, unsafe, has_policies, allows_temporary, *_ = rows[0]
    if unsafe:
        raise _unsafe(connection, table, unsafe)
    if kind not in _TABLES:
        raise ColumnMismatch(
            f"{table} is not a table",
            found=_OTHERS.get(kind, f"pg_class.relkind {kind!r}"),
            expected="a table",
            next_step="Name the table behind it, or write to it with SQL of your own: Execute(...).",
        )
    if rules:
        raise ColumnMismatch(
            f"the table {table} has rules ON INSERT, and COPY does not apply rules",
            found=", ".join(rules),
            expected="no rules ON INSERT",
            next_step="Name the table that the rule writes to, or replace the rule by a trigger.",
        )
    # A row has fields of the table, then a column's fields in their order; no column's, if the table has none.
    columns = {name: Column(name, *fields) for _, _, _, _, _, name, *fields in rows if name is not None}
    return Target(columns, kind == "p", has_policies, allows_temporary)


def read_unique_keys(connection: Connection, table: TableName) -> list[frozenset[str]]:
    """Read the sets of columns that ``ON CONFLICT`` can name."""
    rows = connection.execute(_UNIQUE_KEYS, {"name": table.identifier.as_string(connection)}).fetchall()
    return [frozenset(row[0]) for row in rows]


def _unsafe(connection: Connection, table: TableName, found: Sequence[Sequence[str]]) -> UnsafeTarget:
    part, schema, name, kind = found[0]
    first = TableName(schema, name)
    which = f"the table {first}" if part == "table" else f"the partition {first} of {table}"
    if kind == "unlogged":
        next_step = f"ALTER TABLE {first.identifier.as_string(connection)} SET LOGGED;"
    elif kind == "temporary":
        next_step = 'Drop it, or name the schema of the table that you mean: "schema.table".'
    elif part == "table":
        next_step = "Write to a table of this database, and copy its rows to the other server from there."
    else:
        next_step = "Detach it, or put a partition of this database in its place."
    names = [f"{namespace}.{relation} ({why})" for _, namespace, relation, why in found[:_SHOWN]]
    return UnsafeTarget(
        f"{which} {_WHY_UNSAFE[kind]}",
        found=", ".join([*names, *(["..."] if len(found) > _SHOWN else [])]),
        expected="tables of this database that survive a crash",
        next_step=next_step,
    )


def missing(table: TableName, database: str) -> ColumnMismatch:
    return ColumnMismatch(
        f"there is no table {table}",
        found=f"none that the role can see in the database {database}",
        next_step='Create it, name its schema ("schema.table"; case matters), or grant the role USAGE on the schema. '
        "If it was written to before, it was renamed or dropped.",
    )


# A column's ``atttypmod``, as ``numeric.c``, ``timestamp.c`` and ``varchar.c`` pack it; -1 if nothing was declared.
# Bytes of a varlena's header, which lengths and numeric's modifier include.
_HEADER = 4
_UNDECLARED = 0xFFFF
# The bit of SECOND among an interval's fields; if no fields are declared, all bits are set.
_SECOND = 1 << 12


def numeric_scale(modifier: int) -> int:
    """Return the scale of ``numeric(p,s)``: the lowest 11 bits, signed."""
    return (((modifier - _HEADER) & 0x7FF) ^ 1024) - 1024


def numeric_precision(modifier: int) -> int:
    """Return the precision of ``numeric(p,s)``: the bits above."""
    return ((modifier - _HEADER) >> 16) & 0xFFFF


def text_length(modifier: int) -> int | None:
    """Return the number of characters of ``varchar(n)``; ``None`` if none was declared."""
    return None if modifier < 0 else modifier - _HEADER


def moment_step(modifier: int) -> int:
    """Return the step in microseconds to which ``time(p)``, ``timestamp(p)`` or ``interval(p)`` round."""
    digits = modifier & 0xFFFF
    return 1 if digits == _UNDECLARED else 10 ** (6 - digits)


def interval_keeps_seconds(modifier: int) -> bool:
    """Tell whether an interval's fields go down to the second; ``interval day`` drops 23 hours."""
    return bool(modifier >> 16 & _SECOND)


# LOCK TABLE needs a privilege on the whole table: `of_columns` marks a role that lacks nothing else.
_MISSING = """
SELECT wanted, CURRENT_USER, wanted = 'INSERT' AND (
    SELECT bool_and(pg_catalog.has_column_privilege(target, name, 'INSERT'))
    FROM pg_catalog.unnest(%(columns)s::text[]) AS name
) AS of_columns
FROM pg_catalog.to_regclass(%(name)s) AS target, pg_catalog.unnest(%(wanted)s::text[]) AS wanted
WHERE NOT CASE wanted
    WHEN 'TEMPORARY' THEN pg_catalog.has_database_privilege(pg_catalog.current_database(), wanted)
    WHEN 'INSERT' THEN pg_catalog.has_table_privilege(target, 'INSERT, UPDATE, DELETE, TRUNCATE') AND (
        SELECT coalesce(bool_and(pg_catalog.has_column_privilege(target, name, wanted)), true)
        FROM pg_catalog.unnest(%(columns)s::text[]) AS name
    )
    ELSE pg_catalog.has_any_column_privilege(target, wanted)
END
"""


_OF_COLUMNS = (
    " on the table, only on its columns; it is locked while rows are written, which needs the right on all of it"
)


def check_rights(connection: Connection, table: TableName, wanted: Collection[str], columns: Sequence[str]) -> None:
    """Check the role's privileges on a table that exists.

    :param wanted: INSERT, SELECT, UPDATE, or TEMPORARY on the database.
    :param columns: the columns that are inserted.
    :raises MissingPrivilege: the role lacks one.
    """
    name = table.identifier.as_string(connection)
    rows = connection.execute(_MISSING, {"name": name, "wanted": [*wanted], "columns": [*columns]}).fetchall()
    if rows:
        raise MissingPrivilege(
            f"the role {rows[0][1]} may not write to the table {table}",
            found=f"no {', '.join(row[0] + (_OF_COLUMNS if row[2] else '') for row in rows)}",
            expected=", ".join(wanted),
        )
