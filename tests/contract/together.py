"""Results and offset: both or neither. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from offsetstore.errors import Unadvanced
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import OffsetRange
from offsetstore.store.claim import Claim
from tests.contract.parts import (
    GROUP,
    P0,
    WAIT,
    ContractParts,
    Give,
    Read,
    Stop,
    Write,
    assert_untouched,
    write_in_pieces,
)


class TogetherContract(ContractParts):
    """Results and offset: both or neither."""

    @pytest.mark.behaviour("TX-1")
    def test_results_and_offset_are_committed_together(
        self, store: OffsetStore, claim: Claim, give: Give, read: Read
    ) -> None:
        give(claim, {P0: OffsetRange(0, 3)})

        assert read() == [0, 1, 2]
        assert store.offsets(GROUP)[P0].next_offset == 3

    @pytest.mark.behaviour("TX-1")
    def test_nothing_is_visible_before_the_block_ends(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        with store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            write(tx, [0, 1, 2])
            tx.advance({P0: plan[P0].remaining})

            assert read() == []
            assert store.offsets(GROUP)[P0].next_offset == 0

    @pytest.mark.behaviour("TX-2")
    def test_an_exception_leaves_results_and_offset_as_they_were(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        with pytest.raises(Stop), store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            write(tx, [0, 1, 2])
            tx.advance({P0: plan[P0].remaining})
            raise Stop

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-2")
    def test_a_generator_that_is_closed_early_writes_nothing(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        job = write_in_pieces(store, claim, write)
        next(job)
        job.close()

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-2")
    def test_a_generator_that_another_thread_closes_leaves_the_first_thread_usable(
        self, store: OffsetStore, claim: Claim, write: Write, give: Give, read: Read
    ) -> None:
        job = write_in_pieces(store, claim, write)
        next(job)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(job.close).result(WAIT)

        assert_untouched(store, read)
        give(claim, {P0: OffsetRange(0, 1)})
        assert read() == [0]

    @pytest.mark.behaviour("TX-2")
    def test_break_before_advance_is_refused_and_writes_nothing(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        def job() -> None:
            for _ in range(1):
                with store.transaction(claim) as tx:
                    tx.lock({P0: OffsetRange(0, 3)})
                    write(tx, [0])
                    break

        with pytest.raises(Unadvanced):
            job()
        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-2")
    def test_return_before_advance_is_refused_and_writes_nothing(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        def job() -> None:
            with store.transaction(claim) as tx:
                tx.lock({P0: OffsetRange(0, 3)})
                write(tx, [0])
                return

        with pytest.raises(Unadvanced):
            job()
        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-2")
    def test_break_after_advance_commits(self, store: OffsetStore, claim: Claim, write: Write, read: Read) -> None:
        for _ in range(2):
            with store.transaction(claim) as tx:
                plan = tx.lock({P0: OffsetRange(0, 3)})
                write(tx, [0, 1, 2])
                tx.advance({P0: plan[P0].remaining})
                break

        assert read() == [0, 1, 2]
        assert store.offsets(GROUP)[P0].next_offset == 3

    @pytest.mark.behaviour("TX-2")
    def test_return_after_advance_commits(self, store: OffsetStore, claim: Claim, write: Write, read: Read) -> None:
        def job() -> str:
            with store.transaction(claim) as tx:
                plan = tx.lock({P0: OffsetRange(0, 3)})
                write(tx, [0, 1, 2])
                tx.advance({P0: plan[P0].remaining})
                return "done"

        assert job() == "done"
        assert read() == [0, 1, 2]
        assert store.offsets(GROUP)[P0].next_offset == 3
