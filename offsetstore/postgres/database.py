"""Connections to PostgreSQL: begins sessions, and runs the queries beside them.

`DatabaseAddress` tells another process how to connect: it pickles, and holds no secret.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, Final, Self, TypeAlias, cast
from uuid import UUID

from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, Engine, TextClause, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool

from offsetstore.errors import (
    ConfigurationError,
    ConnectionLost,
    LockTimeout,
    MissingPrivilege,
    OffsetStoreError,
    SchemaMissing,
    SchemaNotAtHead,
    StoreUnavailable,
)
from offsetstore.offsets import TopicPartition
from offsetstore.postgres import errors
from offsetstore.postgres import statements as sql
from offsetstore.postgres.errors import DATABASE_ERRORS
from offsetstore.postgres.outbox import Listener
from offsetstore.postgres.schema import HEAD, VERSION_TABLE, quoted
from offsetstore.postgres.session import PostgresSession
from offsetstore.postgres.url import SCHEMA_VARIABLE
from offsetstore.protocol.database import Session
from offsetstore.protocol.store_facts import StoreIdentity, is_earlier, runs_on
from offsetstore.runtime.background import Background
from offsetstore.runtime.functions import without_frames
from offsetstore.runtime.process import expect_own, is_own, keep_from_children
from offsetstore.text import command, schema_option

_log = logging.getLogger(__name__)
_WITHOUT_OPTIONS = (
    "PgBouncer supports neither `options` in a URL nor JDBC's currentSchema: name the schema with schema= (--schema), "
    "and make settings with ALTER ROLE ... SET."
)

Secrets: TypeAlias = "dict[str, str]"
"""Libpq's secret parameters, by their names."""

# These travel sealed, apart from the address: Spark may put a pickled function on disk (decision 0014).
_SECRET: Final = frozenset({"oauth_client_secret", "password", "scram_client_key", "scram_server_key", "sslpassword"})
# SQLAlchemy's adapters, which every engine adds itself.
_ITS_OWN: Final = frozenset({"context"})
# The listener stays on the application's engine, so it must do nothing for the engine's other connections.
_capturing: ContextVar[bool] = ContextVar("capturing", default=False)


class PostgresDatabase:
    """One engine and one schema. ``idle_timeout``: seconds after which the server ends an idle open transaction."""

    def __init__(
        self, engine: Engine, *, schema: str | None, idle_timeout: float, owned: bool, dedicated: Engine | None = None
    ) -> None:
        self.engine = engine
        if not engine.hide_parameters:
            # A view has the engine's pool and listeners, and leaves the application's setting alone (decision 0025).
            self.engine = engine.execution_options()
            self.engine.hide_parameters = True
        # Heartbeats and the termination of blockers must not wait for a connection of the job's pool.
        self._dedicated = dedicated or Engine(engine.pool.recreate(), engine.dialect, engine.url, hide_parameters=True)
        self._pid = os.getpid()
        self._set_place(schema)
        self._idle_timeout = idle_timeout
        self._owned = owned
        self._identity: StoreIdentity | None = None
        self.revision: str | None = None

    def _set_place(self, schema: str | None) -> None:
        self.schema = schema
        self._place = f"{quoted(schema)}." if schema else ""
        # In a statement's text a colon would begin a bind parameter.
        self._schema = self._place.replace(":", r"\:")

    def begin(self, *, name: str, lock_timeout: float | None = None, dedicated: bool = False) -> PostgresSession:
        engine = self._dedicated if dedicated else self.engine
        # As PostgreSQL takes them: 0 for none, at most 31 bits.
        lock, idle = (
            0 if seconds is None else min(2**31 - 1, max(1, round(seconds * 1000)))
            for seconds in (lock_timeout, self._idle_timeout)
        )
        settings = {"name": name, "lock_timeout": f"{lock}ms", "idle_timeout": f"{idle}ms"}
        return PostgresSession(lambda: self._connect(engine, begins=True), self._place, settings)

    def _connect(self, engine: Engine, *, begins: bool = False) -> Connection:
        """Take a connection.

        :param begins: whether to begin SQLAlchemy's transaction, too. That sends nothing, except by the engine's hooks.
        """
        # A forked child would send its SQL into the parent's transaction (decision 0053).
        expect_own(self._pid)
        try:
            connection = engine.connect()
            try:
                # If libpq knows already that it is closed, the next use takes another connection.
                if cast("Any", connection.connection.driver_connection).closed:
                    connection.invalidate()
                driver = cast("Any", connection.connection.driver_connection)
                keep_from_children(driver)
                # Behind PgBouncer the next transaction may run on another server connection, without the prepared
                # statement. `make_engine` sets this too; an application's own engine may not (decision 0013).
                driver.prepare_threshold = None
                connection = connection.execution_options(isolation_level="READ COMMITTED")
            except BaseException:
                connection.close()
                raise
        except (*DATABASE_ERRORS, OSError) as error:  # OSError: this process may open no more files
            raise _unreachable(error) from error
        if begins:
            try:
                connection.begin()
            except DATABASE_ERRORS as error:
                connection.invalidate()
                connection.close()
                raise _unreachable(error) from error
        return connection

    @contextmanager
    def _asking(self, engine: Engine) -> Generator[Connection]:
        """A connection for queries outside of sessions, whose texts may have any character.

        :raises ConfigurationError: the database can't store every character.
        """
        with self._connect(engine) as connection:
            check_encoding(connection)
            yield connection

    def translate(self, error: BaseException) -> BaseException:
        ours = errors.translate(error)
        if isinstance(ours, LockTimeout) and ours.table is not None:
            holder = self._ask(text(sql.TABLE_HOLDER), table=ours.table)
            if holder is not None:
                ours.name_holder(f"{ours.table} held by {described(holder)}")
        if isinstance(ours, MissingPrivilege) and ours.grants is not None and ours.grants[1] == errors.ROLE:
            option, role, *more = ours.grants
            if (asked := self._ask(text("SELECT current_user"))) is not None:
                [role] = asked
            ours.granted_by(option, role, *more, *schema_option(self.schema))
        return ours

    def _ask(self, statement: TextClause, **values: object) -> Any:
        """The first row; ``None`` if there is none, or if the database can't be asked."""
        try:
            with self._asking(self._dedicated) as connection:
                return connection.execute(statement, values).first()
        except (*DATABASE_ERRORS, OffsetStoreError) as error:
            without_frames(error)
            return None

    @contextmanager
    def unblocking(self, session: Session, *, after: float, older_than: str) -> Generator[None]:
        assert isinstance(session, PostgresSession)
        # Ask the server: behind PgBouncer the client library does not know the backend's pid.
        with errors.translated():
            pid, _ = session.connection.execute(text(sql.UNBLOCKED)).one()
        waits = chain([after], repeat(0.5))
        # A thread with a connection of its own, since this session can't ask while it waits for the lock.
        watcher = Background(
            "offsetstore-takeover", lambda: self._terminate_blockers(pid, older_than), lambda: next(waits)
        )
        watcher.start()
        try:
            yield
        finally:
            watcher.stop()

    def _terminate_blockers(self, pid: int, prefix: str) -> bool:
        try:
            with self._asking(self._dedicated) as connection:
                # Only transactions of this group, never a person's or another application's (decision 0006).
                for row in connection.execute(text(sql.TERMINATE_BLOCKERS), {"pid": pid, "prefix": prefix}):
                    _log.warning("terminated %s (pid %d), which held the group's locks", *row[1::-1])
                connection.commit()
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed
            kind = type(without_frames(error)).__name__
            _log.warning("could not terminate the connections that block the claim: %s", kind)
        return True

    def lock_holder(self, group: str, partitions: Collection[TopicPartition]) -> tuple[TopicPartition, str] | None:
        asked = {"topics": [tp.topic for tp in partitions], "partitions": [tp.partition for tp in partitions]}
        row = self._ask(self._text(sql.LOCK_HOLDER), group=group, **asked)
        if row is None:
            return None
        return TopicPartition(row.topic, row.partition), f"held by {described(row)}"

    def listener(self) -> Listener:
        """A connection that hears when rows of the outbox are committed.

        :raises StoreUnavailable, ConnectionLost: no connection.
        """
        return Listener(self._connect(self._dedicated), self._place)

    def check_schema(self) -> None:
        versions = f"{self._place}{VERSION_TABLE}"
        with self._asking(self.engine) as connection:
            try:
                schema = connection.execute(text(sql.SCHEMA_OF), {"table": versions}).scalar()
                if schema is not None:
                    # Qualify names from now on: SET search_path in user code must not lead us to other tables.
                    self._set_place(schema)
                found = connection.execute(self._text(sql.REVISION)).scalar() if schema else None
            except DATABASE_ERRORS as error:
                raise _unreachable(error) from error
            others = [] if found else schemas_with_tables(connection)
        # None also after a downgrade, which leaves the version table empty.
        if found is None:
            raise missing(versions, schema or self.schema, others)
        expect_runs_on(found, schema=schema)
        self.revision = found
        session = self.begin(name="offsetstore:connect")
        try:
            self._identity = session.identity()
        except DATABASE_ERRORS as error:
            raise _unreachable(error) from error
        finally:
            session.rollback()

    def identity(self) -> StoreIdentity:
        if self._identity is None:
            self.check_schema()
        assert self._identity is not None
        return self._identity

    def store_id(self) -> UUID:
        return self.identity().store_id

    def close(self) -> None:
        # Closing inherited connections in a forked child would say goodbye for the parent (decision 0053).
        if not is_own(self._pid):
            return
        self._dedicated.dispose()
        if self._owned:
            self.engine.dispose()

    def _text(self, statement: str) -> TextClause:
        return text(statement.replace("{s}", self._schema))


def schemas_with_tables(connection: Connection) -> list[str]:
    """The schemas of the database that have our tables.

    :raises StoreUnavailable: the query failed.
    """
    try:
        return [*connection.execute(text(sql.SCHEMAS_WITH_TABLES)).scalars()]
    except DATABASE_ERRORS as error:
        raise _unreachable(error) from error


def missing(versions: str, schema: str | None, others: list[str]) -> SchemaMissing:
    """Make the error for a database without our tables.

    :param versions: the table of their revision, as it was looked for.
    :param schema: where they were looked for, ``None`` for the search path.
    :param others: schemas that have such tables.
    """
    found = f"no revision in {versions}"
    if not others:
        return SchemaMissing(
            "the database has no offsetstore tables",
            found=found,
            expected=f"revision {HEAD}",
            next_step=f"Run `{command('migrate', schema=schema)}`.",
        )
    first = shlex.quote(others[0])
    return SchemaMissing(
        "the offsetstore tables are in another schema",
        found=f"{found}, but tables in {', '.join(map(quoted, others))}",
        next_step=f"Name it: schema={others[0]!r} in Python, --schema {first} for a command, or "
        f"{SCHEMA_VARIABLE}={first} for both.",
    )


def expect_runs_on(tables: str, *, schema: str | None) -> None:
    """Expect tables of a revision that this version runs on.

    :param schema: of the tables.
    :raises SchemaNotAtHead: their revision is earlier, or later and no longer has what this version needs.
    """
    # A later revision of the same series only adds to the tables, so that a deploy can migrate first (decision 0056).
    if runs_on(HEAD, tables):
        return
    what, next_step = "the offsetstore tables are at an earlier revision", f"Run `{command('migrate', schema=schema)}`."
    if not is_earlier(tables, HEAD):
        what = "a later version of offsetstore migrated the tables, and this one does not run on them"
        next_step = "Update offsetstore."
    raise SchemaNotAtHead(what, found=f"revision {tables}", expected=f"revision {HEAD}", next_step=next_step)


def check_encoding(connection: Connection) -> None:
    """Use UTF-8 until the end of the transaction, and expect the database to use it (decision 0053).

    :raises ConfigurationError: the database has another encoding.
    :raises StoreUnavailable: the query failed.
    """
    try:
        found = connection.execute(text(sql.ENCODINGS)).scalar_one()
    except DATABASE_ERRORS as error:
        raise _unreachable(error) from error
    if found != "UTF8":
        raise ConfigurationError(
            f"the database's encoding is {found}, which can't store every text that a record may have",
            found=found,
            expected="UTF8",
            next_step="Create a database with ENCODING 'UTF8' TEMPLATE template0, and move the tables there.",
        )


def _unreachable(error: Exception) -> OffsetStoreError:
    inner = errors.driver_error(error)
    if inner is not None and inner.sqlstate is not None:
        ours = errors.of_database(error)
        # The server was reached, and its own error says more.
        if ours is not None and not isinstance(ours, ConnectionLost):
            return ours
    # libpq writes separate lines for each host.
    lines = [line.strip() for line in str(getattr(error, "orig", None) or error).splitlines()]
    found = " ".join(filter(None, lines)) or type(error).__name__
    return StoreUnavailable(
        "the database can't be reached, or refused the request",
        found=found,
        expected="a server that answers, and knows the role, its password and the database",
        next_step=_WITHOUT_OPTIONS if "startup parameter" in found else None,
    )


def described(holder: Any) -> str:
    return f"pid {holder.pid} ({holder.application_name or 'no application_name'}, {holder.state})"


class _Captured(Exception):
    """Not an error: it carries the parameters out of SQLAlchemy before it connects."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        # Without arguments, so that a log of it shows no password.
        super().__init__()
        self.parameters = parameters


@dataclass(frozen=True, slots=True)
class DatabaseAddress:
    """Where a database is, and in which schema our tables are.

    ``parameters`` are the driver's, without `Secrets`. Each process adds those of its own environment (``PGPASSWORD``,
    ``PGPASSFILE``, ``PGSSLROOTCERT``).
    """

    parameters: tuple[tuple[str, str | int | None], ...]
    schema: str | None

    @classmethod
    def of(cls, database: PostgresDatabase) -> Self:
        """Describe a database, with the schema in which our tables were found, without connecting.

        :raises ConfigurationError: its connections are made by code that can't be sent elsewhere.
        """
        plain = {name: value for name, value in _parameters(database.engine).items() if name not in _SECRET}
        return cls(tuple(sorted(plain.items())), database.schema)

    def connect(self, secrets: Callable[[], Mapping[str, str]], *, idle_timeout: float) -> PostgresDatabase:
        """Make a database with at most one connection, opened by the first transaction and checked before each.

        :param secrets: called for each new connection.
        :param idle_timeout: as for `PostgresDatabase`.
        """

        def add_secrets(_dialect: object, _record: object, _arguments: object, parameters: dict[str, Any]) -> None:
            parameters.update(secrets())

        parameters = {**dict(self.parameters), "client_encoding": "UTF8"}  # as `make_engine`
        connect: dict[str, Any] = {"connect_args": parameters, "hide_parameters": True}
        url = URL.create("postgresql+psycopg")
        engine = create_engine(url, pool_size=1, max_overflow=0, **connect)
        dedicated = create_engine(url, poolclass=NullPool, **connect)
        for each in (engine, dedicated):
            event.listen(each, "do_connect", add_secrets)
        return PostgresDatabase(engine, schema=self.schema, idle_timeout=idle_timeout, owned=True, dedicated=dedicated)


def secrets_of(database: PostgresDatabase) -> Secrets:
    """The secrets for a new connection now; calls ``credentials=`` if it is set.

    :raises ConfigurationError: see `DatabaseAddress.of`.
    :raises StoreUnavailable: ``credentials=`` failed.
    """
    parameters = _parameters(database.engine)
    return {name: str(value) for name, value in parameters.items() if name in _SECRET and value}


def _parameters(engine: Engine) -> dict[str, Any]:
    """The parameters that the engine would pass to psycopg, with ``connect_args`` and what listeners add (tokens)."""
    if not event.contains(engine, "do_connect", _capture):
        event.listen(engine, "do_connect", _capture)
    # A new pool has no connection yet, so it makes one and calls the listeners.
    pool = engine.pool.recreate()
    token = _capturing.set(True)
    try:
        pool.connect().close()
    except _Captured as captured:
        return {name: _sendable(name, value) for name, value in captured.parameters.items() if name not in _ITS_OWN}
    finally:
        _capturing.reset(token)
        pool.dispose()
    raise ConfigurationError(
        "the engine's connections are made by a function, which executors do not have",
        found="create_engine(..., creator=...), or a do_connect listener that returns a connection",
        expected="an engine that is made from a URL",
        next_step="Give OffsetStore.connect the URL, and credentials= for passwords that change; or write from the "
        'driver: atomicity="batch".',
    )


def _capture(_dialect: object, _record: object, arguments: list[Any], parameters: dict[str, Any]) -> None:
    if _capturing.get():
        conninfo = conninfo_to_dict(arguments[0]) if arguments and arguments[0] else {}
        named = conninfo_to_dict(parameters.pop("conninfo", None) or "")
        raise _Captured({**conninfo, **named, **parameters})


def _sendable(name: str, value: object) -> str | int | None:
    if value is None or isinstance(value, (str, int)):
        return value
    raise ConfigurationError(
        f"the engine's connect_args have {name}, which can't be sent to executors",
        found=type(value).__name__,
        expected="text or a number",
    )
