"""What an executor's task does to stage its part of an output: one COPY, in a transaction of its own.

It holds no token and locks no offset: a row in a staging table is of no consequence until the driver moves it, and the
driver moves only those of attempts that reported themselves. An attempt that Spark repeats has an id of its own; one
whose executor dies, and which takes the rows that it has got for all, has nobody to report to. What goes wrong comes
back as an outcome, since of an error that is raised here the driver would see a text alone.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID, uuid4

import pyarrow as pa

from offsetstore.errors import OffsetStoreError
from offsetstore.postgres.errors import strip_chain, translate
from offsetstore.protocol import failpoints
from offsetstore.store.sessions import transaction
from offsetstore.writers.arrow.streaming import Stream
from offsetstore.writers.staging import StagedRowsLost

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from offsetstore.spark.executors.connect import ExecutorStore
    from offsetstore.writers.staging import Staging
    from offsetstore.writers.staging_area import StagingWriter

_SCHEMA: Final = "attempt binary, rows bigint, error binary"


@dataclass(frozen=True, slots=True)
class StagingOutcome:
    """What became of one attempt. ``error`` is none of PostgreSQL's own."""

    attempt: UUID
    rows: int
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class StagingTask:
    """One output's, for any part of it; it pickles. ``name`` is the connection's ``application_name``."""

    store: ExecutorStore
    name: str
    writer: StagingWriter
    staging: Staging

    def run(self, frame: DataFrame) -> list[StagingOutcome]:
        """Run it on the driver over all parts; return the outcomes of those that have rows."""
        failpoint = failpoints.setting()

        def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            failpoints.follow(failpoint)
            outcome = self.stage(batches)
            if outcome is not None:
                error = None if outcome.error is None else pickle.dumps(outcome.error)
                row = {"attempt": [outcome.attempt.bytes], "rows": [outcome.rows], "error": [error]}
                yield cast("Any", pa).RecordBatch.from_pydict(row)

        rows: list[Any] = frame.mapInArrow(cast("Any", task), _SCHEMA).collect()
        return [
            StagingOutcome(
                UUID(bytes=bytes(row.attempt)),
                row.rows,
                None if row.error is None else pickle.loads(row.error),  # noqa: S301 - of our own tasks
            )
            for row in rows
        ]

    def stage(self, batches: Iterable[pa.RecordBatch]) -> StagingOutcome | None:
        """Copy one part; ``None`` if it has no rows. What it went through is never repeated in place."""
        rows = Stream.of(batches)  # before the transaction, which would wait for the first row
        if rows is None:
            return None
        attempt = uuid4()
        try:
            return StagingOutcome(attempt, self._copy(attempt, rows))
        except (OffsetStoreError, StagedRowsLost) as error:
            return StagingOutcome(attempt, 0, error)
        except Exception as error:
            # Spark logs it, with all that led to it.
            strip_chain(error)
            if (bare := translate(error)) is not error:
                raise bare from None
            raise

    def _copy(self, attempt: UUID, rows: Stream) -> int:
        store = self.store.connect()
        with transaction(store.database, name=self.name, lock_timeout=store.timeouts.lock) as session:
            return self.writer.stage(session.connection, self.staging, attempt, rows)
