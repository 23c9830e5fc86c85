"""What the database's role may do with a target, asked before there is a row to write."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from psycopg import Connection

from offsetstore.errors import MissingPrivilege
from offsetstore.writers.table.names import TableName

# LOCK TABLE takes a privilege on the whole table.
_MISSING = """
SELECT wanted, CURRENT_USER
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


def check_rights(connection: Connection, table: TableName, wanted: Collection[str], columns: Sequence[str]) -> None:
    """Check the role's privileges on a table that exists.

    :param wanted: INSERT, SELECT, UPDATE, or TEMPORARY on the database.
    :param columns: those that are inserted.
    :raises MissingPrivilege: the role lacks one.
    """
    name = table.identifier.as_string(connection)
    rows = connection.execute(_MISSING, {"name": name, "wanted": [*wanted], "columns": [*columns]}).fetchall()
    if rows:
        raise MissingPrivilege(
            f"the role {rows[0][1]} may not write to the table {table}",
            found=f"no {', '.join(row[0] for row in rows)}",
            expected=", ".join(wanted),
        )
