"""The order of things inside a transaction, and what is refused by name. See `tests.contract.suite`."""
# ruff: noqa: PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

from contextlib import suppress

import pytest

from offsetstore.errors import (
    AdvanceMismatch,
    LockedTwice,
    LockFirst,
    LockInSavepoint,
    NestedTransaction,
    OffsetGap,
    ProtocolMisuse,
    Unadvanced,
    UnexpectedCommit,
)
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import OffsetRange
from offsetstore.store.claim import Claim
from tests.contract.parts import GROUP, NEW, P0, P1, ContractParts, Give, Read, Stop, Write, assert_untouched


class MisuseContract(ContractParts):
    """The order of things inside a transaction, and what is refused by name."""

    @pytest.mark.behaviour("TX-3")
    def test_an_empty_transaction_is_fine(self, store: OffsetStore, claim: Claim, read: Read) -> None:
        with store.transaction(claim):
            pass

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    def test_a_transaction_without_partitions_writes_its_results(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        with store.transaction(claim) as tx:
            assert tx.lock({}) == {}
            write(tx, [5])

        assert read() == [5]

    @pytest.mark.behaviour("TX-3")
    def test_a_transaction_inside_a_transaction_is_refused(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        with pytest.raises(NestedTransaction), store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 3)})
            write(tx, [0])
            with store.transaction(claim):
                pass

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    def test_after_a_refused_transaction_the_next_one_works(
        self, store: OffsetStore, claim: Claim, give: Give, read: Read
    ) -> None:
        with pytest.raises(NestedTransaction), store.transaction(claim), store.transaction(claim):
            pass

        give(claim, {P0: OffsetRange(0, 2)})
        assert read() == [0, 1]

    @pytest.mark.behaviour("TX-3")
    def test_lock_inside_a_savepoint_is_refused(self, store: OffsetStore, claim: Claim, read: Read) -> None:
        with pytest.raises(LockInSavepoint), store.transaction(claim) as tx:
            tx.lock({})
            with tx.connection.begin_nested():
                tx.lock({P0: OffsetRange(0, 3)})

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    def test_lock_is_called_once(self, store: OffsetStore, claim: Claim, read: Read) -> None:
        with pytest.raises(LockedTwice), store.transaction(claim) as tx:
            tx.lock({P1: OffsetRange(0, 3)})
            tx.lock({P0: OffsetRange(0, 3)})

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    def test_the_connection_before_lock_is_refused(self, store: OffsetStore, claim: Claim, read: Read) -> None:
        with pytest.raises(LockFirst), store.transaction(claim) as tx:
            _ = tx.connection

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    def test_advance_before_lock_is_refused(self, store: OffsetStore, claim: Claim, read: Read) -> None:
        with pytest.raises(LockFirst), store.transaction(claim) as tx:
            tx.advance({P0: OffsetRange(0, 3)})

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    def test_a_transaction_outside_of_its_block_is_refused(self, store: OffsetStore, claim: Claim) -> None:
        tx = store.transaction(claim)
        with pytest.raises(LockFirst):
            tx.lock({P0: OffsetRange(0, 3)})
        with tx:
            pass
        with pytest.raises(LockFirst):
            _ = tx.connection

    @pytest.mark.behaviour("TX-3")
    def test_a_transaction_is_begun_once(self, store: OffsetStore, claim: Claim) -> None:
        tx = store.transaction(claim)
        with tx:
            tx.lock({})

        with pytest.raises(ProtocolMisuse, match="only once"), tx:
            pass

    @pytest.mark.behaviour("TX-3")
    def test_a_locked_partition_left_unadvanced_is_refused(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        with pytest.raises(Unadvanced) as caught, store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3), P1: OffsetRange(0, 3)})
            write(tx, [0, 1, 2])
            tx.advance({P0: plan[P0].remaining})

        assert caught.value.topic_partition == P1
        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    def test_commit_and_rollback_on_the_connection_are_refused(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read, ending: str
    ) -> None:
        with pytest.raises(UnexpectedCommit), store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 3)})
            write(tx, [0])
            getattr(tx.connection, ending)()

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    @pytest.mark.parametrize("ending", ["commit", "rollback"])
    @pytest.mark.parametrize("last", ["advance", "finish"])
    def test_an_end_whose_refusal_was_swallowed_is_noticed(  # noqa: PLR0917 - pytest's fixtures
        self, store: OffsetStore, claim: Claim, write: Write, read: Read, ending: str, last: str
    ) -> None:
        with pytest.raises(UnexpectedCommit), store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            write(tx, [0, 1, 2])
            with suppress(Exception):
                getattr(tx.connection, ending)()
            getattr(tx, last)({P0: plan[P0].remaining})

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    def test_an_advance_that_a_savepoint_took_back_is_noticed(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        with pytest.raises(UnexpectedCommit), store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3), P1: OffsetRange(0, 3)})
            write(tx, [0, 1, 2])
            tx.advance({P0: plan[P0].remaining})
            savepoint = tx.connection.begin_nested()
            tx.advance({P1: plan[P1].remaining})
            savepoint.rollback()

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    def test_a_later_advance_does_not_hide_one_that_a_savepoint_took_back(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        with pytest.raises(UnexpectedCommit), store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3), P1: OffsetRange(0, 3)})
            write(tx, [0, 1, 2])
            savepoint = tx.connection.begin_nested()
            tx.advance({P0: plan[P0].remaining})
            savepoint.rollback()
            tx.advance({P1: plan[P1].remaining})

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    def test_results_that_a_savepoint_took_back_are_the_only_ones_missing(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        with store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            with pytest.raises(Stop), tx.connection.begin_nested():
                write(tx, [666])
                raise Stop
            with tx.connection.begin_nested():
                write(tx, [0, 1, 2])
                tx.advance({P0: plan[P0].remaining})

        assert read() == [0, 1, 2]
        assert store.offsets(GROUP)[P0].next_offset == 3

    @pytest.mark.behaviour("TX-3")
    @pytest.mark.parametrize("range_", [OffsetRange(0, 2), OffsetRange(0, 4), OffsetRange(1, 3)])
    def test_advance_takes_the_range_that_lock_returned(
        self, store: OffsetStore, claim: Claim, read: Read, range_: OffsetRange
    ) -> None:
        with pytest.raises(AdvanceMismatch) as caught, store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 3)})
            tx.advance({P0: range_})

        assert (caught.value.topic_partition, caught.value.found) == (P0, str(range_))
        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    def test_advance_of_a_partition_that_was_not_locked_is_refused(
        self, store: OffsetStore, claim: Claim, read: Read
    ) -> None:
        with pytest.raises(AdvanceMismatch), store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 3)})
            tx.advance({P0: OffsetRange(0, 3), P1: OffsetRange(0, 3)})

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3")
    def test_a_partition_is_advanced_once(self, store: OffsetStore, claim: Claim, read: Read) -> None:
        with pytest.raises(AdvanceMismatch), store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 3)})
            tx.advance({P0: OffsetRange(0, 3)})
            tx.advance({P0: OffsetRange(0, 3)})

        assert_untouched(store, read)

    @pytest.mark.behaviour("TX-3", "TX-6")
    def test_a_refusal_of_lock_can_not_be_swallowed(self, store: OffsetStore, claim: Claim, read: Read) -> None:
        def job() -> None:
            with store.transaction(claim) as tx:
                try:
                    tx.lock({P0: OffsetRange(1, 3), NEW: OffsetRange(0, 3)})
                except OffsetGap:
                    return

        with pytest.raises(OffsetGap):
            job()
        assert_untouched(store, read)
        assert NEW not in store.offsets(GROUP)
