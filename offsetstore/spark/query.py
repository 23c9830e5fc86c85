"""The running query behind a micro-batch: which one it is, what it reads, and whether exactly-once can be had from it.

In ``foreachBatch`` the DataFrame's session is a clone whose stream manager does not list the query; the state that all
sessions share does. What is asked here is Spark's own, over py4j: there is no public way to a batch's exact ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offsetstore.errors import KafkaColumnsMissing, UnsupportedQuery
from offsetstore.spark.progress import merge, parse_offsets, ranges_between

if TYPE_CHECKING:
    from offsetstore.offsets import OffsetRange, TopicPartition
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"
_SOURCE = "org.apache.spark.sql.kafka010.KafkaMicroBatchStream"

COORDINATES = ("topic", "partition", "offset", "timestamp")
"""The columns of the Kafka source that the sink needs."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One call of ``foreachBatch``: of which query, and exactly which ranges. Empty ranges are left out."""

    query_id: str
    batch_id: int
    ranges: dict[TopicPartition, OffsetRange]


def micro_batch(batch: DataFrame, batch_id: int) -> MicroBatch:
    """Find the query that this batch belongs to, and its ranges.

    :raises UnsupportedQuery: not a running streaming query of Kafka sources alone, or one that may skip records.
    :raises KafkaColumnsMissing: the DataFrame is not the source's own.
    """
    missing = [name for name in COORDINATES if name not in batch.columns]
    if missing:
        what = "the streaming DataFrame has lost Kafka's columns"
        raise KafkaColumnsMissing(
            what,
            found=f"columns {', '.join(batch.columns)}",
            expected=f"also {', '.join(missing)}",
            next_step="Give writeStream what load() returned, and do the rest in the sink's transform.",
        )
    query_id = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    execution = _execution(batch, query_id)
    if query_id is None or execution is None:
        what = "the sink was called outside of a running streaming query"
        raise UnsupportedQuery(what, found=f"query id {query_id}", expected="a call by writeStream.foreachBatch(sink)")
    _check_sources(execution)
    committed, available = _progress(execution.committedOffsets()), _progress(execution.availableOffsets())
    ranges: list[dict[TopicPartition, OffsetRange]] = []
    for source in _each(execution.sources()):
        key = source.toString()
        if key not in available:
            continue
        # Nothing is committed before batch 0, also when it is run again: the source keeps where it began.
        begin = committed.get(key) or source.initialOffset().json()
        ranges.append(ranges_between(parse_offsets(begin), parse_offsets(available[key])))
    return MicroBatch(query_id, batch_id, merge(ranges))


def _execution(batch: DataFrame, query_id: str | None) -> Any:
    if query_id is None:
        return None
    session: Any = batch.sparkSession
    identifier = session._jvm.java.util.UUID.fromString(query_id)  # noqa: SLF001 - py4j's gateway
    return session._jsparkSession.sharedState().activeStreamingQueries().get(identifier)  # noqa: SLF001


def _progress(progress: Any) -> dict[str, str]:
    return {pair._1().toString(): pair._2().json() for pair in _each(progress.toSeq())}  # noqa: SLF001 - a Scala tuple


def _check_sources(execution: Any) -> None:
    for source in _each(execution.sources()):
        name = source.getClass().getName()
        if name != _SOURCE:
            what = "the query reads something else than Kafka"
            raise UnsupportedQuery(
                what,
                found=name,
                expected="Kafka sources alone",
                next_step="Join other data inside transform, as a static DataFrame.",
            )
    for leaf in _each(execution.analyzedPlan().collectLeaves()):
        if leaf.getClass().getSimpleName() == "StreamingRelationV2":
            check_data_loss(leaf.extraOptions().get("failOnDataLoss"))


def check_data_loss(option: str | None) -> None:
    """Refuse a source that may skip records.

    :param option: the source's ``failOnDataLoss``; ``None`` is Spark's default, true.
    :raises UnsupportedQuery: it is false.
    """
    if option is not None and option.strip().lower() != "true":
        what = "the Kafka source has failOnDataLoss=false: it would skip lost records silently"
        raise UnsupportedQuery(
            what,
            found=f"failOnDataLoss={option}",
            expected="true, which is the default",
            next_step='Leave the option out; to accept a loss, start with StartPolicy(on_data_loss="earliest").',
        )


def _each(scala: Any) -> Iterator[Any]:
    iterator = scala.iterator()
    while iterator.hasNext():
        yield iterator.next()
