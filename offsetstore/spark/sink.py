"""The foreachBatch sink: a micro-batch's results and its offsets, in one database transaction.

A micro-batch is a delivery for `offsetstore.processing.runner`; this module has the checks that all batches share.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final, NoReturn

from py4j.protocol import Py4JJavaError  # pyright: ignore[reportMissingTypeStubs]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from offsetstore.errors import (
    MissingDependency,
    OffsetStoreError,
    UnsupportedQuery,
)
from offsetstore.offsets import TopicPartition
from offsetstore.postgres.database import PostgresDatabase
from offsetstore.processing.between import Flush, Tick
from offsetstore.processing.dead_letters import DeadLetters
from offsetstore.processing.handling import Handler
from offsetstore.processing.plan import MetadataFunction
from offsetstore.processing.runner import Interrupted, Runner, Taken
from offsetstore.protocol.arguments import check_seconds
from offsetstore.protocol.events import SinkMade
from offsetstore.protocol.log_evidence import known_ids
from offsetstore.protocol.marking import Marking
from offsetstore.protocol.ports import Writer
from offsetstore.runtime import failpoints
from offsetstore.runtime.functions import with_empty_frames
from offsetstore.spark.careful import computed_letters
from offsetstore.spark.checkpoints import check_start, prune
from offsetstore.spark.columns import KAFKA_COLUMNS, kafka_frame
from offsetstore.spark.executors.connect import has_finder, sending_password
from offsetstore.spark.executors.preflight import check_once
from offsetstore.spark.function_errors import told_by_us, typed
from offsetstore.spark.handlers import refuse_speculation
from offsetstore.spark.micro_batch import MicroBatch
from offsetstore.spark.outputs import SparkOutputs, SparkTransform
from offsetstore.spark.partition import TASK_THRESHOLD, PerPartition
from offsetstore.spark.plans.admission import admit, check_connector
from offsetstore.spark.plans.query import RunningQuery, SinkQuery, session_of_thread
from offsetstore.spark.settings import Atomicity, SinkSettings
from offsetstore.spark.stateful import Stateful
from offsetstore.store.claim import Claim

__all__ = ["SparkTransform", "TransactionalSink"]

_log = logging.getLogger(__name__)

# Progress of the last runs is worth a look when something went wrong (decision 0001).
_RETAINED_CHECKPOINTS: Final = 3

# Spark searches the text of what foreachBatch raises for these words, to tell a stop from a failure. In the text of
# py4j's own error, which has all of Java's stack, its search ends in a StackOverflowError.
_INTERRUPTED: Final = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling foreachBatch: java.lang.InterruptedException"
)


class _Interrupted(Exception):
    """The query is being stopped: the batch is left to the next start."""


class _Query:
    """What the runner asks of the running query."""

    def __init__(self) -> None:
        self.execution: Any = None
        self.is_running: Callable[[], bool] = lambda: True

    def is_stopping(self, error: BaseException) -> bool:
        """Whether ``query.stop()`` has interrupted a call to Spark: the batch is left to the next start."""
        is_sparks = isinstance(error, (Py4JJavaError, PySparkException))
        return is_sparks and self.execution is not None and not self.execution.isActive()

    def typed(self, error: BaseException) -> BaseException:
        return typed(error)


class TransactionalSink:
    """The callable for ``foreachBatch`` on the DataFrame that ``load()`` returned; the rest belongs in ``transform``.

    :param claim: the group's claim; one sink, one query.
    :param transform: takes the Kafka source's DataFrame with the struct column ``_kafka`` (topic, partition, offset,
        timestamp), cropped to the records still to be written, and returns the rows to write: one DataFrame, or a
        mapping of names to DataFrames. It may run more than once for a batch, and must not write anything itself. With
        ``claim.checkpoint(base, keep=True)`` a query may have state before the sink, and ``transform`` gets the whole
        batch, see docs/stateful.md.
        Several outputs agree on what they share: a DataFrame that they all come from is computed once for them, and
        ``current_timestamp()`` is the same in all. So put a random id, a ``uuid()`` or the result of a Python function
        in a column of such a DataFrame; if each output computes its own, their values differ. Other data that outputs
        read separately is read at different times.
        Or a `Handler`, which calls a function for each record, many at a time; see docs/handlers.md.
    :param into: the writer, or a mapping of the same names to writers.
    :param atomicity: ``"batch"``: one transaction for the micro-batch, and any transform. ``"partition"``: one for each
        Kafka partition, by Spark's tasks, in parallel: executors need the driver's packages, an `Execute` is called
        there, once per partition, and after an error some partitions of a batch may be stored and others not. It needs
        one output, and a transform that keeps ``_kafka`` and makes each row from one record (select, where, explode,
        joins with other data). The driver writes a small batch, in one transaction, except for an `Execute` or a
        writer with a ``write`` of its own.
    :param task_threshold: with ``atomicity="partition"``, a batch with at most this many offsets is small; with 0,
        tasks write all batches.
    :param metadata: called on the driver for each batch with records to be written, before its transaction begins,
        with a `BatchInfo`; see docs/metadata.md. It returns what to store with the batch's offsets: one value for all
        of its partitions, or a mapping of some of them to values; `KEEP` leaves what is stored. It is called again
        when a batch is planned again.
    :param marking: ``"manual"``: the offsets move to where the function of an `Execute` marks with ``work.mark``; see
        docs/marking.md.
    :param flush: keep batches in memory, and write them together; see docs/flush.md.
    :param tick: work for an idle job; see docs/tick.md.
    :param dead_letters: keep records that can't be written as dead letters; see docs/dead-letters.md. By default the
        query ends at the first one. ``transform`` must make each row from one record and keep ``_kafka``; it may return
        a column ``_reject`` with the reason why a record can't be used, or a struct of its ``code`` and ``reason``.
    :param propagate: the names of headers that follow a record, as ``("traceparent", "tenant")``: into the calls of a
        `Handler`, into its dead letter, its trace and the rows of an `Outbox`; see docs/context.md. The reader needs
        ``includeHeaders``.
    :raises ConfigurationError: there is no writer or no function, or a setting is invalid, or does not go with another;
        with ``atomicity="partition"`` also several outputs, a writer that can't be pickled, or a store that executors
        can't connect to.
    :raises ClaimInUse: with a flush or manual marking, the claim belongs to another sink.
    :raises UnsupportedQuery: under Spark Connect, where the function would run in another process than the claim.
    :raises SinkError: with an active SparkSession, ``transform`` is called for an empty batch with the columns of
        Kafka's source (no job is run), and what it returns does not fit the tables (`ColumnMismatch`,
        `KafkaColumnsMissing`, `UnsafeTarget`). An exception of its own is a warning, and no check is made if the claim
        keeps its checkpoint already, since that query's columns are not Kafka's.

    ``error`` holds the typed error that ended the query; Spark's ``StreamingQueryException`` only has its text.
    """

    def __init__(
        self,
        claim: Claim,
        transform: SparkTransform | Handler,
        *,
        into: Writer | Mapping[str, Writer],
        atomicity: Atomicity = "batch",
        task_threshold: int = TASK_THRESHOLD,
        metadata: MetadataFunction | None = None,
        marking: Marking = "automatic",
        flush: Flush | None = None,
        tick: Tick | None = None,
        dead_letters: DeadLetters | None = None,
        propagate: Collection[str] = (),
    ) -> None:
        if is_remote():
            raise _connect_refused()
        self._claim = claim
        self._outputs = SparkOutputs(claim, transform, into, can_reject=dead_letters is not None, propagate=propagate)
        self._settings = SinkSettings(metadata, marking, flush, tick, dead_letters, propagate, atomicity)
        self._settings.check(self._outputs.writers.values(), transform if isinstance(transform, Handler) else None)
        self._source = _Query()
        self._runner = Runner(claim, self._source, self._settings, while_working=told_by_us)
        self._per_partition: PerPartition | None = None
        if atomicity == "partition":
            self._per_partition = PerPartition(
                claim, self._outputs, self._runner.metadata, task_threshold, self._runner.recovery
            )
        self._check_early()  # before the claim is reserved, and a thread works for the sink
        self._runner.begin()
        self._stateful: Stateful | None = None
        self._has_written = False
        self._run_id: str | None = None
        self._started_run_id: str | None = None  # of which it is known where it starts
        self._start_check = threading.Lock()
        self._query = SinkQuery(claim)
        claim.observers.on(
            SinkMade(group=claim.group, token=claim.token, query=self._query, replays_letters=dead_letters is not None)
        )

    def _check_early(self) -> None:
        """Compare the transform with the tables, if there is a session; a store in memory has no tables."""
        session = session_of_thread()
        if session is None:
            return
        try:
            check_connector(session)
        except MissingDependency as error:
            # `load` says only that it fails. Not an error: replaying letters needs no connector.
            _log.warning("%s", error)
        # A query that keeps its checkpoint has columns of its own, not Kafka's (decision 0060).
        if self._claim.keeps_checkpoint or not isinstance(self._claim.database, PostgresDatabase):
            return
        has_headers = getattr(self._claim.broker, "includes_headers", False)  # not with a user's own implementation
        columns = KAFKA_COLUMNS if has_headers else KAFKA_COLUMNS[:-1]
        try:
            with told_by_us():
                self._outputs.check(self._outputs.given(kafka_frame(session, [], columns)))
        except OffsetStoreError as error:
            error.while_("trying the transform on an empty batch with the columns of Kafka's source")
            raise

    @property
    def claim(self) -> Claim:
        """The group's claim."""
        return self._claim

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; Spark calls it.

        While the group is paused, it waits before it computes the batch. If the query is stopped meanwhile, the batch
        is left to the next start, as with any stop in the middle of a batch.

        :raises OffsetStoreError: nothing of the batch was written, except with `RowsRefused`, which tells what was
            stored before the refused record, `CommitUnknown`, which leaves this open, and `UnexpectedCommit`,
            where an `Execute` has committed.
        """
        try:
            self._runner.run(
                batch_id,
                lambda: self._take(batch, batch_id),
                check=lambda: RunningQuery.of(batch).sleep(0),  # something may be stopping the query, and wait for us
            )
        except Interrupted:
            raise _Interrupted(_INTERRUPTED) from None
        except BaseException as error:
            with_empty_frames(error)  # it is kept, and Spark's driver may live on
            raise
        failpoints.reach("after_sink")

    @property
    def error(self) -> BaseException | None:
        """The typed error that ended the query."""
        return self._runner.error

    def __reduce__(self) -> NoReturn:
        """Only Spark Connect would pickle the sink, to run it elsewhere.

        :raises UnsupportedQuery: always.
        """
        raise _connect_refused()

    @contextmanager
    def _take(self, batch: DataFrame, batch_id: int) -> Generator[Taken | None]:
        """Check the query, and hand the batch over."""
        if is_remote():
            raise _connect_refused()
        query = RunningQuery.of(batch)
        self._claim.require_unused(query.query_id)
        self._source.execution = query.execution
        if query.run_id != self._run_id:
            self._begin(query, batch)
        ranges = query.ranges()
        self._runner.takes(ranges)
        self._check_claimed(ranges)
        self._claim.bind(query.query_id, query.is_active)
        # With state, a batch without records may have rows: a window closes (decision 0016).
        if not ranges and self._stateful is None:
            yield None
            return
        # Jobs get the password only if the transform may read metadata on executors (decision 0032).
        finding = sending_password(batch.sparkSession, self._claim) if has_finder(self._claim) else nullcontext()
        with finding, self._outputs.keeping_handled(batch, ranges) as handled:
            taken = MicroBatch(
                batch,
                batch_id,
                query,
                ranges,
                self._claim,
                self._outputs,
                or_by_partition=self._per_partition is None,
                handled=handled,
            )
            own = self._stateful or self._per_partition
            yield Taken(taken, None if own is None else partial(own.write, taken))
        # Not before: the claim's first batch is committed now (decision 0001).
        if not self._has_written:
            self._has_written = True
            if (base := self._claim.checkpoint_base) is not None:
                prune(batch.sparkSession, base, epoch=self._claim.token.epoch, retain=_RETAINED_CHECKPOINTS)

    def _begin(self, query: RunningQuery, batch: DataFrame) -> None:
        """Check a query that has just started or was restarted, and prepare for it."""
        spark, columns, outputs = batch.sparkSession, batch.columns, self._outputs
        self._stateful = None
        if self._runner.recovery is not None:
            self._runner.recovery.forget()
        checkpoint = str(query.execution.resolvedCheckpointRoot())
        self._settings.check_query(self._claim, columns, checkpoint, has_handler=outputs.handler is not None)
        if self._claim.keeps_checkpoint:
            self._stateful = Stateful(self._claim, outputs, self._runner.metadata, query=query, columns=columns)
        else:
            # A letter keeps the record as Kafka had it, and a handler takes it so (decision 0036).
            whole = self._settings.dead_letters is not None or outputs.handler is not None
            admit(query.execution, columns, whole_records=whole)
            self._check_start(query)
        if outputs.handler is not None:
            refuse_speculation(spark)
            check_once(spark)
            outputs.handler.topic_ids = known_ids(self._claim.offsets())
        if self._runner.requests is not None:
            self._runner.requests.compute = lambda letters: computed_letters(outputs, spark, letters, columns)
        self._query.found(query.execution)
        self._run_id = query.run_id
        self._source.is_running = query.is_active
        self._claim.observers.on(query.started(self._claim.group, spark))

    def check_start(self, query: StreamingQuery) -> bool:
        """Compare where a query starts with what is stored, before it has records; the first batch does so too.

        :return: whether its start is known: it has begun its first trigger.
        :raises OffsetGap: it starts above a stored offset, at which the next batch with records would fail.
        """
        if self._claim.keeps_checkpoint or query.runId == self._started_run_id:
            return True
        return self._check_start(RunningQuery.started_as(query))

    def _check_start(self, query: RunningQuery) -> bool:
        with self._start_check:  # the job's thread and the first batch may both be about to
            if self._started_run_id != query.run_id and check_start(self._claim, query):
                self._started_run_id = query.run_id
            return self._started_run_id == query.run_id

    def stop(self, query: StreamingQuery, *, timeout: float = 60.0) -> None:
        """Stop a query that writes with this sink, between two batches.

        :param timeout: seconds to wait for the batch that is being written. Then Spark interrupts it, and the next
            start writes the rest. A batch that waits because the group is paused is interrupted at once.
        """
        check_seconds("timeout", timeout, or_zero=True)
        self._runner.stop(query.stop, timeout=timeout)

    def drain(self, spark: SparkSession) -> int:
        """Replay the requested dead letters, for a job that is not running a query.

        :param spark: computes their rows.
        :return: how many letters are in the results now.
        :raises ConfigurationError: the sink has no ``dead_letters``.
        :raises UnsupportedQuery: it calls a handler, and ``spark.speculation`` is set.
        :raises OffsetStoreError: as for a batch.
        """
        if self._outputs.handler is not None:
            refuse_speculation(spark)
        return self._runner.drain(lambda letters: computed_letters(self._outputs, spark, letters, None))

    def _check_claimed(self, ranges: Collection[TopicPartition]) -> None:
        unclaimed = sorted(tp for tp in ranges if tp.topic not in self._claim.topics)
        if unclaimed:
            raise UnsupportedQuery(
                "the query reads topics that its claim does not have",
                topic_partition=unclaimed[0],
                found=", ".join(sorted({tp.topic for tp in unclaimed})),
                expected=", ".join(self._claim.topics),
                next_step="Claim with the reader's options: Broker.from_spark(options), or topics=[...]. "
                "If they are the same, the checkpoint is another query's: use claim.checkpoint(base).",
            )


def _connect_refused() -> UnsupportedQuery:
    return UnsupportedQuery(
        "the sink was used under Spark Connect",
        expected="a classic session: the sink holds a claim, which belongs to the driver's own process",
        next_step="Run the job with spark-submit, or with SparkSession.builder.master(...).",
    )
