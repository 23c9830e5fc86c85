"""What a relay does, for the table ``relay_runs``, which shows others whether it runs, and why it sends nothing.

It is apart from the relay's token, whose row each batch locks: a heartbeat there would wait for batches, and a frozen
heartbeat would stop them (decision 0103).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Final
from uuid import uuid4

from offsetstore.errors import OffsetStoreError, RelayFenced, StoreUnavailable
from offsetstore.operations.people import people
from offsetstore.postgres.errors import needing
from offsetstore.postgres.session import PostgresSession
from offsetstore.protocol.database import Database
from offsetstore.protocol.events import Event, OutboxBlocked, OutboxRests, OutboxSent, OutboxWaits
from offsetstore.protocol.letters import writable
from offsetstore.protocol.runs import Ending
from offsetstore.runtime.background import Background, meanwhile
from offsetstore.runtime.functions import without_frames
from offsetstore.store.heartbeat import INTERVAL
from offsetstore.store.sessions import transaction

_log = logging.getLogger("offsetstore")

_NAME: Final = "offsetstore:relay-heartbeat"
_LONGEST: Final = 4_000  # characters of an error's text
_KEPT: Final = 100  # runs
# Seconds. A relay reports each minute that a topic is blocked; after two without a report it is blocked no longer.
_BLOCKED: Final = 120.0
_SILENCE: Final = 60.0  # seconds without an answer of the database, at the start

BEGIN_RELAY: Final = "INSERT INTO {s}relay_runs (run_id, owner) VALUES (:run_id, :owner)"
# A second relay that fails at each start must not delete the run of the one that goes on (decision 0103).
TRIM_RELAYS: Final = """
DELETE FROM {s}relay_runs WHERE run_id IN (
    SELECT run_id FROM {s}relay_runs ORDER BY started_at DESC OFFSET :keep FOR UPDATE SKIP LOCKED)
AND (ended_at IS NOT NULL OR seen_at < clock_timestamp() - interval '1 hour')
"""
WRITE_RELAY: Final = """
UPDATE {s}relay_runs
SET seen_at = clock_timestamp(), sent_at = clock_timestamp() - CAST(:sent_age AS interval), error = :error,
    ended_at = CASE WHEN CAST(:ending AS text) IS NOT NULL THEN clock_timestamp() END, ending = CAST(:ending AS text)
WHERE run_id = :run_id AND ended_at IS NULL
"""
"""A heartbeat that comes late, out of a connection that hung, takes no end back."""


class RelayRecord:
    """An observer of one relay, which writes its heartbeat every five seconds, with what it waits for."""

    def __init__(self, database: Database, owner: str, *, right: str | tuple[str, str]) -> None:
        self._database = database
        self._owner = owner
        self._right = right
        self._run_id = uuid4()
        self._guard = threading.Lock()
        self._sent: float | None = None
        self._error: str | None = None
        self._blocked: dict[str, tuple[float, str]] = {}
        self._has_failed = False
        self._beats = Background("offsetstore-relay-heartbeat", self._beat, lambda: INTERVAL)

    @contextmanager
    def running(self) -> Generator[None]:
        """Record that the relay runs until the block ends, and how.

        :raises MissingPrivilege: the relay may not record it; it has fenced nobody yet.
        :raises OffsetStoreError: an outage, as the relay raises it at its start.
        """
        self._within(_SILENCE, self._begin)
        self._beats.start()
        ending: Ending = "closed"
        try:
            yield
        except Exception as error:
            ending = "fenced" if isinstance(error, RelayFenced) else "failed"
            self._error = _text(error)
            raise
        finally:
            self.end(ending)

    def end(self, ending: Ending) -> None:
        """Record how the relay has ended, in at most `INTERVAL`. Only the first end counts."""
        # A heartbeat that hangs is not waited for: it takes no end back.
        self._beats.stop(0)
        self._write(ending)

    def on(self, event: Event) -> None:
        match event:
            case OutboxSent():
                with self._guard:
                    self._sent, self._error = time.monotonic(), None
            case OutboxRests(blocked=blocked):
                # What the relay waited for has answered.
                with self._guard:
                    self._error = None
                    if not blocked:
                        self._blocked.clear()
            case OutboxBlocked(topic=topic, row=row, error=why):
                with self._guard:
                    self._blocked[topic] = time.monotonic(), f"row {row} blocks topic {topic}: {why}"
            case OutboxWaits():
                with self._guard:
                    self._error = _text(event.error)
            case _:
                pass

    def _beat(self) -> bool:
        self._write(None)
        return True

    def _write(self, ending: Ending | None) -> None:
        """Write what is known. A failure is logged once, and ends nothing: the relay does not depend on the record."""
        now = time.monotonic()
        with self._guard:
            self._blocked = {topic: block for topic, block in self._blocked.items() if now - block[0] < _BLOCKED}
            blocked = "; ".join(text for _, text in self._blocked.values())
            sent, error = self._sent, self._error or writable(blocked[:_LONGEST]) or None
        age = None if sent is None else timedelta(seconds=now - sent)
        values = {"run_id": self._run_id, "sent_age": age, "error": error, "ending": ending}
        try:
            self._within(INTERVAL, lambda session: session.run(WRITE_RELAY, **values))
        except Exception as failed:  # noqa: BLE001 - the next one may succeed
            if not self._has_failed:
                self._has_failed = True
                _log.warning("could not record that the relay runs: %s", type(without_frames(failed)).__name__)

    def _begin(self, session: PostgresSession) -> None:
        with needing(self._right):
            session.run(BEGIN_RELAY, run_id=self._run_id, owner=self._owner)
            session.run(TRIM_RELAYS, keep=_KEPT)

    def _within(self, seconds: float, work: Callable[[PostgresSession], object]) -> None:
        """Do the work in a transaction, and break its connection if there is no answer within ``seconds``.

        :raises StoreUnavailable: there was no answer.
        """
        # No setting of TCP notices a proxy that acknowledges and forgets (decision 0095).
        begun: list[PostgresSession] = []

        def do() -> None:
            with transaction(self._database, name=_NAME, lock_timeout=INTERVAL, dedicated=True) as session:
                begun.append(people(session))
                work(begun[0])

        done = meanwhile("offsetstore-relay-run", do)
        if wait([done], seconds).not_done:
            for session in begun:
                session.sever()
            raise StoreUnavailable(
                f"no answer from the database within {seconds:g} s", found="while recording that the relay runs"
            )
        done.result()


def _text(error: Exception) -> str:
    # Our own errors hold nothing of a record; others may.
    return writable((str(error) if isinstance(error, OffsetStoreError) else type(error).__name__)[:_LONGEST])
