"""Facts about the store on PostgreSQL: the statements, and what `StoreFactsSession` says of them."""

# ruff: noqa: D102 - the Protocol says what the methods do

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from offsetstore.errors import MissingPrivilege, OffsetStoreError, SchemaNotAtHead
from offsetstore.postgres import statements as sql
from offsetstore.postgres.errors import needing, printing, translated
from offsetstore.postgres.grants import needed_columns
from offsetstore.postgres.schema import quoted
from offsetstore.postgres.together import Result
from offsetstore.protocol.store_facts import StoreIdentity


class StoreFactsStatements:
    """See the module. `PostgresSession` runs the statements."""

    place: str
    together: Callable[..., list[Result]]
    run: Callable[..., int]
    rows: Callable[..., list[Any]]

    @property
    def connection(self) -> Connection: ...

    def expect_grants(self) -> None:
        tables, needed, columns = zip(*needed_columns(), strict=True)
        with translated():
            missing = self.rows(
                sql.MISSING_GRANTS, place=self.place, tables=[*tables], privileges=[*needed], columns=[*columns]
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
                _, found, _ = self.together(sql.SAVE_IDENTITY, sql.IDENTITY, sql.KEEP_IDENTITY)
        except OffsetStoreError:  # whatever it is: a service may lack the function
            with translated():
                _, found = self.together(sql.LEAVE_IDENTITY, sql.IDENTITY_ALONE)
        if not found.rows:
            raise SchemaNotAtHead(
                "the table store_identity is empty, so this store has no id",
                next_step="Restore its row, which offsetstore's migration wrote.",
            )
        [row] = found.rows
        return StoreIdentity(row.store_id, row.home, row.here)

    def lock_identity(self) -> StoreIdentity:
        with needing("change which store this is"):
            self.run(sql.LOCK_CLAIMS)
        return self.identity()

    def set_identity(self, store_id: UUID, home: str | None) -> None:
        with needing("change which store this is"):
            self.run(sql.LOCK_CLAIMS)
            self.run(sql.SET_IDENTITY, store_id=store_id, home=home)
