"""What becomes of a range: applied, cropped, skipped, refused. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from offsetstore.errors import OffsetGap
from offsetstore.offsets import OffsetRange
from offsetstore.protocol.replay import Outcome
from offsetstore.store.claim import Claim
from tests.contract.parts import (
    GROUP,
    HUGE,
    NEW,
    P0,
    P1,
    WAIT,
    ContractParts,
    Stop,
    assert_untouched,
)


class ReplayContract(ContractParts):
    """What becomes of a range: applied, cropped, skipped, refused."""

    @pytest.mark.behaviour("TX-4")
    def test_a_range_below_the_stored_offset_is_skipped(self, claim: Claim) -> None:
        self.give(claim, {P0: OffsetRange(0, 3)})

        plan = self.give(claim, {P0: OffsetRange(0, 3)})

        assert (plan[P0].outcome, bool(plan[P0].remaining)) == (Outcome.SKIP, False)
        assert self.read() == [0, 1, 2]
        assert self.store.offsets(GROUP)[P0].next_offset == 3

    @pytest.mark.behaviour("TX-5")
    def test_a_range_that_straddles_the_stored_offset_is_cropped(self, claim: Claim) -> None:
        self.give(claim, {P0: OffsetRange(0, 3)})

        plan = self.give(claim, {P0: OffsetRange(0, 5)})

        assert (plan[P0].outcome, plan[P0].remaining) == (Outcome.CROP, OffsetRange(3, 5))
        assert self.read() == [0, 1, 2, 3, 4]
        assert self.store.offsets(GROUP)[P0].next_offset == 5

    @pytest.mark.behaviour("TX-6")
    def test_a_range_above_the_stored_offset_is_a_gap_and_writes_nothing(self, claim: Claim) -> None:
        with pytest.raises(OffsetGap) as caught:
            self.give(claim, {P0: OffsetRange(4, 6), P1: OffsetRange(0, 2)})

        assert caught.value.topic_partition == P0
        assert "[0, 4) is missing" in str(caught.value)
        assert_untouched(self.store, self.read)

    @pytest.mark.behaviour("TX-7")
    def test_holes_in_a_range_advance_to_its_end(self, claim: Claim) -> None:
        for range_, records in ((OffsetRange(0, 50), [3, 17]), (OffsetRange(50, 100), [])):
            with self.store.transaction(claim) as tx:
                plan = tx.lock({P0: range_})
                self.write(tx, records)
                tx.advance({P0: plan[P0].remaining})

        assert self.read() == [3, 17]
        assert self.store.offsets(GROUP)[P0].next_offset == 100

    @pytest.mark.behaviour("TX-13")
    def test_offsets_have_64_bits(self) -> None:
        claim = self.store.claim(GROUP, topics=["payments"])
        for range_ in (OffsetRange(HUGE - 5, HUGE), OffsetRange(HUGE, 2**63 - 1)):
            with self.store.transaction(claim) as tx:
                plan = tx.lock({P0: range_})
                tx.advance({P0: plan[P0].remaining})
            assert self.store.offsets(GROUP)[P0].next_offset == range_.until

    @pytest.mark.behaviour("TX-10")
    def test_a_partition_without_a_row_gets_one_that_starts_at_the_range(self, claim: Claim) -> None:
        self.give(claim, {NEW: OffsetRange(40, 43), P0: OffsetRange(0, 1)})

        assert self.read() == [0, 40, 41, 42]
        assert self.store.offsets(GROUP)[NEW].next_offset == 43
        adopted = self.store.history(GROUP)[-1]
        assert (adopted.event, adopted.topic_partition, adopted.from_offset, adopted.to_offset) == (
            "adopt",
            NEW,
            None,
            40,
        )

    @pytest.mark.behaviour("TX-10")
    def test_a_new_row_that_is_rolled_back_is_made_again(self, claim: Claim) -> None:
        with pytest.raises(Stop), self.store.transaction(claim) as tx:
            tx.lock({NEW: OffsetRange(40, 43)})
            raise Stop
        assert NEW not in self.store.offsets(GROUP)

        self.give(claim, {NEW: OffsetRange(50, 52)})

        assert self.read() == [50, 51]

    @pytest.mark.behaviour("TX-10")
    def test_two_jobs_that_create_a_row_at_once_write_its_range_once(self, claim: Claim) -> None:
        together = threading.Barrier(2)
        found: list[Outcome] = []

        def job() -> None:
            together.wait(WAIT)
            found.append(self.give(claim, {NEW: OffsetRange(10, 13)})[NEW].outcome)

        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(job), pool.submit(job)]:
                done.result(60)

        assert sorted(outcome.value for outcome in found) == ["apply", "skip"]
        assert self.read() == [10, 11, 12]
        assert [event.event for event in self.store.history(GROUP)].count("adopt") == 4  # three of the claim, one new
