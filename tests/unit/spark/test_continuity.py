"""A batch of a kept checkpoint goes on exactly where the database stands, or not at all."""

from __future__ import annotations

import pytest

from offsetstore.errors import CheckpointAhead, CheckpointBehind, OffsetGap
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.replay import Outcome
from offsetstore.spark.continuity import judge

P0, P1 = (TopicPartition("payments", number) for number in range(2))


def outcome(
    batch_id: int, mark: int | None, *, begin: int, end: int, stored: int, stored_1: int = 7, at_1: int = 7
) -> Outcome:
    """Partition 1 stands still."""
    return judge(
        batch_id, mark, begin={P0: begin, P1: at_1}, end={P0: end, P1: at_1}, stored={P0: stored, P1: stored_1}
    )


@pytest.mark.behaviour("SINK-6")
@pytest.mark.parametrize("mark", [None, 7])
@pytest.mark.parametrize("end", [40, 60])
def test_a_batch_that_begins_where_the_store_stands_is_applied_with_data_or_without(mark: int | None, end: int) -> None:
    assert outcome(8, mark, begin=40, end=end, stored=40) is Outcome.APPLY


@pytest.mark.behaviour("SINK-6")
@pytest.mark.parametrize("begin", [40, 60])
def test_the_marked_batch_is_skipped_with_data_or_without(begin: int) -> None:
    """Killed after the database's COMMIT and before Spark's."""
    assert outcome(8, 8, begin=begin, end=60, stored=60) is Outcome.SKIP


@pytest.mark.behaviour("START-15")
@pytest.mark.parametrize("mark", [None, 7])
def test_a_committed_end_beyond_the_store_is_ahead(mark: int | None) -> None:
    with pytest.raises(CheckpointAhead, match="30 stored; expected 40") as caught:
        outcome(8, mark, begin=40, end=60, stored=30)
    assert caught.value.topic_partition == P0


@pytest.mark.behaviour("START-15")
@pytest.mark.parametrize("mark", [None, 7])
@pytest.mark.parametrize("stored", [50, 60, 70])
def test_a_committed_end_below_the_store_is_behind(mark: int | None, stored: int) -> None:
    with pytest.raises(CheckpointBehind, match=f"{stored} stored; expected 40"):
        outcome(8, mark, begin=40, end=60, stored=stored)


@pytest.mark.behaviour("START-15")
def test_what_is_missing_in_one_partition_is_told_before_what_would_be_repeated_in_another() -> None:
    for batch_id, error in ((8, CheckpointAhead), (0, OffsetGap)):
        with pytest.raises(error) as caught:
            outcome(batch_id, None, begin=40, end=60, stored=50, stored_1=6)
        assert caught.value.topic_partition == P1


@pytest.mark.behaviour("START-15")
def test_a_partition_without_new_records_counts_as_well() -> None:
    with pytest.raises(CheckpointAhead):
        outcome(8, 7, begin=40, end=60, stored=40, stored_1=6)
    with pytest.raises(CheckpointBehind):
        outcome(8, 7, begin=40, end=60, stored=40, stored_1=8)


@pytest.mark.behaviour("START-15")
def test_a_missing_batch_without_data_is_seen_by_its_number() -> None:
    """The database was restored to before a batch in which a window came out; the offsets are the same."""
    with pytest.raises(CheckpointAhead, match="batch 6 in the database; expected batch 7"):
        outcome(8, 6, begin=40, end=60, stored=40)


@pytest.mark.behaviour("START-15")
def test_a_batch_below_the_mark_is_another_one_than_it_was() -> None:
    """An older copy of the checkpoint makes new batches under the old numbers."""
    with pytest.raises(CheckpointBehind, match="found batch 7; expected batch 8 or 9"):
        outcome(7, 8, begin=40, end=40, stored=40)


@pytest.mark.behaviour("START-15")
@pytest.mark.parametrize("end", [60, 40])
@pytest.mark.parametrize("begin", [30, 50])
def test_the_marked_batch_with_another_end_was_planned_anew_by_an_older_checkpoint(begin: int, end: int) -> None:
    """It was restored to before that batch: its state lacks records that are in the results."""
    with pytest.raises(CheckpointBehind, match=f"batch 8 is in the results.*found end {end}; expected 50") as caught:
        outcome(8, 8, begin=begin, end=end, stored=50)
    assert "older copy" in str(caught.value)
    assert "restore the newer one" in caught.value.next_step


@pytest.mark.behaviour("START-15")
@pytest.mark.parametrize(
    ("batch", "mark", "begin", "end"),
    [(8, 8, 30, 40), (8, 7, 40, 60), (8, None, 40, 60)],
    ids=["in the marked batch", "after the marked batch", "without a mark"],
)
def test_an_offset_that_was_moved_forwards_is_told_as_a_cause(
    batch: int, mark: int | None, begin: int, end: int
) -> None:
    """After a reset, or an adopted offset, there is no newer checkpoint to restore."""
    with pytest.raises(CheckpointBehind) as caught:
        outcome(batch, mark, begin=begin, end=end, stored=50)
    assert "If the stored offset was moved" in caught.value.next_step
    assert "there is none: move the checkpoint away" in caught.value.next_step
    assert (mark != batch) or "or the stored offset was moved since" in str(caught.value)


@pytest.mark.behaviour("START-15")
def test_the_marked_batch_of_a_store_below_what_is_committed_is_ahead() -> None:
    """A reset backwards, further than the batch."""
    with pytest.raises(CheckpointAhead, match="20 stored; expected 30"):
        outcome(8, 8, begin=30, end=60, stored=20)
    with pytest.raises(CheckpointAhead, match="6 stored; expected 7"):
        outcome(8, 8, begin=30, end=60, stored=50, stored_1=6)


@pytest.mark.behaviour("START-15")
def test_a_new_checkpoint_begins_at_the_stored_offset_or_says_how_it_would() -> None:
    assert outcome(0, None, begin=40, end=60, stored=40) is Outcome.APPLY
    with pytest.raises(OffsetGap, match=r"claim\.starting_offsets"):
        outcome(0, None, begin=50, end=60, stored=40)
    with pytest.raises(CheckpointBehind, match=r"claim\.starting_offsets"):
        outcome(0, None, begin=0, end=60, stored=40)
