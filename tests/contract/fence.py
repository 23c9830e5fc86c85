"""A stale job writes nothing. See `tests.contract.suite`."""

from __future__ import annotations

from uuid import uuid4

import pytest

from offsetstore.errors import StaleClaim
from offsetstore.offsets import OffsetRange, Token, TopicPartition
from offsetstore.store.claim import Claim
from offsetstore.testing.broker import StaticBroker
from tests.contract.parts import GROUP, NEW, P0, P1, P2, ContractParts


class FenceContract(ContractParts):
    """A stale job writes nothing."""

    @pytest.mark.behaviour("START-14")
    def test_the_second_of_two_claims_wins_whatever_the_first_one_touches(self, claim: Claim) -> None:
        self.give(claim, {P0: OffsetRange(0, 2)})
        touched = [
            {P0: OffsetRange(2, 4)},
            {P0: OffsetRange(0, 2)},  # which it could skip
            {NEW: OffsetRange(0, 4)},  # without a row
            {P0: OffsetRange(2, 4), P1: OffsetRange(0, 4), NEW: OffsetRange(0, 4)},
            {},
        ]
        for ranges in touched:
            first, second = (self.store.claim(GROUP, self.broker) for _ in range(2))
            with pytest.raises(StaleClaim) as caught:
                self.give(first, ranges)
            assert caught.value.expected == str(first.token)
            assert str(caught.value.found).startswith(f"claimed by {second.owner}, {second.token}, since ")
            assert (self.read(), self.stored()) == ([0, 1], {P0: 2, P1: 0, P2: 0})

        self.give(self.store.claim(GROUP, self.broker), {P0: OffsetRange(2, 4)})
        assert self.read() == [0, 1, 2, 3]

    @pytest.mark.behaviour("START-14")
    @pytest.mark.parametrize("partition", [P0, NEW])
    def test_equal_epochs_of_a_restored_backup_are_told_apart(self, claim: Claim, partition: TopicPartition) -> None:
        twin = Token(claim.token.epoch, uuid4())
        with self.session() as restored:
            restored.lock_group(GROUP)
            restored.write_group(GROUP, twin, "a job of the restored database")

        with pytest.raises(StaleClaim) as caught:
            self.give(claim, {partition: OffsetRange(0, 3)})

        assert str(caught.value.found).startswith(f"taken by a job of the restored database, {twin}")
        assert caught.value.expected == str(claim.token)
        self.assert_untouched()

    @pytest.mark.behaviour("START-14")
    def test_a_claim_fences_its_group_s_partitions_of_other_topics_too_and_no_other_group(self, claim: Claim) -> None:
        self.store.claim("shipping", self.broker)
        self.give(claim, {P0: OffsetRange(0, 2)})
        self.store.claim(GROUP, StaticBroker.with_topics({"refunds": 1}, end=100))

        with pytest.raises(StaleClaim):
            self.give(claim, {P0: OffsetRange(2, 3)})
        assert self.read() == [0, 1]
