"""The ways to use a session of the database: a transaction, a transaction that fences a group's job, or a read.

`ClaimRows` is for the threads beside the job: they read and write a claim's rows without effect on its transactions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol, TypeVar

from offsetstore.errors import ConnectionLost, LockTimeout, StoreUnavailable, TransactionConflict, TransactionLost
from offsetstore.offsets import StoredOffset, TopicPartition
from offsetstore.protocol.database import Database, GroupRow, HistoryEvent, Session
from offsetstore.protocol.events import Retried
from offsetstore.protocol.observers import Observers
from offsetstore.protocol.retries import Retries, Timeouts, may_pass
from offsetstore.runtime.functions import without_frames
from offsetstore.store.identity import ClaimInfo, name_prefix

_A = TypeVar("_A")
_T = TypeVar("_T")

# Seconds to go on waiting for locks after the connections that held them were terminated.
_GRACE: Final = 15.0


class Connected(Protocol):
    """An object with a database: an `OffsetStore`, or a `Claim` of one."""

    database: Database
    timeouts: Timeouts
    retries: Retries
    observers: Observers


def repeat(
    store: Connected,
    group: str,
    begin: Callable[[int], AbstractContextManager[_A, None]],
    work: Callable[[_A], _T],
    *,
    retry_if: Callable[[Exception], bool] = may_pass,
    retries: Retries | None = None,
) -> _T:
    """Do ``work`` in a block, and repeat it in a new one until it succeeds or fails for good.

    :param begin: makes the block from the number of the attempt, from 1: a transaction, say, or ``nullcontext``.
    :param retries: by default the store's.
    :raises Exception: the error of the last attempt, or an error for which ``retry_if`` returns ``False``.
    """
    retries = retries or store.retries
    attempt = 1
    while True:
        try:
            with begin(attempt) as begun:
                return work(begun)
        except Exception as error:
            if attempt >= retries.attempts or not retry_if(error):
                raise
            wait = retries.wait(attempt)
            store.observers.on(Retried(group=group, attempt=attempt, error=error, wait=wait))
            # Frames hold the locals of the attempt, such as a batch: none are kept while this waits (decision 0100).
            without_frames(error)
        time.sleep(wait)
        attempt += 1


@contextmanager
def transaction(
    database: Database, *, name: str, lock_timeout: float | None = None, dedicated: bool = False
) -> Generator[Session]:
    """Commit at the end of the block; roll back if it raises, and raise our error for the database's.

    The parameters are those of `Database.begin`.
    """
    session = database.begin(name=name, lock_timeout=lock_timeout, dedicated=dedicated)
    try:
        yield session
        session.commit()
    except BaseException as error:
        session.rollback()
        if (ours := database.translate(error)) is not error:
            raise ours from ours.__cause__
        raise


@contextmanager
def deciding(database: Database, group: str, *, name: str, lock_timeout: float, again: str) -> Generator[Session]:
    """One transaction that decides something about a group. A later claim terminates it if it does not end.

    :param name: what it does, for its ``application_name``.
    :param again: the next step after `TransactionLost`.
    :raises LockTimeout: another transaction holds the group's rows.
    :raises TransactionLost: the database aborted it, or the connection was lost, perhaps after COMMIT.
    """
    try:
        with transaction(database, name=f"{name_prefix(group)}{name}", lock_timeout=lock_timeout) as session:
            yield session
    except (ConnectionLost, TransactionConflict) as lost:
        raise TransactionLost(lost.what, found=lost.found, next_step=again) from lost.__cause__


@contextmanager
def patiently(database: Database, group: str, takeover_timeout: float, *, name: str, again: str) -> Generator[Session]:
    """As `deciding`, but wait for locks until what may be ended after ``takeover_timeout`` seconds is gone.

    :raises LockTimeout: another transaction, which may not be ended, holds the group's rows.
    """
    limit = takeover_timeout + _GRACE
    try:
        with deciding(database, group, name=name, lock_timeout=limit, again=again) as session:
            yield session
    except LockTimeout as error:
        raise LockTimeout(
            f"group {group!r} is locked by a transaction that is not one of its own, or that this role may not "
            "terminate",
            found=error.found,
            next_step="See what the holder is doing (pg_stat_activity). To terminate a job's transaction, a role must "
            "be a member of the job's role, or of pg_signal_backend.",
        ) from error.__cause__


@contextmanager
def fencing(database: Database, group: str, takeover_timeout: float, *, name: str, again: str) -> Generator[Session]:
    """As `deciding`; jobs of the group can't delay it for longer than ``takeover_timeout`` seconds."""
    # The prefix of their names tells transactions of the group's jobs: no person's is terminated (decision 0006).
    with (
        patiently(database, group, takeover_timeout, name=name, again=again) as session,
        database.unblocking(session, after=takeover_timeout, older_than=name_prefix(group)),
    ):
        yield session


def read(
    database: Database,
    query: Callable[[Session], _T],
    *,
    name: str = "offsetstore:read",
    lock_timeout: float | None = None,
    dedicated: bool = False,
) -> _T:
    """Return the result of ``query``, without a lock. The other parameters are those of `Database.begin`.

    :raises StoreUnavailable: no connection, or it was lost.
    """
    session = database.begin(name=name, lock_timeout=lock_timeout, dedicated=dedicated)
    try:
        return query(session)
    except BaseException as error:
        ours = database.translate(error)
        if isinstance(ours, ConnectionLost):
            raise StoreUnavailable(
                "the connection to the database was lost while reading", found=ours.found
            ) from ours.__cause__
        if ours is not error:
            raise ours from ours.__cause__
        raise
    finally:
        session.rollback()


def read_offsets(database: Database, group: str) -> dict[TopicPartition, StoredOffset]:
    """The group's rows, in order of (topic, partition), without their metadata."""
    return read(database, lambda session: session.read_group(group)[1])


def end_pause(session: Session, group: str, owner: GroupRow | None, who: str) -> None:
    """Write to the history that the group's pause has ended by itself, if it has. Needs the lock of the group's row.

    :param owner: that row.
    """
    if owner is not None and owner.ended is not None:
        session.write_pause(group, None)
        reason = f"ended by itself: {owner.ended}"
        session.append_history(group, [HistoryEvent("resume", None, None, None, owner.token, who, reason)])


# Short: a row that the job's own transaction holds is left to the next turn.
_LOCK_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class ClaimRows:
    """Reads and writes the rows of the claim's topics, on connections apart from the job's pool.

    :param ignored: partitions with rows that the claim does not read: vanished ones, and what Spark's ``assign`` leaves
        out.
    """

    def __init__(self, database: Database, claim: ClaimInfo, ignored: Collection[TopicPartition] = ()) -> None:
        self._database = database
        self._claim = claim
        self._topics = frozenset(claim.topics)
        self._ignored = frozenset(ignored)

    def has(self, tp: TopicPartition) -> bool:
        return tp.topic in self._topics and tp not in self._ignored

    def read(self) -> dict[TopicPartition, StoredOffset]:
        """The rows as they are now, whoever has them."""
        rows = read(
            self._database,
            lambda session: session.read_partitions(self._claim.group),
            name=self._claim.name,
            lock_timeout=_LOCK_SECONDS,
            dedicated=True,
        )
        return {tp: row for tp, row in rows.items() if self.has(tp)}

    def write(self, write: Callable[[Session], object]) -> bool:
        """Write in one transaction; return whether that succeeded: if not, the next turn retries it."""
        try:
            with transaction(
                self._database, name=self._claim.name, lock_timeout=_LOCK_SECONDS, dedicated=True
            ) as session:
                write(session)
        except Exception as error:  # noqa: BLE001 - the job's transactions report an unavailable database
            _log.debug("beside the job, nothing could be written: %s", type(without_frames(error)).__name__)
            return False
        return True
