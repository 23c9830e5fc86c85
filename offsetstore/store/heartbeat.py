"""The sign of life of a claim, for ``takeover="wait"`` and ``"refuse"`` of the next one."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from offsetstore.errors import OffsetStoreError

if TYPE_CHECKING:
    from uuid import UUID

    from offsetstore.store.session import Database

EVERY = 5.0
"""Seconds between two beats."""

LIVE = timedelta(seconds=15)
"""An owner is live whose last beat is younger, by the database's clock: two beats may be lost."""

_log = logging.getLogger(__name__)


class Heartbeat:
    """Beats from a daemon thread until it is stopped, or the claim has been fenced."""

    def __init__(self, database: Database, claim_id: UUID, name: str) -> None:
        self._database = database
        self._claim_id = claim_id
        self._name = name
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offsetstore-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and say in the database that the owner has left, so that the next claim need not wait."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._thread.join()
        try:
            self._end()
        except (SQLAlchemyError, OffsetStoreError) as error:
            _log.warning("the claim's last heartbeat could not be removed: %s", type(error).__name__)

    def _end(self) -> None:
        session = self._database.begin(name=self._name)
        session.end_beat(self._claim_id)
        session.commit()

    def _run(self) -> None:
        while not self._stopped.wait(EVERY):
            try:
                session = self._database.begin(name=self._name)
                ours = session.beat(self._claim_id)
                session.commit()
            except (SQLAlchemyError, OffsetStoreError) as error:
                # A database that is away for a moment is the transactions' business, not the heartbeat's.
                _log.debug("a heartbeat was missed: %s", type(error).__name__)
                continue
            if not ours:
                _log.warning("the claim has been taken over (%s)", self._name)
                return
