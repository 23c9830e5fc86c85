"""A claim's rows, as the threads beside the job read and write them, without effect on the job's transactions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from offsetstore.offsets import StoredOffset, TopicPartition
from offsetstore.protocol.database import Database, Session
from offsetstore.runtime.functions import without_frames
from offsetstore.store.identity import ClaimInfo
from offsetstore.store.sessions import read, transaction

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
