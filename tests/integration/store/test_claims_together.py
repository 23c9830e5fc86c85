"""Claims, and the transactions of stale jobs, at the same time: they wait for each other and never deadlock."""

from __future__ import annotations

from threading import Barrier, Event
from uuid import uuid4

import pytest

from offsetstore import Claim, OffsetRange, OffsetStore, TopicPartition
from offsetstore.errors import StaleClaim
from offsetstore.operations.home import set_identity
from offsetstore.operations.people import people
from offsetstore.store.sessions import transaction
from tests.integration.conftest import Query
from tests.integration.store.meeting import DEADLOCKS, P0, P1, advance, broker, wait_for_waiting
from tests.support.background import in_background


@pytest.mark.behaviour("START-14")
def test_of_claims_at_once_the_last_owns_the_group_and_every_row(store: OffsetStore, query: Query) -> None:
    together = Barrier(8)

    def claim_together() -> Claim:
        together.wait()
        return store.claim("billing", broker())

    running = [in_background(claim_together) for _ in range(8)]
    made = sorted((one.result(timeout=60) for one in running), key=lambda claim: claim.token.epoch)

    assert [claim.token.epoch for claim in made] == list(range(1, 9))
    assert {row.token for row in store.offsets("billing").values()} == {made[-1].token}
    for loser in made[:-1]:
        with pytest.raises(StaleClaim):
            advance(store, loser, OffsetRange(0, 1), P0)
    advance(store, made[-1], OffsetRange(0, 1), P0)
    assert query("SELECT claim_id FROM heartbeats") == [(made[-1].token.claim_id,)]


@pytest.mark.behaviour("START-14", "TX-10")
@pytest.mark.parametrize("partition", [P1, P0], ids=["unknown", "known"])
def test_a_job_that_writes_during_a_claim_is_stale_afterwards(
    store: OffsetStore, query: Query, partition: TopicPartition
) -> None:
    first = store.claim("billing", broker())
    claiming_has_the_locks, go_on = Event(), Event()
    slow = broker()
    slow.script = [None, lambda: (claiming_has_the_locks.set(), go_on.wait(60))]
    claiming = in_background(lambda: store.claim("billing", slow))
    assert claiming_has_the_locks.wait(60)
    writing = in_background(lambda: advance(store, first, OffsetRange(0, 7), partition))
    wait_for_waiting(query)

    go_on.set()

    claiming.result(timeout=60)
    with pytest.raises(StaleClaim):
        writing.result(timeout=60)
    assert {tp: row.next_offset for tp, row in store.offsets("billing").items()} == {P0: 0}
    assert query(DEADLOCKS) == [(0,)]


@pytest.mark.behaviour("START-13")
def test_claims_that_wait_behind_one_frozen_job_settle(store: OffsetStore) -> None:
    first = store.claim("billing", broker())
    frozen = store.database.begin(name=first.name)
    frozen.lock_partitions("billing", [P0])

    running = [in_background(lambda: store.claim("billing", broker(), takeover_timeout=0.5)) for _ in range(3)]
    made = sorted((one.result(timeout=60) for one in running), key=lambda claim: claim.token.epoch)

    frozen.rollback()
    assert [claim.token.epoch for claim in made] == [2, 3, 4]
    advance(store, made[-1], OffsetRange(0, 1), P0)


@pytest.mark.behaviour("START-27")
def test_whoever_says_what_a_store_is_knows_what_was_said_meanwhile(store: OffsetStore, query: Query) -> None:
    """A home alone must not bring back the id of the original."""
    given = uuid4()
    with transaction(store.database, name="test") as session:
        set_identity(people(session), store.identity().store_id, "elsewhere")
    with transaction(store.database, name="test") as session:
        set_identity(people(session), given, session.identity().here)
        moving = in_background(lambda: store.moved(reason="ticket 17"))
        wait_for_waiting(query)

    assert moving.result(timeout=60).identity.store_id == given
    assert store.identity().store_id == given
    assert store.identity().home == store.identity().here


@pytest.mark.behaviour("START-27")
def test_a_new_id_names_the_store_that_the_database_was_until_then(store: OffsetStore, query: Query) -> None:
    store.claim("billing", topics=["payments"], mirror_every=None)
    given = uuid4()
    with transaction(store.database, name="test") as session:
        set_identity(people(session), given, session.identity().here)
        saying = in_background(lambda: store.new_id(reason="ticket 17"))
        wait_for_waiting(query)

    after = saying.result(timeout=60).identity
    [line] = store.history("billing", events=["new-id"])
    assert line.reason == f"this database is a copy of store {given}, and is store {after.store_id} now: ticket 17"
