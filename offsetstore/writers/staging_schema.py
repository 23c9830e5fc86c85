"""The schema of the staging tables: which tables it has, whose they are, and which writers can use it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, Self, TypeGuard, cast, runtime_checkable
from uuid import UUID, uuid4

import pyarrow as pa
from psycopg import sql
from sqlalchemy import Connection

from offsetstore.errors import SchemaError, SchemaMissing
from offsetstore.offsets import Token
from offsetstore.postgres.schema import STAGING_SCHEMA, quoted
from offsetstore.protocol.ports import Writer
from offsetstore.writers.arrow.copying import driver_connection
from offsetstore.writers.optional import goes_with_write
from offsetstore.writers.staging import Staged, Staging

_SCHEMA_STATE = """
SELECT n.oid IS NOT NULL,
    pg_catalog.has_schema_privilege(n.oid, 'CREATE') AND pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
    current_user
FROM (VALUES (1)) AS one LEFT JOIN pg_catalog.pg_namespace AS n ON n.nspname = %s
"""
# Only tables that the role may drop: several jobs of one database share the schema, each with a role of its own.
_TABLES = """
SELECT c.relname
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r'
    AND (pg_catalog.pg_has_role(c.relowner, 'USAGE') OR pg_catalog.pg_has_role(n.nspowner, 'USAGE'))
"""

_DROP = sql.SQL("DROP TABLE IF EXISTS {staging}")


@runtime_checkable
class StagingWriter(Writer, Protocol):
    """A writer whose rows others can copy into a staging table, to be moved later."""

    def create_staging(self, connection: Connection, staging: Staging, schema: pa.Schema) -> None:
        """Create the staging table for rows of this schema.

        :raises ColumnMismatch: as ``check`` does.
        :raises RowsRefused: the database refuses.
        """
        ...

    def stage(self, connection: Connection, staging: Staging, attempt: UUID, batches: Iterable[pa.RecordBatch]) -> int:
        """Copy the rows, as ``write`` takes them, into the table; return how many. The target is not read.

        :raises RowsRefused: a value that the target can't hold.
        :raises StagedRowsLost: the table is gone.
        """
        ...

    def move(self, connection: Connection, staged: Staged) -> int:
        """Write the staged rows; return how many. Neither commits nor rolls back; the rows stay in the table too.

        :raises RowsRefused: a row that the target can't hold.
        :raises StagedRowsLost: the rows are not those that were reported, or the target's column types changed.
        """
        ...


def can_stage(writer: Writer) -> TypeGuard[StagingWriter]:
    """Tell whether moving staged rows does all that the writer's ``write`` does.

    An `Execute` has no SQL of ours to move with, and a subclass that overrides ``write`` may do more in it.
    """
    return isinstance(writer, StagingWriter) and goes_with_write(writer, "move")


@dataclass(frozen=True, slots=True)
class StagingOwner:
    """Names tables so that their owner can be told: a mark of the store, one of the claim, and a unique part.

    :param former: what the names that earlier versions gave to the group's tables began with; its epoch came next.
    """

    store: str
    claim: str
    former: str
    epoch: int

    @classmethod
    def of(cls, store_id: UUID, group: str, token: Token) -> Self:
        """Take the store's id too: two stores of one database share the schema, and may have groups of one name."""
        former = "b" + hashlib.sha256(f"{store_id}:{group}".encode()).hexdigest()[:15]
        return cls(f"c{hashlib.sha256(store_id.bytes).hexdigest()[:16]}", _mark(token.claim_id), former, token.epoch)

    def fresh(self) -> Staging:
        """Make a name that no other table had or will have, shorter than PostgreSQL's 63 bytes."""
        return Staging(f"{self.store}_{self.claim}_{uuid4().hex[:24]}")

    def abandoned(self, connection: Connection, current_claims: Callable[[], Collection[UUID]]) -> list[Staging]:
        """Find the store's tables that no claim can move any more, even if their group was renamed.

        :param current_claims: reads the claims that own a group. It is called after the tables were looked up: a claim
            creates tables only while it owns its group, so a table's claim is either among those read, or stale.
        """
        driver = driver_connection(connection)
        names = [name for (name,) in driver.execute(_TABLES, (STAGING_SCHEMA,))]
        current = {_mark(claim_id) for claim_id in current_claims()}
        ours = re.compile(rf"{self.store}_([0-9a-f]{{16}})_[0-9a-f]{{24}}")
        former = re.compile(rf"{self.former}_(\d+)_[0-9a-f]{{32}}")
        return [
            Staging(name)
            for name in names
            if ((found := ours.fullmatch(name)) and found[1] not in current)
            or ((found := former.fullmatch(name)) and int(found[1]) < self.epoch)
        ]


def _mark(claim_id: UUID) -> str:
    return claim_id.hex[:16]


def check_schema(connection: Connection) -> None:
    """Check that tables can be created in the schema.

    :raises SchemaMissing: there is no such schema.
    :raises SchemaError: the role may not create tables in it.
    """
    row = driver_connection(connection).execute(_SCHEMA_STATE, (STAGING_SCHEMA,)).fetchone()
    there, writable, role = cast("tuple[bool, bool | None, str]", row)
    otherwise = 'or let only the driver write: staging="never"'
    if not there:
        raise SchemaMissing(
            f"the database has no schema {STAGING_SCHEMA}, in which executors stage large batches",
            next_step=f"CREATE SCHEMA {STAGING_SCHEMA} AUTHORIZATION {quoted(role)}; {otherwise}",
        )
    if not writable:
        raise SchemaError(
            f"the role {role} may not create tables in the schema {STAGING_SCHEMA}, in which executors stage "
            "large batches",
            next_step=f"GRANT USAGE, CREATE ON SCHEMA {STAGING_SCHEMA} TO {quoted(role)} (`offsetstore grants`); "
            f"{otherwise}",
        )


def drop(connection: Connection, staging: Staging) -> None:
    """Drop the table, if it is there."""
    driver_connection(connection).execute(_DROP.format(staging=staging.table.identifier))
