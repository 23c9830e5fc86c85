"""What the database's role may do with a target, asked before there is a row to write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore.errors import MissingPrivilege

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from psycopg import Connection

    from offsetstore.writers.table.names import TableName

_MISSING = """
SELECT wanted, pg_catalog.quote_ident(CURRENT_USER), pg_catalog.quote_ident(pg_catalog.current_database())
FROM pg_catalog.to_regclass(%(name)s) AS target, pg_catalog.unnest(%(wanted)s::text[]) AS wanted
WHERE NOT CASE wanted
    WHEN 'TEMPORARY' THEN pg_catalog.has_database_privilege(pg_catalog.current_database(), wanted)
    WHEN 'INSERT' THEN (
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
    :raises MissingPrivilege: the role lacks one; with the GRANT to run.
    """
    name = table.identifier.as_string(connection)
    rows = connection.execute(_MISSING, {"name": name, "wanted": [*wanted], "columns": [*columns]}).fetchall()
    if not rows:
        return
    [role], [database] = {row[1] for row in rows}, {row[2] for row in rows}
    lacking = [row[0] for row in rows]
    on_table = ", ".join(one for one in lacking if one != "TEMPORARY")
    grants = [f"GRANT {on_table} ON TABLE {name} TO {role};"] if on_table else []
    grants += [f"GRANT TEMPORARY ON DATABASE {database} TO {role};"] if "TEMPORARY" in lacking else []
    raise MissingPrivilege(
        f"the role {role} may not write to the table {table}",
        found=f"no {', '.join(lacking)}",
        expected=", ".join(wanted),
        next_step=" ".join(grants),
    )
