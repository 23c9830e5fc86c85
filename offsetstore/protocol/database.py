"""What the protocol asks of a database, as a Protocol: one `Session` is one database transaction.

`offsetstore.postgres.session` answers in SQL, `offsetstore.testing` in memory; the claim and the transaction are
written once, against this.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime
    from uuid import UUID

    from offsetstore.offsets import OffsetRange, StoredOffset, Token, TopicPartition
    from offsetstore.protocol.metadata import Keep

LIVE: Final = timedelta(seconds=15)
"""An owner is live whose last heartbeat is younger, by the database's clock: two may be lost."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One line of the audit: everything that sets an offset, but plain advances.

    ``event`` is ``claim`` (the group's, without a partition), ``adopt`` (the store takes over an offset it did not
    have), ``skip`` (records passed over by a decision), ``restart`` (a recreated topic), ``rewound`` (a database that
    is older than its copy in Kafka), ``contested`` (another application uses the group in Kafka, or it was decided that
    its offset does not count), ``reset`` or ``rename``. ``from_offset`` is ``None`` where there was no row.
    ``at`` is of the database's clock, ``None`` until written.
    """

    event: str
    topic_partition: TopicPartition | None
    from_offset: int | None
    to_offset: int | None
    token: Token
    actor: str
    reason: str
    at: datetime | None = None


def renamed(history: Sequence[HistoryEvent]) -> HistoryEvent | None:
    """Return the renaming that was the last thing that happened to the group as a whole, if it was one."""
    last = next((event for event in reversed(history) if event.topic_partition is None), None)
    return last if last is not None and last.event == "rename" else None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One row of ``consumer_groups``. ``alive_for`` is the time since the owner's last heartbeat, if there is one."""

    token: Token
    owner: str
    claimed_at: datetime
    alive_for: timedelta | None

    @property
    def is_live(self) -> bool:
        """Whether a job owns the group and runs, for claims, resets and `offsetstore status` alike.

        A heartbeat of the future is not one: the database's clock has stepped back since (a failover, a restored
        machine), and would call a dead owner live until it has caught up. A job that runs is live again with its next
        heartbeat, at most five seconds later.
        """
        return self.alive_for is not None and -LIVE < self.alive_for < LIVE

    def in_words(self) -> str:
        """Who it is, for an error's text."""
        seen = "" if self.alive_for is None else f", seen {max(0.0, self.alive_for.total_seconds()):.0f} s ago"
        return f"{self.owner}, {self.token}{seen}"


@dataclass(frozen=True, slots=True)
class NewOffset:
    """What a claim or a reset sets a partition to; where it is ``pinned``, the row keeps the token's epoch for that.

    A decision ends what was ``contested``; a claim that has nothing to decide leaves it as it was.
    """

    next_offset: int
    topic_id: str | None
    cluster_id: str | None
    pinned: bool
    contested: bool = False


class Session(Protocol):
    """One database transaction, READ COMMITTED.

    Statements and `commit` raise `LockTimeout`, `ConnectionLost`, `TransactionConflict` and `StoreUnavailable`. What is
    written with `connection` raises the driver's own errors, see `Database.translate`.
    """

    @property
    def connection(self) -> Any:
        """What user code writes with: a SQLAlchemy ``Connection``."""
        ...

    def in_savepoint(self) -> bool:
        """Whether a savepoint is open."""
        ...

    def is_whole(self) -> bool:
        """Whether it is still the transaction that was begun, with all its advances.

        ``False`` after a COMMIT or ROLLBACK that somebody sent, and after a ROLLBACK TO a savepoint before an advance.
        """
        ...

    def commit(self) -> None:
        """End it, with all that was written."""
        ...

    def rollback(self) -> None:
        """End it without writing; also where the connection is gone. Raises nothing."""
        ...

    def lock_group(self, group: str) -> Token:
        """Create the group's row if need be, lock it FOR UPDATE, return its token."""
        ...

    def share_group(self, group: str) -> Token | None:
        """Lock the group's row FOR SHARE: no claim can be made until this transaction ends."""
        ...

    def group(self, group: str) -> GroupRow | None:
        """Who claimed the group last, without a lock."""
        ...

    def write_group(self, group: str, token: Token, owner: str) -> None:
        """Write the token to the group's row and to every partition's row of the group, and a first heartbeat."""
        ...

    def lock_partitions(
        self, group: str, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, StoredOffset]:
        """Lock the rows FOR UPDATE in order of (topic, partition); ``None`` for all rows of the group."""
        ...

    def read_partitions(self, group: str) -> dict[TopicPartition, StoredOffset]:
        """All rows of the group, in order, without a lock."""
        ...

    def insert_partitions(self, group: str, token: Token, offsets: dict[TopicPartition, int]) -> set[TopicPartition]:
        """Insert rows in order, leave those that exist alone, return those that were inserted."""
        ...

    def set_partitions(self, group: str, token: Token, offsets: dict[TopicPartition, NewOffset]) -> None:
        """Insert or overwrite rows; only a claim may, under the group's lock and the rows'."""
        ...

    def advance(
        self,
        group: str,
        token: Token,
        ranges: dict[TopicPartition, OffsetRange],
        metadata: str | Keep | None,
        transaction_id: UUID,
    ) -> int:
        """Move each partition from ``from_`` to ``until`` where row and token still say so; return how many moved."""
        ...

    def rename_group(self, group: str, new: str) -> None:
        """Give the group's rows and batch marks to ``new``, which has none; under both groups' locks and the rows'."""
        ...

    def unpin(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        """Take pins and contests off, where the rows are still the token's; under the rows' locks."""
        ...

    def contest(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        """Note that another application uses the group in Kafka, where the rows are still the token's; as `unpin`."""
        ...

    def batch_mark(self, group: str, query_id: UUID) -> int | None:
        """The last batch that the stateful query has written, ``None`` before the first."""
        ...

    def mark_batch(self, group: str, query_id: UUID, batch_id: int) -> bool:
        """Write it; ``False`` where the mark is there already, or beyond it: it never goes back."""
        ...

    def append_history(self, group: str, events: Sequence[HistoryEvent]) -> None:
        """Write the events, in order; ``at`` is the database's."""
        ...

    def history(self, group: str) -> list[HistoryEvent]:
        """All events of the group, oldest first."""
        ...

    def renamed_since(self, group: str, epoch: int) -> bool:
        """Whether the group got another name, or another group this one, in a later epoch."""
        ...

    def beat(self, claim_id: UUID) -> bool:
        """Renew the heartbeat; ``False`` where a newer claim has removed it."""
        ...

    def end_beat(self, claim_id: UUID) -> None:
        """Remove the heartbeat: the owner has left."""
        ...

    def now(self) -> datetime:
        """The database's clock at this moment, not at the transaction's beginning; with a time zone."""
        ...


class Database(Protocol):
    """Where sessions come from. ``schema`` is that of our tables, ``None`` where they are found without one."""

    schema: str | None

    def begin(self, *, name: str, lock_timeout: float | None = None, dedicated: bool = False) -> Session:
        """Begin a transaction.

        :param name: shown to operators as the connection's ``application_name``.
        :param lock_timeout: seconds to wait for any one lock, ``None`` for ever.
        :param dedicated: on a connection that the job's transactions can't use up, for a heartbeat.
        :raises StoreUnavailable: no connection.
        """
        ...

    def translate(self, error: BaseException) -> BaseException:
        """Return our error for the driver's, with the driver's as its cause; else the error without a row's values."""
        ...

    def unblocking(self, session: Session, *, after: float, older_than: str) -> AbstractContextManager[None]:
        """While the block runs, terminate what blocks ``session`` for longer than ``after`` seconds.

        Only transactions whose name begins as ``older_than`` does are terminated: claims of the same group. A
        ``statement_timeout`` that the role or the database has does not end the wait; the lock's own limit does.
        """
        ...

    def lock_holder(self, group: str, partitions: Collection[TopicPartition]) -> tuple[TopicPartition, str] | None:
        """The first of the rows that another transaction holds, and who that is, in words; ``None`` if unknown."""
        ...

    def store_id(self) -> UUID:
        """Who this store is, wherever it is moved or restored to; asked once."""
        ...

    def check_schema(self) -> None:
        """Check that the tables are those of this version.

        :raises SchemaMissing, SchemaNotAtHead: they are not.
        """
        ...

    def close(self) -> None:
        """Close what it has opened itself."""
        ...
