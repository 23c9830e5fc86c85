"""Does a query start at the stored offsets? Asked when it starts: a partition without records would never tell."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from offsetstore.errors import OffsetGap
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.store.claim import Claim

if TYPE_CHECKING:
    from offsetstore.spark.plans.query import RunningQuery

_log = logging.getLogger(__name__)


def check_start(claim: Claim, query: RunningQuery) -> bool:
    """Compare the two for every partition that the query reads.

    :return: whether the query has begun its first trigger, so that where it starts is known.
    :raises OffsetGap: it starts above a stored offset; nothing was written.
    """
    begin = query.positions().begin  # before what is stored: a batch moves that first
    if not begin:
        return False
    delivered = claim.delivered
    stored = {tp: max(row.next_offset, delivered.get(tp, 0)) for tp, row in claim.offsets().items()}
    _refuse_above(begin, stored)
    if claim.starting is not None and claim.checkpoint_base is not None:
        _tell_below(begin, claim.starting.offsets)
    return True


def _refuse_above(begin: Mapping[TopicPartition, int], stored: Mapping[TopicPartition, int]) -> None:
    above = [tp for tp, offset in sorted(begin.items()) if offset > stored.get(tp, offset)]
    if not above:
        return
    first = above[0]
    missing = OffsetRange(stored[first], begin[first])
    others = f", and {len(above) - 1} more partitions" if len(above) > 1 else ""
    raise OffsetGap(
        f"the query starts above the stored offset: {missing} is missing{others}",
        topic_partition=first,
        found=f"a start at {begin[first]}",
        expected=f"a start at {stored[first]}",
        next_step='Give the reader .option("startingOffsets", claim.starting_offsets), and the query a checkpoint that '
        "no query has used: claim.checkpoint(base).",
    )


def _tell_below(begin: Mapping[TopicPartition, int], claimed: Mapping[TopicPartition, int]) -> None:
    below = [tp for tp, offset in sorted(begin.items()) if offset < claimed.get(tp, offset)]
    if below:
        _log.warning(
            "%s: the query starts at %d, below the claim's offset %d%s: it reads records that are in the results, and "
            'drops them. Give the reader .option("startingOffsets", claim.starting_offsets)',
            below[0],
            begin[below[0]],
            claimed[below[0]],
            f" (and so do {len(below) - 1} more partitions)" if len(below) > 1 else "",
        )
