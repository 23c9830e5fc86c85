"""What an executor's task does to stage its part of an output: one COPY, in a transaction of its own.

It holds no token and locks no offset: a row in a staging table has no effect until the driver moves it, and the driver
moves only the rows of attempts that reported back. Each attempt has an id of its own, even if Spark repeats a task. An
attempt that does not receive all rows fails. Errors are returned as outcomes, since the driver would see only the text
of an error that is raised here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID, uuid4

import pyarrow as pa
from pyspark.sql import DataFrame

from offsetstore.errors import OffsetStoreError
from offsetstore.postgres.errors import strip_chain, translate
from offsetstore.protocol import failpoints
from offsetstore.spark.executors.connect import ExecutorStore
from offsetstore.spark.executors.record_batches import Parts
from offsetstore.spark.rejects import none_rejected
from offsetstore.store.sessions import transaction
from offsetstore.writers.arrow.streaming import Stream
from offsetstore.writers.staging import StagedRowsLost, Staging
from offsetstore.writers.staging_schema import StagingWriter


@dataclass(frozen=True, slots=True)
class StagingOutcome:
    """The outcome of one attempt. ``error`` is never the database driver's own."""

    attempt: UUID
    rows: int
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class StagingTask:
    """Stages any part of one output; can be pickled. ``name`` is the connection's ``application_name``."""

    store: ExecutorStore
    name: str
    writer: StagingWriter
    staging: Staging

    def run(self, frame: DataFrame) -> list[StagingOutcome]:
        """Run the task for all parts, from the driver; return the outcomes of those that have rows."""
        failpoint = failpoints.setting()

        def task(_: int, batches: Iterable[pa.RecordBatch | None]) -> StagingOutcome | None:
            failpoints.follow(failpoint)
            return self.stage(none_rejected(batch) for batch in batches if batch is not None)

        return [outcome for outcome in Parts.of(frame).run(task) if outcome is not None]

    def stage(self, batches: Iterable[pa.RecordBatch]) -> StagingOutcome | None:
        """Copy one part; return ``None`` if it has no rows. Rows that were consumed are never retried in place."""
        attempt = uuid4()
        try:
            rows = Stream.of(batches)  # before the transaction, which would wait for the first row
            if rows is None:
                return None
            return StagingOutcome(attempt, self._copy(attempt, rows))
        except (OffsetStoreError, StagedRowsLost) as error:
            return StagingOutcome(attempt, 0, error)
        except Exception as error:
            # Spark logs it with all its causes.
            strip_chain(error)
            if (bare := translate(error)) is not error:
                raise bare from None
            raise

    def _copy(self, attempt: UUID, rows: Stream) -> int:
        store = self.store.connect()
        with transaction(store.database, name=self.name, lock_timeout=store.timeouts.lock) as session:
            return self.writer.stage(session.connection, self.staging, attempt, rows)
