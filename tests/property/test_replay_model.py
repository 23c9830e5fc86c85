"""The decision about a range, against a log kept in a plain list."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offsetstore.offsets import MAX_OFFSET, OffsetRange
from offsetstore.protocol.replay import Outcome, decide

# Close together, so that they touch, or anywhere at all.
small = st.integers(0, 12)
offsets = small | st.integers(MAX_OFFSET - 12, MAX_OFFSET) | st.integers(0, MAX_OFFSET)


@st.composite
def ranges(draw: st.DrawFn, numbers: st.SearchStrategy[int] = offsets) -> OffsetRange:
    one, other = draw(numbers), draw(numbers)
    return OffsetRange(min(one, other), max(one, other))


@pytest.mark.behaviour("TX-4", "TX-5", "TX-6")
@given(stored=offsets, range_=ranges())
@example(stored=5, range_=OffsetRange(5, 5))
@example(stored=5, range_=OffsetRange(3, 5))
@example(stored=5, range_=OffsetRange(3, 6))
@example(stored=5, range_=OffsetRange(6, 6))
def test_one_outcome_holds_and_what_remains_is_the_part_above_the_stored_offset(
    stored: int, range_: OffsetRange
) -> None:
    decision = decide(stored, range_)
    holds = {
        Outcome.SKIP: range_.until <= stored,
        Outcome.APPLY: stored == range_.from_ < range_.until,
        Outcome.CROP: range_.from_ < stored < range_.until,
        Outcome.GAP: stored < range_.from_,
    }
    assert [outcome for outcome, true in holds.items() if true] == [decision.outcome]
    if decision.outcome is Outcome.GAP:
        with pytest.raises(ValueError, match="nothing may be written"):
            _ = decision.remaining
        return
    assert bool(decision.remaining) == (decision.outcome is not Outcome.SKIP)
    assert decision.remaining.from_ == stored
    if decision.remaining:
        assert decision.remaining == OffsetRange(max(stored, range_.from_), range_.until)
    assert decide(decision.remaining.until, range_).outcome is Outcome.SKIP  # once it is applied


@dataclass
class Job:
    """Results as a list of offsets, and the stored offset; a batch is applied as the store would."""

    stored: int = 0
    written: list[int] = field(default_factory=list[int])

    def give(self, range_: OffsetRange) -> None:
        decision = decide(self.stored, range_)
        if decision.outcome is Outcome.GAP:
            return
        self.written += range(decision.remaining.from_, decision.remaining.until)
        self.stored = decision.remaining.until


@pytest.mark.behaviour("TX-4", "TX-5", "TX-6")
@given(st.lists(ranges(small), max_size=30))
def test_no_sequence_of_batches_and_replays_loses_or_repeats_an_offset(batches: list[OffsetRange]) -> None:
    job = Job()
    for batch in batches:
        before = job.stored
        job.give(batch)
        assert job.stored >= before
        assert job.written == list(range(job.stored))
