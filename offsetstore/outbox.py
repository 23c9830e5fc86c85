"""Puts records into the outbox from any application, in a transaction of its own.

No claim, no consumer group and no Kafka: a relay sends the records as it sends those of jobs (decision 0107).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from inspect import iscoroutinefunction
from typing import Any, Final, Protocol, TypeAlias, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection
from sqlalchemy.orm import Session, scoped_session

from offsetstore.errors import ConfigurationError, MissingPrivilege, SchemaMissing, SinkError
from offsetstore.postgres import statements as sql
from offsetstore.postgres.database import missing
from offsetstore.postgres.errors import translated
from offsetstore.postgres.outbox import OutboxStatements
from offsetstore.postgres.schema import VERSION_TABLE, quoted
from offsetstore.postgres.statements import StatementResult, for_psycopg
from offsetstore.protocol.arguments import check_new_name, check_text
from offsetstore.protocol.outbox import OutboxRecord, outbox_records
from offsetstore.text import command, schema_option

__all__ = ["OutboxRecord", "put"]


class DjangoConnection(Protocol):
    """What `put` uses of ``django.db.connection``."""

    connection: Any
    in_atomic_block: bool


AnyConnection: TypeAlias = (
    "psycopg.Connection[Any] | psycopg.Cursor[Any] | Connection | Session | scoped_session[Any] | DjangoConnection"
)

_CONNECTIONS: Final = "a connection or a session of psycopg 3, SQLAlchemy (postgresql+psycopg://) or Django"

_TEXT: Final = re.compile(r"(%\(\w+\))s")

# Read from the catalog, which needs no privilege. `outbox` may be the name of a table of the application's, so the
# search path finds our schema by the table of revisions, as it does for a store.
WHERE: Final = """
SELECT CAST(current_user AS text) AS role, CAST(n.nspname AS text) AS schema
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = :table AND (n.nspname = CAST(:schema AS text)
                              OR CAST(:schema AS text) IS NULL AND c.oid = to_regclass(:table))
"""


def put(
    connection: AnyConnection,
    records: Iterable[OutboxRecord | tuple[Any, ...]],
    *,
    source: str,
    schema: str | None = None,
) -> int:
    """Put records into the outbox in the connection's open transaction, in order; return how many.

    They become visible with the application's own rows, or never; nothing is committed or rolled back here. After an
    error of the database, the transaction can only be rolled back. It can't be prepared for a two-phase commit.

    :param connection: in a transaction: psycopg's connection or cursor, SQLAlchemy's connection or session, or
        ``django.db.connection``. Of an async session: ``await session.run_sync(put, records, source=...)``.
    :param records: `OutboxRecord` or such tuples, as for `Work.produce_all`.
    :param source: the application's name, which no consumer group has. Operators find its rows by it.
    :param schema: of offsetstore's tables; ``None``: the search path finds it.
    :raises ConfigurationError: an argument is invalid, or the connection is in no transaction.
    :raises RowsRefused: a record can't be one in Kafka; see `Work.produce`.
    :raises MissingPrivilege: the role may not; see ``offsetstore grants --outbox-role``.
    :raises SchemaMissing: the tables are not there.
    :raises SinkError: a trigger has left records out.
    :raises OffsetStoreError: another error of the database.
    """
    check_new_name("source", source)
    if not source:
        raise ConfigurationError("source must be a name", found=repr(source), expected="the application's name")
    if schema is not None:
        check_text("schema", schema)
    with translated():
        outbox = _Outbox(connection)
    checked = outbox_records(records)
    if not checked:
        return 0
    role = outbox.find(schema)
    try:
        written = outbox.write_outbox(source, checked)
    except MissingPrivilege as error:
        raise error.granted_by("--outbox-role", role, *schema_option(outbox.schema)) from error.__cause__
    except SchemaMissing as error:
        # The tables are older than the outbox.
        step = f"Run `{command('migrate', schema=outbox.schema)}`."
        raise SchemaMissing(error.what, found=error.found, next_step=step) from error.__cause__
    if written != len(checked):
        raise SinkError(
            "not all records could be put into the outbox: roll the transaction back",
            found=f"{written} records",
            expected=f"{len(checked)}",
            next_step="Look for a trigger or a rule on the table outbox.",
        )
    return written


def _name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


class _Outbox(OutboxStatements):
    """The outbox, seen by a transaction of the application's.

    :raises ConfigurationError: the connection is not supported, or has no open transaction.
    """

    def __init__(self, connection: Any) -> None:
        self.place, self.schema = "", ""
        given, begin = _name(connection), "with connection.transaction(), or a connection without autocommit"
        if iscoroutinefunction(getattr(connection, "execute", None)):
            raise ConfigurationError(
                "put can't wait for an async connection",
                found=given,
                expected=_CONNECTIONS,
                next_step="Write `await session.run_sync(put, records, source=...)`, which SQLAlchemy's AsyncSession "
                "and AsyncConnection have; psycopg's own async connections have nothing like it.",
            )
        driver = connection
        if isinstance(connection, (Session, scoped_session)):
            driver = connection = cast("Session", connection).connection()
        if isinstance(connection, Connection):
            driver = connection.connection.driver_connection
            begin = "a connection whose isolation level is not AUTOCOMMIT"
        elif hasattr(connection, "in_atomic_block"):
            # Not connected yet: then no transaction is open either.
            driver, begin = connection.connection, "with transaction.atomic()"
        elif isinstance(connection, psycopg.Cursor):
            driver = connection.connection
        if connection is None or not isinstance(driver, (psycopg.Connection, psycopg.AsyncConnection, type(None))):
            found = given if driver is connection else f"{given} on {_name(cast('object', driver))}"
            raise ConfigurationError("put can't use this connection", found=found, expected=_CONNECTIONS)
        # The server would commit the record by itself, before or without the application's rows.
        if driver is None or (driver.autocommit and driver.info.transaction_status == TransactionStatus.IDLE):
            raise ConfigurationError(
                "the connection is in no transaction, so the record would be committed apart from your own rows",
                found=f"{given}, in autocommit mode",
                expected="an open transaction, which also writes your rows",
                next_step=f"Use {begin}.",
            )
        # By SQLAlchemy's own way where there is one: it begins its transaction, and an async one can wait.
        self._execute: Callable[..., Any] = (
            connection.exec_driver_sql
            if isinstance(connection, Connection)
            else psycopg.Cursor(cast("psycopg.Connection[Any]", driver), row_factory=namedtuple_row).execute
        )

    def find(self, schema: str | None) -> str:
        """Find the tables; return the role's name.

        :raises SchemaMissing: they are not there.
        """
        if (found := self.first(WHERE, schema=schema, table=VERSION_TABLE)) is None:
            place = "" if schema is None else f"{quoted(schema)}."
            others = [row.nspname for row in self.rows(sql.SCHEMAS_WITH_TABLES)]
            raise missing(f"{place}{VERSION_TABLE}", schema, others)
        self.schema, self.place = found.schema, f"{quoted(found.schema)}."
        return found.role

    def together(self, *statements: str, **values: object) -> list[StatementResult]:
        return [self._send(statement, **values) for statement in statements]

    def _send(self, statement: str, **values: object) -> StatementResult:
        # As binary parameters, since the session may read arrays, or escapes, in another way (decision 0053).
        result = self._execute(_TEXT.sub(r"\1b", for_psycopg(statement, self.place)), values)
        return StatementResult(result.fetchall(), result.rowcount)
