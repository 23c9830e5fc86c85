"""The running query behind a micro-batch: which one it is, and exactly which ranges it has read.

The ranges never come from the rows: a batch of 100 offsets may hold 70 records, or none. In ``foreachBatch`` the
DataFrame's session is a clone whose stream manager does not list the query; the state that all sessions share does.
This module reads Spark's internals, over py4j: no public API gives a batch's exact ranges.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JNetworkError  # pyright: ignore[reportMissingTypeStubs]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from offsetstore.errors import SinkError, UnsupportedQuery
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.events import QueryStarted, QueryStatus
from offsetstore.spark.plans import each, simple_name
from offsetstore.store.claim import Claim

_QUERY_ID = "sql.streaming.queryId"
_NONE = QueryStatus(is_active=False)

_log = logging.getLogger(__name__)


def session_of_thread() -> SparkSession | None:
    """The calling thread's session, ``None`` if the process has none.

    Only the thread that made the session has it in Java, where Kafka's source requires one: the others get it here.
    """
    if SparkSession.getActiveSession() is None:
        try:
            session: Any = SparkSession.active()
        except PySparkException:
            return None
        session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)  # noqa: SLF001
    return SparkSession.getActiveSession()


@dataclass(frozen=True, slots=True)
class Positions:
    """Where a batch begins (the end of the last committed one) and ends; a partition is in both if it is in ``end``."""

    begin: dict[TopicPartition, int]
    end: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """The query that is calling ``foreachBatch``. ``execution`` is Spark's own object for it."""

    query_id: str
    run_id: str
    execution: Any = field(repr=False)
    jvm: Any = field(repr=False)

    @classmethod
    def of(cls, batch: DataFrame) -> RunningQuery:
        """Find the query that the batch belongs to.

        :raises UnsupportedQuery: the batch belongs to no running query.
        """
        query_id = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        session: Any = batch.sparkSession
        execution = None
        if query_id is not None:
            identifier = session._jvm.java.util.UUID.fromString(query_id)  # noqa: SLF001 - py4j's gateway
            execution = session._jsparkSession.sharedState().activeStreamingQueries().get(identifier)  # noqa: SLF001
        if query_id is None or execution is None:
            raise UnsupportedQuery(
                "the sink was called outside of a running streaming query",
                found=f"query id {query_id}",
                expected="a call by writeStream.foreachBatch(sink)",
            )
        return cls(query_id, execution.runId().toString(), execution, session._jvm)  # noqa: SLF001 - py4j's gateway

    @classmethod
    def started_as(cls, query: StreamingQuery) -> RunningQuery:
        """The query as it was started, outside of its batches."""
        java: Any = query
        session: Any = session_of_thread()
        return cls(query.id, query.runId, java._jsq.streamingQuery(), session._jvm)  # noqa: SLF001 - py4j's gateway

    def is_active(self) -> bool:
        """Whether the query is running, in this run or a later one; any thread may call this."""
        queries = self.execution.sparkSession().sharedState().activeStreamingQueries()
        return bool(queries.containsKey(self.execution.id()))

    def started(self, group: str, spark: SparkSession) -> QueryStarted:
        """The event that the group's sink has got its first batch."""
        context = spark.sparkContext
        return QueryStarted(
            group=group,
            query_id=self.query_id,
            run_id=self.run_id,
            application_id=context.applicationId,
            ui_url=context.uiWebUrl or None,
        )

    def sleep(self, seconds: float) -> None:
        """Sleep in the query's own thread, which ``query.stop()`` interrupts; only ``foreachBatch`` may call this.

        ``stop()`` then waits for that thread, and so for ``foreachBatch``. It interrupts calls to Spark, but no sleep
        and no request of Python's own.

        :raises Py4JJavaError: the query is being stopped. ``foreachBatch`` must pass it on: Spark recognises its own
            ``InterruptedException``, leaves the batch uncommitted in the checkpoint, and ends the query without an
            error. If it returned instead, Spark could commit a batch of which nothing is written.
        """
        thread = self.jvm.java.lang.Thread
        if not self.execution.isActive():  # stopped, but the interrupt may have been used up
            thread.currentThread().interrupt()
        thread.sleep(round(1000 * seconds))

    def ranges(self) -> dict[TopicPartition, OffsetRange]:
        """The exact ranges that the current batch reads, in order, without empty ones.

        :raises UnsupportedQuery: two of its sources read the same topic.
        """
        at = self.positions()
        try:
            ranges = {tp: OffsetRange(at.begin[tp], until) for tp, until in sorted(at.end.items())}
        except ValueError as error:
            raise SinkError("Spark reports impossible offsets for the batch", found=str(error)) from error
        return {tp: range_ for tp, range_ in ranges.items() if range_}

    def positions(self) -> Positions:
        """Where the current batch begins and ends in every partition of its sources, with or without new records.

        :raises UnsupportedQuery: two of its sources read the same topic, and its rows would count twice.
        """
        begin: dict[TopicPartition, int] = {}
        end: dict[TopicPartition, int] = {}
        committed = _progress(self.execution.committedOffsets())
        available = _progress(self.execution.availableOffsets())
        for source in each(self.execution.sources()):
            key = source.toString()
            if key not in available:
                continue
            # Nothing is committed before batch 0, even if it is run again: the source remembers where it began.
            source_begin = parse_offsets(committed.get(key) or source.initialOffset().json())
            source_end = parse_offsets(available[key])
            if shared := sorted(end.keys() & source_end):
                raise UnsupportedQuery(
                    "two sources of the query read the same topic",
                    topic_partition=shared[0],
                    expected="each topic in one source",
                    next_step="Read it once, and branch in transform; or run two queries with a group each.",
                )
            begin |= source_begin
            end |= source_end
        # A partition that was created since begins at 0: the source reads it from there, and fails if its log begins
        # later, since `failOnDataLoss` is true.
        return Positions(dict.fromkeys(end, 0) | begin, end)

    def initial(self) -> dict[TopicPartition, int]:
        """Where the query's checkpoint first began."""
        sources = each(self.execution.sources())
        return {tp: at for source in sources for tp, at in parse_offsets(source.initialOffset().json()).items()}


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Read ``{"topic": {"0": 42}}``, as the Kafka source writes its offsets."""
    topics: dict[str, dict[str, int]] = json.loads(text)
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


def _progress(progress: Any) -> dict[str, str]:
    return {pair._1().toString(): pair._2().json() for pair in each(progress.toSeq())}  # noqa: SLF001 - a Scala tuple


class SinkQuery:
    """Whether a sink's query runs, and when it last looked for records, before its first batch too; see `WatchedQuery`.

    Not a `StreamingQueryListener`: it belongs to the session in which the query was started, which the sink does not
    know before the first batch; each event is a call from Java into the driver's Python; and none comes while a trigger
    hangs (decision 0038).
    """

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._execution: Any = None
        self._has_warned = False

    def found(self, execution: Any) -> None:
        """Keep Spark's own object for the query, which its batches know."""
        self._execution = execution

    def status(self) -> QueryStatus:
        """Ask Spark.

        :raises Exception: Java does not answer.
        """
        session: Any = SparkSession._instantiatedSession  # pyright: ignore[reportPrivateUsage] # noqa: SLF001 - another thread than the session's
        if session is None:
            return _NONE
        pid = int(session._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001 - py4j's gateway
        try:
            return self._read(session, pid)
        except Py4JNetworkError:
            raise
        except Exception as error:  # noqa: BLE001 - Spark has changed, or the query ends meanwhile: Java may be well
            session._jvm.java.lang.System.nanoTime()  # noqa: SLF001 - raises if it is Java that is gone
            if not self._has_warned:
                self._has_warned = True
                _log.warning("could not read the state of the streaming query: %s", type(error).__name__)
            return QueryStatus(is_active=None, pid=pid)

    def _read(self, session: Any, pid: int) -> QueryStatus:
        queries = session._jsparkSession.sharedState().activeStreamingQueries()  # noqa: SLF001
        known = self._execution
        execution = queries.get(known.id()) if known is not None else self._probable(queries)
        if execution is None:
            has_failed = None if known is None else bool(known.exception().isDefined())
            return QueryStatus(is_active=False, pid=pid, has_failed=has_failed)
        context = execution.getLatestExecutionContext()  # null until the query has read its checkpoint
        trigger = None if context is None else int(context.currentTriggerStartTimestamp())
        return QueryStatus(is_active=True, trigger=trigger, interval=_interval(execution.trigger()), pid=pid)

    def _probable(self, queries: Any) -> Any:
        """The query with the claim's own checkpoint; if the job uses another checkpoint, any query that runs."""
        claim = self._claim
        own = claim.checkpoint_name if claim.checkpoint_base is not None and not claim.keeps_checkpoint else ""
        for execution in queries.values():
            if own in str(execution.resolvedCheckpointRoot()):
                return execution
        return None


def _interval(trigger: Any) -> float:
    return int(trigger.intervalMs()) / 1000 if simple_name(trigger) == "ProcessingTimeTrigger" else 0.0
