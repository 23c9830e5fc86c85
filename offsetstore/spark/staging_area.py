"""Large batches: executors copy them in parallel into staging tables, which the driver moves into the results by SQL.

The tables are created and dropped in separate transactions, to keep DDL out of the results' transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, TypeVar, get_args

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import Connection

from offsetstore.errors import ConfigurationError, ConnectionLost, LockTimeout, StoreUnavailable
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.protocol.numbers import check_whole
from offsetstore.protocol.retries import may_pass
from offsetstore.spark.executors.connect import ExecutorStore, sending_password
from offsetstore.spark.executors.preflight import check_once
from offsetstore.spark.executors.staging_task import StagingOutcome, StagingTask
from offsetstore.spark.rejects import without_reject
from offsetstore.spark.schemas import arrow_schema
from offsetstore.store.claim import Claim
from offsetstore.store.sessions import transaction
from offsetstore.writers.staging import Staged, Staging
from offsetstore.writers.staging_schema import StagingOwner, StagingWriter, check_schema, drop

StagingMode: TypeAlias = Literal["auto", "always", "never"]

THRESHOLD: Final = 2_000_000
"""In offsets: the driver alone writes a batch that has at most as many; see docs/decisions/0015-staging.md."""

_log = logging.getLogger(__name__)
_DROP_SECONDS: Final = 3.0  # longer than an autovacuum takes to give way
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StagingPolicy:
    """When to stage.

    :raises ConfigurationError: an unknown mode, or a threshold below 0.
    """

    mode: StagingMode = "auto"
    threshold: int = THRESHOLD

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.mode not in get_args(StagingMode):
            raise ConfigurationError('staging must be "auto", "always" or "never"', found=repr(self.mode))
        check_whole("staging_threshold", self.threshold, "offsets")

    def wants(self, offsets: int) -> bool:
        """Tell whether to stage a batch of this many offsets."""
        return self.mode == "always" or (self.mode == "auto" and offsets > self.threshold)


class StagingArea:
    """The staging tables of one claim."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._owner: StagingOwner | None = None
        self._executors: ExecutorStore | None = None
        self._checked = False
        self._made: list[Staging] = []

    def stage(self, writer: StagingWriter, frame: DataFrame) -> Staged:
        """Have executors copy the rows into a new table.

        :raises ExecutorEnvironment: the executors can't write to the database.
        :raises SchemaError: the schema for staging tables is missing, or the role can't use it.
        :raises ColumnMismatch, RowsRefused: the rows don't fit the target; nothing was written.
        :raises StagedRowsLost: the table was dropped, for example by a newer claim.
        """
        session = frame.sparkSession
        executors = self._prepare(session)
        schema = without_reject(arrow_schema(frame))
        staging = self._claim.repeat(lambda _: self._create(writer, schema))
        task = StagingTask(executors, self._claim.name, writer, staging)

        def run() -> list[StagingOutcome]:
            with sending_password(session, self._claim):
                return task.run(frame)

        outcomes = self._run_tasks(run)
        return Staged(staging, tuple(o.attempt for o in outcomes), sum(o.rows for o in outcomes))

    def drop_made(self) -> None:
        """Drop the tables that `stage` has created, once they are no longer needed; retry failures at the next call."""
        self._made = [staging for staging in self._made if not self._drop(staging)]

    def drop_abandoned(self) -> None:
        """Drop the tables left by claims of the store that no longer own a group; a failure is only logged."""
        database = self._claim.database
        if not isinstance(database, PostgresDatabase):
            return
        try:
            abandoned = self._run(
                lambda connection: self._get_owner().abandoned(connection, lambda: database.current_claims(connection))
            )
        except Exception as error:  # noqa: BLE001 - tables left behind only take space
            _log.warning("could not look for old staging tables: %s", type(error).__name__)
            return
        for staging in abandoned:
            if self._drop(staging):
                _log.info("dropped the staging table %s of a claim that no longer owns a group", staging.table)

    def _prepare(self, session: SparkSession) -> ExecutorStore:
        """Check, once, all executors and the database."""
        if self._executors is None:
            self._executors = ExecutorStore.of(self._claim)
        if not self._checked:
            self._claim.repeat(lambda _: self._run(check_schema))
            self._checked = True
        check_once(session)
        return self._executors

    def _create(self, writer: StagingWriter, schema: pa.Schema) -> Staging:
        staging = self._get_owner().fresh()  # a new name for each try: the last COMMIT may have succeeded
        self._made.append(staging)
        self._run(lambda connection: writer.create_staging(connection, staging, schema))
        return staging

    def _get_owner(self) -> StagingOwner:
        if self._owner is None:
            self._owner = StagingOwner.of(self._claim.store_id, self._claim.group, self._claim.token)
        return self._owner

    def _run_tasks(self, run: Callable[[], list[StagingOutcome]]) -> list[StagingOutcome]:
        """Run the tasks; retry all of them if the errors may pass. Rows of earlier attempts are not moved."""

        def attempt(_: int) -> list[StagingOutcome]:
            outcomes = run()
            errors = [outcome.error for outcome in outcomes if outcome.error is not None]
            if errors:
                raise next((error for error in errors if not may_pass(error)), errors[0])
            return outcomes

        return self._claim.repeat(attempt)

    def _drop(self, staging: Staging) -> bool:
        try:
            self._run(lambda connection: drop(connection, staging), lock_timeout=_DROP_SECONDS)
        except Exception as error:  # noqa: BLE001 - see drop_abandoned
            _log.warning("the staging table %s could not be dropped: %s", staging.table, type(error).__name__)
            return False
        return True

    def _run(self, work: Callable[[Connection], _T], *, lock_timeout: float | None = None) -> _T:
        """Run ``work`` in a transaction of its own."""
        timeout = self._claim.timeouts.lock if lock_timeout is None else lock_timeout
        try:
            with transaction(self._claim.database, name=self._claim.name, lock_timeout=timeout) as session:
                return work(session.connection)
        except LockTimeout as error:
            raise LockTimeout(
                f"could not acquire a lock for a staging table within {timeout:g} s",
                found=error.found,
                next_step="Find the session that holds the lock, in pg_locks.",
            ) from error.__cause__
        except ConnectionLost as lost:
            raise StoreUnavailable(
                "the connection to the database was lost while a staging table was created or looked for",
                found=lost.found,
            ) from lost.__cause__
