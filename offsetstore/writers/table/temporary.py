"""A temporary table of a transaction: rows are copied into it first, and SQL moves them to their target."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

import psycopg
from psycopg import sql

from offsetstore.errors import MissingPrivilege
from offsetstore.postgres.errors import before_rows
from offsetstore.postgres.together import execute_together
from offsetstore.writers.table.catalogue import Target
from offsetstore.writers.table.names import TableName

# AS SELECT: types, modifiers and collations are the target's, constraints and defaults are not.
_CREATE = sql.SQL("""
CREATE TEMPORARY TABLE {temporary} ON COMMIT DROP AS
SELECT {columns}
FROM {table}
WITH NO DATA
""")


def temporary_name() -> sql.Identifier:
    """Name a temporary table of this connection, dropped when its transaction ends."""
    return sql.Identifier("pg_temp", f"offsetstore_{uuid4().hex}")


def create_temporary(
    driver: psycopg.Connection,
    temporary: sql.Identifier,
    table: TableName,
    names: Iterable[str],
    further: Iterable[sql.Composable] = (),
    *,
    target: Target,
    move: sql.Composed,
) -> None:
    """Create it with those of the target's columns that are named, and try the statement that will move the rows.

    There are none yet: if the statement fails, no row is to blame. EXPLAIN checks privileges, the conflict's constraint
    and the replica identity as the statement does.

    :param further: columns that only the temporary table has, as SELECT expressions.
    :raises MissingPrivilege, SinkError: the database refuses one of the two.
    """
    if not target.allows_temporary:
        raise MissingPrivilege(
            f"the role may not create a temporary table, from which rows get into {table}; nothing was written",
            found="no TEMPORARY on the database",
        )
    columns = sql.SQL(", ").join([*map(sql.Identifier, names), *further])
    create = _CREATE.format(temporary=temporary, columns=columns, table=table.identifier)
    with before_rows(table, table.identifier.as_string(driver)):
        execute_together(driver, create.as_string(driver), f"EXPLAIN {move.as_string(driver)}")
