"""A claim that several members share. See `tests.contract.suite`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID, uuid4

import pytest

from offsetstore.errors import (
    ConfigurationError,
    GroupBusy,
    GroupRenamed,
    LogTruncated,
    MetadataError,
    OffsetGap,
    OffsetOutOfRange,
    OffsetsDisagree,
    PartitionLost,
    ProtocolMisuse,
    StaleClaim,
    StoreRewound,
    TopicMissing,
    TopicRecreated,
)
from offsetstore.offset_store import OffsetStore
from offsetstore.offsets import CommittedOffset, EpochPair, OffsetRange, Token, TopicPartition
from offsetstore.operations.people import ask
from offsetstore.processing.pause import GroupPaused, is_paused, read_unless_paused
from offsetstore.processing.plan import BatchMetadata, Plan
from offsetstore.processing.unit import Unit, commit
from offsetstore.protocol.fleet import fleet_name
from offsetstore.protocol.letters import SEQUENCE_BYTES, LetterError, NewLetter, Payload
from offsetstore.protocol.marking import Marking
from offsetstore.protocol.policy import StartPolicy
from offsetstore.protocol.replay import Decision
from offsetstore.protocol.retries import Retries
from offsetstore.protocol.stamp import Stamp, digest
from offsetstore.protocol.starting import Reason
from offsetstore.store import acquire, fleet, heartbeat
from offsetstore.store.claim import Claim, ClaimRequest
from offsetstore.store.fleet import Member, join
from offsetstore.store.sessions import transaction
from offsetstore.testing.broker import StaticBroker
from tests.contract.parts import GROUP, P0, P1, P2, WAIT, ContractParts, Give, Read, Write
from tests.support.background import in_background

P3 = TopicPartition("payments", 3)
REASON = "ticket 17"
HOUR = 3600.0


class Join(Protocol):
    """Joins the group's fleet."""

    def __call__(self, kafka_group: str = ..., **changes: Any) -> Member:
        """Return the new member; ``changes`` are of its request."""
        ...


def letter(tp: TopicPartition, offset: int) -> NewLetter:
    payload = Payload(None, b"a value", None, None, None)
    return NewLetter(tp, offset, "refused", LetterError("E", "refused"), 1, b"k" * SEQUENCE_BYTES, payload)


def write_letter(claim: Claim, tp: TopicPartition, offset: int) -> None:
    """Pass over a record, and all before it."""
    with claim.transaction() as tx:
        remaining = {tp: tx.lock({tp: OffsetRange(0, offset + 1)})[tp].remaining}
        tx.write_letters([letter(tp, offset)])
        tx.advance(remaining)


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

    @pytest.fixture(autouse=True)
    def without_pauses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(acquire, "_RETRIES", Retries(attempts=3, shortest=0.0, longest=0.0))

    @pytest.fixture
    def join(self, store: OffsetStore, broker: StaticBroker) -> Iterator[Join]:
        made: list[Member] = []

        def join_it(kafka_group: str = GROUP, **changes: Any) -> Member:
            request = ClaimRequest(GROUP, broker, ("payments",), StartPolicy(), "refuse", 30.0, kafka_group)
            made.append(join(store, replace(request, **changes)))
            return made[-1]

        yield join_it
        for member in made:
            member.close()

    # -- joining

    @pytest.mark.behaviour("CONS-2")
    def test_the_first_process_founds_a_fleet_with_all_partitions_and_others_share_it(
        self, store: OffsetStore, broker: StaticBroker, join: Join
    ) -> None:
        broker.set_committed({P1: 30})

        first, second = join(), join()

        assert first.fleet == second.fleet
        assert len({first.fleet, first.token, second.token}) == 3
        assert first.partitions == second.partitions == set()
        rows = store.offsets(GROUP)
        assert {tp: row.next_offset for tp, row in rows.items()} == {P0: 0, P1: 30, P2: 0}
        assert {row.token for row in rows.values()} == {first.fleet}
        assert [(line.event, line.topic_partition, line.token) for line in store.history(GROUP)] == [
            ("claim", None, first.fleet),
            *(("adopt", tp, first.fleet) for tp in (P0, P1, P2)),
        ]

    @pytest.mark.behaviour("CONS-12")
    def test_members_are_known_while_the_group_is_their_fleets(
        self, store: OffsetStore, broker: StaticBroker, join: Join
    ) -> None:
        def members() -> list[tuple[object, str, bool]]:
            with transaction(store.database, name="test") as session:
                return [(one.member_id, one.owner, one.is_live) for one in session.members(GROUP)]

        assert members() == []
        first, second = join(), join()
        assert members() == [(one.token.claim_id, one.owner, True) for one in (first, second)]
        second.close()
        assert members() == [(first.token.claim_id, first.owner, True)]
        store.claim(GROUP, broker)
        assert members() == []
        third = join(takeover="fence")
        assert members() == [(third.token.claim_id, third.owner, True)]

    def test_a_fleet_needs_a_broker(self, join: Join) -> None:
        with pytest.raises(ConfigurationError, match="needs a broker"):
            join(broker=None)

    @pytest.mark.behaviour("CONS-4")
    def test_whatever_else_writes_its_token_ends_the_fleet(self, store: OffsetStore, join: Join) -> None:
        member = join()
        with transaction(store.database, name="test") as session:
            token = Token(session.lock_group(GROUP).epoch + 8, uuid4())
            session.write_group(GROUP, token, "an operator")
            session.end_beat(token.claim_id)

        owner = store.owner(GROUP)
        assert owner is not None
        assert (member.fleet.epoch, owner.fleet) == (1, None)
        assert owner.last_fleet == fleet_name("cluster", GROUP)
        assert join().fleet.epoch == 10

    # -- partitions

    @pytest.mark.behaviour("CONS-3")
    def test_a_member_writes_to_the_partitions_that_it_took_and_to_no_others(
        self, store: OffsetStore, join: Join, give: Give, read: Read
    ) -> None:
        member = join()
        starting = member.assign([P0])
        assert starting.offsets == {P0: 0}
        assert store.offsets(GROUP)[P0].token == member.token

        give(member, {P0: OffsetRange(0, 2)})
        for ranges in (
            {P1: OffsetRange(0, 2)},
            {P0: OffsetRange(2, 4), P1: OffsetRange(0, 2)},
            {P3: OffsetRange(0, 2)},
        ):
            with pytest.raises(PartitionLost):
                give(member, ranges)

        assert read() == [0, 1]
        assert P3 not in store.offsets(GROUP)
        assert not member.is_lost

    @pytest.mark.behaviour("CONS-3")
    def test_a_member_that_lost_a_partition_writes_nothing_to_it_and_goes_on_with_the_rest(
        self, store: OffsetStore, join: Join, give: Give, read: Read
    ) -> None:
        first, second = join(), join()
        first.assign([P0, P1])
        give(first, {P0: OffsetRange(0, 2), P1: OffsetRange(0, 2)})

        assert second.assign([P1]).offsets == {P1: 2}

        with pytest.raises(PartitionLost) as lost:
            give(first, {P0: OffsetRange(2, 4), P1: OffsetRange(2, 4)})
        assert lost.value.topic_partition == P1
        assert read() == [0, 0, 1, 1]
        assert (first.partitions, first.is_lost) == ({P0}, False)
        give(first, {P0: OffsetRange(2, 4)})
        give(second, {P1: OffsetRange(2, 3)})
        assert read() == [0, 0, 1, 1, 2, 2, 3]
        assert {tp: row.next_offset for tp, row in store.offsets(GROUP).items()} == {P0: 4, P1: 3, P2: 0}

    @pytest.mark.behaviour("CONS-3")
    def test_a_member_is_fenced_in_a_range_that_it_could_skip_and_where_it_only_locks(
        self, join: Join, give: Give
    ) -> None:
        first, second = join(), join()
        first.assign([P0])
        give(first, {P0: OffsetRange(0, 2)})
        second.assign([P0])

        for range_ in (OffsetRange(0, 2), OffsetRange(2, 2)):
            with pytest.raises(PartitionLost):
                give(first, {P0: range_})

    @pytest.mark.behaviour("CONS-6")
    def test_a_late_assignment_takes_the_partition_and_its_owner_takes_it_again(
        self, join: Join, give: Give, read: Read
    ) -> None:
        late, owner = join(), join()
        owner.assign([P0])
        give(owner, {P0: OffsetRange(0, 2)})
        late.assign([P0])
        with pytest.raises(PartitionLost):
            give(owner, {P0: OffsetRange(2, 4)})

        assert owner.assign([P0]).offsets == {P0: 2}

        give(owner, {P0: OffsetRange(2, 4)})
        with pytest.raises(PartitionLost):
            give(late, {P0: OffsetRange(2, 4)})
        assert read() == [0, 1, 2, 3]

    @pytest.mark.behaviour("CONS-3")
    def test_a_partition_that_was_given_back_is_not_written_to_although_its_row_has_the_token(
        self, store: OffsetStore, join: Join, give: Give, read: Read
    ) -> None:
        member = join()
        member.assign([P0, P1])
        member.release([P0])
        assert store.offsets(GROUP)[P0].token == member.token

        with pytest.raises(PartitionLost):
            give(member, {P0: OffsetRange(0, 2)})
        give(member, {P1: OffsetRange(0, 2)})

        assert read() == [0, 1]

    @pytest.mark.behaviour("CONS-3")
    def test_a_transaction_that_holds_a_partition_when_it_is_given_back_is_committed(
        self, store: OffsetStore, join: Join, write: Write, read: Read
    ) -> None:
        member = join()
        member.assign([P0])
        with store.transaction(member) as tx:
            remaining = {P0: tx.lock({P0: OffsetRange(0, 2)})[P0].remaining}
            member.release([P0])
            write(tx, range(2))
            tx.advance(remaining)

        assert read() == [0, 1]
        assert member.partitions == set(), "what is committed is not the member's again"

    @pytest.mark.behaviour("CONS-3")
    def test_how_far_a_member_had_come_is_forgotten_with_the_partition(self, store: OffsetStore, join: Join) -> None:
        member = join()
        member.assign([P0, P1])
        with store.transaction(member, marking="manual") as tx:
            tx.lock({P0: OffsetRange(0, 5), P1: OffsetRange(0, 5)})
            tx.mark(P0, 2)
            member.release([P0])

        assert set(member.delivered) == {P1}
        assert member.assign([P0]).offsets == {P0: 2}
        with store.transaction(member, marking="manual") as tx:
            assert tx.lock({P0: OffsetRange(2, 6)})[P0].remaining == OffsetRange(2, 6)

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
    def test_a_transaction_writes_the_metadata_of_its_partition_although_that_is_given_back(
        self, store: OffsetStore, join: Join
    ) -> None:
        member = join()
        member.assign([P0])
        with store.transaction(member) as tx:
            tx.advance({P0: tx.lock({P0: OffsetRange(0, 2)})[P0].remaining}, metadata="at 2")
        member.assign([P0])
        member.store_metadata(P0, "at 4")
        with store.transaction(member) as tx:
            remaining = {P0: tx.lock({P0: OffsetRange(2, 4)})[P0].remaining}
            member.release([P0])
            assert tx.metadata(P0) == "at 2"
            tx.advance(remaining)

        row = store.offsets(GROUP)[P0]
        assert (row.next_offset, row.metadata) == (4, '"at 4"')
        for refused in (lambda: member.metadata(P0), lambda: member.store_metadata(P0, "at 6")):
            with pytest.raises(PartitionLost):
                refused()

    @pytest.mark.behaviour("CONS-3", "DLQ-14")
    def test_a_transaction_supersedes_the_letters_that_it_passes_although_their_partition_is_given_back(
        self, store: OffsetStore, join: Join
    ) -> None:
        before = join()
        before.assign([P0])
        write_letter(before, P0, 1)
        store.reset(GROUP, {P0: 0}, reason=REASON)
        member = join()
        member.assign([P0])
        with store.transaction(member, marking="manual") as tx:
            tx.lock({P0: OffsetRange(0, 2)})
            tx.mark(P0, 2)
            member.release([P0])

        with transaction(store.database, name="test") as session:
            assert session.letters_in(GROUP, {P0: OffsetRange(0, 2)}) == {}
        assert store.offsets(GROUP)[P0].next_offset == 2

    @pytest.mark.behaviour("CONS-3")
    @pytest.mark.parametrize("marking", ["automatic", "manual"])
    def test_records_that_were_read_in_an_earlier_term_are_not_written_in_the_next(
        self, store: OffsetStore, join: Join, marking: Marking
    ) -> None:
        member = join()
        member.assign([P0, P1])
        former = member.terms
        member.release([P0])
        assert member.assign([P0]).offsets == {P0: 0}

        for range_ in (OffsetRange(0, 40), OffsetRange(10, 20), OffsetRange(0, 0)):
            with pytest.raises(PartitionLost) as lost, store.transaction(member, marking=marking) as tx:
                tx.lock({P0: range_, P1: OffsetRange(0, 5)}, terms=former)
            assert lost.value.topic_partition == P0

        assert member.partitions == {P0, P1}
        assert member.delivered == {}
        with store.transaction(member, marking=marking) as tx:
            ranges = {P0: OffsetRange(0, 25), P1: OffsetRange(0, 5)}
            plan = tx.lock(ranges, terms={P0: member.terms[P0], P1: former[P1]})
            assert {tp: one.remaining for tp, one in plan.items()} == ranges
            if marking == "automatic":
                tx.advance(ranges)

    @pytest.mark.behaviour("CONS-3")
    def test_units_are_of_the_terms_in_which_they_were_planned(self, store: OffsetStore, join: Join) -> None:
        member = join()
        member.assign([P0])
        read = member.terms
        plan = Plan.of(member, {P0: OffsetRange(0, 5)}, read)
        member.assign([P0])
        later = Plan.of(member, {P0: OffsetRange(0, 5)}, read)

        for one in (plan, later, later.up_to({P0: OffsetRange(0, 2)})):
            with pytest.raises(PartitionLost):
                commit(member, Unit(one.decisions, {}, terms=one.terms))
        assert store.offsets(GROUP)[P0].next_offset == 0

    @pytest.mark.behaviour("CONS-3", "META-3")
    def test_what_was_known_of_a_partition_is_read_anew_when_it_comes_back(
        self, store: OffsetStore, join: Join
    ) -> None:
        first, second = join(), join()
        first.assign([P0, P1])
        for tp in (P0, P1):
            first.store_metadata(tp, "of the first")
        with store.transaction(first, marking="manual") as tx:
            tx.lock({P0: OffsetRange(0, 5), P1: OffsetRange(0, 5)})
            tx.mark(P0, 2)
            tx.mark(P1, 2)
        first.store_metadata(P0, "never written")
        assert set(first.delivered) == {P0, P1}
        second.assign([P0])
        with store.transaction(second) as tx:
            lock = tx.lock({P0: OffsetRange(2, 6)})
            tx.write_letters([letter(P0, 4)])
            tx.advance({P0: lock[P0].remaining}, metadata="of the second")

        assert first.assign([P0]).offsets == {P0: 6}

        assert first.metadata(P0) == "of the second"
        assert set(first.delivered) == {P1}
        assert [first.terms[tp].sequence for tp in (P0, P1)] == [4, -1]
        with store.transaction(first) as tx:
            tx.advance({P0: tx.lock({P0: OffsetRange(6, 8)})[P0].remaining})
        assert store.offsets(GROUP)[P0].metadata == '"of the second"'

    @pytest.mark.behaviour("META-7")
    def test_what_others_know_of_their_partitions_is_not_a_members(self, store: OffsetStore, join: Join) -> None:
        first, second = join(), join()
        first.assign([P0])
        second.assign([P1])
        with store.transaction(second) as tx:
            tx.advance({P1: tx.lock({P1: OffsetRange(0, 2)})[P1].remaining}, metadata="of the second")

        for cache in (True, False):
            with store.transaction(first) as tx:
                tx.lock({P0: OffsetRange(0, 0)})
                assert tx.metadata(P0, cache=cache) is None
                with pytest.raises(PartitionLost):
                    tx.metadata(P1, cache=cache)
            with pytest.raises(PartitionLost):
                first.metadata(P1, cache=cache)
        assert second.metadata(P1, cache=False) == "of the second"

        third = join()
        third.assign([P1])
        with store.transaction(second) as tx:
            tx.lock({})
            with pytest.raises(PartitionLost):
                tx.metadata(P1, cache=False)
        with pytest.raises(PartitionLost):
            second.metadata(P1, cache=False)
        assert not first.is_lost
        assert not second.is_lost
        assert first.partitions == {P0}

    def test_a_transaction_without_partitions_is_for_the_fleet_to_make(
        self, store: OffsetStore, broker: StaticBroker, join: Join
    ) -> None:
        member = join()
        with store.transaction(member) as tx:
            assert tx.lock({}) == {}
        store.claim(GROUP, broker)
        with pytest.raises(StaleClaim), store.transaction(member) as tx:
            tx.lock({})

    @pytest.mark.behaviour("CONS-1", "OPS-6")
    def test_members_take_turns_and_none_waits_for_another(self, store: OffsetStore, join: Join) -> None:
        first, second = join(), join()

        def take(name: UUID, every: float) -> bool:
            with store.transaction(second) as tx:
                tx.lock({})
                return tx.take_turn(name, every)

        def takes(name: UUID, every: float) -> bool:
            taking = in_background(lambda: take(name, every))
            assert wait([taking], timeout=WAIT).done
            return taking.result()

        for name in (uuid4(), uuid4()):  # one of its own each
            with suppress(ZeroDivisionError), store.transaction(first) as tx:
                tx.lock({})
                assert tx.take_turn(name, HOUR)
                assert not takes(name, 0.0)  # neither before there is a row
                raise ZeroDivisionError
            with store.transaction(first) as tx:
                tx.lock({})
                assert tx.take_turn(name, HOUR)
            assert not takes(name, HOUR)
            with store.transaction(first) as tx:
                tx.lock({})
                assert tx.take_turn(name, 0.0)
                assert not takes(name, 0.0)  # nor where there is one
            assert takes(name, 0.0)

    @pytest.mark.behaviour("CONS-6")
    def test_an_assignment_of_no_partitions_changes_nothing(self, broker: StaticBroker, join: Join) -> None:
        member = join()
        member.assign([P0])
        asked = len(broker.asked)

        assert member.assign([]).offsets == {}

        assert (member.partitions, len(broker.asked)) == ({P0}, asked)

    def test_a_topic_that_was_not_asked_for_and_a_closed_member_are_refused(self, join: Join) -> None:
        member = join()
        with pytest.raises(ConfigurationError, match="does not have"):
            member.assign([TopicPartition("refunds", 0)])
        member.close()
        with pytest.raises(ProtocolMisuse):
            member.assign([P0])

    # -- where it starts

    @pytest.mark.behaviour("CONS-2")
    def test_an_assignment_starts_at_the_larger_of_what_is_stored_and_what_kafka_has(
        self, store: OffsetStore, broker: StaticBroker, join: Join, give: Give
    ) -> None:
        first, second = join(), join()
        first.assign([P0, P1])
        give(first, {P0: OffsetRange(0, 50), P1: OffsetRange(0, 50)})
        broker.set_committed({P0: 60, P1: 40, P2: 70})

        starting = second.assign([P0, P1])

        assert starting.offsets == {P0: 60, P1: 50}
        assert {tp: row.next_offset for tp, row in store.offsets(GROUP).items()} == {P0: 60, P1: 50, P2: 0}
        last = store.history(GROUP)[-1]
        assert (last.event, last.topic_partition, last.from_offset, last.to_offset) == ("adopt", P0, 50, 60)
        assert (last.token, "skips [50, 60)" in last.reason) == (second.token, True)

    @pytest.mark.behaviour("CONS-2", "CONS-13")
    def test_a_partition_that_was_added_starts_at_its_beginning(
        self, store: OffsetStore, broker: StaticBroker, join: Join, give: Give, read: Read
    ) -> None:
        member = join(policy=StartPolicy(auto_offset_reset="latest"))
        broker.set_log(P3, 5, 100)

        assert member.assign([P3]).offsets == {P3: 5}

        assert store.offsets(GROUP)[P3].token == member.token
        give(member, {P3: OffsetRange(5, 7)})
        assert read() == [5, 6]
        last = store.history(GROUP)[-1]
        assert (last.event, last.topic_partition, last.from_offset, last.to_offset) == ("adopt", P3, None, 5)

    @pytest.mark.behaviour("CONS-3", "CONS-13")
    def test_kafka_is_asked_while_nothing_is_locked_and_what_was_stored_meanwhile_counts(
        self, store: OffsetStore, broker: StaticBroker, join: Join, give: Give
    ) -> None:
        owner, late = join(), join()
        owner.assign([P0, P1])
        give(owner, {P0: OffsetRange(0, 90)})
        for tp in (P0, P1):
            broker.set_log(tp, 0, 200)
        broker.set_committed({P1: 50})
        broker.script = [lambda: give(owner, {P0: OffsetRange(90, 120), P1: OffsetRange(0, 20)})]
        before = len(broker.asked)

        assert late.assign([P0, P1]).offsets == {P0: 120, P1: 50}

        assert len(broker.asked) == before + 1
        assert {tp: row.next_offset for tp, row in store.offsets(GROUP).items()} == {P0: 120, P1: 50, P2: 0}
        assert late.terms.keys() == {P0, P1}

    @pytest.mark.behaviour("CONS-3", "CONS-13")
    def test_what_was_stored_after_kafka_was_asked_is_not_beyond_its_end(
        self, join: Join, give: Give, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        owner, late = join(), join()
        owner.assign([P0])
        give(owner, {P0: OffsetRange(0, 90)})
        holding = fleet._holding

        def later(*given: Any) -> Any:
            give(owner, {P0: OffsetRange(90, 120)})
            return holding(*given)

        monkeypatch.setattr(fleet, "_holding", later)

        starting = late.assign([P0])

        assert (starting.offsets, starting.starts[P0].reason) == ({P0: 120}, Reason.STORED)

    @pytest.mark.behaviour("CONS-13")
    def test_brokers_that_disagree_about_a_new_partition_leave_none_without_a_start(
        self, store: OffsetStore, broker: StaticBroker, join: Join
    ) -> None:
        member = join()
        before = broker.current
        broker.set_log(P3, 5, 100)
        broker.script = [broker.current, before, before]

        assert member.assign([P0, P3]).offsets == {P0: 0, P3: 5}

        row = store.offsets(GROUP)[P3]
        assert (row.next_offset, row.topic_id, row.cluster_id) == (5, "payments-id", "cluster")

    @pytest.mark.behaviour("CONS-13")
    def test_where_a_new_topic_starts_is_decided_for_all_of_its_partitions_by_whoever_brings_it(
        self, store: OffsetStore, broker: StaticBroker, join: Join, give: Give
    ) -> None:
        latest = StartPolicy(auto_offset_reset="latest")
        before = join()
        before.assign([P0])
        refunds = [TopicPartition("refunds", number) for number in range(2)]
        for tp in refunds:
            broker.set_log(tp, 0, 100)

        one, other = (join(topics=("payments", "refunds"), policy=latest) for _ in range(2))

        assert one.fleet == other.fleet == before.fleet
        rows = store.offsets(GROUP)
        assert {tp: rows[tp].token for tp in refunds if tp in rows} == dict.fromkeys(refunds, before.fleet)
        assert [(line.event, line.to_offset) for line in store.history(GROUP)][-2:] == [("adopt", 100)] * 2
        assert one.assign(refunds[:1]).offsets == {refunds[0]: 100}
        assert other.assign(refunds[1:]).offsets == {refunds[1]: 100}
        give(before, {P0: OffsetRange(0, 1)})

    @pytest.mark.behaviour("CONS-13")
    def test_a_fleet_is_joined_although_a_partition_can_t_start(
        self, broker: StaticBroker, join: Join, give: Give
    ) -> None:
        first = join()
        first.assign([P0, P1])
        give(first, {P0: OffsetRange(0, 50), P1: OffsetRange(0, 50)})
        broker.set_log(P0, 60, 100)

        agreeing, other = join(policy=StartPolicy(prefer="agree")), join()

        assert agreeing.fleet == other.fleet == first.fleet
        with pytest.raises(OffsetOutOfRange):
            other.assign([P0])
        broker.set_committed({P1: 40})
        with pytest.raises(OffsetsDisagree):
            agreeing.assign([P1])
        assert other.assign([P1]).offsets == {P1: 50}
        for member in (first, agreeing, other):
            member.close()
        with pytest.raises(OffsetOutOfRange):
            join()

    @pytest.mark.behaviour("CONS-13", "START-25")
    def test_what_a_fleet_could_pass_over_stops_the_foundation_of_another(
        self, broker: StaticBroker, join: Join, give: Give, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        last = join()
        last.assign([P0])
        give(last, {P0: OffsetRange(0, 50)})
        last.assign([P0])
        broker.truncate(P0, 30, end=100)

        def leaves(*_: object, **__: object) -> None:
            last.close()

        monkeypatch.setattr(fleet, "_enter", leaves)
        with pytest.raises(LogTruncated):
            join()

    @pytest.mark.behaviour("CONS-13", "START-25")
    def test_a_log_that_ends_too_early_is_no_evidence_before_it_has_stayed_so(
        self, store: OffsetStore, broker: StaticBroker, join: Join, give: Give, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second = join(), join()
        first.assign([P0])
        give(first, {P0: OffsetRange(0, 50)})
        broker.set_log(P0, 0, 30)

        with pytest.raises(OffsetOutOfRange):
            second.assign([P0])

        assert store.offsets(GROUP)[P0].suspect is None
        assert second.doubts.keys() == {P0}
        broker.set_log(P0, 0, 50)
        assert second.assign([P0]).offsets == {P0: 50}
        assert second.doubts == {}

        broker.set_log(P0, 0, 30)
        monkeypatch.setattr(fleet, "LOOK_SECONDS", 0.0)
        with pytest.raises(OffsetOutOfRange):
            first.assign([P0])
        broker.set_log(P0, 0, 100)
        with pytest.raises(LogTruncated):
            second.assign([P0])

    def test_what_is_wrong_with_another_topic_keeps_no_partition_from_being_taken(
        self, broker: StaticBroker, join: Join
    ) -> None:
        broker.set_log(TopicPartition("refunds", 0), 0, 10)
        member = join(topics=("payments", "refunds"))
        broker.current = broker.current.of([P0, P1])  # the topic was deleted
        assert member.assign([P0]).offsets == {P0: 0}
        with pytest.raises(TopicMissing):
            member.assign([TopicPartition("refunds", 0)])

    def test_a_partition_that_kafka_does_not_show_yet_is_not_taken(self, store: OffsetStore, join: Join) -> None:
        member = join()
        with pytest.raises(TopicMissing, match="payments-3"):
            member.assign([P0, P3])
        assert member.partitions == set()
        assert P3 not in store.offsets(GROUP)

    @pytest.mark.behaviour("CONS-13")
    def test_a_start_that_is_not_safe_takes_nothing(self, broker: StaticBroker, join: Join, give: Give) -> None:
        first, second = join(), join()
        first.assign([P0, P1])
        give(first, {P0: OffsetRange(0, 50), P1: OffsetRange(0, 50)})
        broker.set_log(P0, 60, 100)

        with pytest.raises(OffsetOutOfRange, match=r"payments-0.*no longer in the log"):
            second.assign([P0, P1])

        assert (second.partitions, second.is_lost) == (set(), False)
        give(first, {P0: OffsetRange(50, 51), P1: OffsetRange(50, 51)})
        assert second.assign([P1]).offsets == {P1: 51}
        allowing = join(policy=StartPolicy(on_data_loss="earliest"))
        assert allowing.fleet == first.fleet
        assert allowing.assign([P0]).offsets == {P0: 60}

    @pytest.mark.behaviour("CONS-13", "START-25")
    def test_a_log_that_lost_records_is_remembered_for_each_partition_whoever_has_it(
        self, store: OffsetStore, broker: StaticBroker, join: Join, give: Give
    ) -> None:
        first, second = join(), join()
        first.assign([P0])
        second.assign([P1])
        give(first, {P0: OffsetRange(0, 50)})
        give(second, {P1: OffsetRange(0, 50)})
        for tp in (P0, P1):
            broker.set_log(tp, 0, 30)

        with pytest.raises(OffsetOutOfRange):
            store.claim(GROUP, broker)

        suspects = {tp: row.suspect for tp, row in store.offsets(GROUP).items()}
        assert [suspects[tp] is not None for tp in (P0, P1, P2)] == [True, True, False]
        for tp in (P0, P1):
            broker.set_log(tp, 0, 100)
        with pytest.raises(LogTruncated):
            second.assign([P0])
        assert second.assign([P2]).offsets == {P2: 0}

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
    def test_a_log_that_was_truncated_and_has_regrown_is_told_by_what_a_member_read_last(
        self, store: OffsetStore, broker: StaticBroker, join: Join, give: Give
    ) -> None:
        first, second = join(), join()
        first.assign([P0, P1])
        give(first, {P0: OffsetRange(0, 50), P1: OffsetRange(0, 50)})
        read = {P0: EpochPair(50, 0), P1: EpochPair(60, 0)}
        first.write_pairs(read)
        assert [store.offsets(GROUP)[tp].pair for tp in (P0, P1)] == [EpochPair(50, 0)] * 2
        broker.truncate(P1, 55, end=100)
        assert first.find_lost(read) == {P1}
        assert second.assign([P1]).offsets == {P1: 50}  # no stored record was lost
        broker.truncate(P0, 30, end=100)
        for member in (first, second):
            with pytest.raises(LogTruncated, match="at offset 30, below the stored offset 50"):
                member.assign([P0])
        first.write_pairs({P0: EpochPair(20, 1), P1: EpochPair(60, 1)})  # what it no longer has is not its own
        assert [store.offsets(GROUP)[tp].pair for tp in (P0, P1)] == [EpochPair(50, 0), EpochPair(50, 1)]

    @pytest.mark.behaviour("CONS-13", "START-26")
    def test_a_pair_is_compared_with_the_log_before_one_of_another_epoch_takes_its_place(
        self, store: OffsetStore, broker: StaticBroker, join: Join, give: Give
    ) -> None:
        member = join()
        member.assign([P0, P1])
        ranges = {P0: OffsetRange(0, 50), P1: OffsetRange(0, 50)}
        give(member, ranges)
        member.write_pairs({P0: EpochPair(50, 0), P1: EpochPair(50, 0)})
        broker.change_leader(P1)
        broker.truncate(P0, 30, end=100)
        now = {P0: EpochPair(70, 1), P1: EpochPair(50, 1)}
        member.write_pairs(now, asks=False)
        assert broker.asked_epochs == []
        member.write_pairs(now)
        assert [store.offsets(GROUP)[tp].pair for tp in (P0, P1)] == [EpochPair(50, 0), EpochPair(50, 1)]
        with pytest.raises(LogTruncated, match="payments-0"):
            give(member, {P1: OffsetRange(50, 51)})

    @pytest.mark.behaviour("CONS-13", "CONS-12")
    def test_a_recreated_topic_is_read_again_by_a_new_fleet_and_by_no_single_member(
        self, store: OffsetStore, broker: StaticBroker, join: Join, give: Give
    ) -> None:
        first = join()
        first.assign([P0, P1])
        give(first, {P0: OffsetRange(0, 50), P1: OffsetRange(0, 40)})
        restarting = join(policy=StartPolicy(on_recreated="restart"))
        shown = broker.current
        log = replace(shown.topics["payments"], topic_id="another")
        broker.current = replace(shown, topics={"payments": log})

        with pytest.raises(TopicRecreated):
            first.assign([P0])
        assert not first.is_lost
        with pytest.raises(StaleClaim, match="decided for the whole group"):
            restarting.assign([P0])
        assert restarting.is_lost
        assert {row.next_offset for row in store.offsets(GROUP).values()} == {0, 40, 50}

        again = join(policy=StartPolicy(on_recreated="restart"))

        assert again.fleet != first.fleet
        assert {row.next_offset for row in store.offsets(GROUP).values()} == {0}
        with pytest.raises(StaleClaim) as caught:
            give(first, {P1: OffsetRange(40, 50)})
        assert not isinstance(caught.value, PartitionLost)
        assert join(policy=StartPolicy(on_recreated="restart")).fleet == again.fleet
        assert again.assign([P0]).offsets == {P0: 0}

    @pytest.mark.behaviour("CONS-13", "START-6")
    def test_a_restored_database_is_told_by_an_assignment_and_decided_about_by_a_new_fleet(
        self, store: OffsetStore, broker: StaticBroker, join: Join
    ) -> None:
        first = join()
        stamp = Stamp(store.identity().store_id, first.fleet.epoch, digest(GROUP))
        broker.commit(GROUP, {P0: CommittedOffset(60, stamp.text())})

        with pytest.raises(StoreRewound):
            first.assign([P0])
        with pytest.raises(StoreRewound):
            join()
        trusting = join(policy=StartPolicy(on_rewound="stored"))

        assert trusting.fleet.epoch > first.fleet.epoch
        assert trusting.assign([P0]).offsets == {P0: 0}
        row = store.offsets(GROUP)[P0]
        assert (row.pinned, row.pinned_epoch) == (True, trusting.fleet.epoch)

    def test_an_offset_that_an_operator_has_set_wins_at_each_assignment(
        self, store: OffsetStore, broker: StaticBroker, join: Join, give: Give
    ) -> None:
        first = join()
        first.assign([P0])
        give(first, {P0: OffsetRange(0, 50)})
        store.reset(GROUP, {P0: 10}, reason=REASON)
        broker.set_committed({P0: 60})
        second, third = join(), join()

        for member in (second, third, second):
            assert member.assign([P0]).offsets == {P0: 10}
        assert store.offsets(GROUP)[P0].pinned

    # -- what fences it, and what it fences

    @pytest.mark.behaviour("CONS-4")
    def test_a_job_that_takes_over_fences_the_whole_fleet(
        self, store: OffsetStore, broker: StaticBroker, join: Join, give: Give, read: Read
    ) -> None:
        first, second = join(), join()
        first.assign([P0])
        second.assign([P1])
        give(first, {P0: OffsetRange(0, 2)})

        job = store.claim(GROUP, broker)

        for member, tp in ((first, P0), (second, P1), (second, P2)):
            with pytest.raises(StaleClaim) as caught:
                give(member, {tp: OffsetRange(0, 4)})
            assert not isinstance(caught.value, PartitionLost)
            with pytest.raises(StaleClaim):
                member.assign([tp])
            assert member.is_lost
            with transaction(store.database, name="test") as session:
                assert not member._beat(session)
        give(job, {P0: OffsetRange(2, 4), P1: OffsetRange(0, 1)})
        assert read() == [0, 0, 1, 2, 3]
        owner = store.owner(GROUP)
        assert owner is not None
        assert (owner.token, owner.fleet) == (job.token, None)

    @pytest.mark.behaviour("CONS-4", "START-22")
    def test_a_job_may_spare_a_fleet_that_is_live(self, store: OffsetStore, broker: StaticBroker, join: Join) -> None:
        first, second = join(), join()
        first.assign([P0])
        with pytest.raises(GroupBusy):
            store.claim(GROUP, broker, takeover="refuse")
        first.close()
        with pytest.raises(GroupBusy):
            store.claim(GROUP, broker, takeover="refuse")
        second.close()
        store.claim(GROUP, broker, takeover="refuse")

    @pytest.mark.behaviour("CONS-4")
    def test_a_fleet_spares_a_job_that_is_live_unless_it_is_told_to_fence_it(
        self, join: Join, give: Give, claim: Claim
    ) -> None:
        give(claim, {P0: OffsetRange(0, 2)})
        with pytest.raises(GroupBusy, match="live owner"):
            join()
        give(claim, {P0: OffsetRange(2, 4)})

        member = join(takeover="fence")

        with pytest.raises(StaleClaim):
            give(claim, {P0: OffsetRange(4, 6)})
        assert member.assign([P0]).offsets == {P0: 4}

    @pytest.mark.behaviour("CONS-4")
    def test_a_group_goes_from_a_job_to_a_fleet_and_back_without_a_gap_or_a_double(
        self, store: OffsetStore, broker: StaticBroker, join: Join, give: Give, read: Read
    ) -> None:
        with store.claim(GROUP, broker, mirror_every=None) as before:
            give(before, {P0: OffsetRange(0, 3)})
        member = join()
        start = member.assign([P0]).offsets[P0]
        give(member, {P0: OffsetRange(start, 5)})
        member.close()
        job = store.claim(GROUP, broker, takeover="refuse")
        assert job.starting is not None
        give(job, {P0: OffsetRange(job.starting.offsets[P0], 7)})

        assert read() == [*range(7)]

    @pytest.mark.behaviour("CONS-12")
    def test_another_fleet_fences_the_earlier_one_whole_whether_it_lives_or_not(
        self, join: Join, give: Give, read: Read
    ) -> None:
        first, second = join(), join()
        first.assign([P0])
        second.assign([P1])
        give(first, {P0: OffsetRange(0, 2)})

        other = join("another")

        assert other.fleet.epoch > first.fleet.epoch
        for member, tp in ((first, P0), (second, P1)):
            with pytest.raises(StaleClaim) as caught:
                give(member, {tp: OffsetRange(0, 4)})
            assert not isinstance(caught.value, PartitionLost)
        assert other.assign([P0]).offsets == {P0: 2}
        with pytest.raises(StaleClaim):
            first.assign([P0])
        back = join()
        assert back.fleet.epoch > other.fleet.epoch
        assert read() == [0, 1]

    @pytest.mark.behaviour("CONS-12")
    def test_another_cluster_is_another_fleet(self, broker: StaticBroker, join: Join) -> None:
        first = join()
        broker.current = replace(broker.current, cluster_id=None)
        assert join().fleet != first.fleet

    @pytest.mark.behaviour("CONS-4")
    def test_a_reset_fences_the_whole_fleet_and_the_next_process_founds_another(
        self, store: OffsetStore, join: Join, give: Give
    ) -> None:
        first, second = join(), join()
        first.assign([P0])
        second.assign([P1])
        give(first, {P0: OffsetRange(0, 50)})
        with pytest.raises(GroupBusy):
            store.reset(GROUP, {P0: 10}, reason=REASON, takeover="refuse")

        store.reset(GROUP, {P0: 10}, reason=REASON)

        for member, tp in ((first, P0), (second, P1)):
            with pytest.raises(StaleClaim) as caught:
                give(member, {tp: OffsetRange(0, 60)})
            assert not isinstance(caught.value, PartitionLost)
        member = join()
        assert member.fleet != first.fleet
        assert member.assign([P0]).offsets == {P0: 10}

    def test_a_pause_holds_the_members_and_fences_none(self, store: OffsetStore, join: Join, give: Give) -> None:
        first = join()
        first.assign([P0])
        store.pause(GROUP, reason=REASON)
        second = join()

        for member in (first, second):
            with pytest.raises(GroupPaused):
                read_unless_paused(member)
            assert is_paused(member)

        assert second.fleet == first.fleet
        assert second.assign([P0]).offsets == {P0: 0}
        store.resume(GROUP, reason=REASON)
        assert set(read_unless_paused(second)) == {P0, P1, P2}
        give(second, {P0: OffsetRange(0, 1)})

    # -- life signs

    def test_a_fleet_lives_as_long_as_one_of_its_members(self, store: OffsetStore, join: Join) -> None:
        def is_live() -> bool:
            owner = store.owner(GROUP)
            return owner is not None and owner.is_live

        first, second = join(), join()
        for member in (first, second):
            assert is_live()
            member.close()
        assert not is_live()
        third = join()
        assert is_live()
        assert third.fleet.epoch == first.fleet.epoch + 1, "another, since there was nobody to share it with"
        with transaction(store.database, name="test") as session:
            assert third._beat(session)

    def test_a_member_that_was_silent_for_so_long_that_it_is_forgotten_is_back_once_it_wakes(
        self, store: OffsetStore, join: Join, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(heartbeat, "INTERVAL", 3600)
        member = join()
        with transaction(store.database, name="test") as session:
            session.drop_member(GROUP, member.token.claim_id)
        owner = store.owner(GROUP)
        assert owner is not None
        assert not owner.is_live

        with transaction(store.database, name="test") as session:
            assert member._beat(session)

        owner = store.owner(GROUP)
        assert owner is not None
        assert owner.is_live
        with transaction(store.database, name="test") as session:
            assert [one.member_id for one in session.members(GROUP)] == [member.token.claim_id]

    def test_a_heartbeat_that_comes_late_does_not_bring_a_member_back(self, store: OffsetStore, join: Join) -> None:
        member = join()
        member.close()

        with transaction(store.database, name="test") as session:
            assert member._beat(session)
            assert session.members(GROUP) == []
            assert not session.beat_member(GROUP, member.fleet, member.token.claim_id)
        owner = store.owner(GROUP)
        assert owner is not None
        assert not owner.is_live

    def test_a_heartbeat_is_of_one_epoch(self, store: OffsetStore, join: Join) -> None:
        """A fleet that was founded again after a lost answer has the same id."""
        member = join()
        later = replace(member.fleet, epoch=member.fleet.epoch + 2)
        with transaction(store.database, name="test") as session:
            session.lock_group(GROUP)
            session.write_group(GROUP, later, "the same process, again")
            assert not member._beat(session)

    def test_a_member_that_was_fenced_leaves_no_life_sign_behind(
        self, store: OffsetStore, broker: StaticBroker, join: Join
    ) -> None:
        member = join()
        job = store.claim(GROUP, broker)
        member.close()
        owner = store.owner(GROUP)
        assert owner is not None
        assert (owner.token, owner.is_live) == (job.token, True)
        job.close()
        assert join().fleet.epoch > job.token.epoch

    def test_a_gap_is_a_members_error_too(self, join: Join, give: Give) -> None:
        member = join()
        member.assign([P0])
        with pytest.raises(OffsetGap):
            give(member, {P0: OffsetRange(2, 4)})


class PeopleFleetContract(FleetContract):
    """What only people decide."""

    @pytest.mark.behaviour("CONS-4", "OPS-3")
    def test_a_rename_fences_the_whole_fleet_and_no_process_joins_the_old_name(
        self, store: OffsetStore, join: Join, give: Give
    ) -> None:
        first, second = join(), join()
        first.assign([P0])
        give(first, {P0: OffsetRange(0, 2)})

        store.rename_group(GROUP, "shipping", reason=REASON)

        for member, tp in ((first, P0), (second, P1)):
            with pytest.raises(StaleClaim) as caught:
                give(member, {tp: OffsetRange(2, 4)})
            assert not isinstance(caught.value, PartitionLost)
            with pytest.raises(StaleClaim):
                member.assign([tp])
        with pytest.raises(GroupRenamed):
            join()
        assert join(group="shipping").assign([P0]).offsets == {P0: 2}

    @pytest.mark.behaviour("CONS-4", "OPS-3")
    def test_a_deleted_group_has_no_fleet_and_nothing_of_it_comes_back(
        self, store: OffsetStore, join: Join, give: Give
    ) -> None:
        first, second = join(), join()
        first.assign([P0])
        give(first, {P0: OffsetRange(0, 2)})

        store.delete_group(GROUP, reason=REASON, takeover="fence")

        for member, tp in ((first, P0), (second, P1)):
            with pytest.raises(StaleClaim) as caught:
                give(member, {tp: OffsetRange(2, 4)})
            assert not isinstance(caught.value, PartitionLost)
            with pytest.raises(StaleClaim):
                member.assign([tp])
        assert store.offsets(GROUP) == {}
        member = join()
        assert member.fleet.epoch > first.fleet.epoch
        assert member.assign([P0]).offsets == {P0: 0}

    def test_members_by_earlier_code_s_claim_are_fenced_although_it_knows_no_fleets(
        self, store: OffsetStore, join: Join, give: Give
    ) -> None:
        """It leaves the columns, which then say nothing."""
        first = join()
        first.assign([P0])
        with transaction(store.database, name="test") as session:
            token = Token(session.lock_group(GROUP).epoch + 1, uuid4())
            session.write_group(GROUP, token, "earlier code")
        fleets = ask(store.database, lambda one: one.rows("SELECT fleet, fleet_id FROM consumer_groups"))
        assert [(row.fleet is None, row.fleet_id) for row in fleets] == [(False, first.fleet.claim_id)]

        owner = store.owner(GROUP)
        assert owner is not None
        assert (owner.token, owner.fleet) == (token, None)
        with pytest.raises(StaleClaim) as caught:
            give(first, {P0: OffsetRange(0, 2)})
        assert not isinstance(caught.value, PartitionLost)
        with pytest.raises(GroupBusy):
            join()
