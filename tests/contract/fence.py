"""A stale job writes nothing. See `tests.contract.suite`."""

from __future__ import annotations

from uuid import uuid4

import pytest

from offsetstore.errors import StaleClaim
from offsetstore.offsets import OffsetRange, Token, TopicPartition
from offsetstore.store.claim import Claim
from offsetstore.testing.broker import StaticBroker
from tests.contract.parts import GROUP, NEW, P0, P1, ContractParts, assert_untouched


class FenceContract(ContractParts):
    """A stale job writes nothing."""

    @pytest.mark.behaviour("START-14")
    @pytest.mark.parametrize(
        "partitions",
        [
            pytest.param((P0,), id="a partition it had written"),
            pytest.param((P1,), id="one it had not"),
            pytest.param((NEW,), id="one without a row"),
            pytest.param((P0, P1, NEW), id="all of them"),
            pytest.param((), id="none"),
        ],
    )
    def test_the_second_of_two_claims_wins_whatever_the_first_one_touches(
        self, claim: Claim, partitions: tuple[TopicPartition, ...]
    ) -> None:
        self.give(claim, {P0: OffsetRange(0, 2)})
        second = self.store.claim(GROUP, self.broker)

        with pytest.raises(StaleClaim) as caught:
            self.give(claim, {tp: OffsetRange(2 if tp == P0 else 0, 4) for tp in partitions})
        assert caught.value.expected == str(claim.token)
        assert str(caught.value.found).startswith(f"claimed by {second.owner}, {second.token}, since ")
        assert self.read() == [0, 1]

        self.give(second, {P0: OffsetRange(2, 4)})
        assert self.read() == [0, 1, 2, 3]

    @pytest.mark.behaviour("START-14")
    def test_a_stale_job_is_fenced_in_a_range_that_it_could_skip(self, claim: Claim) -> None:
        self.give(claim, {P0: OffsetRange(0, 2)})
        self.store.claim(GROUP, self.broker)

        with pytest.raises(StaleClaim):
            self.give(claim, {P0: OffsetRange(0, 2)})

    @pytest.mark.behaviour("START-14")
    @pytest.mark.parametrize("partition", [P0, NEW])
    def test_equal_epochs_of_a_restored_backup_are_told_apart(self, claim: Claim, partition: TopicPartition) -> None:
        twin = Token(claim.token.epoch, uuid4())
        session = self.store.database.begin(name="restore")
        session.lock_group(GROUP)
        session.write_group(GROUP, twin, "a job of the restored database")
        session.commit()

        with pytest.raises(StaleClaim) as caught:
            self.give(claim, {partition: OffsetRange(0, 3)})

        assert str(caught.value.found).startswith(f"taken by a job of the restored database, {twin}")
        assert caught.value.expected == str(claim.token)
        assert_untouched(self.store, self.read)

    @pytest.mark.behaviour("START-14")
    def test_a_claim_fences_the_group_s_partitions_of_other_topics_too(self, claim: Claim) -> None:
        self.store.claim(GROUP, StaticBroker.with_topics({"refunds": 1}, end=100))

        with pytest.raises(StaleClaim):
            self.give(claim, {P0: OffsetRange(0, 3)})
        assert_untouched(self.store, self.read)

    @pytest.mark.behaviour("START-14")
    def test_a_claim_of_another_group_fences_nobody(self, claim: Claim) -> None:
        self.store.claim("shipping", self.broker)

        self.give(claim, {P0: OffsetRange(0, 2)})

        assert self.read() == [0, 1]
