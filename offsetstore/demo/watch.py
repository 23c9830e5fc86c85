"""Look at the tables from outside, twice a second: how many flights have landed, and how far the offsets are."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, Self

from offsetstore.demo.settings import GROUP, JDBC_NAME, TOPIC
from offsetstore.postgres.url import make_engine

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from offsetstore.demo.tables import Tables

_SECONDS: Final = 0.5
# One statement sees one snapshot. The topic begins at 0 in each partition, so the sum of offsets counts records.
_LOOK: Final = """
SELECT (SELECT count(*) FROM {flights}),
       (SELECT coalesce(sum(next_offset), 0)::bigint FROM kafka_partitions WHERE consumer_group = %s AND topic = %s)
"""
_JDBC_WRITES: Final = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name = %s AND state <> 'idle' AND query ILIKE 'INSERT INTO%%'
"""


@dataclass(frozen=True, slots=True)
class Look:
    """What was there, ``at`` seconds after the job's first start; ``offsets`` is how far the store says it is."""

    at: float
    landed: int
    offsets: int


class Watch:
    """Looks for as long as the block lasts, over a connection of its own.

    :param seen: called with each look, in the watch's own thread.
    """

    def __init__(self, url: str, tables: Tables, seen: Callable[[Look], None]) -> None:
        self.looks: list[Look] = []
        self._engine = make_engine(url).execution_options(isolation_level="AUTOCOMMIT")
        self._query = _LOOK.format(flights=tables.flights)
        self._seen = seen
        self._error: Exception | None = None
        self._ended = Event()
        self._begin = time.monotonic()
        self._thread = Thread(target=self._run, name="demo-watch", daemon=True)

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self._begin

    @property
    def landed(self) -> int:
        """What the last look saw."""
        return self.looks[-1].landed if self.looks else 0

    def look(self) -> Look:
        """Look now."""
        with self._engine.connect() as connection:
            landed, offsets = connection.exec_driver_sql(self._query, (GROUP, TOPIC)).one()
        return Look(self.seconds, landed, offsets)

    def jdbc_writes(self) -> bool:
        """Whether Spark's JDBC writer is inserting right now."""
        with self._engine.connect() as connection:
            return bool(connection.exec_driver_sql(_JDBC_WRITES, (JDBC_NAME,)).scalar_one())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._engine.dispose()
        if error is None and self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while True:
                ended = self._ended.wait(0 if not self.looks else _SECONDS)
                self.looks.append(self.look())
                self._seen(self.looks[-1])
                if ended:
                    return
        except Exception as error:  # noqa: BLE001 - raised where the block ends
            self._error = error
