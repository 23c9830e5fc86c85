"""The sign of life of a claim, for ``takeover="wait"`` and ``"refuse"`` of the next one."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from offsetstore.protocol.database import Database, Session

EVERY = 5.0
"""Seconds between two beats, and how long one may wait for a lock."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Heartbeat:
    """Beats from a daemon thread until it is stopped, or the claim has been fenced; not for a query that has ended."""

    def __init__(self, database: Database, claim_id: UUID, name: str) -> None:
        self._database = database
        self._claim_id = claim_id
        self._name = name
        self._stopped = threading.Event()
        self._query: Callable[[], bool] | None = None
        self._ended: Callable[[], bool] | None = None
        self._asker: threading.Thread | None = None
        self._thread = threading.Thread(target=self._run, name="offsetstore-heartbeat", daemon=True)
        self._thread.start()

    def follow(self, is_active: Callable[[], bool]) -> None:
        """Skip the beats while ``is_active`` says no: the query has ended, although the process lives.

        It is asked in a thread of its own. Where it fails or hangs, that says nothing about the query, and the beats
        go on.
        """
        self._query = is_active
        if self._asker is None:
            self._asker = threading.Thread(target=self._ask, name="offsetstore-query-watch", daemon=True)
            self._asker.start()

    def _ask(self) -> None:
        while not self._stopped.wait(EVERY):
            query = self._query
            assert query is not None
            try:
                is_active = query()
            except Exception as error:  # noqa: BLE001 - a query that can't be asked is not one that has ended
                _log.debug("the query did not say whether it is active: %s", type(error).__name__)
                is_active = True
            self._ended = None if is_active else query

    def _has_ended(self) -> bool:
        """Whether the query that is followed now has ended: an answer about an earlier run does not count."""
        return self._ended is not None and self._ended is self._query

    def stop(self) -> None:
        """Stop, and say in the database that the owner has left, so that the next claim need not wait."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        # A beat that hangs because the database does is not waited for: it can't bring a removed heartbeat back.
        self._thread.join(timeout=2 * EVERY)
        try:
            self._tell(lambda session: session.end_beat(self._claim_id))
        except Exception as error:  # noqa: BLE001 - leaving must not fail; the next claim waits a little longer
            _log.warning("the claim's last heartbeat could not be removed: %s", type(error).__name__)

    def _run(self) -> None:
        while not self._stopped.wait(EVERY):
            if self._has_ended():
                continue
            try:
                ours = self._tell(lambda session: session.beat(self._claim_id))
            except Exception as error:  # noqa: BLE001 - whatever it is, the next beat may succeed
                # A database that is away for a moment is the transactions' business, not the heartbeat's.
                _log.debug("a heartbeat was missed: %s", type(error).__name__)
                continue
            if not ours:
                if not self._stopped.is_set():
                    _log.warning("the claim has been taken over (%s)", self._name)
                return

    def _tell(self, statement: Callable[[Session], _T]) -> _T:
        session = self._database.begin(name=self._name, lock_timeout=EVERY, aside=True)
        try:
            result = statement(session)
            session.commit()
        except BaseException:
            session.rollback()
            raise
        return result
