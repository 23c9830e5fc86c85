"""A claim that several members share. See `tests.contract.suite`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import pytest

from offsetstore.errors import (
    GroupBusy,
    GroupRenamed,
    LogTruncated,
    MetadataError,
    OffsetOutOfRange,
    OffsetsDisagree,
    PartitionLost,
    StaleClaim,
    StoreRewound,
    TopicMissing,
    TopicRecreated,
)
from offsetstore.offsets import CommittedOffset, EpochPair, OffsetRange, Token, TopicPartition
from offsetstore.operations.people import ask
from offsetstore.operations.wording import in_words
from offsetstore.processing.plan import BatchMetadata, DeliveryPlan
from offsetstore.processing.unit import Unit, commit
from offsetstore.protocol.letters import SEQUENCE_BYTES, LetterError, NewLetter, Payload
from offsetstore.protocol.marking import Marking
from offsetstore.protocol.replay import Decision
from offsetstore.protocol.retries import Retries
from offsetstore.protocol.starting import Reason, StartPolicy
from offsetstore.protocol.store_facts import Stamp, digest
from offsetstore.store import acquire, fleet, heartbeat
from offsetstore.store.claim import Claim, ClaimRequest
from offsetstore.store.fleet import Member, join
from tests.contract.parts import GROUP, P0, P1, P2, WAIT, ContractParts
from tests.support.background import in_background

P3 = TopicPartition("payments", 3)
REASON = "ticket 17"
HOUR = 3600.0


Join: TypeAlias = Callable[..., Member]
"""Joins the group's fleet; what is given by name changes the request."""


def letter(tp: TopicPartition, offset: int) -> NewLetter:
    payload = Payload(None, b"a value", None, None, None)
    return NewLetter(tp, offset, "refused", LetterError("E", "refused"), 1, b"k" * SEQUENCE_BYTES, payload)


def mark(
    claim: Claim, ranges: dict[TopicPartition, OffsetRange], marks: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Decision]:
    with claim.transaction(marking="manual") as tx:
        plan = tx.lock(ranges)
        for tp, at in marks.items():
            tx.mark(tp, at)
    return plan


class FleetContract(ContractParts):
    """Who has which partitions, and what fences whom."""

    def assert_fleet_is_fenced(self, *members: tuple[Member, TopicPartition]) -> None:
        """The fleet has lost the group, not a member its partition."""
        for member, tp in members:
            for attempt in (lambda: self.give(member, {tp: OffsetRange(0, 4)}), lambda: member.assign([tp])):  # noqa: B023
                with pytest.raises(StaleClaim) as caught:
                    attempt()
                assert not isinstance(caught.value, PartitionLost)
            assert member.is_lost

    def expect_lost(self, member: Member, ranges: dict[TopicPartition, OffsetRange]) -> None:
        """It has lost a partition of these."""
        with pytest.raises(PartitionLost):
            self.give(member, ranges)

    @pytest.fixture(autouse=True)
    def without_pauses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(acquire, "_RETRIES", Retries(attempts=3, shortest=0.0, longest=0.0))

    @pytest.fixture
    def join(self) -> Iterator[Join]:
        made: list[Member] = []

        def join_it(**changes: Any) -> Member:
            request = ClaimRequest(GROUP, self.broker, ("payments",), StartPolicy(), "refuse", 30.0, GROUP)
            made.append(join(self.store, replace(request, **changes)))
            return made[-1]

        yield join_it
        for member in made:
            member.close()

    # -- joining

    @pytest.mark.behaviour("CONS-2")
    def test_the_first_process_founds_a_fleet_with_all_partitions_and_others_share_it(self, join: Join) -> None:
        self.broker.set_committed({P1: 30})

        first, second = join(), join()

        assert first.fleet == second.fleet
        assert len({first.fleet, first.token, second.token}) == 3
        assert first.partitions == second.partitions == set()
        assert self.stored() == {P0: 0, P1: 30, P2: 0}
        assert {row.token for row in self.store.offsets(GROUP).values()} == {first.fleet}
        assert [(line.event, line.topic_partition, line.token) for line in self.store.history(GROUP)] == [
            ("claim", None, first.fleet),
            *(("adopt", tp, first.fleet) for tp in (P0, P1, P2)),
        ]

    # -- partitions

    @pytest.mark.behaviour("CONS-3")
    def test_a_member_writes_to_the_partitions_that_it_took_and_to_no_others(self, join: Join) -> None:
        member = join()
        assert member.assign([P0]).offsets == {P0: 0}
        assert self.store.offsets(GROUP)[P0].token == member.token

        self.give(member, {P0: OffsetRange(0, 2)})
        for others in ([P1], [P0, P1], [P3]):
            self.expect_lost(member, {tp: OffsetRange(2 if tp == P0 else 0, 4) for tp in others})

        assert self.read() == [0, 1]
        assert P3 not in self.stored()
        assert not member.is_lost

    @pytest.mark.behaviour("CONS-3")
    def test_a_member_that_lost_a_partition_writes_nothing_to_it_and_goes_on_with_the_rest(self, join: Join) -> None:
        first, second = join(), join()
        first.assign([P0, P1])
        self.give(first, {P0: OffsetRange(0, 2), P1: OffsetRange(0, 2)})

        assert second.assign([P1]).offsets == {P1: 2}

        for range_ in (OffsetRange(2, 4), OffsetRange(0, 2), OffsetRange(2, 2)):  # also what it skips, or only locks
            with pytest.raises(PartitionLost) as lost:
                self.give(first, {P0: OffsetRange(2, 4), P1: range_})
            assert lost.value.topic_partition == P1
        assert self.read() == [0, 0, 1, 1]
        assert (first.partitions, first.is_lost) == ({P0}, False)
        self.give(first, {P0: OffsetRange(2, 4)})
        self.give(second, {P1: OffsetRange(2, 3)})
        assert self.read() == [0, 0, 1, 1, 2, 2, 3]
        assert self.stored() == {P0: 4, P1: 3, P2: 0}

    @pytest.mark.behaviour("CONS-6")
    def test_a_late_assignment_takes_the_partition_and_its_owner_takes_it_again(self, join: Join) -> None:
        late, owner = join(), join()
        owner.assign([P0])
        self.give(owner, {P0: OffsetRange(0, 2)})
        late.assign([P0])
        self.expect_lost(owner, {P0: OffsetRange(2, 4)})

        assert owner.assign([P0]).offsets == {P0: 2}

        self.give(owner, {P0: OffsetRange(2, 4)})
        self.expect_lost(late, {P0: OffsetRange(2, 4)})
        assert self.read() == [0, 1, 2, 3]

    @pytest.mark.behaviour("CONS-3")
    def test_a_partition_that_was_given_back_is_not_written_to_although_its_row_has_the_token(self, join: Join) -> None:
        member = join()
        member.assign([P0, P1])
        member.release([P0])
        assert self.store.offsets(GROUP)[P0].token == member.token

        self.expect_lost(member, {P0: OffsetRange(0, 2)})
        self.give(member, {P1: OffsetRange(0, 2)})

        assert self.read() == [0, 1]

    @pytest.mark.behaviour("CONS-3")
    def test_a_position_is_of_the_term_in_which_it_was_reached_whenever_the_partition_is_given_back(
        self, join: Join, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        member = join()
        member.assign([P0])
        mark(member, {P0: OffsetRange(0, 5)}, {P0: 2})

        def release(name: str) -> None:
            member.release([P0])

        monkeypatch.setattr("offsetstore.store.transaction.failpoints.reach", release)

        assert mark(member, {P0: OffsetRange(5, 40)}, {P0: 10})[P0].remaining == OffsetRange(5, 40), "no gap"

        monkeypatch.undo()
        assert member.delivered == {}
        assert member.assign([P0]).offsets == {P0: 10}
        assert mark(member, {P0: OffsetRange(10, 50)}, {})[P0].remaining == OffsetRange(10, 50), "nothing is cropped"

    @pytest.mark.behaviour("CONS-3", "META-3")
    def test_a_transaction_writes_the_metadata_of_its_partition_although_that_is_given_back(self, join: Join) -> None:
        member = join()
        member.assign([P0])
        self.give(member, {P0: OffsetRange(0, 2)}, metadata="at 2")
        member.assign([P0])
        member.store_metadata(P0, "at 4")
        with self.store.transaction(member) as tx:
            tx.lock({P0: OffsetRange(2, 4)})
            member.release([P0])
            assert tx.metadata(P0) == "at 2"
            tx.advance(tx.ranges)

        row = self.store.offsets(GROUP)[P0]
        assert (row.next_offset, row.metadata) == (4, '"at 4"')
        assert member.partitions == set(), "what is committed is not the member's again"
        for refused in (lambda: member.metadata(P0), lambda: member.store_metadata(P0, "at 6")):
            with pytest.raises(PartitionLost):
                refused()

    @pytest.mark.behaviour("CONS-3", "DLQ-14")
    def test_a_transaction_supersedes_the_letters_that_it_passes_although_their_partition_is_given_back(
        self, join: Join
    ) -> None:
        before = join()
        before.assign([P0])
        self.give(before, {P0: OffsetRange(0, 2)}, letter(P0, 1))
        self.store.reset(GROUP, {P0: 0}, reason=REASON)
        member = join()
        member.assign([P0])
        with self.store.transaction(member, marking="manual") as tx:
            tx.lock({P0: OffsetRange(0, 2)})
            tx.mark(P0, 2)
            member.release([P0])

        with self.session() as session:
            assert session.letters_in(GROUP, {P0: OffsetRange(0, 2)}) == {}
        assert self.stored()[P0] == 2

    @pytest.mark.behaviour("CONS-3")
    @pytest.mark.parametrize("marking", ["automatic", "manual"])
    def test_records_that_were_read_in_an_earlier_term_are_not_written_in_the_next(
        self, join: Join, marking: Marking
    ) -> None:
        member = join()
        member.assign([P0, P1])
        former = member.terms
        member.release([P0])
        assert member.assign([P0]).offsets == {P0: 0}

        for range_ in (OffsetRange(0, 40), OffsetRange(10, 20), OffsetRange(0, 0)):
            with pytest.raises(PartitionLost) as lost, self.store.transaction(member, marking=marking) as tx:
                tx.lock({P0: range_, P1: OffsetRange(0, 5)}, terms=former)
            assert lost.value.topic_partition == P0

        assert member.partitions == {P0, P1}
        assert member.delivered == {}
        with self.store.transaction(member, marking=marking) as tx:
            ranges = {P0: OffsetRange(0, 25), P1: OffsetRange(0, 5)}
            plan = tx.lock(ranges, terms={P0: member.terms[P0], P1: former[P1]})
            assert {tp: one.remaining for tp, one in plan.items()} == ranges
            if marking == "automatic":
                tx.advance(ranges)

    @pytest.mark.behaviour("CONS-3")
    def test_units_are_of_the_terms_in_which_they_were_planned(self, join: Join) -> None:
        member = join()
        member.assign([P0])
        read = member.terms
        plan = DeliveryPlan.of(member, {P0: OffsetRange(0, 5)}, read)
        member.assign([P0])
        later = DeliveryPlan.of(member, {P0: OffsetRange(0, 5)}, read)

        for one in (plan, later, later.at({P0: OffsetRange(0, 2)})):
            with pytest.raises(PartitionLost):
                commit(member, Unit(one.decisions, {}, terms=one.terms))
        assert self.stored()[P0] == 0

    @pytest.mark.behaviour("CONS-3", "META-3")
    def test_what_was_known_of_a_partition_is_read_anew_when_it_comes_back(self, join: Join) -> None:
        first, second = join(), join()
        first.assign([P0, P1])
        for tp in (P0, P1):
            first.store_metadata(tp, "of the first")
        mark(first, {P0: OffsetRange(0, 5), P1: OffsetRange(0, 5)}, {P0: 2, P1: 2})
        first.store_metadata(P0, "never written")
        assert set(first.delivered) == {P0, P1}
        second.assign([P0])
        self.give(second, {P0: OffsetRange(2, 6)}, letter(P0, 4), metadata="of the second")

        assert first.assign([P0]).offsets == {P0: 6}

        assert first.metadata(P0) == "of the second"
        assert set(first.delivered) == {P1}
        assert [first.terms[tp].sequence for tp in (P0, P1)] == [4, -1]
        self.give(first, {P0: OffsetRange(6, 8)})
        assert self.store.offsets(GROUP)[P0].metadata == '"of the second"'

    @pytest.mark.behaviour("META-7")
    def test_what_others_know_of_their_partitions_is_not_a_members(self, join: Join) -> None:
        first, second = join(), join()
        first.assign([P0])
        second.assign([P1])
        self.give(second, {P1: OffsetRange(0, 2)}, metadata="of the second")

        def expect_lost(member: Member, *, cache: bool) -> None:
            with self.store.transaction(member) as tx:
                tx.lock({})
                with pytest.raises(PartitionLost):
                    tx.metadata(P1, cache=cache)
            with pytest.raises(PartitionLost):
                member.metadata(P1, cache=cache)

        for cache in (True, False):
            expect_lost(first, cache=cache)
            assert first.metadata(P0, cache=cache) is None
        assert second.metadata(P1, cache=False) == "of the second"
        join().assign([P1])
        expect_lost(second, cache=False)
        assert (first.is_lost, second.is_lost, first.partitions) == (False, False, {P0})

    @pytest.mark.behaviour("CONS-1", "OPS-6")
    def test_members_take_turns_and_none_waits_for_another(self, join: Join) -> None:
        first, second = join(), join()

        def take(name: UUID, every: float) -> bool:
            with self.store.transaction(second) as tx:
                tx.lock({})
                return tx.marks.take_turn(name, every)

        def takes(name: UUID, every: float) -> bool:
            taking = in_background(lambda: take(name, every))
            assert wait([taking], timeout=WAIT).done
            return taking.result()

        for name in (uuid4(), uuid4()):  # one of its own each
            with suppress(ZeroDivisionError), self.store.transaction(first) as tx:
                tx.lock({})
                assert tx.marks.take_turn(name, HOUR)
                assert not takes(name, 0.0)  # neither before there is a row
                raise ZeroDivisionError
            with self.store.transaction(first) as tx:
                tx.lock({})
                assert tx.marks.take_turn(name, HOUR)
            assert not takes(name, HOUR)
            with self.store.transaction(first) as tx:
                tx.lock({})
                assert tx.marks.take_turn(name, 0.0)
                assert not takes(name, 0.0)  # nor where there is one
            assert takes(name, 0.0)

    # -- where it starts

    @pytest.mark.behaviour("CONS-2")
    def test_an_assignment_starts_at_the_larger_of_what_is_stored_and_what_kafka_has(self, join: Join) -> None:
        first, second = join(), join()
        first.assign([P0, P1])
        self.give(first, {P0: OffsetRange(0, 50), P1: OffsetRange(0, 50)})
        self.broker.set_committed({P0: 60, P1: 40, P2: 70})

        assert second.assign([P0, P1]).offsets == {P0: 60, P1: 50}

        assert self.stored() == {P0: 60, P1: 50, P2: 0}
        last = self.store.history(GROUP)[-1]
        assert (last.event, last.topic_partition, last.from_offset, last.to_offset) == ("adopt", P0, 50, 60)
        assert (last.token, "skips [50, 60)" in last.reason) == (second.token, True)

        self.store.reset(GROUP, {P0: 10}, reason=REASON)  # which wins at each assignment
        second, third = join(), join()
        assert [member.assign([P0]).offsets for member in (second, third, second)] == [{P0: 10}] * 3
        assert self.store.offsets(GROUP)[P0].pinned

    @pytest.mark.behaviour("CONS-2", "CONS-13")
    def test_a_partition_that_was_added_starts_at_its_beginning_although_brokers_disagree_about_it(
        self, join: Join
    ) -> None:
        member = join(policy=StartPolicy(auto_offset_reset="latest"))
        before = self.broker.current
        self.broker.set_log(P3, 5, 100)
        self.broker.script = [self.broker.current, before, before]

        assert member.assign([P0, P3]).offsets == {P0: 100, P3: 5}

        row = self.store.offsets(GROUP)[P3]
        assert (row.next_offset, row.topic_id, row.cluster_id) == (5, "payments-id", "cluster")
        assert row.token == member.token
        self.give(member, {P3: OffsetRange(5, 7)})
        assert self.read() == [5, 6]
        last = self.store.history(GROUP)[-1]
        assert (last.event, last.topic_partition, last.from_offset, last.to_offset) == ("adopt", P3, None, 5)

    @pytest.mark.behaviour("CONS-3", "CONS-13")
    def test_kafka_is_asked_while_nothing_is_locked_and_what_was_stored_meanwhile_counts(
        self, join: Join, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        owner, late = join(), join()
        owner.assign([P0, P1])
        self.give(owner, {P0: OffsetRange(0, 90)})
        self.broker.set_committed({P1: 50})
        self.broker.script = [lambda: self.give(owner, {P0: OffsetRange(90, 95), P1: OffsetRange(0, 20)})]
        before = len(self.broker.asked)
        holding = fleet._holding

        def later(*given: Any) -> Any:
            self.give(owner, {P0: OffsetRange(95, 120)})  # beyond the end that Kafka has told before
            return holding(*given)

        monkeypatch.setattr(fleet, "_holding", later)

        starting = late.assign([P0, P1])

        assert (starting.offsets, starting.starts[P0].reason) == ({P0: 120, P1: 50}, Reason.STORED)
        assert len(self.broker.asked) == before + 1
        assert self.stored() == {P0: 120, P1: 50, P2: 0}
        assert late.terms.keys() == {P0, P1}

    @pytest.mark.behaviour("CONS-13")
    def test_where_a_new_topic_starts_is_decided_for_all_of_its_partitions_by_whoever_brings_it(
        self, join: Join
    ) -> None:
        latest = StartPolicy(auto_offset_reset="latest")
        before = join()
        before.assign([P0])
        refunds = [TopicPartition("refunds", number) for number in range(2)]
        for tp in refunds:
            self.broker.set_log(tp, 0, 100)

        one, other = (join(topics=("payments", "refunds"), policy=latest) for _ in range(2))

        assert one.fleet == other.fleet == before.fleet
        rows = self.store.offsets(GROUP)
        assert {tp: rows[tp].token for tp in refunds if tp in rows} == dict.fromkeys(refunds, before.fleet)
        assert [(line.event, line.to_offset) for line in self.store.history(GROUP)][-2:] == [("adopt", 100)] * 2
        assert one.assign(refunds[:1]).offsets == {refunds[0]: 100}
        assert other.assign(refunds[1:]).offsets == {refunds[1]: 100}
        self.give(before, {P0: OffsetRange(0, 1)})

    @pytest.mark.behaviour("CONS-13")
    def test_a_fleet_is_joined_although_a_partition_can_t_start(self, join: Join) -> None:
        first = join()
        first.assign([P0, P1])
        self.give(first, {P0: OffsetRange(0, 50), P1: OffsetRange(0, 50)})
        self.broker.set_log(P0, 60, 100)

        agreeing, other = join(policy=StartPolicy(prefer="agree")), join()

        assert agreeing.fleet == other.fleet == first.fleet
        with pytest.raises(OffsetOutOfRange):
            other.assign([P0, P1])
        assert (other.partitions, other.is_lost) == (set(), False)
        self.give(first, {P1: OffsetRange(50, 51)})
        self.broker.set_committed({P1: 40})
        with pytest.raises(OffsetsDisagree):
            agreeing.assign([P1])
        assert other.assign([P1]).offsets == {P1: 51}
        for member in (first, agreeing, other):
            member.close()
        with pytest.raises(OffsetOutOfRange):
            join()
        assert join(policy=StartPolicy(on_data_loss="earliest")).assign([P0]).offsets == {P0: 60}

    @pytest.mark.behaviour("CONS-13", "START-25")
    def test_what_a_fleet_could_pass_over_stops_the_foundation_of_another(
        self, join: Join, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        last = join()
        last.assign([P0])
        self.give(last, {P0: OffsetRange(0, 50)})
        last.assign([P0])
        self.broker.truncate(P0, 30, end=100)

        def leaves(*_: object, **__: object) -> None:
            last.close()

        monkeypatch.setattr(fleet, "_enter", leaves)
        with pytest.raises(LogTruncated):
            join()

    @pytest.mark.behaviour("CONS-13", "START-25")
    def test_a_log_that_ends_too_early_is_no_evidence_before_it_has_stayed_so(
        self, join: Join, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = join(), join()
        first.assign([P0])
        self.give(first, {P0: OffsetRange(0, 50)})
        self.broker.set_log(P0, 0, 30)

        with pytest.raises(OffsetOutOfRange):
            second.assign([P0])

        assert self.store.offsets(GROUP)[P0].suspect is None
        assert second.doubts.keys() == {P0}
        self.broker.set_log(P0, 0, 50)
        assert second.assign([P0]).offsets == {P0: 50}
        assert second.doubts == {}

        self.broker.set_log(P0, 0, 30)
        monkeypatch.setattr(fleet, "LOOK_SECONDS", 0.0)
        with pytest.raises(OffsetOutOfRange):
            first.assign([P0])
        self.broker.set_log(P0, 0, 100)
        with pytest.raises(LogTruncated):
            second.assign([P0])

    def test_what_is_wrong_with_another_topic_keeps_no_partition_from_being_taken(self, join: Join) -> None:
        self.broker.set_log(TopicPartition("refunds", 0), 0, 10)
        member = join(topics=("payments", "refunds"))
        self.broker.current = self.broker.current.of([P0, P1])  # the topic was deleted
        assert member.assign([P0]).offsets == {P0: 0}
        for missing in (TopicPartition("refunds", 0), P3):
            with pytest.raises(TopicMissing, match=r"refunds|payments-3"):
                member.assign([P1, missing])
            assert member.partitions == {P0}
        assert P3 not in self.stored()

    @pytest.mark.behaviour("CONS-1")
    def test_a_metadata_function_may_name_partitions_that_the_member_has_given_back(self, join: Join) -> None:
        seen = {P0: "a", P1: "b"}
        member = join()
        member.assign([P0, P1])
        member.release([P1])
        function = BatchMetadata(member, lambda _: seen)
        assert function.texts(0, {P0: OffsetRange(0, 5)}, None).keys() == {P0}
        seen[TopicPartition("refunds", 0)] = "c"
        with pytest.raises(MetadataError, match="refunds-0"):
            function.texts(0, {P0: OffsetRange(0, 5)}, None)

    @pytest.mark.behaviour("CONS-13", "START-26")
    def test_a_log_that_was_truncated_and_has_regrown_is_told_by_what_a_member_read_last(self, join: Join) -> None:
        first, second = join(), join()
        first.assign([P0, P1])
        self.give(first, {P0: OffsetRange(0, 50), P1: OffsetRange(0, 50)})
        read = {P0: EpochPair(50, 0), P1: EpochPair(60, 0)}
        first.write_pairs(read)
        assert [self.store.offsets(GROUP)[tp].pair for tp in (P0, P1)] == [EpochPair(50, 0)] * 2
        self.broker.truncate(P1, 55, end=100)
        assert first.find_lost(read) == {P1}
        assert second.assign([P1]).offsets == {P1: 50}  # no stored record was lost
        self.broker.truncate(P0, 30, end=100)
        for member in (first, second):
            with pytest.raises(LogTruncated, match="at offset 30, below the stored offset 50"):
                member.assign([P0])
        first.write_pairs({P0: EpochPair(20, 1), P1: EpochPair(60, 1)})  # what it no longer has is not its own
        assert [self.store.offsets(GROUP)[tp].pair for tp in (P0, P1)] == [EpochPair(50, 0), EpochPair(50, 1)]

    @pytest.mark.behaviour("CONS-13", "START-26")
    def test_a_pair_is_compared_with_the_log_before_one_of_another_epoch_takes_its_place(self, join: Join) -> None:
        member = join()
        member.assign([P0, P1])
        ranges = {P0: OffsetRange(0, 50), P1: OffsetRange(0, 50)}
        self.give(member, ranges)
        member.write_pairs({P0: EpochPair(50, 0), P1: EpochPair(50, 0)})
        self.broker.change_leader(P1)
        self.broker.truncate(P0, 30, end=100)
        now = {P0: EpochPair(70, 1), P1: EpochPair(50, 1)}
        member.write_pairs(now, asks=False)
        assert self.broker.asked_epochs == []
        member.write_pairs(now)
        assert [self.store.offsets(GROUP)[tp].pair for tp in (P0, P1)] == [EpochPair(50, 0), EpochPair(50, 1)]
        with pytest.raises(LogTruncated, match="payments-0"):
            self.give(member, {P1: OffsetRange(50, 51)})

    @pytest.mark.behaviour("CONS-13", "CONS-12")
    def test_a_recreated_topic_is_read_again_by_a_new_fleet_and_by_no_single_member(self, join: Join) -> None:
        first = join()
        first.assign([P0, P1])
        self.give(first, {P0: OffsetRange(0, 50), P1: OffsetRange(0, 40)})
        restarting = join(policy=StartPolicy(on_recreated="restart"))
        shown = self.broker.current
        log = replace(shown.topics["payments"], topic_id="another")
        self.broker.current = replace(shown, topics={"payments": log})

        with pytest.raises(TopicRecreated):
            first.assign([P0])
        assert not first.is_lost
        with pytest.raises(StaleClaim, match="decided for the whole group"):
            restarting.assign([P0])
        assert restarting.is_lost
        assert {*self.stored().values()} == {0, 40, 50}

        again = join(policy=StartPolicy(on_recreated="restart"))

        assert again.fleet != first.fleet
        assert {*self.stored().values()} == {0}
        with pytest.raises(StaleClaim) as caught:
            self.give(first, {P1: OffsetRange(40, 50)})
        assert not isinstance(caught.value, PartitionLost)
        assert join(policy=StartPolicy(on_recreated="restart")).fleet == again.fleet
        assert again.assign([P0]).offsets == {P0: 0}

    @pytest.mark.behaviour("CONS-13", "START-6")
    def test_a_restored_database_is_told_by_an_assignment_and_decided_about_by_a_new_fleet(self, join: Join) -> None:
        first = join()
        stamp = Stamp(self.store.identity().store_id, first.fleet.epoch, digest(GROUP))
        self.broker.commit(GROUP, {P0: CommittedOffset(60, stamp.text())})

        with pytest.raises(StoreRewound):
            first.assign([P0])
        with pytest.raises(StoreRewound):
            join()
        trusting = join(policy=StartPolicy(on_rewound="stored"))

        assert trusting.fleet.epoch > first.fleet.epoch
        assert trusting.assign([P0]).offsets == {P0: 0}
        row = self.store.offsets(GROUP)[P0]
        assert (row.pinned, row.pinned_epoch) == (True, trusting.fleet.epoch)

    # -- what fences it, and what it fences

    @pytest.mark.behaviour("CONS-4")
    def test_a_job_that_takes_over_fences_the_whole_fleet(self, join: Join) -> None:
        first, second, third = join(), join(), join()
        first.assign([P0])
        second.assign([P1])
        self.give(first, {P0: OffsetRange(0, 2)})

        job = self.store.claim(GROUP, self.broker)

        with pytest.raises(StaleClaim):
            self.give(third, {})
        self.assert_fleet_is_fenced((first, P0), (second, P1), (second, P2))
        with self.session() as session:
            assert not first._beat(session)
        self.give(job, {P0: OffsetRange(2, 4), P1: OffsetRange(0, 1)})
        assert self.read() == [0, 0, 1, 2, 3]
        owner = self.owner()
        assert (owner.token, owner.fleet) == (job.token, None)

    @pytest.mark.behaviour("CONS-4", "START-22")
    def test_a_job_may_spare_a_fleet_that_is_live(self, join: Join) -> None:
        first, second = join(), join()
        first.assign([P0])
        for member in (first, second):
            with pytest.raises(GroupBusy):
                self.again(takeover="refuse")
            member.close()
        assert not self.owner().is_live
        third = join()
        assert self.owner().is_live
        assert third.fleet.epoch == first.fleet.epoch + 1, "another, since there was nobody to share it with"
        third.close()
        self.again(takeover="refuse")

    @pytest.mark.behaviour("CONS-4")
    def test_a_fleet_spares_a_job_that_is_live_unless_it_is_told_to_fence_it(self, join: Join, claim: Claim) -> None:
        self.give(claim, {P0: OffsetRange(0, 2)})
        with pytest.raises(GroupBusy, match="live owner"):
            join()
        self.give(claim, {P0: OffsetRange(2, 4)})

        member = join(takeover="fence")

        with pytest.raises(StaleClaim):
            self.give(claim, {P0: OffsetRange(4, 6)})
        assert member.assign([P0]).offsets == {P0: 4}

    @pytest.mark.behaviour("CONS-12")
    def test_another_fleet_fences_the_earlier_one_whole_whether_it_lives_or_not(self, join: Join) -> None:
        first, second = join(), join()
        first.assign([P0])
        second.assign([P1])
        self.give(first, {P0: OffsetRange(0, 2)})

        other = join(kafka_group="another")

        assert other.fleet.epoch > first.fleet.epoch
        self.assert_fleet_is_fenced((first, P0), (second, P1))
        assert other.assign([P0]).offsets == {P0: 2}
        assert join().fleet.epoch > other.fleet.epoch
        assert self.read() == [0, 1]

    @pytest.mark.behaviour("OPS-25")
    @pytest.mark.parametrize("is_fleet", [True, False])
    @pytest.mark.parametrize("by_fleet", [True, False])
    def test_who_fences_says_whom_and_is_told_to_whom_it_fences(
        self, join: Join, caplog: pytest.LogCaptureFixture, *, is_fleet: bool, by_fleet: bool
    ) -> None:
        """A job over a job, a job over a fleet, a fleet over a job, and a fleet over another fleet."""

        def described() -> str:
            owner = self.owner()
            return f"{'a fleet, founded by ' if owner.fleet else ''}{owner.owner}, {owner.token}, since "

        first: Claim = join() if is_fleet else self.store.claim(GROUP, self.broker)
        earlier = [first]
        if isinstance(first, Member):
            earlier.append(join())
            first.assign([P0])
        self.give(first, {P0: OffsetRange(0, 2)})
        before = described()
        assert [one.fenced for one in earlier] == [None] * len(earlier)
        caplog.clear()

        second: Claim = (
            join(kafka_group="another", takeover="fence") if by_fleet else self.store.claim(GROUP, self.broker)
        )

        assert second.fenced is not None
        assert second.fenced.startswith(f"live: {before}")
        assert ("; its members: " in second.fenced) == is_fleet
        [told] = [one.getMessage() for one in caplog.records if "has fenced" in one.getMessage()]
        assert told == f"this start has fenced the owner of group 'billing', which was {second.fenced}"
        [line] = self.store.history(GROUP, events=["claim"])[1:]
        assert line.reason.endswith(f"; fenced the owner, which was {second.fenced}")

        by = f"claimed by {described()}"
        attempts: list[Callable[[], object]] = [lambda: self.give(first, {P0: OffsetRange(2, 4)})]
        for one in earlier:
            one._heartbeat._beat()  # as it does every five seconds, also while there is nothing to write
            assert one.taken_by is not None
            assert one.taken_by.startswith(by)
            attempts.append(partial(one.metadata, P0))
        if isinstance(first, Member):
            attempts.append(partial(first.assign, [P0]))
        for attempt in attempts:
            with pytest.raises(StaleClaim) as caught:
                attempt()
            assert str(caught.value.found).startswith(by)
        lines = [one.getMessage() for one in caplog.records if "has been taken over: " in one.getMessage()]
        assert len(lines) == len(earlier)
        assert all(by in one for one in lines)

    @pytest.mark.behaviour("OPS-25")
    def test_a_claim_after_one_that_was_closed_has_fenced_nobody_and_after_a_silent_one_says_so(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.again().close()
        killed = self.again()
        assert killed.fenced is None
        monkeypatch.setattr("offsetstore.protocol.runs.LIVE", timedelta(0))

        after = self.again(takeover="refuse")

        assert after.fenced is not None
        assert after.fenced.startswith(f"silent: {killed.owner}, {killed.token}, ")

    # -- life signs

    def test_a_member_that_was_silent_for_so_long_that_it_is_forgotten_is_back_once_it_wakes(
        self, join: Join, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(heartbeat, "INTERVAL", 3600)
        member = join()
        with self.session() as session:
            session.drop_member(GROUP, member.token.claim_id)
        assert not self.owner().is_live

        with self.session() as session:
            assert member._beat(session)

        assert self.owner().is_live
        with self.session() as session:
            assert [one.member_id for one in session.members(GROUP)] == [member.token.claim_id]

    def test_a_member_that_wakes_as_another_fleet_takes_the_group_removes_none_of_its_members(self, join: Join) -> None:
        woken, other, member = join(), Token(9, uuid4()), uuid4()
        with self.session() as session:
            session.lock_group(GROUP)
            session.write_group(GROUP, other, "another fleet", fleet=woken.fleet_name)
            session.add_member(GROUP, other, member, "its member")
        with self.session() as session:  # as a heartbeat does that has read the group before
            session.add_member(GROUP, woken.fleet, woken.token.claim_id, "the woken one")
        with self.session() as session:
            assert [one.member_id for one in session.members(GROUP)] == [member]

    def test_a_heartbeat_that_comes_late_does_not_bring_a_member_back(self, join: Join) -> None:
        member, refounded = join(), join()
        member.close()

        with self.session() as session:
            assert member._beat(session)
            assert [one.member_id for one in session.members(GROUP)] == [refounded.token.claim_id]
            assert not session.beat_member(GROUP, member.fleet, member.token.claim_id)
        with self.session() as session:  # a fleet that was founded again after a lost answer has the same id
            session.lock_group(GROUP)
            later = replace(member.fleet, epoch=member.fleet.epoch + 2)
            session.write_group(GROUP, later, "the same process, again")
            assert not refounded._beat(session)

    def test_a_member_that_was_fenced_leaves_no_life_sign_behind(self, join: Join) -> None:
        member = join()
        job = self.store.claim(GROUP, self.broker)
        member.close()
        owner = self.owner()
        assert (owner.token, owner.is_live) == (job.token, True)
        job.close()
        assert join().fleet.epoch > job.token.epoch


class PeopleFleetContract(FleetContract):
    """What only people decide."""

    @pytest.mark.behaviour("OPS-25", "OPS-3", "CONS-4")
    @pytest.mark.parametrize("done", ["reset", "renamed", "deleted"])
    @pytest.mark.parametrize("is_fleet", [True, False])
    def test_a_decision_that_fences_says_whom_and_the_fenced_is_told_which_and_by_whom(
        self, join: Join, done: str, *, is_fleet: bool
    ) -> None:
        first: Claim = join() if is_fleet else self.store.claim(GROUP, self.broker)
        if isinstance(first, Member):
            first.assign([P0])
        self.give(first, {P0: OffsetRange(0, 50)})
        before = self.owner()
        match done:
            case "reset":
                plan: Any = self.store.reset(GROUP, {P0: 10}, reason=REASON, actor="alice")
            case "renamed":
                plan = self.store.rename_group(GROUP, "shipping", reason=REASON, actor="alice")
            case _:
                plan = self.store.delete_group(GROUP, reason=REASON, actor="alice", takeover="fence")

        assert any(f"Fenced the live job: {plan.owner.in_words()}." in note.text for note in in_words(plan).notes)
        assert plan.owner.token == before.token
        with pytest.raises(StaleClaim) as caught:
            self.give(first, {P0: OffsetRange(50, 60)})
        assert str(caught.value.found).startswith(f"{done} by alice, epoch {before.token.epoch + 1}, ")
        if not isinstance(first, Member):
            return
        self.assert_fleet_is_fenced((first, P0))
        if done == "renamed":
            with pytest.raises(GroupRenamed):
                join()
        third = join(group="shipping" if done == "renamed" else GROUP)
        assert third.fleet.epoch > first.fleet.epoch
        assert third.assign([P0]).offsets == {P0: {"reset": 10, "renamed": 50, "deleted": 0}[done]}

    def test_members_by_earlier_code_s_claim_are_fenced_although_it_knows_no_fleets(self, join: Join) -> None:
        """It leaves the columns, which then say nothing."""
        first = join()
        first.assign([P0])
        with self.session() as session:
            token = Token(session.lock_group(GROUP).epoch + 1, uuid4())
            session.write_group(GROUP, token, "earlier code")
        fleets = ask(self.store.database, lambda one: one.rows("SELECT fleet, fleet_id FROM consumer_groups"))
        assert [(row.fleet is None, row.fleet_id) for row in fleets] == [(False, first.fleet.claim_id)]

        owner = self.owner()
        assert (owner.token, owner.fleet) == (token, None)
        self.assert_fleet_is_fenced((first, P0))
        with pytest.raises(GroupBusy):
            join()
