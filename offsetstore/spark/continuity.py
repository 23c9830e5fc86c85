"""Does a batch of a kept checkpoint continue exactly at the stored offsets? Pure.

Spark numbers a query's batches without gaps, and begins one only after it has committed the one before. The database
holds the number of the last batch in the results (the mark), and the stored offsets, which moved with it. So:

==========================  ====================================================================================
no mark                     the batch must begin at the stored offsets: APPLY
the batch after the mark    the same
the marked batch itself     Spark does not know that it was written; it must end at the stored offsets: SKIP
the same, with another end  the checkpoint is an older copy, of before the batch was planned: now it has other records;
                            or the stored offsets were moved since
a batch below the mark      the checkpoint is an older copy: its batches are not those with these numbers
a batch beyond that         results of batches in between are missing: the database is an older copy
==========================  ====================================================================================

Offsets alone are not enough: windows also fire in batches without data, which move no offset. A batch that was begun
but not written is not committed in the checkpoint either, so a crash in the middle of it causes none of these errors.
"""

from __future__ import annotations

from collections.abc import Mapping

from offsetstore.errors import CheckpointAhead, CheckpointBehind, OffsetGap
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.replay import Outcome

_START_OVER = (
    'Give the reader .option("startingOffsets", claim.starting_offsets), and remove this checkpoint: it began at other '
    "offsets. If a reset or another tool has moved the stored offset since, removing the checkpoint is enough."
)


def judge(
    batch_id: int,
    mark: int | None,
    *,
    begin: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    stored: Mapping[TopicPartition, int],
) -> Outcome:
    """Decide whether a batch must be written (APPLY) or is already in the results (SKIP).

    :param mark: the last batch of this query that is in the results, if any.
    :param begin: where the batch begins: the end of the last batch that Spark has committed.
    :param stored: the stored offset of every partition in ``begin`` and ``end``.
    :raises CheckpointAhead: results that the checkpoint has committed are missing.
    :raises CheckpointBehind: the batch would repeat results.
    :raises OffsetGap: a new checkpoint begins above the stored offset.
    """
    if mark is not None and batch_id < mark:
        raise CheckpointBehind(
            f"the kept checkpoint continues with batch {batch_id}, but later ones of this query are in the results",
            found=f"batch {batch_id}",
            expected=f"batch {mark} or {mark + 1}",
        )
    if mark is not None and batch_id > mark + 1:
        raise CheckpointAhead(
            f"the kept checkpoint continues with batch {batch_id}, but the one before it is not in the results",
            found=f"batch {mark} in the database",
            expected=f"batch {batch_id - 1}",
        )
    if mark is not None and batch_id == mark:
        # What Spark has committed can't be beyond the stored offsets here: such results would be missing.
        _expect_not_beyond("the last committed batch of the kept checkpoint ends", begin, stored)
        _expect_same(batch_id, end, stored)
        return Outcome.SKIP
    if batch_id == 0:
        _expect_start(begin, stored)
    _expect("the last committed batch of the kept checkpoint ends", begin, stored)
    return Outcome.APPLY


def _expect_same(batch_id: int, end: Mapping[TopicPartition, int], stored: Mapping[TopicPartition, int]) -> None:
    for tp, offset in sorted(end.items()):
        if stored[tp] != offset:
            raise CheckpointBehind(
                f"batch {batch_id} is in the results, but the kept checkpoint has planned it with another end: it is "
                "an older copy, or the stored offset was moved since",
                topic_partition=tp,
                found=f"end {offset}",
                expected=f"{stored[tp]}, which is stored",
            )


def _expect_not_beyond(where: str, offsets: Mapping[TopicPartition, int], stored: Mapping[TopicPartition, int]) -> None:
    for tp, offset in sorted(offsets.items()):
        if stored[tp] < offset:
            raise CheckpointAhead(
                f"{where} beyond the stored offset",
                topic_partition=tp,
                found=f"{stored[tp]} stored",
                expected=str(offset),
            )


def _expect(where: str, offsets: Mapping[TopicPartition, int], stored: Mapping[TopicPartition, int]) -> None:
    _expect_not_beyond(where, offsets, stored)
    for tp, offset in sorted(offsets.items()):
        if stored[tp] > offset:
            raise CheckpointBehind(
                f"{where} below the stored offset",
                topic_partition=tp,
                found=f"{stored[tp]} stored",
                expected=str(offset),
            )


def _expect_start(begin: Mapping[TopicPartition, int], stored: Mapping[TopicPartition, int]) -> None:
    """Nothing is committed before batch 0: the checkpoint is new, and began at the reader's startingOffsets."""
    for tp, offset in sorted(begin.items()):
        if stored[tp] < offset:
            raise OffsetGap(
                f"the new checkpoint begins above the stored offset: [{stored[tp]}, {offset}) is missing",
                topic_partition=tp,
                found=f"{stored[tp]} stored",
                expected=str(offset),
                next_step=_START_OVER,
            )
        if stored[tp] > offset:
            raise CheckpointBehind(
                f"the new checkpoint begins below the stored offset: [{offset}, {stored[tp]}) is in the results",
                topic_partition=tp,
                found=f"{stored[tp]} stored",
                expected=str(offset),
                next_step=_START_OVER,
            )
