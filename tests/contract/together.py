"""Results and offset: both or neither. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import pytest

from offsetstore.errors import Unadvanced
from offsetstore.offsets import OffsetRange
from offsetstore.store.claim import Claim
from tests.contract.parts import P0, WAIT, ContractParts, Stop


class TogetherContract(ContractParts):
    """Results and offset: both or neither."""

    @pytest.mark.behaviour("TX-1")
    def test_results_and_offset_are_committed_together(self, claim: Claim) -> None:
        with self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 3)})
            self.write(tx, [0, 1, 2])
            tx.advance(tx.ranges)
            self.assert_untouched()

        assert (self.read(), self.stored()[P0]) == ([0, 1, 2], 3)

    @pytest.mark.behaviour("TX-2")
    def test_an_exception_leaves_results_and_offset_as_they_were(self, claim: Claim) -> None:
        with pytest.raises(Stop), self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 3)})
            self.write(tx, [0, 1, 2])
            tx.advance(tx.ranges)
            raise Stop

        self.assert_untouched()

    @pytest.mark.behaviour("TX-2")
    def test_a_generator_that_another_thread_closes_leaves_the_first_thread_usable(self, claim: Claim) -> None:
        def write_in_pieces() -> Generator[int]:
            with self.store.transaction(claim) as tx:
                tx.lock({P0: OffsetRange(0, 3)})
                for number in range(3):
                    self.write(tx, [number])
                    yield number
                tx.advance(tx.ranges)

        job = write_in_pieces()
        next(job)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(job.close).result(WAIT)

        self.assert_untouched()
        self.give(claim, {P0: OffsetRange(0, 1)})
        assert self.read() == [0]

    @pytest.mark.behaviour("TX-2")
    def test_a_block_that_is_left_early_commits_if_it_has_advanced_and_is_refused_if_not(self, claim: Claim) -> None:
        def job(*, advances: bool) -> str:
            for _ in range(2):
                with self.store.transaction(claim) as tx:
                    tx.lock({P0: OffsetRange(0, 3)})
                    self.write(tx, [0, 1, 2])
                    if not advances:
                        break
                    tx.advance(tx.ranges)
                    return "done"
            return "left"

        with pytest.raises(Unadvanced):
            job(advances=False)
        self.assert_untouched()
        assert job(advances=True) == "done"
        assert (self.read(), self.stored()[P0]) == ([0, 1, 2], 3)
