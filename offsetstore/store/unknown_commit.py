"""Did that COMMIT happen? Its answer was lost with the connection; the rows know.

Every advance writes a transaction id of its own into the rows, and a claim leaves it alone. So: reconnect, lock the
rows that the transaction advanced (which waits until the old transaction has ended, one way or the other), and compare.
Any one row is enough, since they all moved or none. Before the token is judged: the answer must not depend on whether
another job has claimed the group since. PostgreSQL's own ``pg_xact_status`` would be less to write, but after a
failover the number may be another's.

A batch without ranges advances no row. Its mark tells instead, under the group's lock, which waits for the share of it
that the old transaction has.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsetstore.errors import CommitUnknown, StoreUnavailable, TransactionLost
from offsetstore.store import failures
from offsetstore.store.session import renamed

if TYPE_CHECKING:
    from uuid import UUID

    from offsetstore.offsets import StoredOffset, TopicPartition
    from offsetstore.store.session import Database

_log = logging.getLogger(__name__)
_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Advanced:
    """What a transaction advanced: its id, and for each partition the id that the row held before.

    ``mark`` is the query and the batch that it marked, or found marked.
    """

    group: str
    name: str
    transaction_id: UUID
    before: dict[TopicPartition, UUID | None]
    wrote: bool
    mark: tuple[UUID, int] | None = None


def settle(database: Database, advanced: Advanced, *, timeout: float, cause: BaseException) -> None:
    """Return if the COMMIT happened.

    :param timeout: seconds to reconnect and to wait for the old transaction to end.
    :raises TransactionLost: it did not happen.
    :raises CommitUnknown: it can't be told: no answer in time, or every row has moved on since.
    """
    if not advanced.before:
        if advanced.mark is not None:
            _settle_by_mark(database, advanced, advanced.mark, timeout=timeout, cause=cause)
            return
        if advanced.wrote:
            what = "the answer to COMMIT was lost, and the transaction advanced no partition that could tell"
            raise CommitUnknown(what, found=failures.words(cause)) from cause
        what = "the connection was lost in a transaction that wrote nothing"
        raise TransactionLost(what, found=failures.words(cause)) from cause
    found = _rows(database, advanced, None, timeout=timeout, cause=cause)
    tp = next(iter(advanced.before))
    ids = {tp: row.transaction_id for tp, row in found.rows.items()}
    if advanced.transaction_id in ids.values():
        _log.warning("the answer to COMMIT was lost; the rows show that it happened (%s)", tp)
        return
    # A row that was never advanced may be the transaction's own, so that it has gone with it. Only if the whole group
    # has been removed or renamed since, nothing can be told from that.
    same = any(
        ids[tp] == before if tp in ids else before is None and found.group for tp, before in advanced.before.items()
    )
    if same:
        what = "the connection was lost at COMMIT, and the rows show that it did not happen"
        raise TransactionLost(what, topic_partition=tp, found=failures.words(cause)) from cause
    what = "the answer to COMMIT was lost, and the rows have been moved or removed since"
    raise CommitUnknown(what, topic_partition=tp, found=failures.words(cause)) from cause


def _settle_by_mark(
    database: Database, advanced: Advanced, mark: tuple[UUID, int], *, timeout: float, cause: BaseException
) -> None:
    """The results of a marked batch are there once, whoever has written them: a new owner's word is as good."""
    _, batch_id = mark
    found = _rows(database, advanced, mark, timeout=timeout, cause=cause)
    if found.mark is not None and found.mark >= batch_id:
        _log.warning("the answer to COMMIT was lost; the mark shows that batch %d is in the results", batch_id)
        return
    if not found.group:
        what = "the answer to COMMIT was lost, and the group has been removed or renamed since"
        raise CommitUnknown(what, found=failures.words(cause)) from cause
    what = f"the connection was lost at COMMIT, and the mark shows that batch {batch_id} was not written"
    raise TransactionLost(what, found=failures.words(cause)) from cause


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows that are there, whether the group is (by this name), and the query's mark if it was asked for."""

    rows: dict[TopicPartition, StoredOffset]
    group: bool
    mark: int | None


def _rows(
    database: Database, advanced: Advanced, mark: tuple[UUID, int] | None, *, timeout: float, cause: BaseException
) -> _Found:
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        try:
            return _look(database, advanced, mark, left)
        except Exception as error:
            gone = isinstance(error, StoreUnavailable) or failures.is_connection_lost(error)
            if not (gone or failures.is_lock_timeout(error)):
                raise
        time.sleep(min(_PAUSE, left))
    what = f"the answer to COMMIT was lost, and the database did not tell within {timeout:g} s"
    raise CommitUnknown(what, topic_partition=next(iter(advanced.before), None), found=failures.words(cause)) from cause


def _look(database: Database, advanced: Advanced, mark: tuple[UUID, int] | None, left: float) -> _Found:
    session = database.begin(name=advanced.name, lock_timeout=left)
    try:
        # Where the network has dropped the connection without telling the server, the old transaction waits for a
        # COMMIT that won't come, and holds the rows.
        with database.unblocking(session, after=left / 2, older_than=advanced.name):
            if mark is not None or None in advanced.before.values():
                # Nobody sees or waits for a row that an open transaction has made; but it shares the group's.
                session.lock_group(advanced.group)
            rows = session.lock_partitions(advanced.group, list(advanced.before))
            marked = session.batch_mark(advanced.group, mark[0]) if mark else None
            known = session.group(advanced.group) is not None and renamed(session.history(advanced.group)) is None
        return _Found(rows, known, marked)
    finally:
        session.rollback()
