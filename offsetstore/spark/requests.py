"""When a sink replays the dead letters that are requested: before a batch, while the job is idle, or when told to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Final

from pyspark.sql import SparkSession

from offsetstore.errors import CommitUnknown, OffsetStoreError, StaleClaim
from offsetstore.processing.dead_letters import DeadLetters
from offsetstore.processing.put_back import PutBack
from offsetstore.processing.unit import PlanOutdated
from offsetstore.spark.letters import computed_letters
from offsetstore.spark.outputs import Outputs
from offsetstore.store.claim import Claim

_EVERY: Final = 5.0  # seconds between two looks
_LONGEST: Final = 10.0  # seconds: then a batch comes first

_log = logging.getLogger(__name__)


class LetterRequests:
    """Looks for requested letters, and has them replayed. The sink's lock guards it."""

    def __init__(self, claim: Claim, outputs: Outputs, settings: DeadLetters) -> None:
        self._claim = claim
        self._outputs = outputs
        self._settings = settings
        self._source: tuple[SparkSession, Collection[str]] | None = None
        self._next_look = 0.0

    def query_began(self, spark: SparkSession, columns: Collection[str]) -> None:
        """Remember where letters can be computed.

        :param columns: those of the query's source.
        """
        self._source = spark, columns

    def drain(self, spark: SparkSession) -> int:
        """Replay all that is requested; see `TransactionalSink.drain`."""
        return self._put_back(spark, None).run(self._claim.require_open)

    def look(self, check: Callable[[], None]) -> None:
        """Replay what is requested, if it is time to look. A request never ends the job.

        :param check: raises if the job is to stop.
        :raises StaleClaim: as a batch does.
        """
        if self._source is None or time.monotonic() < self._next_look:
            return
        began = time.monotonic()
        try:
            self._put_back(*self._source).run(check, seconds=_LONGEST)
        except StaleClaim:
            raise
        except CommitUnknown as error:  # a batch must know; of letters their states tell
            check()
            _log.error("dead letters were replayed, or are still requested: %s", error)
        except Exception as error:  # noqa: BLE001 - it concerns the letters alone
            check()  # a stop interrupts Spark
            text = f": {error}" if isinstance(error, OffsetStoreError) else ""  # others may contain values of rows
            _log.error("could not replay dead letters, which are still requested: %s%s", type(error).__name__, text)
        finally:
            now = time.monotonic()
            self._next_look = now + max(_EVERY, now - began)  # half of the time is for batches

    def look_while_idle(self, is_running: Callable[[], bool]) -> None:
        """Look while no batch is being written.

        :param is_running: whether the query runs; it may raise if Java is gone.
        :raises PlanOutdated: the query was stopped, or the claim closed, while it replayed.
        """

        def check() -> None:
            if self._claim.is_closed or not is_running():
                raise PlanOutdated("the query was stopped")

        if time.monotonic() < self._next_look:
            return
        try:
            runs = is_running()
        except Exception:  # noqa: BLE001 - Java is gone, or busy
            return
        if runs:
            self.look(check)

    def _put_back(self, spark: SparkSession, columns: Collection[str] | None) -> PutBack:
        return PutBack(
            self._claim, self._settings, lambda letters: computed_letters(self._outputs, spark, letters, columns)
        )
