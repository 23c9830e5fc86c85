"""Marks of batches, which may have no ranges. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias
from uuid import UUID

import pytest

from offsetstore.errors import LockFirst, StaleClaim
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.store.claim import Claim
from offsetstore.testing.broker import StaticBroker
from tests.contract.parts import GROUP, P0, WAIT, ContractParts, Read, Stop, Write

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
    def write_batch(self, store: OffsetStore, write: Write) -> WriteBatch:
        """Write a batch's number as its result."""

        def write_batch(claim: Claim, query: UUID, batch_id: int, ranges: Ranges | None = None) -> bool:
            with store.transaction(claim) as tx:
                plan = tx.lock(ranges or {})
                if not tx.mark_batch(query, batch_id):
                    return False
                write(tx, [batch_id])
                tx.advance({tp: decision.remaining for tp, decision in plan.items()})
                return True

        return write_batch

    @pytest.mark.behaviour("SINK-6")
    def test_a_batch_without_ranges_is_written_once(
        self, store: OffsetStore, claim: Claim, write_batch: WriteBatch, read: Read
    ) -> None:
        written = [write_batch(claim, QUERY, batch_id) for batch_id in (0, 0, 1, 2, 1, 2)]

        assert written == [True, False, True, True, False, False]
        assert read() == [0, 1, 2]
        assert store.batch_mark(GROUP, QUERY) == 2

    @pytest.mark.behaviour("SINK-6")
    def test_the_mark_comes_and_goes_with_the_results_and_the_offsets(
        self, store: OffsetStore, claim: Claim, write: Write, write_batch: WriteBatch, read: Read
    ) -> None:
        with pytest.raises(Stop), store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 3)})
            assert tx.mark_batch(QUERY, 0)
            write(tx, [0])
            raise Stop
        assert (store.batch_mark(GROUP, QUERY), read()) == (None, [])

        assert write_batch(claim, QUERY, 0, {P0: OffsetRange(0, 3)})

        assert (store.batch_mark(GROUP, QUERY), read()) == (0, [0])
        assert store.offsets(GROUP)[P0].next_offset == 3

    @pytest.mark.behaviour("SINK-6")
    def test_each_query_and_each_group_has_marks_of_its_own(
        self, store: OffsetStore, claim: Claim, broker: StaticBroker, write_batch: WriteBatch
    ) -> None:
        other_group = store.claim(f"{GROUP}-2", broker)
        assert write_batch(claim, QUERY, 7)

        assert write_batch(claim, OTHER, 0)
        assert write_batch(other_group, QUERY, 0)
        assert store.batch_mark(GROUP, QUERY) == 7

    @pytest.mark.behaviour("SINK-6")
    def test_of_two_transactions_that_mark_one_batch_at_once_one_writes(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        together = threading.Barrier(2)

        def job() -> bool:
            with store.transaction(claim) as tx:
                tx.lock({})
                together.wait(WAIT)
                if not tx.mark_batch(QUERY, 0):
                    return False
                write(tx, [0])
                return True

        with ThreadPoolExecutor(2) as pool:
            written = [done.result(60) for done in [pool.submit(job), pool.submit(job)]]

        assert sorted(written) == [False, True]
        assert read() == [0]

    @pytest.mark.behaviour("SINK-6", "START-14")
    def test_a_stale_job_marks_nothing(
        self, store: OffsetStore, claim: Claim, broker: StaticBroker, write_batch: WriteBatch, read: Read
    ) -> None:
        store.claim(GROUP, broker)

        with pytest.raises(StaleClaim):
            write_batch(claim, QUERY, 0)

        assert (store.batch_mark(GROUP, QUERY), read()) == (None, [])

    @pytest.mark.behaviour("TX-3")
    def test_a_mark_before_the_lock_is_refused(self, store: OffsetStore, claim: Claim) -> None:
        with pytest.raises(LockFirst), store.transaction(claim) as tx:
            tx.mark_batch(QUERY, 0)
