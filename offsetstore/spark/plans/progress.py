"""Turn the progress of a streaming query, in Spark's JSON, into exact ranges. Pure.

The ranges never come from the rows: a batch of 100 offsets may hold 70 records, or none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from offsetstore.errors import SinkError, UnsupportedQuery
from offsetstore.offsets import OffsetRange, TopicPartition


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Read ``{"topic": {"0": 42}}``, as the Kafka source writes its offsets."""
    topics: dict[str, dict[str, int]] = json.loads(text)
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


def ranges_between(
    begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetRange]:
    """The ranges of one batch of one source, in order; partitions without new offsets are left out.

    A partition that is not in ``begin`` was created since: the source reads it from 0 (and fails if its log
    begins later, since ``failOnDataLoss`` is true).
    """
    try:
        ranges = {tp: OffsetRange(begin.get(tp, 0), until) for tp, until in sorted(end.items())}
    except ValueError as error:
        raise SinkError("Spark reports impossible offsets for the batch", found=str(error)) from error
    return {tp: range_ for tp, range_ in ranges.items() if range_}


def refuse_shared(sources: Iterable[Mapping[TopicPartition, int]]) -> None:
    """Check that no partition is read by two sources, whether or not both have new records of it.

    :raises UnsupportedQuery: one is, and its rows would count twice.
    """
    seen: set[TopicPartition] = set()
    for end in sources:
        for tp in sorted(seen.intersection(end)):
            raise UnsupportedQuery(
                "two sources of the query read the same topic",
                topic_partition=tp,
                expected="each topic in one source",
                next_step="Read it once, and branch in transform; or run two queries with a group each.",
            )
        seen.update(end)


def merge(sources: Iterable[Mapping[TopicPartition, OffsetRange]]) -> dict[TopicPartition, OffsetRange]:
    """Put the ranges of all sources of a query in one order; `refuse_shared` has checked that they are disjoint."""
    return dict(sorted((tp, range_) for ranges in sources for tp, range_ in ranges.items()))
