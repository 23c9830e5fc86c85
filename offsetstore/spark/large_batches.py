"""Large batches: copied by executors, in parallel, into tables that the driver then moves into the results by SQL.

The tables are made and dropped in transactions of their own: DDL would be in the way of the results' one.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar, get_args

from offsetstore.errors import ConfigurationError, LockTimeout
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.protocol.retries import may_pass, with_retries
from offsetstore.spark.executors.connect import ExecutorStore, sending_password
from offsetstore.spark.executors.preflight import check_executors
from offsetstore.spark.executors.staging import StagingOutcome, StagingTask
from offsetstore.spark.outputs import arrow_schema
from offsetstore.store.sessions import transaction
from offsetstore.writers.staging import Staged, Staging
from offsetstore.writers.staging_area import StagingOwner, check_schema, drop

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from sqlalchemy import Connection

    from offsetstore.store.claim import Claim
    from offsetstore.writers.staging_area import StagingWriter

StagingMode: TypeAlias = Literal["auto", "always", "never"]

THRESHOLD: Final = 1_000_000
"""So many offsets a batch may have for the driver to write it alone; see docs/decisions/0015-staging.md."""

_log = logging.getLogger(__name__)
_DROP_SECONDS: Final = 3.0  # longer than an autovacuum takes to give way
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class StagingPolicy:
    """When to stage.

    :raises ConfigurationError: another word, or a threshold below zero.
    """

    mode: StagingMode = "auto"
    threshold: int = THRESHOLD

    def __post_init__(self) -> None:
        """Refuse what can't be meant."""
        if self.mode not in get_args(StagingMode):
            raise ConfigurationError(
                "staging= is none of the words that it can be",
                found=repr(self.mode),
                expected=", ".join(get_args(StagingMode)),
            )
        if self.threshold < 0:
            raise ConfigurationError(
                "staging_threshold= is not a number of offsets", found=self.threshold, expected="0 or more"
            )

    def wants(self, offsets: int) -> bool:
        """Tell whether a batch of so many offsets is to be staged."""
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
        """Let executors copy the rows into a new table.

        :raises ExecutorEnvironment: they can't.
        :raises SchemaError: there is no schema for the table.
        :raises ColumnMismatch, RowsRefused: the rows don't fit; nothing was written.
        :raises StagedRowsLost: somebody has dropped the table, as a newer claim does.
        """
        session = frame.sparkSession
        executors = self._prepare(session)
        schema = arrow_schema(frame)
        staging = with_retries(self._claim.retries, lambda _: self._make(writer, schema))
        task = StagingTask(executors, self._claim.name, writer, staging)

        def run() -> list[StagingOutcome]:
            with sending_password(session, self._claim):
                return task.run(frame)

        outcomes = self._repeat(run)
        return Staged(staging, tuple(o.attempt for o in outcomes), sum(o.rows for o in outcomes))

    def drop_made(self) -> None:
        """Drop what `stage` has made, now that it was moved, or won't be; what can't be dropped, the next time."""
        self._made = [staging for staging in self._made if not self._drop(staging)]

    def drop_abandoned(self) -> None:
        """Drop what claims of the store have left that own no group any more; failure is only logged."""
        database = self._claim.database
        if not isinstance(database, PostgresDatabase):
            return
        try:
            abandoned = self._run(
                lambda connection: self._own().abandoned(connection, lambda: database.current_claims(connection))
            )
        except Exception as error:  # noqa: BLE001 - tables that are left cost space, nothing else
            _log.warning("could not look for old staging tables: %s", type(error).__name__)
            return
        for staging in abandoned:
            if self._drop(staging):
                _log.info("dropped the staging table %s of a claim that owns no group any more", staging.table)

    def _prepare(self, session: SparkSession) -> ExecutorStore:
        """Check once what all executors and the database need."""
        if self._executors is None:
            self._executors = ExecutorStore.of(self._claim)
        if not self._checked:
            with_retries(self._claim.retries, lambda _: self._run(check_schema))
            check_executors(session)
            self._checked = True
        return self._executors

    def _make(self, writer: StagingWriter, schema: pa.Schema) -> Staging:
        staging = self._own().fresh()  # anew for each try: of the last one's COMMIT the answer may have been lost
        self._made.append(staging)
        self._run(lambda connection: writer.create_staging(connection, staging, schema))
        return staging

    def _own(self) -> StagingOwner:
        if self._owner is None:
            store_id = self._claim.database.store_id()
            self._owner = StagingOwner.of(store_id, self._claim.group, self._claim.token)
        return self._owner

    def _repeat(self, run: Callable[[], list[StagingOutcome]]) -> list[StagingOutcome]:
        """Run the tasks, all of them again where that may help: attempts that reported before are then not moved."""

        def attempt(_: int) -> list[StagingOutcome]:
            outcomes = run()
            errors = [outcome.error for outcome in outcomes if outcome.error is not None]
            if errors:
                raise next((error for error in errors if not may_pass(error)), errors[0])
            return outcomes

        return with_retries(self._claim.retries, attempt)

    def _drop(self, staging: Staging) -> bool:
        try:
            self._run(lambda connection: drop(connection, staging), lock_timeout=_DROP_SECONDS)
        except Exception as error:  # noqa: BLE001 - see drop_abandoned
            _log.warning("the staging table %s is left for later: %s", staging.table, type(error).__name__)
            return False
        return True

    def _run(self, work: Callable[[Connection], _T], *, lock_timeout: float | None = None) -> _T:
        """Do it in a transaction of its own."""
        timeout = self._claim.timeouts.lock if lock_timeout is None else lock_timeout
        try:
            with transaction(self._claim.database, name=self._claim.name, lock_timeout=timeout) as session:
                return work(session.connection)
        except LockTimeout as error:
            raise LockTimeout(
                f"could not acquire a lock on a table that is to be staged for within {timeout:g} s",
                found=error.found,
                next_step="See who has it locked (pg_locks).",
            ) from error.__cause__
