"""The store in Spark's Python workers, and how they come by its password.

It travels apart from the pickled function, as a local property of the job. Spark writes those into its event log, so it
is sealed; the key is in the environment that PySpark sends with a function, which is written nowhere. The password is
not put there itself: each new environment leaves a process on every executor, and with ``credentials=`` it changes.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from cryptography.fernet import Fernet
from pyspark import TaskContext

from offsetstore.errors import ConfigurationError
from offsetstore.postgres.url import VARIABLE, connection_parameters
from offsetstore.store.address import StoreAddress, secrets_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession

    from offsetstore.postgres.address import Secrets
    from offsetstore.store.sessions import Connected
    from offsetstore.store.store import OffsetStore

PASSWORD_VARIABLE: Final = "OFFSETSTORE_PASSWORD"  # noqa: S105 - its name
"""In an executor's environment: the password, where the driver has none to send."""

_PROPERTY: Final = "offsetstore.password"
_KEY: Final = "OFFSETSTORE_EXECUTOR_SECRET"


@dataclass(frozen=True, slots=True)
class ExecutorStore:
    """A store as a pickled function may hold it: where it is, without its password.

    Made on the driver with `of`; `connect` is for the Python worker.
    """

    address: StoreAddress

    @classmethod
    def of(cls, store: Connected) -> Self:
        """Describe the driver's store, or that of its claim.

        :raises ConfigurationError: its connections are made by code that executors do not have.
        """
        return cls(StoreAddress.of(store))

    def connect(self) -> OffsetStore:
        """Return the worker's store, the same one for all its tasks: whoever gets it does not close it.

        It holds at most one connection, which is checked before each transaction. It is closed when another store is
        asked for, and with the worker, which Spark ends when none of its tasks came for a minute. It asks nothing of
        the database until the first transaction; that the tables are there, the driver has seen.
        """
        mine = _workers.get(os.getpid())
        if mine is None or mine.described != self:
            if mine is not None:
                mine.store.close()
            mine = _workers[os.getpid()] = _Worker(self)
        mine.secrets = _secrets()
        return mine.store


class _Worker:
    """What one process has open. ``secrets`` are those of its present task, should it have to connect."""

    def __init__(self, described: ExecutorStore) -> None:
        self.described = described
        self.secrets: Secrets = {}
        self.store = described.address.connect(lambda: self.secrets)


# By process: a child that was forked finds nothing, and leaves alone what is its parent's.
_workers: dict[int, _Worker] = {}


@contextmanager
def sending_password(session: SparkSession, store: Connected) -> Generator[None]:
    """Let jobs `connect` whose function is made, and which are started, by this thread inside of the block.

    They are sent the password of ``store``: that of the URL, of the engine, or of ``credentials=``, which is asked anew
    for each block. Where the store has none of its own, executors look into their environment (OFFSETSTORE_PASSWORD,
    else the password in OFFSETSTORE_URL), and otherwise do as libpq does (PGPASSWORD, PGPASSFILE).

    :raises ConfigurationError: see `ExecutorStore.of`.
    :raises StoreUnavailable: the credentials could not be had.
    """
    secrets = secrets_of(store)
    if not secrets:
        yield
        return
    context = session.sparkContext
    key = context.environment.setdefault(_KEY, Fernet.generate_key().decode())
    before = context.getLocalProperty(_PROPERTY)
    context.setLocalProperty(_PROPERTY, Fernet(key).encrypt(json.dumps(secrets).encode()).decode())
    try:
        yield
    finally:
        restored: Any = before  # None takes it away
        context.setLocalProperty(_PROPERTY, restored)


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
        "the database's password was sent, and this Python worker can't read it",
        found=f"no {_KEY}",
        expected="a function that is made inside of sending_password(...), too",
    )
