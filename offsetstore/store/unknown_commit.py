"""Find out from the rows whether a COMMIT whose answer was lost took effect.

Every advance writes a transaction id of its own into the rows, and a claim does not change it. So: reconnect, lock the
rows that the transaction advanced (which waits until the old transaction has ended, one way or the other), and compare.
One row is enough, since all moved or none. The token is not compared: the answer must not depend on whether another job
has claimed the group since. PostgreSQL's own ``pg_xact_status`` would need less code, but after a failover the number
may belong to another transaction (decision 0005).

A batch without ranges advances no row. Its mark gives the answer instead, read under the locks of the group and of the
rows that the old transaction had locked: these wait for that transaction.

If other members of a fleet have moved all rows on, the outcome is unknown, and does not matter: they began where the
rows were once the transaction had ended, so they have read themselves what it has not stored.

An error in the look-up itself is no answer, and no reason to repeat the work: the look-up is retried until the time is
up, and then the fate is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from uuid import UUID

from offsetstore.errors import CommitUnknown, ConnectionLost, OffsetStoreError, StoreUnavailable, TransactionLost
from offsetstore.offsets import Token, TopicPartition
from offsetstore.protocol.database import Database, LockedRow
from offsetstore.runtime.functions import without_frames
from offsetstore.store.identity import replaced_since

_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Advanced:
    """What a transaction advanced: its id, and for each partition the id that the row held before.

    ``token`` is its claim's, ``locked`` are all partitions that it locked, in order, and ``makes_rows`` tells whether
    it may have inserted some of these rows. ``mark`` is the query and the batch that it marked, or found marked.
    """

    group: str
    token: Token
    name: str
    transaction_id: UUID
    before: dict[TopicPartition, UUID | None]
    locked: tuple[TopicPartition, ...]
    wrote: bool
    makes_rows: bool = False
    mark: tuple[UUID, int] | None = None

    @property
    def first(self) -> TopicPartition | None:
        """A partition for the error messages."""
        return next(iter((*self.before, *self.locked)), None)


def resolve_commit(
    database: Database,
    advanced: Advanced,
    *,
    timeout: float,
    cause: ConnectionLost,
    moved: Callable[[Mapping[TopicPartition, LockedRow], Token], None] = lambda _, __: None,
) -> None:
    """Return if the COMMIT happened.

    :param timeout: seconds to reconnect and to wait for the old transaction to end.
    :param moved: called with the rows and the group's token if every row has moved on since; it may raise another error
        than `CommitUnknown`.
    :raises TransactionLost: it did not happen.
    :raises CommitUnknown: its outcome can't be determined: no answer in time, or every row has moved on since.
    """
    if not advanced.before:
        if advanced.mark is not None:
            _resolve_by_mark(database, advanced, advanced.mark, timeout=timeout, cause=cause)
            return
        if advanced.wrote:
            raise CommitUnknown(
                "the answer to COMMIT was lost, and no row shows the outcome: the transaction advanced no partition",
                found=cause.found,
            ) from cause.__cause__
        raise TransactionLost(
            "the connection was lost in a transaction that wrote nothing", found=cause.found
        ) from cause.__cause__
    found = _rows(database, advanced, None, timeout=timeout, cause=cause)
    tp = advanced.first
    ids = {tp: row.transaction_id for tp, row in found.rows.items()}
    if advanced.transaction_id in ids.values():
        return
    # A row without an id may belong to another group that got the name since, and a missing row may have been removed.
    if any(ids.get(tp) == before and (before or found.same_group) for tp, before in advanced.before.items()):
        raise TransactionLost(
            "the connection was lost at COMMIT, and the rows show that nothing was committed",
            topic_partition=tp,
            found=cause.found,
        ) from cause.__cause__
    if not found.same_group:
        raise _other_group(advanced, cause) from cause.__cause__
    assert found.owner is not None
    moved(found.rows, found.owner)
    raise CommitUnknown(
        f"the answer to COMMIT was lost, and the rows of group {advanced.group!r} have been moved or removed since",
        topic_partition=tp,
        found=cause.found,
    ) from cause.__cause__


def _resolve_by_mark(
    database: Database, advanced: Advanced, mark: tuple[UUID, int], *, timeout: float, cause: ConnectionLost
) -> None:
    # The results of a marked batch are there once, whoever wrote them.
    _, batch_id = mark
    found = _rows(database, advanced, mark, timeout=timeout, cause=cause)
    if found.mark is not None and found.mark >= batch_id:
        return
    if not found.same_group:
        raise _other_group(advanced, cause) from cause.__cause__
    raise TransactionLost(
        f"the connection was lost at COMMIT, and the mark shows that batch {batch_id} was not written",
        found=cause.found,
    ) from cause.__cause__


def _other_group(advanced: Advanced, cause: ConnectionLost) -> CommitUnknown:
    return CommitUnknown(
        f"the answer to COMMIT was lost, and group {advanced.group!r} has been renamed since, or deleted, perhaps in "
        "part",
        topic_partition=advanced.first,
        found=cause.found,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows, the group's token, whether the name still belongs to the same group, and the mark if requested."""

    rows: dict[TopicPartition, LockedRow]
    owner: Token | None
    same_group: bool
    mark: int | None


def _rows(
    database: Database, advanced: Advanced, mark: tuple[UUID, int] | None, *, timeout: float, cause: ConnectionLost
) -> _Found:
    deadline = time.monotonic() + timeout
    trouble: Exception | None = None
    while (left := deadline - time.monotonic()) > 0:
        try:
            return _look(database, advanced, mark, left)
        except Exception as error:  # noqa: BLE001 - an error is not an answer
            trouble = without_frames(error)
        time.sleep(min(_PAUSE, left))
    what = f"the answer to COMMIT in group {advanced.group!r} was lost, and no look-up succeeded within {timeout:g} s"
    found = str(cause.found)
    if trouble is not None:
        found += f"; in the look-up: {_describe(database, advanced, trouble)}"
    raise CommitUnknown(what, topic_partition=advanced.first, found=found) from cause.__cause__


def _describe(database: Database, advanced: Advanced, trouble: Exception) -> str:
    """Describe the holder of the rows, or else the error."""
    reached = not isinstance(trouble, (StoreUnavailable, ConnectionLost))
    holder = database.lock_holder(advanced.group, advanced.locked) if reached and advanced.locked else None
    if holder is not None:
        return f"{holder[0]} is {holder[1]}"
    if isinstance(trouble, OffsetStoreError):
        return str(trouble.found or trouble.what)
    return type(trouble).__name__


def _look(database: Database, advanced: Advanced, mark: tuple[UUID, int] | None, left: float) -> _Found:
    session = database.begin(name=advanced.name, lock_timeout=left)
    try:
        # If the network dropped the connection without telling the server, the old transaction waits for a COMMIT that
        # won't come, and holds the rows.
        with database.unblocking(session, after=left / 2, older_than=advanced.name):
            if mark is not None or advanced.makes_rows:
                # A row that an open transaction inserted is invisible and can't be waited for; the lock on the group's
                # row can.
                session.lock_group(advanced.group)
            rows = session.lock_partitions(advanced.group, advanced.locked if mark else list(advanced.before))
            marked = session.batch_mark(advanced.group, mark[0]) if mark else None
            known = session.group(advanced.group)
            epoch = advanced.token.epoch
            # A rename's epoch is above those of both names; a group whose row was removed starts again at epoch 0.
            same_group = (
                known is not None and known.token.epoch >= epoch and not replaced_since(session, advanced.group, epoch)
            )
        return _Found(rows, None if known is None else known.token, same_group, marked)
    finally:
        session.rollback()
