"""What each role may do, as SQL: the job's own has no DDL but in the staging schema, a dashboard's reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from offsetstore.postgres.schema import STAGING_SCHEMA, VERSION_TABLE, metadata, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

_USUAL = ("SELECT", "INSERT", "UPDATE")

# Where it differs from the usual: history is only ever added to, a store's identity only ever read by a job.
_DIFFERENT: Final = {
    "heartbeats": (*_USUAL, "DELETE"),
    "offset_history": ("SELECT", "INSERT"),
    "store_identity": ("SELECT",),
    VERSION_TABLE: ("SELECT",),
}


def privileges() -> dict[str, tuple[str, ...]]:
    """What a job does to each of our tables; nothing else is granted to its role."""
    return {table: _DIFFERENT.get(table, _USUAL) for table in (*metadata.tables, VERSION_TABLE)}


def grant_runtime(role: str, *, schema: str) -> Iterator[str]:
    """Statements that let ``role`` run jobs; each may be run again. They need the owner of the tables.

    The last ones need the owner of the schema of the staging tables, who may create schemas in the database.
    """
    yield f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}"
    for table, allowed in privileges().items():
        yield f"GRANT {', '.join(allowed)} ON TABLE {quoted(schema)}.{quoted(table)} TO {quoted(role)}"
    # A migration that may not create schemas leaves it out.
    yield f"CREATE SCHEMA IF NOT EXISTS {quoted(STAGING_SCHEMA)}"
    # Not OWNER: several jobs of one database, each with a role of its own, share the schema.
    yield f"GRANT USAGE, CREATE ON SCHEMA {quoted(STAGING_SCHEMA)} TO {quoted(role)}"


def grant_dashboard(role: str, *, schema: str) -> Iterator[str]:
    """Statements that let ``role`` read all of our tables; each may be run again. They need the owner of the tables."""
    yield f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}"
    for table in privileges():
        yield f"GRANT SELECT ON TABLE {quoted(schema)}.{quoted(table)} TO {quoted(role)}"
