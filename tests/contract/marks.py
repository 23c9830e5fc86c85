"""Marks of batches, which may have no ranges. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias
from uuid import UUID

import pytest

from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.store.claim import Claim
from tests.contract.parts import GROUP, P0, WAIT, ContractParts, Stop

QUERY, OTHER = UUID(int=1), UUID(int=2)


Ranges: TypeAlias = "dict[TopicPartition, OffsetRange]"


class WriteBatch(Protocol):
    """Processes a batch as the sink does."""

    def __call__(self, claim: Claim, query: UUID, batch_id: int, ranges: Ranges | None = None) -> bool:
        """Return whether it was written."""
        ...


class MarkContract(ContractParts):
    """A batch of a stateful query is written once, whether or not it has ranges."""

    @pytest.fixture
    def write_batch(self) -> WriteBatch:
        """Write a batch's number as its result."""

        def write_batch(claim: Claim, query: UUID, batch_id: int, ranges: Ranges | None = None) -> bool:
            with self.store.transaction(claim) as tx:
                plan = tx.lock(ranges or {})
                if not tx.mark_batch(query, batch_id):
                    return False
                self.write(tx, [batch_id])
                tx.advance({tp: decision.remaining for tp, decision in plan.items()})
                return True

        return write_batch

    @pytest.mark.behaviour("SINK-6")
    def test_a_batch_without_ranges_is_written_once(self, claim: Claim, write_batch: WriteBatch) -> None:
        written = [write_batch(claim, QUERY, batch_id) for batch_id in (0, 0, 1, 2, 1, 2)]

        assert written == [True, False, True, True, False, False]
        assert self.read() == [0, 1, 2]
        assert self.store.batch_mark(GROUP, QUERY) == 2

    @pytest.mark.behaviour("SINK-6")
    def test_the_mark_comes_and_goes_with_the_results_and_the_offsets(
        self, claim: Claim, write_batch: WriteBatch
    ) -> None:
        with pytest.raises(Stop), self.store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 3)})
            assert tx.mark_batch(QUERY, 0)
            self.write(tx, [0])
            raise Stop
        assert (self.store.batch_mark(GROUP, QUERY), self.read()) == (None, [])

        assert write_batch(claim, QUERY, 0, {P0: OffsetRange(0, 3)})

        assert (self.store.batch_mark(GROUP, QUERY), self.read()) == (0, [0])
        assert self.store.offsets(GROUP)[P0].next_offset == 3

    @pytest.mark.behaviour("SINK-6")
    def test_each_query_and_each_group_has_marks_of_its_own(self, claim: Claim, write_batch: WriteBatch) -> None:
        other_group = self.store.claim(f"{GROUP}-2", self.broker)
        assert write_batch(claim, QUERY, 7)

        assert write_batch(claim, OTHER, 0)
        assert write_batch(other_group, QUERY, 0)
        assert self.store.batch_mark(GROUP, QUERY) == 7

    @pytest.mark.behaviour("SINK-6")
    def test_of_two_transactions_that_mark_one_batch_at_once_one_writes(self, claim: Claim) -> None:
        together = threading.Barrier(2)

        def job() -> bool:
            with self.store.transaction(claim) as tx:
                tx.lock({})
                together.wait(WAIT)
                if not tx.mark_batch(QUERY, 0):
                    return False
                self.write(tx, [0])
                return True

        with ThreadPoolExecutor(2) as pool:
            written = [done.result(60) for done in [pool.submit(job), pool.submit(job)]]

        assert sorted(written) == [False, True]
        assert self.read() == [0]
