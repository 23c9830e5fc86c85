"""What becomes of a range: applied, cropped, skipped, refused. See `tests.contract.suite`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from offsetstore.errors import OffsetGap
from offsetstore.offsets import OffsetRange
from offsetstore.protocol.replay import Outcome
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction
from tests.contract.parts import GROUP, HUGE, NEW, P0, P1, WAIT, ContractParts, Stop


class ReplayContract(ContractParts):
    """What becomes of a range: applied, cropped, skipped, refused."""

    @pytest.mark.behaviour("TX-4", "TX-5")
    def test_a_range_below_the_stored_offset_is_skipped_and_one_that_straddles_it_is_cropped(
        self, claim: Claim
    ) -> None:
        self.give(claim, {P0: OffsetRange(0, 3)})

        [skipped] = self.give(claim, {P0: OffsetRange(0, 3)}).values()
        assert (skipped.outcome, bool(skipped.remaining)) == (Outcome.SKIP, False)
        assert (self.read(), self.stored()[P0]) == ([0, 1, 2], 3)

        [cropped] = self.give(claim, {P0: OffsetRange(0, 5)}).values()
        assert (cropped.outcome, cropped.remaining) == (Outcome.CROP, OffsetRange(3, 5))
        assert (self.read(), self.stored()[P0]) == ([0, 1, 2, 3, 4], 5)

    @pytest.mark.behaviour("TX-6")
    def test_a_range_above_the_stored_offset_is_a_gap_and_writes_nothing(self, claim: Claim) -> None:
        with pytest.raises(OffsetGap, match=r"\[0, 4\) is missing") as caught:
            self.give(claim, {P0: OffsetRange(4, 6), P1: OffsetRange(0, 2)})

        assert caught.value.topic_partition == P0
        self.assert_untouched()

    @pytest.mark.behaviour("TX-7", "TX-13")
    def test_holes_in_a_range_advance_to_its_end_and_offsets_have_64_bits(self) -> None:
        claim = self.store.claim(GROUP, topics=["payments"])
        ranges = {OffsetRange(HUGE - 50, HUGE): [HUGE - 47, HUGE - 33], OffsetRange(HUGE, 2**63 - 1): []}
        for range_, records in ranges.items():
            with self.store.transaction(claim) as tx:
                tx.lock({P0: range_})
                self.write(tx, records)
                tx.advance(tx.ranges)
            assert self.stored()[P0] == range_.until

        assert self.read() == [HUGE - 47, HUGE - 33]

    @pytest.mark.behaviour("TX-10")
    def test_a_new_row_that_is_rolled_back_is_made_again(self, claim: Claim) -> None:
        def stop(tx: Transaction) -> None:
            tx.lock({NEW: OffsetRange(10, 13)})
            raise Stop

        with pytest.raises(Stop):
            self.store.run(claim, stop)
        assert NEW not in self.stored()

        self.give(claim, {NEW: OffsetRange(40, 43), P0: OffsetRange(0, 1)})

        assert (self.read(), self.stored()[NEW]) == ([0, 40, 41, 42], 43)
        line = self.store.history(GROUP)[-1]
        assert (line.event, line.topic_partition, line.from_offset, line.to_offset) == ("adopt", NEW, None, 40)

    @pytest.mark.behaviour("TX-10")
    def test_two_jobs_that_create_a_row_at_once_write_its_range_once(self, claim: Claim) -> None:
        together = threading.Barrier(2)

        def job() -> str:
            together.wait(WAIT)
            return self.give(claim, {NEW: OffsetRange(10, 13)})[NEW].outcome.value

        with ThreadPoolExecutor(2) as pool:
            found = [done.result(60) for done in [pool.submit(job), pool.submit(job)]]

        assert sorted(found) == ["apply", "skip"]
        assert self.read() == [10, 11, 12]
        assert [event.event for event in self.store.history(GROUP)].count("adopt") == 4  # three of the claim, one new
