"""Manual marking: code decides how far its results reach. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

import pytest

from offsetstore.errors import (
    AdvanceMismatch,
    MarkBackwards,
    MarkBeyondDelivered,
    OffsetGap,
    TransactionConflict,
    UnexpectedCommit,
)
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.letters import LetterError, NewLetter
from offsetstore.protocol.replay import Outcome
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction
from tests.contract.parts import GROUP, P0, P1, ContractParts, Stop, starts


class MarkingContract(ContractParts):
    """The stored offset moves where the code marks; what was delivered beyond it is read again by the next claim."""

    def manually(self, claim: Claim) -> Transaction:
        return self.store.transaction(claim, marking="manual")

    def deliver(self, claim: Claim, first: int, until: int, mark: int | None) -> tuple[int, dict[TopicPartition, int]]:
        """Deliver a range of `P0`, write the numbers below the mark that are not in the results yet, and mark.

        Returns the stored offset, and what is delivered.
        """
        stored = self.stored()[P0]
        with self.manually(claim) as tx:
            tx.lock({P0: OffsetRange(first, until)})
            if mark is not None:
                self.write(tx, range(stored, mark))
                tx.mark(P0, mark)
        return self.stored()[P0], claim.delivered

    @pytest.mark.behaviour("MARK-1", "MARK-2")
    def test_the_stored_offset_moves_to_the_mark_and_the_next_batch_is_no_gap(self, claim: Claim) -> None:
        assert self.deliver(claim, 0, 10, 4) == (4, {P0: 10})
        with pytest.raises(OffsetGap), self.manually(claim) as tx:
            tx.lock({P0: OffsetRange(11, 12)})
        with pytest.raises(OffsetGap), self.store.transaction(claim) as tx:  # what was delivered is not stored
            tx.lock({P0: OffsetRange(10, 12)})
        assert self.deliver(claim, 10, 20, None) == (4, {P0: 20})

        successor = self.store.claim(GROUP, self.broker)
        assert starts(successor)[P0] == 4
        assert successor.delivered == {}
        assert self.deliver(successor, 4, 25, 25) == (25, {P0: 25})
        assert self.read() == list(range(25))

    @pytest.mark.behaviour("MARK-2")
    def test_a_range_that_was_delivered_is_cropped_and_not_delivered_again(self, claim: Claim) -> None:
        self.deliver(claim, 0, 10, 4)

        with self.manually(claim) as tx:
            [again] = tx.lock({P0: OffsetRange(0, 10)}).values()
        with self.manually(claim) as tx:
            [longer] = tx.lock({P0: OffsetRange(0, 12)}).values()

        assert again.outcome is Outcome.SKIP
        assert (longer.outcome, longer.remaining) == (Outcome.CROP, OffsetRange(10, 12))
        assert (self.stored()[P0], claim.delivered) == (4, {P0: 12})

    @pytest.mark.behaviour("DLQ-14")
    def test_a_letter_is_superseded_where_its_record_is_stored_and_not_where_it_is_delivered(
        self, claim: Claim
    ) -> None:
        def states(*chosen: str) -> bool:
            return [one.state for one in self.letters.dead_letters(GROUP)] == [*chosen]

        refused = LetterError("RowsRefused", "refused")
        letters = [NewLetter(P0, at, "refused", refused, 1, None, None) for at in (3, 6, 8)]
        self.give(claim, {P0: OffsetRange(0, 10)}, *letters)
        self.store.reset(GROUP, {P0: 0}, reason="it is mended")
        again = self.store.claim(GROUP, self.broker)

        self.deliver(again, 0, 10, None)
        assert states("dead", "dead", "dead")
        self.deliver(again, 10, 12, 4)
        assert states("superseded", "dead", "dead")
        self.deliver(again, 12, 13, 8)
        assert states("superseded", "superseded", "dead")
        self.deliver(self.store.claim(GROUP, self.broker), 8, 10, 10)
        assert states("superseded", "superseded", "superseded")

    @pytest.mark.behaviour("MARK-3")
    def test_marking_backwards_is_refused_and_the_last_mark_of_a_block_counts(self, claim: Claim) -> None:
        self.deliver(claim, 0, 10, 4)
        with pytest.raises(MarkBackwards, match="offsetstore reset"), self.manually(claim) as tx:
            tx.lock({P0: OffsetRange(10, 12)})
            tx.mark(P0, 3)
        assert (self.stored()[P0], self.read()) == (4, [0, 1, 2, 3])

        with self.manually(claim) as tx:
            tx.lock({P0: OffsetRange(10, 12)})
            for mark in (6, 6, 8):
                tx.mark(P0, mark)
            with pytest.raises(MarkBackwards):
                tx.mark(P0, 7)
        assert self.stored()[P0] == 8

    @pytest.mark.behaviour("MARK-4")
    def test_a_partition_without_new_records_can_be_marked_up_to_what_was_delivered(self, claim: Claim) -> None:
        self.deliver(claim, 0, 10, None)

        with self.manually(claim) as tx:
            tx.lock({P0: OffsetRange(10, 10), P1: OffsetRange(0, 2)})
            with pytest.raises(MarkBeyondDelivered):
                tx.mark(P0, 11)
            tx.mark(P0, 10)
            tx.mark(P1, 2)

        assert (self.stored()[P0], self.stored()[P1], claim.delivered) == (10, 2, {P0: 10, P1: 2})

    @pytest.mark.behaviour("MARK-1", "META-4", "META-5")
    def test_metadata_goes_with_the_mark_and_not_with_a_block_without_one(self, claim: Claim) -> None:
        claim.store_metadata(P0, "stored for the next mark")
        self.deliver(claim, 0, 10, None)
        assert self.store.metadata(GROUP)[P0] is None

        self.deliver(claim, 10, 20, 12)
        assert self.store.metadata(GROUP)[P0] == "stored for the next mark"
        with self.manually(claim) as tx:
            tx.lock({P0: OffsetRange(20, 30)})
            tx.mark(P0, 20, metadata="of an earlier mark")
            tx.mark(P0, 21, metadata={"until": 21})
        assert self.store.metadata(GROUP)[P0] == {"until": 21}
        with self.manually(claim) as tx:
            tx.lock({P0: OffsetRange(30, 40)})
            tx.mark(P0, 31, metadata="of an earlier mark")
            tx.mark(P0, 32)
        assert self.store.metadata(GROUP)[P0] == {"until": 21}

    @pytest.mark.behaviour("MARK-1")
    def test_what_else_moves_the_offset_is_noticed(self, claim: Claim) -> None:
        self.deliver(claim, 0, 10, 4)
        self.give(claim, {P0: OffsetRange(4, 6)})

        with pytest.raises(AdvanceMismatch, match="something else"):
            self.deliver(claim, 10, 12, None)

        assert self.stored()[P0] == 6

    @pytest.mark.behaviour("TX-3")
    def test_a_mark_in_a_savepoint_counts_and_one_that_was_rolled_back_is_noticed(self, claim: Claim) -> None:
        with self.manually(claim) as tx:
            tx.lock({P0: OffsetRange(0, 2)})
            with tx.connection.begin_nested():
                self.write(tx, [0])
                tx.mark(P0, 1)
        assert (self.stored()[P0], self.read()) == (1, [0])

        for has_later in (False, True):  # which does not hide it
            with pytest.raises(UnexpectedCommit), self.manually(claim) as tx:
                tx.lock({P0: OffsetRange(2, 4), P1: OffsetRange(0, 1)})
                with pytest.raises(Stop), tx.connection.begin_nested():
                    self.write(tx, [1])
                    tx.mark(P0, 2)
                    raise Stop
                if has_later:
                    tx.mark(P1, 1)
            assert (self.stored()[P0], self.read()) == (1, [0])

    @pytest.mark.behaviour("MARK-1")
    def test_run_repeats_a_function_with_marks(self, claim: Claim) -> None:
        runs: list[int] = []

        def work(tx: Transaction) -> None:
            runs.append(1)
            tx.lock({P0: OffsetRange(0, 9)})
            self.write(tx, [0])
            tx.mark(P0, 7 if len(runs) == 1 else 6)
            if len(runs) == 1:
                raise TransactionConflict("a deadlock, say")

        self.store.run(claim, work, marking="manual")

        assert (len(runs), self.read()) == (2, [0])
        assert (self.stored()[P0], claim.delivered) == (6, {P0: 9})
