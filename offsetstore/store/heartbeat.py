"""The sign of life of a claim, for ``takeover="wait"`` and ``"refuse"`` of the next one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from offsetstore.protocol.background import Background
from offsetstore.store.sessions import transaction

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from uuid import UUID

    from offsetstore.protocol.database import Database, Session

INTERVAL = 5.0
"""Seconds between two heartbeats, and how long one may wait for a lock."""

_log = logging.getLogger(__name__)


class Heartbeat:
    """Renews the claim's heartbeat until it is stopped, or the claim was fenced; not for a query that has ended."""

    def __init__(self, database: Database, claim_id: UUID, name: str) -> None:
        self._database = database
        self._claim_id = claim_id
        self._name = name
        self._query: Callable[[], bool] | None = None
        self._ended: Callable[[], bool] | None = None
        self._watch: Background | None = None
        self._beats = Background("offsetstore-heartbeat", self._beat, lambda: INTERVAL)

    def follow(self, is_active: Callable[[], bool]) -> None:
        """Skip the heartbeats while ``is_active`` says no: the query has ended, although the process lives.

        It is asked in a thread of its own. If it fails or hangs, that says nothing about the query, and the heartbeats
        go on.
        """
        self._query = is_active
        if self._watch is None:
            self._watch = Background("offsetstore-query-watch", self._ask, lambda: INTERVAL)

    def _ask(self) -> bool:
        query = self._query
        assert query is not None
        try:
            is_active = query()
        except Exception as error:  # noqa: BLE001 - a query that can't be asked is not one that has ended
            _log.debug("the query did not say whether it is active: %s", type(error).__name__)
            is_active = True
        self._ended = None if is_active else query
        return True

    def _has_ended(self) -> bool:
        """Whether the query that is followed now has ended: an answer about an earlier run does not count."""
        return self._ended is not None and self._ended is self._query

    def stop(self) -> None:
        """Stop, and say in the database that the owner has left, so that the next claim need not wait."""
        if self._beats.is_stopping:
            return
        if self._watch is not None:
            self._watch.stop(0)
        # A heartbeat that hangs with the database is not waited for: it can't bring a removed one back.
        self._beats.stop(2 * INTERVAL)
        try:
            with self._transaction() as session:
                session.end_beat(self._claim_id)
        except Exception as error:  # noqa: BLE001 - leaving must not fail; the next claim waits a little longer
            _log.warning("the claim's last heartbeat could not be removed: %s", type(error).__name__)

    def _beat(self) -> bool:
        if self._has_ended():
            return True
        try:
            with self._transaction() as session:
                is_ours = session.beat(self._claim_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next one may succeed
            # A database that is away for a moment is the transactions' business, not the heartbeat's.
            _log.debug("a heartbeat was missed: %s", type(error).__name__)
            return True
        if not is_ours and not self._beats.is_stopping:
            _log.warning("the claim has been taken over (%s)", self._name)
        return is_ours

    def _transaction(self) -> AbstractContextManager[Session]:
        return transaction(self._database, name=self._name, lock_timeout=INTERVAL, dedicated=True)
