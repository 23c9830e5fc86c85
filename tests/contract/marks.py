"""Marks of batches, which may have no ranges. See `tests.contract.suite`."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.store.claim import Claim
from tests.contract.parts import GROUP, P0, WAIT, ContractParts, Stop

QUERY, OTHER = UUID(int=1), UUID(int=2)


class MarkContract(ContractParts):
    """A batch of a stateful query is written once, whether or not it has ranges."""

    def write_batch(self, claim: Claim, query: UUID, batch_id: int, *partitions: TopicPartition) -> bool:
        """Write a batch's number as its result, as the sink does, and return whether it was written."""
        with self.store.transaction(claim) as tx:
            tx.lock(dict.fromkeys(partitions, OffsetRange(0, 3)))
            if not tx.marks.mark_batch(query, batch_id):
                return False
            self.write(tx, [batch_id])
            tx.advance(tx.ranges)
            return True

    @pytest.mark.behaviour("SINK-6")
    def test_a_batch_without_ranges_is_written_once(self, claim: Claim) -> None:
        written = [self.write_batch(claim, QUERY, batch_id) for batch_id in (0, 0, 1, 2, 1, 2)]

        assert written == [True, False, True, True, False, False]
        assert self.read() == [0, 1, 2]
        assert self.write_batch(claim, OTHER, 0)
        assert self.write_batch(self.store.claim(f"{GROUP}-2", self.broker), QUERY, 0)
        assert self.store.batch_mark(GROUP, QUERY) == 2

    @pytest.mark.behaviour("SINK-6")
    def test_the_mark_comes_and_goes_with_the_results_and_the_offsets(self, claim: Claim) -> None:
        def fail() -> None:
            with self.store.transaction(claim) as tx:
                tx.lock({P0: OffsetRange(0, 3)})
                assert tx.marks.mark_batch(QUERY, 0)
                self.write(tx, [0])
                raise Stop

        with pytest.raises(Stop):
            fail()
        assert (self.store.batch_mark(GROUP, QUERY), self.read()) == (None, [])

        assert self.write_batch(claim, QUERY, 0, P0)
        assert (self.store.batch_mark(GROUP, QUERY), self.read(), self.stored()[P0]) == (0, [0], 3)

    @pytest.mark.behaviour("SINK-6")
    def test_of_two_transactions_that_mark_one_batch_at_once_one_writes(self, claim: Claim) -> None:
        together = threading.Barrier(2)

        def job() -> bool:
            with self.store.transaction(claim) as tx:
                tx.lock({})
                together.wait(WAIT)
                if not tx.marks.mark_batch(QUERY, 0):
                    return False
                self.write(tx, [0])
                return True

        with ThreadPoolExecutor(2) as pool:
            written = [done.result(60) for done in [pool.submit(job), pool.submit(job)]]

        assert sorted(written) == [False, True]
        assert self.read() == [0]
