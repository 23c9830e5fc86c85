"""The running query behind a micro-batch: which one it is, and exactly which ranges it has read.

In ``foreachBatch`` the DataFrame's session is a clone whose stream manager does not list the query; the state that all
sessions share does. This module reads Spark's internals, over py4j: no public API gives a batch's exact ranges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from offsetstore.errors import UnsupportedQuery
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.events import QueryStarted
from offsetstore.spark.plans import each
from offsetstore.spark.plans.progress import merge, parse_offsets, ranges_between, refuse_shared

_QUERY_ID = "sql.streaming.queryId"


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
    """Where a batch begins (the end of the last committed one) and ends; a partition is in both if it is in ``end``.

    A partition that was created since begins at 0.
    """

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
        execution = _execution(batch, query_id)
        if query_id is None or execution is None:
            raise UnsupportedQuery(
                "the sink was called outside of a running streaming query",
                found=f"query id {query_id}",
                expected="a call by writeStream.foreachBatch(sink)",
            )
        return cls(query_id, execution.runId().toString(), execution, _session(batch)._jvm)  # noqa: SLF001 - py4j's gateway

    @classmethod
    def started_as(cls, query: StreamingQuery) -> RunningQuery:
        """The same from outside of its batches."""
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
        spans = list(self._spans())
        refuse_shared(end for _, end in spans)
        return merge(ranges_between(begin, end) for begin, end in spans)

    def positions(self) -> Positions:
        """Where the current batch begins and ends in every partition of its sources, with or without new records.

        :raises UnsupportedQuery: as `ranges`.
        """
        spans = list(self._spans())
        refuse_shared(end for _, end in spans)
        begin = {tp: offset for one, _ in spans for tp, offset in one.items()}
        end = {tp: offset for _, one in spans for tp, offset in one.items()}
        return Positions({tp: begin.get(tp, 0) for tp in end} | begin, end)

    def initial(self) -> dict[TopicPartition, int]:
        """Where the query's checkpoint first began."""
        sources = each(self.execution.sources())
        return {tp: at for source in sources for tp, at in parse_offsets(source.initialOffset().json()).items()}

    def _spans(self) -> Iterator[tuple[dict[TopicPartition, int], dict[TopicPartition, int]]]:
        """The begin and end of the current batch, for each source."""
        committed, available = (
            _progress(self.execution.committedOffsets()),
            _progress(self.execution.availableOffsets()),
        )
        for source in each(self.execution.sources()):
            key = source.toString()
            if key in available:
                # Nothing is committed before batch 0, even if it is run again: the source remembers where it began.
                begin = committed.get(key) or source.initialOffset().json()
                yield parse_offsets(begin), parse_offsets(available[key])


def _execution(batch: DataFrame, query_id: str | None) -> Any:
    if query_id is None:
        return None
    session = _session(batch)
    identifier = session._jvm.java.util.UUID.fromString(query_id)  # noqa: SLF001 - py4j's gateway
    return session._jsparkSession.sharedState().activeStreamingQueries().get(identifier)  # noqa: SLF001


def _session(batch: DataFrame) -> Any:
    return batch.sparkSession


def _progress(progress: Any) -> dict[str, str]:
    return {pair._1().toString(): pair._2().json() for pair in each(progress.toSeq())}  # noqa: SLF001 - a Scala tuple
