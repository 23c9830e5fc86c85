"""Members of a fleet that are frozen, or that meet claims and each other: what waits for whom, and who is ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from random import Random
from threading import Barrier, Event
from uuid import uuid4

import pytest

from offsetstore import OffsetRange, OffsetStore, Outcome, Retries, Timeouts, TopicPartition, Transaction
from offsetstore.errors import ConnectionLost, GroupBusy, LockTimeout, PartitionLost, StaleClaim, TransactionLost
from offsetstore.operations.operation import By, carry_out
from offsetstore.operations.pauses import PauseGroup
from offsetstore.operations.people import ask
from offsetstore.processing.plan import is_paused
from offsetstore.store import fleet, heartbeat
from offsetstore.store.fleet import Member
from offsetstore.store.identity import name_prefix
from offsetstore.store.unknown_commit import Advanced, resolve_commit
from tests.integration.conftest import Query
from tests.integration.store.meeting import (
    DEADLOCKS,
    P0,
    P1,
    P2,
    Joins,
    advance,
    broker,
    joining,
    wait_for_waiting,
    waiting,
)
from tests.support.background import in_background


@pytest.fixture
def joins(store: OffsetStore) -> Iterator[Joins]:
    with joining(store) as made:
        yield made


@pytest.mark.behaviour("CONS-3")
def test_a_frozen_member_s_transaction_is_ended_and_its_partition_goes_on(store: OffsetStore, joins: Joins) -> None:
    frozen, other = joins(), joins()
    frozen.assign([P0, P1])
    with pytest.raises(TransactionLost), store.transaction(frozen) as tx:  # noqa: PT012 - what is lost, and how
        tx.lock({P0: OffsetRange(0, 5)})
        assert other.assign([P0]).offsets == {P0: 0}
        in_background(lambda: advance(store, other, OffsetRange(0, 3), P0)).result(timeout=60)
        tx.advance(tx.ranges)

    with pytest.raises(PartitionLost):
        advance(store, frozen, OffsetRange(0, 5), P0)
    advance(store, frozen, OffsetRange(0, 5), P1)
    assert {tp: row.next_offset for tp, row in store.offsets("billing").items()} == {P0: 3, P1: 5, P2: 0}


@pytest.mark.behaviour("CONS-3")
def test_a_frozen_member_holds_up_neither_those_that_join_nor_those_that_take_other_partitions(
    store: OffsetStore, joins: Joins
) -> None:
    frozen = joins()
    frozen.assign([P0])
    held = store.database.begin(name=frozen.name)
    held.lock_partitions("billing", [P0])
    beating = store.database.begin(name=frozen.name)
    assert frozen._beat(beating)
    taking = in_background(lambda: joins(takeover_timeout=60.0).assign([P0]))

    other = joins(takeover_timeout=60.0)
    assert other.assign([P1]).offsets == {P1: 0}
    advance(store, other, OffsetRange(0, 1), P1)
    assert not taking.done()
    other.close()

    beating.rollback()
    held.rollback()
    assert taking.result(timeout=60).offsets == {P0: 0}


@pytest.mark.behaviour("CONS-4")
def test_a_member_that_takes_partitions_does_not_end_the_claim_that_fences_it(
    store: OffsetStore, joins: Joins, query: Query
) -> None:
    member = joins(takeover_timeout=0.1)
    claiming_has_the_locks, go_on = Event(), Event()
    slow = broker(3)
    slow.script = [None, lambda: (claiming_has_the_locks.set(), go_on.wait(60))]
    claiming = in_background(lambda: store.claim("billing", slow))
    assert claiming_has_the_locks.wait(60)
    taking = in_background(lambda: member.assign([P0]))
    [(pid,)] = wait_for_waiting(query)
    query("SELECT pg_sleep(1)")
    assert waiting(query) == [(pid,)]

    go_on.set()

    claim = claiming.result(timeout=60)
    with pytest.raises(StaleClaim):
        taking.result(timeout=60)
    assert claim.token.epoch == member.fleet.epoch + 1
    assert {row.token for row in store.offsets("billing").values()} == {claim.token}


@pytest.mark.behaviour("CONS-3", "CONS-6")
def test_a_member_ends_a_late_assignment_that_is_frozen_on_its_rows_and_goes_on(
    store: OffsetStore, joins: Joins, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "_SOON", 60)
    late, owner = joins(), joins()
    owner.assign([P0, P1])
    frozen = store.database.begin(name=f"{name_prefix('billing')}assign")
    assert frozen.share_group("billing") == late.fleet
    frozen.lock_partitions("billing", [P0])

    def work(tx: Transaction) -> None:
        tx.lock({P0: OffsetRange(0, 5), P1: OffsetRange(0, 5)})
        tx.advance(tx.ranges)

    owner.timeouts = Timeouts(lock=0.5)
    owner.retries = Retries(attempts=2, shortest=0.01, longest=0.01)
    owner.run(work)

    assert {tp: row.next_offset for tp, row in store.offsets("billing").items()} == {P0: 5, P1: 5, P2: 0}
    frozen.rollback()


@pytest.mark.behaviour("CONS-3")
def test_a_slow_transaction_of_a_member_s_own_is_not_ended(store: OffsetStore, joins: Joins) -> None:
    member = joins()
    member.assign([P0])
    with store.transaction(member) as slow:
        slow.lock({P0: OffsetRange(0, 5)})

        def replay() -> None:
            with store.transaction(member, lock_timeout=0.2) as tx:
                tx.lock({P0: OffsetRange(0, 0)})

        with pytest.raises(LockTimeout):
            in_background(replay).result(timeout=60)
        slow.advance(slow.ranges)

    assert store.offsets("billing")[P0].next_offset == 5


@pytest.mark.behaviour("CONS-4", "CONS-12")
def test_a_process_that_is_frozen_while_it_founds_is_ended_by_the_next_that_joins(
    store: OffsetStore, joins: Joins
) -> None:
    store.claim("billing", broker(3)).close()
    store.timeouts = Timeouts(lock=0.5)
    frozen = store.database.begin(name=f"{name_prefix('billing')}join")
    frozen.lock_group("billing")

    assert joins().fleet.epoch == 2

    frozen.rollback()


@pytest.mark.behaviour("CONS-3", "CONS-4")
def test_a_member_that_is_frozen_while_it_looks_for_its_commit_or_takes_partitions_is_ended(
    store: OffsetStore, joins: Joins
) -> None:
    member, other = joins(), joins()
    looking = store.database.begin(name=f"{member.name}:12345678")
    looking.lock_group("billing")
    assert other.assign([P0]).offsets == {P0: 0}
    looking.rollback()

    taking = f"{name_prefix('billing')}assign"
    frozen = store.database.begin(name=taking)
    assert frozen.share_group("billing") == member.fleet
    carry_out(store.database, PauseGroup("billing", "ticket 17"), By("ticket 17", lock_timeout=4.0))
    assert is_paused(member)
    frozen.rollback()

    frozen = store.database.begin(name=taking)
    assert frozen.share_group("billing") == member.fleet
    frozen.lock_partitions("billing", [P0])
    claim = store.claim("billing", broker(3), takeover_timeout=0.5)
    with pytest.raises(StaleClaim):
        other.assign([P1])
    assert {row.token for row in store.offsets("billing").values()} == {claim.token}
    frozen.rollback()


@pytest.mark.behaviour("CONS-12")
def test_an_id_that_is_given_to_the_store_meanwhile_is_the_members(store: OffsetStore, joins: Joins) -> None:
    asked, before = broker(3), store.identity().store_id
    asked.script = [lambda: store.new_id(reason="a copy")]

    member = joins(broker=asked)

    assert member.store_id == ask(store.database, lambda session: session.identity().store_id) != before


@pytest.mark.behaviour("CONS-4", "START-22")
def test_a_dead_member_s_heartbeat_in_the_future_does_not_hide_those_of_the_live_ones(
    store: OffsetStore, joins: Joins, query: Query
) -> None:
    """The server's clock has gone back, by a failover."""
    live, dead = joins(), joins()
    dead._heartbeat._beats.stop(5)
    query(f"UPDATE group_members SET beat_at = beat_at + interval '1 h' WHERE member_id = '{dead.token.claim_id}'")

    with pytest.raises(GroupBusy):
        store.claim("billing", broker(3), takeover="refuse")

    assert joins().fleet == live.fleet


@pytest.mark.behaviour("TX-11")
def test_a_lost_commit_of_a_partition_s_first_records_is_told_while_a_member_takes_partitions(
    store: OffsetStore, joins: Joins
) -> None:
    member = joins()
    member.assign([P0])
    taking = store.database.begin(name=f"{name_prefix('billing')}assign")
    assert taking.share_group("billing") == member.fleet
    lost = Advanced("billing", member.token, f"{member.name}:1", uuid4(), {P0: None}, (P0,), wrote=True)

    with pytest.raises(TransactionLost):
        resolve_commit(store.database, lost, timeout=5.0, cause=ConnectionLost("no answer"))

    taking.rollback()


@pytest.mark.behaviour("CONS-12")
def test_processes_that_start_at_once_are_one_fleet(store: OffsetStore, joins: Joins, query: Query) -> None:
    together = Barrier(8)

    def join_together() -> Member:
        together.wait()
        return joins(takeover_timeout=30.0)

    members = [one.result(timeout=60) for one in [in_background(join_together) for _ in range(8)]]

    assert {member.fleet for member in members} == {members[0].fleet}
    assert members[0].fleet.epoch == 1
    assert [line.event for line in store.history("billing")].count("claim") == 1
    assert query("SELECT count(*) FROM group_members") == [(8,)]
    assert query("SELECT count(*) FROM heartbeats") == [(0,)]
    for number, member in enumerate(members[:3]):
        member.assign([TopicPartition("payments", number)])
        advance(store, member, OffsetRange(0, 1), TopicPartition("payments", number))


@pytest.mark.behaviour("CONS-3", "CONS-6", "TX-8")
def test_members_that_take_partitions_from_each_other_write_each_record_once(
    store: OffsetStore, joins: Joins, query: Query, results: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Assignments come late, twice and in any order, processes come and go, and what they write is a chain."""
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.02)
    together = Barrier(4)  # whoever leaves before others have come would leave a group without any member

    def work(seed: int) -> int:
        chance, written = Random(seed), 0  # noqa: S311 - the same in each run
        member = joins(takeover_timeout=30.0)
        together.wait(60)
        for _ in range(15):
            if chance.random() < 0.1:
                member.close()
                member = joins(takeover_timeout=30.0)
            starts = member.assign(chance.sample([P0, P1, P2], chance.choice((1, 2)))).offsets
            for _ in range(chance.randrange(4)):
                try:
                    starts = write(member, starts)
                    written += len(starts)
                except PartitionLost:
                    starts = {tp: offset for tp, offset in starts.items() if tp in member.partitions}
            if chance.random() < 0.3:
                member.release([*starts][:1])
        return written

    def write(member: Member, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        with store.transaction(member) as tx:
            plan = tx.lock({tp: OffsetRange(offset, offset + 1) for tp, offset in starts.items()})
            assert {one.outcome for one in plan.values()} <= {Outcome.APPLY}, "nobody else has written what it has"
            for tp, offset in starts.items():
                tx.connection.exec_driver_sql("INSERT INTO results VALUES (%s)", (tp.partition * 1000 + offset,))
            tx.advance(tx.ranges)
        return {tp: offset + 1 for tp, offset in starts.items()}

    written = sum(one.result(timeout=120) for one in [in_background(partial(work, seed)) for seed in range(4)])

    stored = {tp: row.next_offset for tp, row in store.offsets("billing").items()}
    assert written == sum(stored.values()) > 50
    records = [tp.partition * 1000 + offset for tp in stored for offset in range(stored[tp])]
    assert sorted(row[0] for row in query(f"SELECT record FROM {results}")) == records
    assert query(DEADLOCKS) == [(0,)]
    assert [line.event for line in store.history("billing")] == ["claim", "adopt", "adopt", "adopt"]


def test_members_that_are_gone_are_forgotten_and_a_frozen_one_is_not_waited_for(
    store: OffsetStore, joins: Joins, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)  # who is gone sends none
    gone, frozen, other = joins(), joins(), joins()
    query(
        "UPDATE group_members SET beat_at = clock_timestamp() - interval '25 hours' "
        f"WHERE member_id IN ('{gone.token.claim_id}', '{frozen.token.claim_id}')"
    )
    beating = store.database.begin(name=frozen.name)
    assert frozen._beat(beating)

    last = joins()

    found = {row[0] for row in query("SELECT member_id FROM group_members")}
    assert found == {one.token.claim_id for one in (frozen, other, last)}
    beating.rollback()
