"""Connections to PostgreSQL: where sessions come from, and what is asked beside them."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from offsetstore.errors import ConfigurationError, SchemaMissing, SchemaNotAtHead, StoreUnavailable
from offsetstore.offsets import TopicPartition
from offsetstore.store import statements as sql
from offsetstore.store.postgres import PostgresSession
from offsetstore.store.schema import HEAD, VERSION_TABLE

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from sqlalchemy import Connection, Engine, TextClause

    from offsetstore.store.session import Session

_log = logging.getLogger(__name__)


class PostgresDatabase:
    """One engine and one schema. ``idle_timeout``: seconds after which the server ends an idle open transaction."""

    def __init__(self, engine: Engine, *, schema: str | None, idle_timeout: float, owned: bool) -> None:
        self.engine = engine
        quote = engine.dialect.identifier_preparer.quote_schema
        self._schema = f"{quote(schema)}." if schema else ""
        self._idle_timeout = idle_timeout
        self._owned = owned

    def begin(self, *, name: str, lock_timeout: float | None = None) -> PostgresSession:
        connection = self._connect()
        settings = {
            "name": name,
            "lock_timeout": f"{0 if lock_timeout is None else max(1, round(lock_timeout * 1000))}ms",
            "idle_timeout": f"{max(1, round(self._idle_timeout * 1000))}ms",
        }
        try:
            return PostgresSession(connection, self._schema, settings)
        except DBAPIError as error:
            connection.invalidate()
            connection.close()
            raise _unavailable(error) from error

    def _connect(self) -> Connection:
        try:
            connection = self.engine.connect()
            return connection.execution_options(isolation_level="READ COMMITTED")
        except SQLAlchemyError as error:
            raise _unavailable(error) from error

    @contextmanager
    def unblocking(self, session: Session, *, after: float, older_than: str) -> Generator[None]:
        assert isinstance(session, PostgresSession)
        done = threading.Event()
        watcher = threading.Thread(
            target=self._terminate_blockers,
            args=(session.pid, done, after, older_than),
            name="offsetstore-takeover",
            daemon=True,
        )
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def _terminate_blockers(self, pid: int, done: threading.Event, after: float, prefix: str) -> None:
        wait = after
        while not done.wait(wait):
            wait = 0.5
            try:
                with self.engine.connect() as connection:
                    for row in connection.execute(text(sql.TERMINATE_BLOCKERS), {"pid": pid, "prefix": prefix}):
                        _log.warning("terminated %s (pid %d), which held the group's locks", *row[1::-1])
                    connection.commit()
            except SQLAlchemyError as error:
                _log.warning("could not terminate what blocks the claim: %s", type(error).__name__)

    def lock_holder(self, group: str, partitions: Collection[TopicPartition]) -> tuple[TopicPartition, str] | None:
        asked = {"topics": [tp.topic for tp in partitions], "partitions": [tp.partition for tp in partitions]}
        try:
            with self.engine.connect() as connection:
                row = connection.execute(self._text(sql.LOCK_HOLDER), {"group": group, **asked}).first()
        except SQLAlchemyError:
            return None
        if row is None:
            return None
        who = f"held by pid {row.pid} ({row.application_name or 'no application_name'}, {row.state})"
        return TopicPartition(row.topic, row.partition), who

    def check_schema(self) -> None:
        versions = f"{self._schema}{VERSION_TABLE}"
        with self._connect() as connection:
            if not connection.execute(text(sql.TABLES), {"versions": versions}).scalar_one():
                what = "the database has no offsetstore tables"
                raise SchemaMissing(what, found=f"no table {versions}", expected=f"revision {HEAD}")
            found = connection.execute(self._text(sql.REVISION)).scalar()
        if found != HEAD:
            what = "the offsetstore tables are of another revision"
            raise SchemaNotAtHead(what, found=f"revision {found}", expected=f"revision {HEAD}")

    def close(self) -> None:
        if self._owned:
            self.engine.dispose()

    def _text(self, statement: str) -> TextClause:
        return text(statement.replace("{s}", self._schema))


def _unavailable(error: SQLAlchemyError) -> StoreUnavailable | ConfigurationError:
    words = str(getattr(error, "orig", None) or error).strip().splitlines()
    what = "the database can't be reached"
    return StoreUnavailable(what, found=words[0] if words else type(error).__name__)
