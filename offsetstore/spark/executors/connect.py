"""The store in another process, Spark's Python workers: how they get its password, and metadata for code in tasks.

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
from dataclasses import dataclass, field
from typing import Any, Final, Self
from weakref import WeakSet

from cryptography.fernet import Fernet
from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession

from offsetstore.errors import ConfigurationError
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import Token, TopicPartition
from offsetstore.postgres.database import DatabaseAddress, PostgresDatabase, Secrets, secrets_of
from offsetstore.postgres.url import VARIABLE, connection_parameters
from offsetstore.protocol.metadata import Formats, format_of
from offsetstore.protocol.retries import Retries, Timeouts
from offsetstore.store.claim import Claim
from offsetstore.store.notes import read_own
from offsetstore.store.sessions import Connected, read

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
        if _KEY not in os.environ:
            raise ConfigurationError(
                "this Python worker can't decrypt the database's password",
                found=f"no {_KEY}",
                expected="a function that is also created inside sending_password(...)",
            )
        return json.loads(Fernet(os.environ[_KEY]).decrypt(sent))
    password = os.environ.get(PASSWORD_VARIABLE)
    if not password and os.environ.get(VARIABLE):
        password = connection_parameters(None).get("password")
    return {"password": password} if password else {}


_claims: Final[WeakSet[Claim]] = WeakSet()


@dataclass(frozen=True, slots=True)
class MetadataFinder:
    """Reads the metadata of a claim's partitions; made by `metadata_finder`, and can be pickled."""

    store: ExecutorStore
    group: str
    token: Token
    formats: Formats

    def __call__(self, topic: str, partition: int) -> object:
        """The partition's metadata, ``None`` if there is none; one query for each partition in each of Spark's tasks.

        :raises StaleClaim: another claim has taken over, or the group was reset or renamed.
        :raises MetadataError: the deserializer fails.
        :raises StoreUnavailable: no connection.
        """
        task: Any = TaskContext.get()
        key = (self.group, self.token, topic, partition)
        if task is None:
            return self._read(topic, partition)
        if _reads.task != task.taskAttemptId():
            _reads.task, _reads.values = task.taskAttemptId(), {}
        if key not in _reads.values:
            _reads.values[key] = self._read(topic, partition)
        return _reads.values[key]

    def _read(self, topic: str, partition: int) -> object:
        database = self.store.connect().database
        texts = read(database, lambda session: read_own(session, self.group, self.token, topic, partition))
        return format_of(self.formats, topic).load(texts.get(TopicPartition(topic, partition)))


@dataclass
class _TaskReads:
    """What the current task has read: a function may be called for each of a million rows."""

    task: int | None = None
    values: dict[object, object] = field(default_factory=dict[object, object])


_reads: Final = _TaskReads()


def metadata_finder(claim: Claim) -> MetadataFinder:
    """Make a function of topic and partition for a transform's own functions, which executors run.

    Make it after the Spark session and before the query starts: the sink then sends the database's password to the
    query's tasks.

    :raises ConfigurationError: executors can't connect to the claim's store.
    """
    context: Any = SparkContext._active_spark_context  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    if context is not None:
        create_key(context)  # only functions that are created after this have it
    _claims.add(claim)
    return MetadataFinder(ExecutorStore.of(claim), claim.group, claim.token, claim.formats)


def has_finder(claim: Claim) -> bool:
    """Whether tasks of the claim may read metadata."""
    return claim in _claims
