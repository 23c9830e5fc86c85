"""A batch of a kept checkpoint goes on exactly where the database stands, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from offsetstore.errors import CheckpointAhead, CheckpointBehind, OffsetGap, StartError
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.replay import Outcome
from offsetstore.spark.checkpoints import judge

P0, P1 = (TopicPartition("payments", number) for number in range(2))
MOVED = "If the stored offset was moved.*there is none: move the checkpoint away"
"""After a reset, or an adopted offset, there is no newer checkpoint to restore."""


def outcome(batch_id: int, mark: int | None, *, begin: int, end: int, stored: int, stored_1: int = 7) -> Outcome:
    """Partition 1 stands still at 7."""
    return judge(batch_id, mark, begin={P0: begin, P1: 7}, end={P0: end, P1: 7}, stored={P0: stored, P1: stored_1})


def at(begin: int, end: int, stored: int, stored_1: int = 7) -> dict[str, int]:
    return {"begin": begin, "end": end, "stored": stored, "stored_1": stored_1}


@pytest.mark.behaviour("SINK-6", "START-15")
@pytest.mark.parametrize(
    ("batch", "mark", "offsets", "expected"),
    [
        *((8, mark, at(40, end, 40), Outcome.APPLY) for mark in (None, 7) for end in (40, 60)),
        (0, None, at(40, 60, 40), Outcome.APPLY),  # a new checkpoint
        # Killed after the database's COMMIT and before Spark's; with data, or without.
        *((8, 8, at(begin, 60, 60), Outcome.SKIP) for begin in (40, 60)),
    ],
)
def test_a_batch_is_applied_where_the_store_stands_and_the_marked_one_is_skipped(
    batch: int, mark: int | None, offsets: dict[str, Any], expected: Outcome
) -> None:
    assert outcome(batch, mark, **offsets) is expected


@pytest.mark.behaviour("START-15")
@pytest.mark.parametrize(
    ("batch", "mark", "offsets", "error", "said"),
    [
        *((8, mark, at(40, 60, 30), CheckpointAhead, "payments-0: .*30 stored; expected 40") for mark in (None, 7)),
        *(
            (8, mark, at(40, 60, stored), CheckpointBehind, f"{stored} stored; expected 40.*{MOVED}")
            for mark in (None, 7)
            for stored in (50, 60, 70)
        ),
        (8, 7, at(40, 60, 40, 6), CheckpointAhead, "payments-1"),
        (8, 7, at(40, 60, 40, 8), CheckpointBehind, "payments-1"),
        # What is missing in one partition is told before what would be repeated in another.
        (8, None, at(40, 60, 50, 6), CheckpointAhead, "payments-1"),
        (0, None, at(40, 60, 50, 6), OffsetGap, "payments-1"),
        # The database was restored to before a batch without data, in which a window came out.
        (8, 6, at(40, 60, 40), CheckpointAhead, "batch 6 in the database; expected batch 7"),
        # An older copy of the checkpoint makes new batches under the old numbers.
        (7, 8, at(40, 40, 40), CheckpointBehind, "found batch 7; expected batch 8 or 9"),
        # It was restored to before that batch: its state lacks records that are in the results.
        *(
            (8, 8, at(begin, end, 50), CheckpointBehind, f"batch 8 is in the results.*older copy.*found end {end}")
            for begin in (30, 50)
            for end in (60, 40)
        ),
        (
            8,
            8,
            at(30, 40, 50),
            CheckpointBehind,
            f"or the stored offset was moved since.*restore the newer one.*{MOVED}",
        ),
        # A reset backwards, further than the batch.
        (8, 8, at(30, 60, 20), CheckpointAhead, "20 stored; expected 30"),
        (8, 8, at(30, 60, 50, 6), CheckpointAhead, "payments-1: .*6 stored; expected 7"),
        # A new checkpoint.
        (0, None, at(50, 60, 40), OffsetGap, r"claim\.starting_offsets"),
        (0, None, at(0, 60, 40), CheckpointBehind, r"claim\.starting_offsets"),
    ],
)
def test_what_is_ahead_or_behind_is_refused_and_told(
    batch: int, mark: int | None, offsets: dict[str, Any], error: type[StartError], said: str
) -> None:
    with pytest.raises(error, match=f"(?s){said}"):
        outcome(batch, mark, **offsets)
