"""Each role's privileges, as SQL: a job's role has no DDL, and a dashboard's writes nothing but samples."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from offsetstore.postgres.schema import VERSION_TABLE, metadata, quoted

_USUAL = ("SELECT", "INSERT", "UPDATE")

# The exceptions: a job only adds to the history and to the outbox, only reads the store's identity, and only renames
# samples.
_DIFFERENT: Final = {
    "heartbeats": (*_USUAL, "DELETE"),
    "group_members": (*_USUAL, "DELETE"),
    "offset_history": ("SELECT", "INSERT"),
    "failures": (*_USUAL, "DELETE"),
    "job_runs": (*_USUAL, "DELETE"),
    "member_runs": (*_USUAL, "DELETE"),
    "job_errors": ("SELECT", "INSERT", "DELETE"),
    "samples": ("SELECT", "UPDATE"),
    "outbox": ("SELECT", "INSERT"),
    "outbox_refused": ("SELECT",),
    "outbox_relays": ("SELECT",),
    "relay_runs": ("SELECT",),
    "store_identity": ("SELECT",),
    VERSION_TABLE: ("SELECT",),
}

# What a relay needs, and a job does not.
_OF_RELAYS: Final = {
    "outbox": ("SELECT", "DELETE"),
    "outbox_refused": ("INSERT",),
    "outbox_relays": _USUAL,
    "relay_runs": (*_USUAL, "DELETE"),
    "store_identity": ("SELECT",),
    VERSION_TABLE: ("SELECT",),
}

# What an application needs that only puts records into the outbox; its statement reads nothing.
_PUT: Final = ("consumer_group", "topic", "key", "value", "headers")

# A record's own bytes.
_RECORD: Final = {"key", "value", "headers"}

# Only the database says when a line of the history was written and by which role (decision 0041), and in which order
# the outbox has its rows. Of the outbox, a job may read the columns by which it counts its own rows.
_LEFT_OUT: Final = {
    ("offset_history", "INSERT"): {"id", "at", "db_role"},
    ("outbox", "INSERT"): {"id", "created_at"},
    ("outbox", "SELECT"): _RECORD,
    ("outbox_refused", "SELECT"): _RECORD,
    ("outbox_relays", "SELECT"): {"token"},
}

# What a dashboard may not read: a record's own bytes, texts that may quote them, and the digest of the key, from
# which a short key can be guessed by trying all.
_HIDDEN: Final = {
    "dead_letters": _RECORD | {"error_text", "traceback", "sequence"},
    "outbox": _RECORD,
    "outbox_refused": _RECORD,
}


def privileges() -> dict[str, tuple[str, ...]]:
    """The privileges that a job needs on each of our tables; its role gets no others."""
    return {table: _DIFFERENT.get(table, _USUAL) for table in (*metadata.tables, VERSION_TABLE)}


def needed_columns() -> Iterator[tuple[str, str, str]]:
    """Each table and privilege of `privileges`, with the columns that it covers, joined by commas."""
    for table, allowed in privileges().items():
        columns = (
            [column.name for column in metadata.tables[table].columns] if table in metadata.tables else ["version_num"]
        )
        for right in allowed:
            without = _LEFT_OUT.get((table, right), ())
            yield table, right, ",".join(name for name in columns if name not in without)


def grant_runtime(role: str, *, schema: str) -> Iterator[str]:
    """Statements that let ``role`` run jobs; they may be repeated. The owner of the tables must run them."""
    yield f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}"
    # Until revision 0006, INSERT was granted on all its columns.
    yield f"REVOKE INSERT ON TABLE {quoted(schema)}.offset_history FROM {quoted(role)}"
    for table, allowed in privileges().items():
        rights = ", ".join(right + _columns(table, _LEFT_OUT.get((table, right))) for right in allowed)
        yield f"GRANT {rights} ON TABLE {quoted(schema)}.{quoted(table)} TO {quoted(role)}"


def grant_relay(role: str, *, schema: str) -> Iterator[str]:
    """Statements that let ``role`` relay the outbox; they may be repeated. The owner of the tables must run them."""
    yield f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}"
    for table, allowed in _OF_RELAYS.items():
        yield f"GRANT {', '.join(allowed)} ON TABLE {quoted(schema)}.{quoted(table)} TO {quoted(role)}"


def grant_outbox(role: str, *, schema: str) -> Iterator[str]:
    """Statements that let ``role`` put records into the outbox, and nothing else; they may be repeated.

    The owner of the tables must run them.
    """
    yield f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}"
    columns = ", ".join(map(quoted, _PUT))
    yield f"GRANT INSERT ({columns}) ON TABLE {quoted(schema)}.outbox TO {quoted(role)}"


def grant_dashboard(role: str, *, schema: str) -> Iterator[str]:
    """Statements that let ``role`` read all our tables and write samples; they may be repeated.

    The owner of the tables must run them. Of dead letters it may read all but the record's key, value and headers, and
    texts that may quote them.
    """
    yield f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}"
    for table in (*metadata.tables, VERSION_TABLE):
        columns = _columns(table, _HIDDEN.get(table))
        yield f"GRANT SELECT{columns} ON TABLE {quoted(schema)}.{quoted(table)} TO {quoted(role)}"
    yield f"GRANT INSERT, UPDATE ON TABLE {quoted(schema)}.samples TO {quoted(role)}"


# What depends on the table: the sequences that its defaults take from, and whether rows go through a temporary table.
_OF_TABLE: Final = """
DO {quote}
DECLARE one record;
BEGIN
    FOR one IN
        SELECT DISTINCT pg_class.oid::regclass AS sequence
        FROM pg_attrdef JOIN pg_depend ON classid = 'pg_attrdef'::regclass AND objid = pg_attrdef.oid
        JOIN pg_class ON refclassid = 'pg_class'::regclass AND pg_class.oid = refobjid AND relkind = 'S'
        WHERE adrelid = {table}::regclass
    LOOP
        EXECUTE format('GRANT USAGE ON SEQUENCE %s TO %I', one.sequence, {role});
    END LOOP;
    IF {temporary}
        AND NOT has_database_privilege({role}, current_database(), 'TEMPORARY')
    THEN
        EXECUTE format('GRANT TEMPORARY ON DATABASE %I TO %I', current_database(), {role});
    END IF;
END {quote}"""


_HAS_POLICIES: Final = "(SELECT relrowsecurity FROM pg_class WHERE oid = {table}::regclass)"


def grant_target(role: str, schema: str | None, table: str, *, upsert: bool) -> Iterator[str]:
    """Statements that let ``role`` write results to a table; they may be repeated. Its owner must run them.

    Only the owner of the database can grant TEMPORARY, which PUBLIC has by default.

    :param schema: ``None``: the search path of the session that runs them decides.
    """
    named = quoted(table)
    if schema is not None:
        named = f"{quoted(schema)}.{named}"
        yield f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)}"
    yield f"GRANT {'SELECT, INSERT, UPDATE' if upsert else 'INSERT'} ON TABLE {named} TO {quoted(role)}"
    values = {"table": _literal(named), "role": _literal(role)}
    # A name may contain the quote itself.
    quote = "$grants$"
    while any(quote in value for value in values.values()):
        quote = f"${quote[1:-1]}s$"
    temporary = "true" if upsert else _HAS_POLICIES.format(**values)
    yield _OF_TABLE.format(quote=quote, temporary=temporary, **values).strip()


def _literal(text: str) -> str:
    escaped = text.replace("'", "''")
    # With E, a backslash is read the same way whatever standard_conforming_strings is.
    return f"'{escaped}'" if "\\" not in escaped else "E'" + escaped.replace("\\", "\\\\") + "'"


def _columns(table: str, without: Collection[str] | None) -> str:
    """List the table's other columns, for a right on these alone; empty for a right on the whole table."""
    if not without:
        return ""
    names = [quoted(column.name) for column in metadata.tables[table].columns if column.name not in without]
    return f" ({', '.join(names)})"
