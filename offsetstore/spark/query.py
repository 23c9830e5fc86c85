"""The running query behind a micro-batch: which one it is, and exactly which ranges it has read.

In ``foreachBatch`` the DataFrame's session is a clone whose stream manager does not list the query; the state that all
sessions share does. What is asked here is Spark's own, over py4j: there is no public way to a batch's exact ranges.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offsetstore.errors import UnsupportedQuery
from offsetstore.spark.progress import merge, parse_offsets, ranges_between, refuse_shared
from offsetstore.spark.scala import each

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetstore.offsets import OffsetRange, TopicPartition

_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class RunningQuery:
    """The query that is calling ``foreachBatch``. ``execution`` is Spark's own object of it."""

    query_id: str
    run_id: str
    execution: Any = field(repr=False)

    @classmethod
    def of(cls, batch: DataFrame) -> RunningQuery:
        """Find the query that the batch belongs to.

        :raises UnsupportedQuery: there is none.
        """
        query_id = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        execution = _execution(batch, query_id)
        if query_id is None or execution is None:
            what = "the sink was called outside of a running streaming query"
            raise UnsupportedQuery(
                what, found=f"query id {query_id}", expected="a call by writeStream.foreachBatch(sink)"
            )
        return cls(query_id, execution.runId().toString(), execution)

    def ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Exactly what the current batch reads, in order; empty ranges are left out.

        :raises UnsupportedQuery: two of its sources read the same topic.
        """
        committed, available = (
            _progress(self.execution.committedOffsets()),
            _progress(self.execution.availableOffsets()),
        )
        ranges: list[dict[TopicPartition, OffsetRange]] = []
        ends: list[dict[TopicPartition, int]] = []
        for source in each(self.execution.sources()):
            key = source.toString()
            if key not in available:
                continue
            # Nothing is committed before batch 0, also when it is run again: the source keeps where it began.
            begin = committed.get(key) or source.initialOffset().json()
            ends.append(parse_offsets(available[key]))
            ranges.append(ranges_between(parse_offsets(begin), ends[-1]))
        refuse_shared(ends)
        return merge(ranges)


def _execution(batch: DataFrame, query_id: str | None) -> Any:
    if query_id is None:
        return None
    session: Any = batch.sparkSession
    identifier = session._jvm.java.util.UUID.fromString(query_id)  # noqa: SLF001 - py4j's gateway
    return session._jsparkSession.sharedState().activeStreamingQueries().get(identifier)  # noqa: SLF001


def _progress(progress: Any) -> dict[str, str]:
    return {pair._1().toString(): pair._2().json() for pair in each(progress.toSeq())}  # noqa: SLF001 - a Scala tuple
