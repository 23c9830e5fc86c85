"""A store in another process: how to reach its database, as a value that pickles and holds no secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from offsetstore.errors import ConfigurationError
from offsetstore.offset_store import OffsetStore
from offsetstore.postgres import address
from offsetstore.postgres.address import DatabaseAddress, Secrets
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.protocol.retries import Retries, Timeouts
from offsetstore.store.sessions import Connected


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Where a store's database is, and the store's own settings."""

    database: DatabaseAddress
    timeouts: Timeouts
    retries: Retries

    @classmethod
    def of(cls, store: Connected) -> Self:
        """Describe a store, without connecting to its database.

        :raises ConfigurationError: its connections are made by code that can't be sent elsewhere.
        """
        return cls(DatabaseAddress.of(_database(store)), store.timeouts, store.retries)

    def connect(self, secrets: Callable[[], Mapping[str, str]]) -> OffsetStore:
        """Make a store with at most one connection. The original store has already checked the tables.

        :param secrets: called for each new connection.
        """
        database = self.database.connect(secrets, idle_timeout=self.timeouts.idle)
        return OffsetStore(database, timeouts=self.timeouts, retries=self.retries)


def secrets_of(store: Connected) -> Secrets:
    """The secrets for a new connection now; see `offsetstore.postgres.address.secrets_of`."""
    return address.secrets_of(_database(store))


def _database(store: Connected) -> PostgresDatabase:
    if isinstance(store.database, PostgresDatabase):
        return store.database
    raise ConfigurationError(
        "this store has no database that another process could connect to",
        found=type(store.database).__name__,
        expected="OffsetStore.connect(...)",
    )
