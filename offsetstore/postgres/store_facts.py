"""Facts about the store on PostgreSQL: the statements, and what `StoreFactsSession` says of them."""

# ruff: noqa: D102 - the Protocol says what the methods do

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Connection

from offsetstore.errors import MissingPrivilege, OffsetStoreError, SchemaNotAtHead
from offsetstore.postgres import statements as sql
from offsetstore.postgres.errors import needing, printing, translated
from offsetstore.postgres.grants import needed_columns
from offsetstore.postgres.schema import HEAD, metadata, quoted
from offsetstore.postgres.statements import OLDEST_TRANSACTION, REVISION
from offsetstore.postgres.together import Result
from offsetstore.protocol.store_facts import StoreFacts, StoreIdentity, TableFacts

SERVER: Final = """
SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS is_standby,
       pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all,
       (SELECT n.nspname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE c.oid = to_regclass(:place || 'kafka_partitions')) AS schema
"""

# Anyone may read them: sizes and statistics are no table's contents.
TABLES: Final = """
SELECT c.relname AS name, s.n_live_tup AS rows, pg_total_relation_size(c.oid) AS size, s.n_dead_tup AS dead_rows,
       s.n_tup_upd AS updates, s.n_tup_hot_upd AS hot_updates, s.last_vacuum, s.last_autovacuum
FROM unnest(CAST(:tables AS text[])) AS asked (name)
JOIN pg_catalog.pg_class AS c ON c.oid = to_regclass(:place || asked.name)
JOIN pg_catalog.pg_stat_all_tables AS s ON s.relid = c.oid
ORDER BY c.relname COLLATE "C"
"""


class StoreFactsStatements:
    """See the module. `PostgresSession` runs the statements."""

    _place: str
    _send_together: Callable[..., list[Result]]
    _run: Callable[..., int]
    _rows: Callable[..., list[Any]]

    @property
    def connection(self) -> Connection: ...

    def store_facts(self) -> StoreFacts:
        with translated():
            server, tables, revision, oldest = self._send_together(
                SERVER, TABLES, REVISION, OLDEST_TRANSACTION, place=self._place, tables=list(metadata.tables)
            )
        [of_server], [last] = server.rows, oldest.rows
        return StoreFacts(
            last.at,
            f"PostgreSQL {of_server.version}",
            of_server.schema,
            next((row.version_num for row in revision.rows), None),
            HEAD,
            tuple(
                TableFacts(
                    row.name,
                    row.rows,
                    row.size,
                    row.dead_rows,
                    row.updates,
                    row.hot_updates,
                    row.last_vacuum,
                    row.last_autovacuum,
                )
                for row in tables.rows
            ),
            last.oldest,
            of_server.sees_all,
            of_server.is_standby,
        )

    def expect_grants(self) -> None:
        tables, needed, columns = zip(*needed_columns(), strict=True)
        with translated():
            missing = self._rows(
                sql.MISSING_GRANTS, place=self._place, tables=[*tables], privileges=[*needed], columns=[*columns]
            )
        if not missing:
            return
        role, schema = missing[0].role, missing[0].schema
        raise MissingPrivilege(
            "the role may not do all that a job does; no job was fenced",
            found=f"role {quoted(role)} lacks {', '.join(f'{one.privilege} on {one.in_table}' for one in missing)}",
            next_step="As the owner of the tables, pass to psql what this prints: "
            f"`{printing((), role=role, schema=schema)}`.",
        )

    def identity(self) -> StoreIdentity:
        assert self.connection  # BEGIN: the savepoint must not be lost with it
        try:
            with translated():
                _, found, _ = self._send_together(sql.SAVE_IDENTITY, sql.IDENTITY, sql.KEEP_IDENTITY)
        except OffsetStoreError:  # whatever it is: a service may lack the function
            with translated():
                _, found = self._send_together(sql.LEAVE_IDENTITY, sql.IDENTITY_ALONE)
        if not found.rows:
            raise SchemaNotAtHead(
                "the table store_identity is empty, so this store has no id",
                next_step="Restore its row, which offsetstore's migration wrote.",
            )
        [row] = found.rows
        return StoreIdentity(row.store_id, row.home, row.here)

    def lock_identity(self) -> StoreIdentity:
        with needing("change which store this is"):
            self._run(sql.LOCK_CLAIMS)
        return self.identity()

    def set_identity(self, store_id: UUID, home: str | None) -> None:
        with needing("change which store this is"):
            self._run(sql.LOCK_CLAIMS)
            self._run(sql.SET_IDENTITY, store_id=store_id, home=home)
