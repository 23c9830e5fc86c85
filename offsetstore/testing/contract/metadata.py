"""What travels with the offset. See `offsetstore.testing.contract.suite`."""
# ruff: noqa: D102, PT012 - these are tests: the name is the docstring, numbers and order are the point

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offsetstore.errors import MetadataError
from offsetstore.offsets import OffsetRange
from offsetstore.testing.contract.parts import GROUP, P0, P1, P2, ContractParts, Stop, assert_untouched

if TYPE_CHECKING:
    from offsetstore.store.claim import Claim
    from offsetstore.store.store import OffsetStore
    from offsetstore.testing.broker import StaticBroker
    from offsetstore.testing.contract.parts import Read, Write


class MetadataContract(ContractParts):
    """What travels with the offset."""

    @pytest.mark.behaviour("META-1")
    @pytest.mark.parametrize("value", ["a note", {"trace": ["é", 1, 2.5, True, None]}, [], 0, False, ""])
    def test_a_string_or_json_value_is_stored_with_the_offset(
        self, store: OffsetStore, claim: Claim, value: object
    ) -> None:
        with store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            tx.advance({P0: plan[P0].remaining}, metadata=value)

        assert store.metadata(GROUP) == {P0: value, P1: None, P2: None}

    @pytest.mark.behaviour("META-1")
    def test_metadata_is_rolled_back_with_the_results(self, store: OffsetStore, claim: Claim) -> None:
        with pytest.raises(Stop), store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            tx.advance({P0: plan[P0].remaining}, metadata="never seen")
            raise Stop

        assert store.metadata(GROUP)[P0] is None

    @pytest.mark.behaviour("META-1")
    def test_an_advance_without_metadata_keeps_the_last_and_none_clears_it(
        self, store: OffsetStore, claim: Claim
    ) -> None:
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(0, 1), P1: OffsetRange(0, 1)})
            tx.advance({P0: OffsetRange(0, 1), P1: OffsetRange(0, 1)}, metadata="a note")
        with store.transaction(claim) as tx:
            tx.lock({P0: OffsetRange(1, 2), P1: OffsetRange(1, 2)})
            tx.advance({P0: OffsetRange(1, 2)})
            tx.advance({P1: OffsetRange(1, 2)}, metadata=None)

        assert store.metadata(GROUP) == {P0: "a note", P1: None, P2: None}

    @pytest.mark.behaviour("META-1")
    def test_metadata_that_is_no_json_value_writes_nothing(
        self, store: OffsetStore, claim: Claim, write: Write, read: Read
    ) -> None:
        with pytest.raises(MetadataError), store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            write(tx, [0, 1, 2])
            tx.advance({P0: plan[P0].remaining}, metadata=object())

        assert_untouched(store, read)

    @pytest.mark.behaviour("META-2")
    def test_the_next_owner_reads_the_metadata_after_a_takeover(
        self, store: OffsetStore, broker: StaticBroker, claim: Claim
    ) -> None:
        with store.transaction(claim) as tx:
            plan = tx.lock({P0: OffsetRange(0, 3)})
            tx.advance({P0: plan[P0].remaining}, metadata={"run": 1})

        second = store.claim(GROUP, broker)

        assert store.metadata(GROUP)[P0] == {"run": 1}
        with store.transaction(second) as tx:
            plan = tx.lock({P0: OffsetRange(3, 4)})
            tx.advance({P0: plan[P0].remaining})
        assert store.metadata(GROUP)[P0] == {"run": 1}

    @pytest.mark.behaviour("META-12", "START-12")
    def test_two_groups_on_one_topic_have_their_own_offsets_and_metadata(
        self, store: OffsetStore, broker: StaticBroker
    ) -> None:
        for group, until in (("billing", 3), ("shipping", 5)):
            claim = store.claim(group, broker)
            with store.transaction(claim) as tx:
                plan = tx.lock({P0: OffsetRange(0, until)})
                tx.advance({P0: plan[P0].remaining}, metadata=f"of {group}")

        assert store.metadata("billing")[P0] == "of billing"
        assert store.metadata("shipping")[P0] == "of shipping"
        assert [store.offsets(group)[P0].next_offset for group in ("billing", "shipping")] == [3, 5]
