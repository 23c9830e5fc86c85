"""A claim's heartbeat, which the next claim checks for ``takeover="wait"`` and ``"refuse"``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import AbstractContextManager

from offsetstore.protocol.database import Database, Session
from offsetstore.runtime.background import Background, meanwhile
from offsetstore.runtime.functions import without_frames
from offsetstore.store.run_record import RunRecord
from offsetstore.store.sessions import transaction

# A third of the time for which a heartbeat counts (`LIVE`, decision 0026).
INTERVAL = 5.0
"""Seconds between two heartbeats, and how long one may wait for a lock."""

_log = logging.getLogger(__name__)


class Heartbeat:
    """Renews the claim's heartbeat until it is stopped or the claim is fenced, except while its query has ended.

    After each heartbeat it saves the record of the run.

    :param beat: renews it; ``False`` if the claim was fenced.
    :param end: removes it.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        *,
        beat: Callable[[Session], bool],
        end: Callable[[Session], None],
        on_lost: Callable[[], None],
        on_asked: Callable[[Exception | None], None],
        run: RunRecord,
    ) -> None:
        self._database = database
        self._name = name
        self._renew = beat
        self._end = end
        self._on_lost = on_lost
        self._on_asked = on_asked
        self._run = run
        self._query: Callable[[], bool] | None = None
        self._ended: Callable[[], bool] | None = None
        self._watch: Background | None = None
        self._beats = Background("offsetstore-heartbeat", self._beat, lambda: INTERVAL)
        self._beats.start()

    def follow(self, is_active: Callable[[], bool]) -> None:
        """Skip the heartbeats while ``is_active`` returns ``False``: the query has ended, although the process lives.

        It is called in a thread of its own. If it fails or hangs, that says nothing about the query, and the heartbeats
        continue.
        """
        # Asked again and again, because Spark's listener bus drops events (decision 0026).
        self._query = is_active
        if self._watch is None:
            self._watch = Background("offsetstore-query-watch", self._check_query, lambda: INTERVAL)
            self._watch.start()

    def _check_query(self) -> bool:
        query = self._query
        assert query is not None
        try:
            is_active = query()
        except Exception as error:  # noqa: BLE001 - an error does not mean that the query has ended
            _log.debug("could not check whether the query is active: %s", type(without_frames(error)).__name__)
            is_active = True
        self._ended = None if is_active else query
        return not self._beats.is_stopping

    def _has_ended(self) -> bool:
        """Whether the current query has ended: an answer about an earlier one does not count."""
        return self._ended is not None and self._ended is self._query

    def record_run(self) -> None:
        """Save the record of the run now, not with the next heartbeat. Wait at most `INTERVAL`; raise nothing."""
        # In a thread, so that the limit holds whatever the driver and the network do (decision 0058).
        wait([meanwhile("offsetstore-run-record", lambda: self._run.save(self._transaction))], INTERVAL)

    def stop(self) -> None:
        """Stop, and remove the heartbeat from the database, so that the next claim need not wait."""
        if self._beats.is_stopping:
            return
        # Don't wait longer for a heartbeat that hangs with the database: it can't restore the removed row. The watch
        # ends by itself: it may have been started since, and it may be the thread that stops us.
        self._beats.stop(2 * INTERVAL)
        try:
            with self._transaction() as session:
                self._end(session)
        except Exception as error:  # noqa: BLE001 - closing must not fail; the next claim waits a little longer
            _log.warning("could not remove the claim's last heartbeat: %s", type(without_frames(error)).__name__)
            return
        self._run.save(self._transaction, is_over=True)

    def _beat(self) -> bool:
        has_ended = self._has_ended()
        try:
            with self._transaction() as session:
                if has_ended:
                    session.now()  # no heartbeat; but observers are told whether the database answers
                is_ours = has_ended or self._renew(session)
        except Exception as error:  # noqa: BLE001 - the next one may succeed
            # The job's own transactions report an unavailable database.
            _log.debug("could not send a heartbeat: %s", type(error).__name__)
            self._on_asked(error)
            return True
        self._on_asked(None)
        if not is_ours and not self._beats.is_stopping:
            self._on_lost()
        # In a transaction of its own: a missing grant or locked table must not make the job look dead (decision 0041).
        if not self._beats.is_stopping:
            self._run.save(self._transaction, is_over=has_ended)
        return is_ours

    def _transaction(self) -> AbstractContextManager[Session]:
        return transaction(self._database, name=self._name, lock_timeout=INTERVAL, dedicated=True)
