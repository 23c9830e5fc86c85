"""The database as the store sees it: one `Session` is one database transaction.

`offsetstore.postgres.session` implements it in SQL, `offsetstore.testing` in memory. Claims and transactions are
written once, against this interface.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, get_args
from uuid import UUID

from offsetstore.offsets import EpochPair, OffsetRange, Pause, StoredOffset, Suspect, Token, TopicPartition
from offsetstore.protocol.letters import LetterSession
from offsetstore.protocol.metadata import Text
from offsetstore.protocol.outbox import OutboxSession
from offsetstore.protocol.runs import Ending, FleetSession, RunSession, RunState, run_state
from offsetstore.protocol.store_facts import StoreIdentity

EventName: TypeAlias = Literal[
    "claim",
    "adopt",
    "skip",
    "restart",
    "rewound",
    "contested",
    "suspect",
    "reset",
    "rename",
    "copy",
    "delete",
    "delete-topic",
    "pause",
    "resume",
    "metadata",
    "replay",
    "discard",
    "erase",
    "prune",
    "outbox-retry",
    "outbox-discard",
    "outbox-set-aside",
    "moved",
    "new-id",
]
EVENTS: Final[tuple[EventName, ...]] = get_args(EventName)
"""What the history records; see `HistoryEvent`."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One line of the audit trail: everything that is decided about a group, except advances.

    ``event`` is ``claim`` (the group's, without a partition), ``adopt`` (the store takes over an offset it did not
    have), ``skip`` (records skipped by a decision), ``restart`` (a recreated topic), ``rewound`` (a database that is
    older than its copy in Kafka), ``contested`` (another application or a copy of the database uses the group in Kafka,
    or a decision ignored its offset), ``suspect`` (the log was seen to have lost records), ``reset``, ``rename``,
    ``copy`` (of another group's offsets, or to another group), ``delete`` (of the whole group), ``delete-topic`` (of
    what it has of one topic), ``pause`` or ``resume`` (both without a partition), ``metadata`` (rewritten by an
    operator), ``moved`` (the store is in another database now) or ``new-id`` (it is a copy, a store of its own now).
    About dead letters: ``replay`` (requested), ``discard``, ``erase`` (discarded, and their contents deleted),
    ``prune``: one line for many letters, with a partition and a range of offsets if all are of one partition.
    ``outbox-retry`` and ``outbox-discard`` are about rows of the outbox that Kafka refuses, ``outbox-set-aside`` about
    rows that waited to be sent. ``from_offset`` is ``None`` if there was no row, ``to_offset`` if there is no row any
    more. ``at`` comes from the database's clock, and is ``None`` until the event is written. So is ``db_role``, the
    role that wrote it, which unlike ``actor`` can't be invented; lines from before revision 0006 have none. ``id``
    grows from line to line, and is 0 until the event is written.
    """

    event: str
    topic_partition: TopicPartition | None
    from_offset: int | None
    to_offset: int | None
    token: Token
    actor: str
    reason: str
    at: datetime | None = None
    db_role: str | None = None
    id: int = field(default=0, compare=False)


# Each fences a job that still runs (decision 0040).
TAKING: Final[Mapping[str, str]] = {
    "reset": "reset",
    "rename": "renamed",
    "copy": "copied",
    "delete": "deleted",
    "delete-topic": "deleted in part",
    "new-id": "given another store id",
}
"""The decisions that give a group a new token without a job, and what they have done to the group."""


def renamed(history: Sequence[HistoryEvent]) -> HistoryEvent | None:
    """Return the group's last rename if neither a claim nor a delete came after it, else ``None``."""
    return _last(history, "rename")


def deleted(history: Sequence[HistoryEvent]) -> HistoryEvent | None:
    """Return the event with which the group was deleted if no claim came after it, else ``None``."""
    return _last(history, "delete")


def _last(history: Sequence[HistoryEvent], name: str) -> HistoryEvent | None:
    of_group = (event for event in reversed(history) if event.topic_partition is None)
    last = next((event for event in of_group if event.event in {"claim", "rename", "delete"}), None)
    return last if last is not None and last.event == name else None


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One row of ``consumer_groups``.

    ``alive_for`` is the time since the owner's last heartbeat, if there is one. ``pause`` is ``None`` if the group is
    not paused, or no longer; ``ended`` is a pause that has ended by itself, until the history has its end. ``ending``
    is how the owner's run ended, ``None`` if no end is recorded. ``fleet`` is the name of the fleet that has the group,
    ``None`` if no fleet has it; ``last_fleet`` is the name of the last fleet that had it; see
    `offsetstore.protocol.runs`. ``failures`` counts runs that failed lately, see `offsetstore.protocol.runs.LOOP`.
    ``is_refused``: no job is live, and the last start was refused. Only reads for people fill in these two, and the
    ``ending`` of a fleet, which is its last member's.
    """

    token: Token
    owner: str
    claimed_at: datetime
    alive_for: timedelta | None
    pause: Pause | None = None
    ended: Pause | None = None
    ending: Ending | None = None
    fleet: str | None = None
    last_fleet: str | None = None
    failures: int = 0
    is_refused: bool = False

    @property
    def state(self) -> RunState:
        return "failed" if self.is_refused else run_state(self.ending, self.alive_for, self.failures)

    @property
    def is_live(self) -> bool:
        """Whether a running job owns the group, even one that fails after each start; see `run_state`."""
        return run_state(self.ending, self.alive_for) == "live"

    @property
    def is_paused(self) -> bool:
        return self.pause is not None

    def in_words(self) -> str:
        """Describe the owner, for an error message. The owner of a fleet is the process that founded it."""
        who = self.owner if self.fleet is None else f"a fleet, founded by {self.owner}"
        since = self.claimed_at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        # Negative if the database's clock has stepped back since the heartbeat (decision 0026).
        seen = "" if self.alive_for is None else f", seen {max(0.0, self.alive_for.total_seconds()):.0f} s ago"
        return f"{who}, {self.token}, since {since} UTC{seen}"


class NewOffset(NamedTuple):
    """The new state of a partition, set by a claim or a reset; if ``pinned``, the row also keeps the token's epoch.

    A decision clears ``contested``; a claim without a decision leaves it. If the offset stays, so do ``pair`` and
    ``suspect``. A reset clears evidence, and keeps the pair where there is no evidence, see
    `offsetstore.operations.resets.ResetOffsets.write`.
    """

    next_offset: int
    topic_id: str | None
    cluster_id: str | None
    pinned: bool
    contested: bool = False
    pair: EpochPair | None = None
    suspect: Suspect | None = None


class LockedRow(NamedTuple):
    """The columns of a locked row that a transaction compares; a tuple, because a batch can lock ten thousand rows."""

    next_offset: int
    token: Token
    transaction_id: UUID | None


@dataclass(frozen=True, slots=True)
class Advance:
    """What a transaction moves.

    :param metadata: the new texts of some partitions; the others keep theirs.
    """

    group: str
    token: Token
    ranges: Mapping[TopicPartition, OffsetRange]
    metadata: Mapping[TopicPartition, Text]
    transaction_id: UUID


class MetadataRow(NamedTuple):
    """The metadata of a row, and the token of its owner."""

    text: Text
    token: Token


class Savepoints(Protocol):
    """The part of a `Session` that tries rows out, in a transaction that is rolled back at its end.

    Savepoints are numbered from 0, nested, and never released (decision 0036). It raises the errors of `Session`.
    """

    def begin_trials(self) -> float | None:
        """Set savepoint 0.

        :return: the ``transaction_timeout`` that the server applies, in seconds, ``None`` if there is none.
        """
        ...

    def check_and_save(self, number: int) -> None:
        """Check deferred constraints, defer the initially deferred ones again, and set savepoint ``number``.

        One round trip.

        :raises RowsRefused: the database refuses the rows; the next call must be `rollback_to`.
        """
        ...

    def rollback_to(self, number: int) -> None:
        """Undo everything after savepoint ``number``, even an error; the savepoint stays."""
        ...


class Session(LetterSession, RunSession, FleetSession, OutboxSession, Savepoints, Protocol):
    """One database transaction, READ COMMITTED.

    Statements and `commit` raise `LockTimeout`, `ConnectionLost`, `TransactionConflict` and `StoreUnavailable`. SQL on
    `connection` raises the driver's own errors; see `Database.translate`.
    """

    @property
    def connection(self) -> Any:
        """The SQLAlchemy ``Connection`` that user code writes with."""
        ...

    def in_savepoint(self) -> bool:
        """Whether a savepoint is open."""
        ...

    def may_have_raised(self, error: BaseException) -> bool:
        """Whether a database error can come from this transaction; user code may have other connections."""
        ...

    def is_whole(self) -> bool:
        """Whether it is still the transaction that was begun, with all its advances.

        ``False`` after a COMMIT or ROLLBACK in user code, and after ROLLBACK TO a savepoint that is older than an
        advance.

        :raises UnexpectedCommit: the transaction was ended, and more is known about it.
        """
        ...

    def check_deferred(self) -> None:
        """Check deferred constraints now: at COMMIT, a violation could not be distinguished from a lost answer.

        :raises RowsRefused: the database refuses the rows.
        """
        ...

    def commit(self) -> None:
        """Commit the transaction."""
        ...

    def rollback(self) -> None:
        """Roll the transaction back, even if the connection is gone. Raises nothing."""
        ...

    def lock_group(self, group: str) -> Token:
        """Create the group's row if it is missing, lock it FOR UPDATE, and return its token."""
        ...

    def share_group(self, group: str) -> Token | None:
        """Lock the group's row FOR SHARE: no claim can be made until this transaction ends."""
        ...

    def group(self, group: str) -> GroupRow | None:
        """Read who claimed the group last, without a lock."""
        ...

    def write_group(self, group: str, token: Token, owner: str, *, fleet: str | None = None) -> None:
        """Write the token to the group's row and to all its partitions' rows, and write a first heartbeat.

        :param fleet: the name of the fleet whose claim it is, see `offsetstore.protocol.runs`. No heartbeat is written
            then: its members have theirs.
        """
        ...

    def names_of_groups(self) -> list[str]:
        """The names of the groups that have an offset, in order."""
        ...

    def write_pause(self, group: str, pause: Pause | None) -> None:
        """Pause the group, or resume it. Needs the lock of its row."""
        ...

    def lock_group_partitions(self, group: str) -> dict[TopicPartition, StoredOffset]:
        """Lock all rows of the group FOR UPDATE in order of (topic, partition)."""
        ...

    def lock_partitions(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LockedRow]:
        """Lock the rows FOR UPDATE in order of (topic, partition), not in the order of ``partitions``."""
        ...

    def read_partitions(
        self, group: str, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, StoredOffset]:
        """Read all rows of the group, or those of some partitions, in order, without a lock."""
        ...

    def read_group(self, group: str) -> tuple[GroupRow | None, dict[TopicPartition, StoredOffset]]:
        """Do `group` and `read_partitions` in one round trip, without the metadata."""
        ...

    def insert_partitions(self, group: str, token: Token, offsets: dict[TopicPartition, int]) -> set[TopicPartition]:
        """Insert rows in order, skip those that exist, and return those that were inserted."""
        ...

    def set_partitions(self, group: str, token: Token, offsets: dict[TopicPartition, NewOffset]) -> None:
        """Insert or overwrite rows. The caller must hold the locks of the group and of the rows.

        Metadata and failed attempts belong to their offset: where it changes, they are deleted.
        """
        ...

    def advance(self, move: Advance) -> int:
        """Move partitions from ``from_`` to ``until`` if their rows have that offset and the token; return how many."""
        ...

    def count_mark(self) -> None:
        """Count a mark, so that `is_whole` is ``False`` if a ROLLBACK TO takes back what was written before it."""
        ...

    def finish(self, move: Advance) -> tuple[int, bool]:
        """Do `advance`, `check_deferred` and `is_whole`, in one round trip.

        :return: the answers of `advance` and `is_whole`.
        :raises RowsRefused: as `check_deferred` does.
        """
        ...

    def read_metadata(self, group: str, topic: str, partition: int | None) -> dict[TopicPartition, MetadataRow]:
        """The metadata of one partition, or of all the topic's partitions that have rows, without a lock."""
        ...

    def write_metadata(self, group: str, token: Token, metadata: Mapping[TopicPartition, Text]) -> int:
        """Write the texts to rows that have the token; return how many. Needs the rows' locks."""
        ...

    def unpin(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        """Clear ``pinned`` and ``contested`` in rows that still have the token. Needs the rows' locks."""
        ...

    def contest(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        """Set ``contested`` in rows that still have the token. Needs the rows' locks."""
        ...

    def write_pairs(self, group: str, token: Token, pairs: Mapping[TopicPartition, EpochPair]) -> int:
        """Write the pairs to rows that still have the token and are not locked; return how many.

        It waits for no lock, and changes neither ``updated_at`` nor ``transaction_id``.
        """
        ...

    def write_suspects(self, group: str, token: Token, found: Mapping[TopicPartition, str]) -> set[TopicPartition]:
        """Write evidence to rows that still have the token and no evidence yet; return which. Needs the rows' locks."""
        ...

    def batch_mark(self, group: str, query_id: UUID) -> int | None:
        """The last batch that the stateful query wrote, ``None`` before the first."""
        ...

    def mark_batch(self, group: str, query_id: UUID, batch_id: int) -> bool:
        """Move the mark to ``batch_id``; return ``False`` if it is already there or beyond. It never goes back."""
        ...

    def take_turn(self, group: str, name: UUID, every: float) -> bool:
        """Whether this transaction does the work that is due every ``every`` seconds. It waits for no lock.

        ``False`` if another transaction is doing it, or if one that took its turn less than ``every`` seconds ago was
        committed.

        :param name: the id of the work. It must not be the id of a stateful query.
        """
        ...

    def append_history(self, group: str, events: Sequence[HistoryEvent]) -> None:
        """Write the events in order; the database sets ``at``."""
        ...

    def history(
        self,
        group: str,
        *,
        since: datetime | None = None,
        events: Collection[str] = (),
        topic_partition: TopicPartition | None = None,
        limit: int | None = None,
        before: int | None = None,
    ) -> list[HistoryEvent]:
        """The group's events, oldest first: all that match, or only the last ``limit`` of them."""
        ...

    def deleted_epochs(self, group: str) -> dict[str | None, int]:
        """The epochs in which offsets of a topic, or of the whole group (``None``), were last deleted."""
        ...

    def beat(self, claim_id: UUID) -> bool:
        """Renew the heartbeat; return ``False`` if a newer claim has removed it."""
        ...

    def end_beat(self, claim_id: UUID) -> None:
        """Remove the heartbeat: the owner has left."""
        ...

    def expect_grants(self) -> None:
        """Expect that the role has all privileges of a job, including any that a new revision added.

        :raises MissingPrivilege: with what is missing, and the command that prints the grants.
        """
        ...

    def identity(self) -> StoreIdentity:
        """Which store this is, and in which database.

        :raises SchemaNotAtHead: it was never written.
        """
        ...

    def now(self) -> datetime:
        """The time by the database's clock now, not at the transaction's beginning; with a time zone."""
        ...


class Database(Protocol):
    """Begins sessions. ``schema`` is the schema of our tables, ``None`` if they are found by the search path."""

    schema: str | None

    def begin(self, *, name: str, lock_timeout: float | None = None, dedicated: bool = False) -> Session:
        """Begin a transaction.

        :param name: shown to operators as the connection's ``application_name``.
        :param lock_timeout: seconds to wait for each lock, ``None`` for no limit.
        :param dedicated: use connections outside the job's pool, which the job's transactions can't exhaust.
        :raises StoreUnavailable: no connection.
        """
        ...

    def translate(self, error: BaseException) -> BaseException:
        """Translate a driver's error into ours, with the original as its cause; return any other without row values."""
        ...

    def unblocking(self, session: Session, *, after: float, older_than: str) -> AbstractContextManager[None]:
        """While the block runs, terminate connections that block ``session`` for longer than ``after`` seconds.

        Only connections whose name begins with ``older_than`` are terminated: claims of the same group. A
        ``statement_timeout`` of the role or the database does not end the wait; the session's ``lock_timeout`` does.
        """
        ...

    def lock_holder(self, group: str, partitions: Collection[TopicPartition]) -> tuple[TopicPartition, str] | None:
        """The first of the rows that another transaction has locked, and who holds it; ``None`` if unknown."""
        ...

    def identity(self) -> StoreIdentity:
        """Which store this is, and in which database, as the last `check_schema` read it; claims read it anew."""
        ...

    def store_id(self) -> UUID:
        """The store's id, from `identity`."""
        ...

    def check_schema(self) -> None:
        """Check that this version runs on the tables, and read the store's identity.

        :raises SchemaMissing, SchemaNotAtHead: there are no tables, or they are at a revision that does not fit.
        """
        ...

    def close(self) -> None:
        """Close the connections that this object opened itself."""
        ...
