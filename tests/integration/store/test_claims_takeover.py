"""A claim meets a job that still runs, or that seems to."""

from __future__ import annotations

import json
import time
from pathlib import Path
from uuid import uuid4

import pytest

from offsetstore import OffsetRange, OffsetStore
from offsetstore.errors import GroupBusy, LockTimeout, StaleClaim
from offsetstore.postgres.grants import grant_runtime
from offsetstore.store import claim, heartbeat, sessions
from tests.integration.conftest import Query
from tests.integration.store.meeting import DEADLOCKS, P0, P1, advance, broker, wait_for_waiting
from tests.support.background import in_background
from tests.support.jobs import FrozenJob
from tests.support.waiting import wait_until


@pytest.mark.behaviour("START-13", "START-14")
@pytest.mark.parametrize("with_a_new_row", [True, False])
def test_a_claim_waits_for_the_stale_jobs_open_transaction_then_fences_it(
    store: OffsetStore, query: Query, results: str, *, with_a_new_row: bool
) -> None:
    first = store.claim("billing", broker())
    partitions = [P0, P1] if with_a_new_row else [P0]
    with store.transaction(first) as tx:
        tx.lock(dict.fromkeys(partitions, OffsetRange(0, 40)))
        claiming = in_background(lambda: store.claim("billing", broker(len(partitions))))
        wait_for_waiting(query)
        tx.connection.exec_driver_sql("INSERT INTO results VALUES (1)")
        tx.advance(tx.ranges)
        assert not claiming.done()

    second = claiming.result(timeout=60)

    assert query("SELECT count(*) FROM results") == [(1,)]
    assert json.loads(second.starting_offsets) == {"payments": {str(tp.partition): 40 for tp in partitions}}
    with pytest.raises(StaleClaim):
        advance(store, first, OffsetRange(40, 41), *partitions)
    assert query(DEADLOCKS) == [(0,)]


@pytest.mark.behaviour("START-13")
@pytest.mark.parametrize(
    ("step", "known"), [("copy", True), ("idle", False)], ids=["holding its partition", "holding the group"]
)
@pytest.mark.usefixtures("results")
def test_a_frozen_job_is_terminated_after_the_timeout(
    store: OffsetStore, offsetstore_database: str, query: Query, tmp_path: Path, step: str, *, known: bool
) -> None:
    if known:
        store.claim("billing", broker()).close()
    with FrozenJob(tmp_path / "log", offsetstore_database, "billing", step) as job:
        job.freeze()
        began = time.monotonic()

        claim = store.claim("billing", broker(), takeover_timeout=1)

        assert 1 <= time.monotonic() - began < 25
        assert json.loads(claim.starting_offsets) == {"payments": {"0": 0}}
        assert job.thaw() == "TransactionLost"
    assert query("SELECT * FROM results") == []
    assert store.offsets("billing")[P0].next_offset == 0


@pytest.mark.behaviour("START-13")
@pytest.mark.parametrize("frozen_in", ["its transaction", "its heartbeat"])
def test_a_shorter_statement_timeout_of_the_roles_does_not_end_the_takeover(
    store: OffsetStore, offsetstore_database: str, frozen_in: str
) -> None:
    first = store.claim("billing", broker())
    frozen = store.database.begin(name=first.name)
    if frozen_in == "its heartbeat":
        assert frozen.beat(first.token.claim_id)
    else:
        frozen.lock_partitions("billing", [P0])
    impatient = f"{offsetstore_database}?options=-c%20statement_timeout%3D500"

    with OffsetStore.connect(impatient) as other:
        assert other.claim("billing", broker(), takeover_timeout=1).token.epoch == 2

    frozen.rollback()


@pytest.mark.behaviour("START-13")
def test_a_transaction_that_is_no_job_of_the_group_is_not_terminated(
    store: OffsetStore, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_GRACE", 0.5)
    store.claim("billing", broker())
    store.claim("other", broker())
    stranger = store.database.begin(name="an operator's psql")
    stranger.lock_partitions("billing", [P0])

    with pytest.raises(LockTimeout, match="'billing' is locked by a transaction that is not one of its own"):
        store.claim("billing", broker(), takeover_timeout=0.5)

    stranger.commit()
    assert query("SELECT epoch FROM consumer_groups WHERE consumer_group = 'billing'") == [(1,)]


@pytest.mark.behaviour("START-13", "OPS-8")
@pytest.mark.parametrize("membership", ["job", "pg_signal_backend"])
def test_another_role_may_end_the_transaction_of_a_frozen_job_if_it_is_a_member(
    offsetstore_database: str, query: Query, monkeypatch: pytest.MonkeyPatch, membership: str
) -> None:
    """docs/dashboard-access.md says so of the role that decides."""
    monkeypatch.setattr(sessions, "_GRACE", 1)
    suffix = uuid4().hex
    job, decider = f"job_{suffix}", f"decider_{suffix}"
    for role in (job, decider):
        query(f"CREATE ROLE {role} LOGIN")
        for statement in grant_runtime(role, schema="public"):
            query(statement)
    try:
        with (
            OffsetStore.connect(offsetstore_database.replace("postgres@", f"{job}@")) as of_job,
            OffsetStore.connect(offsetstore_database.replace("postgres@", f"{decider}@")) as of_decider,
        ):
            first = of_job.claim("billing", broker())
            frozen = of_job.database.begin(name=first.name)
            frozen.lock_partitions("billing", [P0])
            with pytest.raises(
                LockTimeout, match=r"or that this role may not terminate.* member of the job's role, or"
            ):
                of_decider.reset("billing", {P0: 5}, reason="ticket 17", takeover_timeout=0.5)
            query(f"GRANT {job if membership == 'job' else membership} TO {decider}")
            monkeypatch.setattr(sessions, "_GRACE", 60)
            of_decider.reset("billing", {P0: 5}, reason="ticket 17", takeover_timeout=0.5)
            frozen.rollback()
        assert query("SELECT next_offset FROM kafka_partitions") == [(5,)]
    finally:
        query(f"DROP OWNED BY {job}, {decider}; DROP ROLE {job}, {decider}")


@pytest.mark.behaviour("START-22")
def test_refuse_neither_waits_for_a_live_owners_transaction_nor_ends_it(store: OffsetStore) -> None:
    first = store.claim("billing", topics=["payments"])
    with store.transaction(first) as tx:
        tx.lock({P1: OffsetRange(0, 5)})  # an unknown partition: the group's row is held
        began = time.monotonic()
        other = broker()
        with pytest.raises(GroupBusy, match="has a live owner") as caught:
            store.claim("billing", other, takeover="refuse", takeover_timeout=0)
        assert first.owner in str(caught.value)
        assert not other.asked
        assert time.monotonic() - began < 5
        tx.advance(tx.ranges)

    assert store.offsets("billing")[P1].next_offset == 5


@pytest.mark.behaviour("START-22")
@pytest.mark.parametrize("takeover", ["refuse", "wait"])
@pytest.mark.parametrize("since", ["-16", "75"], ids=["silent", "of before the clock stepped back"])
def test_an_owner_that_died_is_no_owner(
    store: OffsetStore, query: Query, monkeypatch: pytest.MonkeyPatch, takeover: claim.Takeover, *, since: str
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)
    store.claim("billing", broker())
    query(f"UPDATE heartbeats SET beat_at = clock_timestamp() + interval '{since} seconds'")

    assert store.claim("billing", broker(), takeover=takeover).token.epoch == 2


@pytest.mark.behaviour("START-22")
def test_an_owner_that_runs_is_live_again_with_its_next_heartbeat_after_the_clock_has_stepped_back(
    store: OffsetStore, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.1)
    store.claim("billing", broker())
    query("UPDATE heartbeats SET beat_at = clock_timestamp() + interval '1 hour'")

    wait_until(lambda: (owner := store.owner("billing")) is not None and owner.is_live)

    with pytest.raises(GroupBusy):
        store.claim("billing", broker(), takeover="refuse")


@pytest.mark.behaviour("START-22")
def test_wait_has_the_group_once_its_owner_leaves_or_ends_after_the_timeout(store: OffsetStore) -> None:
    first, asked = store.claim("billing", broker()), broker()
    began = time.monotonic()
    with pytest.raises(GroupBusy):
        store.claim("billing", broker(), takeover="wait", takeover_timeout=1)
    assert 1 <= time.monotonic() - began < 5

    claiming = in_background(lambda: store.claim("billing", asked, takeover="wait"))
    advance(store, first, OffsetRange(0, 40), P0)
    assert not claiming.done()

    first.close()

    assert json.loads(claiming.result(timeout=60).starting_offsets) == {"payments": {"0": 40}}
    assert len(asked.asked) == 2
