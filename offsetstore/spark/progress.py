"""What a streaming query says of its progress, in Spark's JSON, turned into exact ranges. Pure.

The ranges never come from the rows: a batch of 100 offsets may hold 70 records, or none.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from offsetstore.errors import UnsupportedQuery
from offsetstore.offsets import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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

    A partition that ``begin`` does not have was created since: the source reads it from 0 (and fails where its log
    begins later, since ``failOnDataLoss`` is true).
    """
    ranges = {tp: OffsetRange(begin.get(tp, 0), until) for tp, until in sorted(end.items())}
    return {tp: range_ for tp, range_ in ranges.items() if range_}


def merge(sources: Iterable[Mapping[TopicPartition, OffsetRange]]) -> dict[TopicPartition, OffsetRange]:
    """The ranges of all sources of a query.

    :raises UnsupportedQuery: two sources read the same partition: its rows would count twice.
    """
    merged: dict[TopicPartition, OffsetRange] = {}
    for ranges in sources:
        for tp, range_ in ranges.items():
            if tp in merged:
                what = "two sources of the query read the same topic"
                raise UnsupportedQuery(
                    what,
                    topic_partition=tp,
                    expected="each topic in one source",
                    next_step="Read it once, and branch in transform; or run two queries with a group each.",
                )
            merged[tp] = range_
    return dict(sorted(merged.items()))
