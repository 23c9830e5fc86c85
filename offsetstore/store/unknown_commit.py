"""Did that COMMIT happen? Its answer was lost with the connection; the rows know.

Every advance writes a transaction id of its own into the rows, and a claim leaves it alone. So: reconnect, lock a row
that the transaction advanced (which waits until the old transaction has ended, one way or the other), and compare.
Before the token is judged: the answer must not depend on whether another job has claimed the group since.
PostgreSQL's own ``pg_xact_status`` would be less to write, but after a failover the number may be another's.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offsetstore.errors import CommitUnknown, StoreUnavailable, TransactionLost
from offsetstore.store import failures

if TYPE_CHECKING:
    from uuid import UUID

    from offsetstore.offsets import TopicPartition
    from offsetstore.store.session import Database

_log = logging.getLogger(__name__)
_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Advanced:
    """What a transaction advanced: its id, and for each partition the id that the row held before."""

    group: str
    name: str
    transaction_id: UUID
    before: dict[TopicPartition, UUID | None]
    wrote: bool


def settle(database: Database, advanced: Advanced, *, timeout: float, cause: Exception) -> None:
    """Return if the COMMIT happened.

    :param timeout: seconds to reconnect and to wait for the old transaction to end.
    :raises TransactionLost: it did not happen.
    :raises CommitUnknown: it can't be told: no answer in time, or the row has moved on since.
    """
    if not advanced.before:
        if advanced.wrote:
            what = "the answer to COMMIT was lost, and the transaction advanced no partition that could tell"
            raise CommitUnknown(what) from cause
        what = "the connection was lost in a transaction that wrote nothing"
        raise TransactionLost(what) from cause
    tp, before = next(iter(advanced.before.items()))
    found = _transaction_id(database, advanced, tp, timeout=timeout, cause=cause)
    if found == advanced.transaction_id:
        _log.warning("the answer to COMMIT was lost; the rows show that it happened (%s)", tp)
        return
    if found == before:
        what = "the connection was lost at COMMIT, and the rows show that it did not happen"
        raise TransactionLost(what, topic_partition=tp) from cause
    what = "the answer to COMMIT was lost, and another transaction has moved the row since"
    raise CommitUnknown(what, topic_partition=tp) from cause


def _transaction_id(
    database: Database, advanced: Advanced, tp: TopicPartition, *, timeout: float, cause: Exception
) -> UUID | None:
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            what = f"the answer to COMMIT was lost, and the database did not tell within {timeout:g} s"
            raise CommitUnknown(what, topic_partition=tp) from cause
        try:
            session = database.begin(name=advanced.name, lock_timeout=left)
        except StoreUnavailable:
            time.sleep(min(_PAUSE, left))
            continue
        try:
            row = session.lock_partitions(advanced.group, [tp]).get(tp)
        except Exception as error:
            if not (failures.is_connection_lost(error) or failures.is_lock_timeout(error)):
                raise
            time.sleep(min(_PAUSE, left))
            continue
        finally:
            session.rollback()
        if row is None:
            what = "the answer to COMMIT was lost, and the group's row has been removed since"
            raise CommitUnknown(what, topic_partition=tp) from cause
        return row.transaction_id
