"""What the store itself is like: its server, its tables, and what keeps them from being cleaned up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table, as the server's statistics have it; they are a second or so behind, and lost in a crash.

    :param rows: an estimate.
    :param size: in bytes, with its indexes and what is stored out of line.
    :param dead_rows: an estimate of the rows that VACUUM has not removed yet.
    :param updates: since the statistics were last reset.
    :param hot_updates: those of them that touched no index.
    """

    name: str
    rows: int
    size: int
    dead_rows: int = 0
    updates: int = 0
    hot_updates: int = 0
    vacuumed_at: datetime | None = None
    autovacuumed_at: datetime | None = None

    @property
    def hot_share(self) -> float | None:
        """The share of updates that touched no index, ``None`` without updates."""
        return self.hot_updates / self.updates if self.updates else None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The store at one moment.

    :param at: by the database's clock.
    :param server: its name and version.
    :param schema: of our tables.
    :param revision: of our tables; like ``expected``, that of this version of offsetstore, ``None`` without tables.
    :param tables: ours that are there, by name.
    :param oldest_transaction: how long the oldest open transaction of the database has been running.
    :param sees_all: whether that includes other roles' transactions, which takes ``pg_read_all_stats``.
    :param is_standby: whether the server is a replica, which can't be written to.
    """

    at: datetime
    server: str
    schema: str | None
    revision: str | None
    expected: str | None
    tables: tuple[TableFacts, ...]
    oldest_transaction: timedelta
    sees_all: bool
    is_standby: bool = False

    @property
    def is_as_expected(self) -> bool:
        """Whether the tables are those of this version."""
        return self.revision == self.expected


class StoreFactsSession(Protocol):
    """The part of a `Session` for the store itself."""

    def store_facts(self) -> StoreFacts:
        """Read them, in one round trip."""
        ...
