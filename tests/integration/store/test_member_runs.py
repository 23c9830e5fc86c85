"""Members of a fleet record what they do as jobs do, and a crash loop is `failed` for both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import pytest

from offsetstore import OffsetRange, OffsetStore, StartPolicy
from offsetstore.errors import GroupBusy, OffsetStoreError, SinkError, TopicMissing
from offsetstore.operations.people import LastRun, ask, read_overview
from offsetstore.protocol.events import BatchEnded, BatchStarted
from offsetstore.protocol.runs import KEPT, LOOP, telling_run
from offsetstore.store import heartbeat
from offsetstore.store.claim import Claim, ClaimRequest, Takeover
from offsetstore.store.fleet import join
from tests.integration.conftest import Query
from tests.integration.store.meeting import P0, Joins, advance, broker, joining

pytestmark = pytest.mark.behaviour("CONS-21")

RANGES = {P0: OffsetRange(0, 40)}
AGO = "clock_timestamp() - interval '{} s'"
Start: TypeAlias = Callable[[], Claim]
KINDS = pytest.mark.parametrize("start", ["job", "fleet"], indirect=True)


@pytest.fixture(autouse=True)
def without_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 3600)


@pytest.fixture
def joins(store: OffsetStore) -> Iterator[Joins]:
    with joining(store, takeover="fence") as made:
        yield made


@pytest.fixture
def claims(store: OffsetStore) -> Start:
    return lambda: store.claim("billing", broker(3), mirror_every=None)


@pytest.fixture
def start(request: pytest.FixtureRequest, joins: Joins, claims: Start) -> Start:
    """A job's start, or a member's."""
    return joins if request.param == "fleet" else claims


def write(claim: Claim, *, error: Exception | None = None, rows: int = 30) -> None:
    """What the runner tells of a delivery, and what it does once that has failed."""
    on = claim.observers.on
    on(BatchStarted(group="billing", batch=1, ranges=RANGES))
    outcome = "written" if error is None else "failed"
    on(BatchEnded(outcome=outcome, group="billing", batch=1, ranges=RANGES, rows={"": rows}, seconds={}, error=error))
    claim.record_run()


def crash(claim: Claim) -> None:
    """End as a process does that its function ends."""
    error = SinkError("the transform raised")
    write(claim, error=error)
    claim.end_with(error)
    claim.close()


def told(store: OffsetStore) -> set[tuple[str, bool]]:
    """The group's state and whether it is live, as every list has it."""
    listed = next(one.owner for one in store.groups() if one.group == "billing")
    overview = ask(store.database, lambda session: read_overview(session, ["billing"]))
    owners = (listed, overview.groups["billing"], store.owner("billing"))
    return {(one.state, one.is_live) for one in owners if one is not None}


def test_each_member_has_a_run_from_its_first_moment_until_its_end(store: OffsetStore, joins: Joins) -> None:
    first, second = joins(), joins()

    write(first)
    one, other = store.runs("billing")
    assert {one.token, other.token} == {first.token, second.token}
    assert (one.is_member, one.state, one.topics) == (True, "live", ("payments",))
    assert (one.status.phase, one.status.batch) == ("idle", 1)
    assert one.status.counters == {"written": 1, "offsets": 40, "rows": 30}
    assert (other.is_member, other.state, other.status.phase) == (True, "live", "starting")
    crash(first)
    assert [run.state for run in store.runs("billing")] == ["failed", "live"]
    assert told(store) == {("live", True)}, "a member that failed does not make a fleet failed that goes on"
    second.close()
    assert told(store) == {("ended", False)}, "the last one ended cleanly"


@KINDS
def test_a_job_and_a_fleet_that_an_error_ended_are_failed_alike(store: OffsetStore, start: Start) -> None:
    crash(start())

    assert told(store) == {("failed", False)}
    [run] = store.runs("billing")
    assert (run.state, run.status.counters["failed"]) == ("failed", 1)
    [error] = store.errors("billing")
    assert (error.source, error.error_class, error.epoch) == ("batch", "SinkError", run.token.epoch)


@KINDS
@pytest.mark.parametrize("how", ["failed", "silent"])
def test_what_fails_at_each_start_is_failed_although_the_next_one_is_live(
    store: OffsetStore, start: Start, query: Query, how: str
) -> None:
    for number in range(LOOP):
        claim = start()
        assert told(store) == {("live", True)}, number
        if how == "failed":
            crash(claim)
        else:  # killed: nothing is written after its last heartbeat
            old = AGO.format(20)
            for table in ("job_runs", "member_runs"):
                query(f"UPDATE {table} SET seen_at = {old}, started_at = started_at - interval '1 s'")
            query(f"UPDATE group_members SET beat_at = {old}")
            query(f"UPDATE heartbeats SET beat_at = {old}")

    start()
    assert told(store) == {("failed", True)}, "whoever wants the group has to wait for it all the same"

    minute = AGO.format(61)
    query(f"UPDATE group_members SET joined_at = {minute} WHERE beat_at > {AGO.format(15)}")
    query(f"UPDATE consumer_groups SET claimed_at = {minute}")
    assert told(store) == {("live", True)}, "it has run for a minute"


@KINDS
def test_a_start_that_is_refused_makes_a_group_failed_until_one_succeeds_or_a_person_decides(
    store: OffsetStore, start: Start, claims: Start, request: pytest.FixtureRequest
) -> None:
    def refused(topic: str = "misspelt", takeover: Takeover = "fence") -> type[Exception]:
        how = ClaimRequest("billing", broker(3), (topic,), StartPolicy(), takeover, 0.5, "billing")
        job = partial(store.claim, "billing", how.broker, topics=how.topics, takeover=takeover, mirror_every=None)
        ways: dict[str, Start] = {"fleet": lambda: join(store, how), "job": job}
        with pytest.raises(OffsetStoreError) as caught:
            ways[request.node.callspec.params["start"]]()
        return caught.type

    assert refused() is TopicMissing
    assert store.errors("billing") == [], "the store does not know the group"
    claim = start()
    assert refused() is TopicMissing
    assert told(store) == {("live", True)}, "whoever is live goes on"
    claim.close()
    assert told(store) == {("ended", False)}

    assert refused() is TopicMissing
    assert told(store) == {("failed", False)}
    assert {(error.source, error.error_class) for error in store.errors("billing")} == {("start", "TopicMissing")}
    store.reset("billing", {P0: 3}, reason="a test")
    assert told(store) == {("ended", False)}
    assert refused() is TopicMissing
    assert told(store) == {("failed", False)}
    crash(start())
    start().close()
    assert told(store) == {("ended", False)}
    claims()
    count = len(store.errors("billing"))
    assert refused("payments", "refuse") is GroupBusy
    assert len(store.errors("billing")) == count, "a live job is no failure of this one"


def test_failures_of_long_ago_make_no_loop(store: OffsetStore, joins: Joins, query: Query) -> None:
    for _ in range(LOOP):
        crash(joins())
    query(f"UPDATE member_runs SET started_at = {AGO.format(901)}")

    joins()
    assert told(store) == {("live", True)}


def test_a_job_after_a_fleet_fences_its_runs_and_the_other_way_round(
    store: OffsetStore, joins: Joins, claims: Start
) -> None:
    for start in (joins, joins, claims, joins):
        start()

    runs = store.runs("billing")
    states = [(True, "fenced"), (True, "fenced"), (False, "fenced"), (True, "live")]
    assert [(run.is_member, run.state) for run in runs] == states
    assert [run.next_at for run in runs] == [runs[2].started_at] * 2 + [runs[3].started_at, None]
    assert [run.is_of(store.owner("billing").token) for run in runs] == [False] * 3 + [True]  # type: ignore[union-attr]
    assert [run.token for run in store.runs("billing", limit=2)] == [run.token for run in runs[2:]]


def test_an_overview_adds_up_what_members_do(store: OffsetStore, joins: Joins, query: Query) -> None:
    def last() -> Any:
        return ask(store.database, lambda session: read_overview(session, None)).runs["billing"]

    one, other, third = joins(), joins(), joins()
    write(one, rows=5)
    write(other, rows=7)
    other.observers.on(BatchStarted(group="billing", batch=2, ranges=RANGES))
    other.record_run()
    found, [memory] = last(), query("SELECT sum(memory_bytes) FROM member_runs")
    assert (found.ending, found.counters["rows"], found.counters["written"]) == (None, 12, 2)
    assert (found.memory,) == memory
    assert found.batch_since is not None
    assert telling_run(store.runs("billing")).token == other.token, "its batch is in flight"  # type: ignore[union-attr]

    crash(other)
    one.close()
    third.close()
    found = last()
    assert (found.batch_since, found.ending, found.counters["rows"], found.memory) == (None, "closed", 12 + 30, None)
    crash(joins())
    assert last().ending == "failed"
    assert telling_run(store.runs("billing")).ending == "failed"  # type: ignore[union-attr]


def test_a_fleet_replays_letters_if_its_live_members_do(store: OffsetStore, joins: Joins, query: Query) -> None:
    def last() -> LastRun:
        return ask(store.database, lambda session: read_overview(session, None)).runs["billing"]

    def say(member: Claim, replays: str) -> None:
        said = f"""counters || '{{"replays_letters": {replays}}}'"""
        query(f"UPDATE member_runs SET counters = {said} WHERE claim_id = '{member.token.claim_id}'")

    one, other, _new = joins(), joins(), joins()
    assert (last().topics, last().replays_letters) == (("payments",), None)
    say(one, "true")
    assert (last().replays_letters, last().counters) == (True, {}), "a member that has just begun has said nothing yet"
    say(other, "false")
    assert last().replays_letters is False
    other.close()
    assert last().replays_letters is True, "the one that does not is gone"


def test_the_newest_runs_of_members_are_kept_and_those_that_go_on(
    store: OffsetStore, joins: Joins, query: Query
) -> None:
    first = joins()
    query(
        "INSERT INTO member_runs (consumer_group, epoch, claim_id, owner, topics, versions, ended_at, ending) "
        f"SELECT 'billing', {first.token.epoch}, gen_random_uuid(), 'x', '{{}}', '{{}}', now(), 'failed' "
        f"FROM generate_series(1, {KEPT + 20})"
    )
    last = joins()
    last.record_run()

    tokens = [run.token for run in store.runs("billing")]
    assert len(tokens) == KEPT + 1
    assert {first.token, last.token} <= {*tokens}


@pytest.mark.behaviour("OPS-22")
def test_a_run_that_cant_be_recorded_harms_no_member(store: OffsetStore, joins: Joins, query: Query) -> None:
    member = joins()
    query("ALTER TABLE member_runs RENAME TO away")
    try:
        member.record_run()
        member.assign(RANGES)
        advance(store, member, OffsetRange(0, 40), P0)
        member.close()
    finally:
        query("ALTER TABLE away RENAME TO member_runs")
    assert store.offsets("billing")[P0].next_offset == 40
