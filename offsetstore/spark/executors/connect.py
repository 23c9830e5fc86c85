"""The store in another process, Spark's Python workers, and how they get its password.

The password is sent separately from the pickled function, as a local property of the job. Spark writes these to its
event log, so the password is encrypted; the key is in the environment that PySpark sends with a function and does not
log. The password itself is not put there: each new environment leaves a process on every executor, and with
``credentials=`` the password changes (decision 0014).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

from cryptography.fernet import Fernet
from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession

from offsetstore.errors import ConfigurationError
from offsetstore.offset_store import OffsetStore
from offsetstore.postgres.address import DatabaseAddress, Secrets, secrets_of
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.postgres.url import VARIABLE, connection_parameters
from offsetstore.protocol.retries import Retries, Timeouts
from offsetstore.store.sessions import Connected

PASSWORD_VARIABLE: Final = "OFFSETSTORE_PASSWORD"  # noqa: S105 - its name
"""In an executor's environment: the password, used if the driver sends none."""

_PROPERTY: Final = "offsetstore.password"
_KEY: Final = "OFFSETSTORE_EXECUTOR_SECRET"


@dataclass(frozen=True, slots=True)
class ExecutorStore:
    """A store for another process: its own settings, and how to reach its database, without any secret. It pickles."""

    database: DatabaseAddress
    timeouts: Timeouts
    retries: Retries

    @classmethod
    def of(cls, store: Connected) -> Self:
        """Describe the driver's store, or that of its claim, without connecting to its database.

        :raises ConfigurationError: its connections are made by code that can't be sent elsewhere.
        """
        return cls(DatabaseAddress.of(_database(store)), store.timeouts, store.retries)

    def open(self, secrets: Callable[[], Mapping[str, str]]) -> OffsetStore:
        """Make a store with at most one connection. The original store has already checked the tables.

        :param secrets: called for each new connection.
        """
        database = self.database.connect(secrets, idle_timeout=self.timeouts.idle)
        return OffsetStore(database, timeouts=self.timeouts, retries=self.retries)

    def connect(self) -> OffsetStore:
        """Return the worker's store, the same one for all its tasks; callers must not close it.

        Its connection is checked before each transaction. It is closed when another store is requested, and with the
        worker, which Spark ends after a minute without tasks.
        """
        mine = _workers.get(os.getpid())
        if mine is None or mine.described != self:
            if mine is not None:
                mine.store.close()
            mine = _workers[os.getpid()] = _Worker(self)
        mine.secrets = _secrets()
        return mine.store


class _Worker:
    """The store of one process. ``secrets`` are those of its current task, in case it must connect."""

    def __init__(self, described: ExecutorStore) -> None:
        self.described = described
        self.secrets: Secrets = {}
        self.store = described.open(lambda: self.secrets)


# By process id: a forked child finds no entry, and so does not use its parent's connection.
_workers: dict[int, _Worker] = {}


@contextmanager
def sending_password(session: SparkSession, store: Connected) -> Generator[None]:
    """Let jobs `connect` if this thread creates their function, and starts them, inside the block.

    They are sent the password of ``store``: from the URL, from the engine, or from ``credentials=``, which is called
    again for each block. If the store has none, executors look in their environment (OFFSETSTORE_PASSWORD, else the
    password in OFFSETSTORE_URL), and otherwise do as libpq does (PGPASSWORD, PGPASSFILE).

    :raises ConfigurationError: see `ExecutorStore.of`.
    :raises StoreUnavailable: could not obtain the credentials.
    """
    secrets = secrets_of(_database(store))
    if not secrets:
        yield
        return
    context = session.sparkContext
    key = create_key(context)
    before = context.getLocalProperty(_PROPERTY)
    context.setLocalProperty(_PROPERTY, Fernet(key).encrypt(json.dumps(secrets).encode()).decode())
    try:
        yield
    finally:
        restored: Any = before  # None removes it
        context.setLocalProperty(_PROPERTY, restored)


def create_key(context: SparkContext) -> str:
    """Put a key into the environment that is sent with functions, once; return it."""
    # Spark keeps a Python daemon on each executor for every environment that it has seen (decision 0014).
    return context.environment.setdefault(_KEY, Fernet.generate_key().decode())


def _database(store: Connected) -> PostgresDatabase:
    if isinstance(store.database, PostgresDatabase):
        return store.database
    raise ConfigurationError(
        "this store has no database that another process could connect to",
        found=type(store.database).__name__,
        expected="OffsetStore.connect(...)",
    )


def _secrets() -> Secrets:
    task = TaskContext.get()
    sent = task.getLocalProperty(_PROPERTY) if task is not None else None
    if sent is not None:
        return json.loads(Fernet(_key()).decrypt(sent))
    password = os.environ.get(PASSWORD_VARIABLE)
    if not password and os.environ.get(VARIABLE):
        password = connection_parameters(None).get("password")
    return {"password": password} if password else {}


def _key() -> str:
    if _KEY in os.environ:
        return os.environ[_KEY]
    raise ConfigurationError(
        "this Python worker can't decrypt the database's password",
        found=f"no {_KEY}",
        expected="a function that is also created inside sending_password(...)",
    )
