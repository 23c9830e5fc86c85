"""What a job's events and its query make known of it: one fold, under health, metrics and the record of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest

from offsetstore import OffsetRange, Pause, Token, TopicPartition
from offsetstore.errors import (
    BrokerRefused,
    BrokerUnavailable,
    ConnectionLost,
    LockTimeout,
    MissingPrivilege,
    RowsRefused,
    StoreUnavailable,
    TlsFailed,
)
from offsetstore.protocol.events import (
    BatchEnded,
    BatchStarted,
    ClaimEnded,
    ClaimTaken,
    CommitResolved,
    DatabaseAsked,
    DrainChanged,
    Event,
    FlushEnded,
    HandlerCalled,
    HeldRecord,
    IdleWorkChanged,
    IdleWorkFailed,
    LettersReplayed,
    LettersWritten,
    MirrorTried,
    PauseChanged,
    QueryStarted,
    QueryStatus,
    RecordsDropped,
    RecordsHeld,
    Retried,
    SinkMade,
    WatchedQuery,
)
from offsetstore.protocol.job_state import JobState, JobStates
from tests.support.clock import Clock

GROUP = "billing"
TOKEN, OLD, NEXT = (Token(epoch, UUID(int=epoch)) for epoch in (7, 6, 8))
QUERY = cast("WatchedQuery", object())
RANGES = {TopicPartition("payments", 0): OffsetRange(0, 40), TopicPartition("payments", 1): OffsetRange(2, 4)}
HELD = {TopicPartition("payments", 0): HeldRecord("Delay", 17, 1e9)}
PAUSE = Pause(datetime(2026, 1, 1, tzinfo=UTC), None, "a reason")
STARTED = BatchStarted(group=GROUP, batch=3, ranges=RANGES)
BATCH: dict[str, Any] = {"group": GROUP, "batch": 3, "ranges": RANGES}
SINK = SinkMade(group=GROUP, token=TOKEN, query=QUERY)
RUNS = QueryStatus(is_active=True, trigger=5, interval=2.0, pid=os.getppid())
ENDED = QueryStatus(is_active=False)


def after(*events: Event | QueryStatus, unreachable: float = 60.0, every: float = 10.0) -> JobState:
    """The state of a job that claimed its group at 10, with an event or a look at its query every ten seconds."""
    state, at = JobState.claimed_at(10.0, GROUP, TOKEN, unreachable=unreachable), 10.0
    for event in events:
        at += every
        state = state.seen(event, at) if isinstance(event, QueryStatus) else state.after(event, at)
    return state


PAUSED, RESUMED = (PauseChanged(group=GROUP, pause=pause) for pause in (PAUSE, None))
ANSWERED = DatabaseAsked(group=GROUP)
DRAIN, DRAINED = (DrainChanged(group=GROUP, is_running=is_running) for is_running in (True, False))


WORKS = IdleWorkChanged(group=GROUP, work="replay")
FAILED = BatchEnded(**BATCH, outcome="failed", error=OSError("no"))
QUERY_STARTED = QueryStarted(group=GROUP, query_id="", run_id="", application_id="", ui_url=None)


def ended(outcome: Any) -> BatchEnded:
    return BatchEnded(**BATCH, outcome=outcome)


def taken(token: Token) -> ClaimTaken:
    return ClaimTaken(group=GROUP, token=token, owner="host", starting=None)


def kafka(error: Exception | None, *, is_over: bool = False) -> MirrorTried:
    return MirrorTried(group=GROUP, reason="no", is_over=is_over, error=error)


def missed(error: Exception) -> DatabaseAsked:
    return DatabaseAsked(group=GROUP, error=error)


NO_BATCH: dict[str, Any] = {"in_batch_since": None, "batch_began": None, "triggered": 30}
DATABASE_AWAY = {"is_database_failing": True, "database_answered": 10, "outage_ended": 0}
# One missed heartbeat must not begin the limits of a batch that hangs anew.
DATABASE_BACK = {"is_database_failing": False, "database_answered": 30, "outage_ended": 0}
DATABASE_ANSWERED = {"is_database_failing": False, "database_answered": 20}
KAFKA_AWAY = {"is_kafka_failing": True, "kafka_answered": 10, "mirror_error": "no"}
KAFKA_BACK = {"is_kafka_failing": False, "kafka_answered": 30, "outage_ended": 30, "mirrored": 30, "mirror_error": None}
KAFKA_ANSWERED = {"is_kafka_failing": False, "mirrored": None, "mirror_error": "no"}
NOT_BEGUN = {"replays_letters": False, "is_active": None, "java_answered": 40}
STATES: list[tuple[tuple[Event | QueryStatus, ...], dict[str, Any]]] = [
    ((), {"claimed": 10, "database_answered": 10, "kafka_answered": 10}),
    ((), {"replays_letters": None, "is_active": None, "java_answered": None}),
    ((STARTED,), {"in_batch_since": 20, "batch_began": 20, "batch": 3, "batch_offsets": 42, "ended_well": None}),
    *(
        ((STARTED, ended(how)), NO_BATCH | {"phase": "idle", "ended_well": 30, "counters": {how: 1, "offsets": 42}})
        for how in ("written", "skipped", "kept")
    ),
    ((STARTED, FAILED), NO_BATCH | {"phase": "failed", "phase_since": 30, "ended_well": None, "error": "OSError"}),
    ((STARTED, ended("interrupted")), NO_BATCH | {"phase": "idle", "ended_well": None, "counters": {}}),
    ((STARTED, ended("kept"), FAILED, STARTED), {"phase": "batch", "ended_well": 30, "error": None}),
    ((STARTED, PAUSED), {"phase": "paused", "batch_began": 20}),
    ((STARTED, PAUSED, RESUMED), {"phase": "batch", "in_batch_since": 40, "batch_began": 20}),
    *(((missed(error),), DATABASE_AWAY) for error in (StoreUnavailable("no"), ConnectionLost("no"), OSError("no"))),
    ((missed(OSError("no")), ANSWERED), DATABASE_BACK),
    ((*[missed(OSError("no"))] * 7, ANSWERED), {"outage_ended": 90}),
    *(((missed(error),), DATABASE_ANSWERED) for error in (LockTimeout("no"), MissingPrivilege("no"))),
    *(((kafka(error),), KAFKA_AWAY) for error in (BrokerUnavailable("no"), TlsFailed("no"))),
    ((kafka(TlsFailed("no")), MirrorTried(group=GROUP)), KAFKA_BACK),
    ((kafka(BrokerUnavailable("no")), kafka(BrokerRefused("no"))), KAFKA_ANSWERED),
    ((kafka(BrokerUnavailable("no")), kafka(None, is_over=True)), KAFKA_ANSWERED),
    ((SINK, ENDED, ENDED), NOT_BEGUN),
    ((SINK, ENDED, RUNS), {"is_active": True, "active_since": 40, "triggered": 40, "interval": 2.0}),
    ((SINK, RUNS, ENDED), {"is_active": False, "active_since": 40, "pid": os.getppid()}),
    ((SINK, RUNS, RUNS), {"triggered": 30}),
    ((SINK, RUNS, RUNS, QueryStatus(is_active=True, trigger=6)), {"triggered": 50}),
    ((SINK, RUNS, QueryStatus(is_active=None)), {"is_active": True, "java_answered": 40}),
    ((SINK, RUNS, STARTED), {"in_batch_since": 40}),
    ((SINK, RUNS, STARTED, ENDED), {"is_active": False, "in_batch_since": None, "batch_began": None}),
    ((STARTED,), {"is_active": True, "active_since": 20}),  # a query runs, where Spark can't be read
    ((SINK, SinkMade(group=GROUP, token=OLD, query=QUERY, replays_letters=True)), {"replays_letters": False}),
    ((SinkMade(group=GROUP, token=TOKEN, query=QUERY, replays_letters=True),), {"replays_letters": True}),
    ((QUERY_STARTED,), {"query": QUERY_STARTED}),
    ((RecordsHeld(group=GROUP, held=HELD),), {"held": HELD}),
    ((HandlerCalled(group=GROUP, calls=2),), {"called": 20}),
    ((WORKS,), {"idle_work": "replay", "idle_work_since": 20}),
    ((WORKS, IdleWorkChanged(group=GROUP, work=None)), {"idle_work": None, "idle_work_since": 30}),
    ((ClaimEnded(group=GROUP, token=TOKEN, outcome="fenced"),), {"is_lost": True, "is_closed": False}),
    ((ClaimEnded(group=GROUP, token=TOKEN, outcome="closed"),), {"is_lost": False, "is_closed": True}),
    ((ClaimEnded(group=GROUP, token=OLD, outcome="fenced"),), {"is_lost": False, "is_closed": False}),
    ((STARTED, ended("kept"), taken(TOKEN)), {"token": TOKEN, "counters": {"kept": 1, "offsets": 42}, "claimed": 10}),
    ((STARTED, ended("kept"), taken(NEXT)), {"token": NEXT, "counters": {}, "claimed": 40, "batch": None}),
    ((MirrorTried(group=GROUP), kafka(OSError("no"))), {"mirrored": 20, "mirror_error": "no", "kafka_answered": 30}),
    (
        (
            LettersWritten(group=GROUP, batch=1, ranges={}, letters={"raised": 2, "rejected": 1}),
            LettersReplayed(group=GROUP, replayed=4, failed=1),
            Retried(group=GROUP, attempt=7, error=OSError("no"), wait=0.1),
            missed(OSError("no")),
        ),
        {"counters": {"letters": 3, "replayed": 4, "retries": 1, "heartbeats_missed": 1}},
    ),
    (
        (
            FlushEnded(group=GROUP, rows={"": 2}, error=OSError("no")),
            IdleWorkFailed(group=GROUP, error=OSError("no")),
            RecordsDropped(group=GROUP, by="Expire", records=2),
            CommitResolved(group=GROUP, topic_partition=None, happened=None),
            ANSWERED,
        ),
        {"counters": {}, "phase": "starting"},
    ),
    ((DRAIN,), {"is_draining": True}),
    ((DRAIN, DRAINED), {"is_draining": False, "claimed": 30, "active_since": 30}),
]


@pytest.mark.behaviour("OPS-4")
@pytest.mark.parametrize(("events", "expected"), STATES)
def test_a_state_after_events(events: Sequence[Event | QueryStatus], expected: dict[str, Any]) -> None:
    state = after(*events)
    assert {name: getattr(state, name) for name in expected} == expected


@pytest.mark.behaviour("OPS-4")
def test_silence_longer_than_its_limit_was_an_outage_too() -> None:
    assert after(ANSWERED, unreachable=15).outage_ended == 0
    assert after(ANSWERED, ANSWERED, unreachable=15, every=16).outage_ended == 42


def test_the_time_of_a_batch_is_counted_once_whenever_it_is_flushed() -> None:
    counters = after(
        BatchEnded(**BATCH, outcome="kept", rows={"": 1}, seconds={"compute": 0.5}),
        BatchEnded(**BATCH, outcome="skipped"),
        FlushEnded(group=GROUP, batches=(1, 1), ranges=RANGES, rows={"": 1}, seconds={"write": 1, "commit": 0.25}),
        BatchEnded(**BATCH, outcome="written", rows={"": 1}, seconds={"write": 0.0104}),
    ).counters
    assert counters["batch_milliseconds"] == 1_760
    assert (counters["written"], counters["kept"], counters["flushed"], counters["rows"]) == (1, 1, 1, 2)


def test_what_was_stored_before_a_failure_is_counted() -> None:
    stored = {TopicPartition("payments", 1): OffsetRange(2, 3)}
    failed = BatchEnded(**BATCH, outcome="failed", error=RowsRefused("no"), stored=stored, rows={"": 7})
    assert after(failed).counters == {"failed": 1, "offsets": 1, "rows": 7}
    assert after(BatchEnded(**BATCH, outcome="interrupted")).counters == {}


@pytest.mark.behaviour("OPS-4", "OPS-5")
def test_a_closed_claim_is_forgotten_and_what_comes_late_of_one_that_was_replaced_is_not_about_the_new_one() -> None:
    clock = Clock()
    jobs = JobStates(clock)
    jobs.on(taken(TOKEN))
    clock.now = 10
    for late in (
        ClaimEnded(group=GROUP, token=OLD, outcome="fenced"),
        SinkMade(group=GROUP, token=OLD, query=QUERY),
        ClaimEnded(group=GROUP, token=OLD, outcome="closed"),
    ):
        before, now = jobs.on(late)
        assert before == now
    jobs.see(GROUP, OLD, RUNS)
    assert jobs.now() == (JobState.claimed_at(0, GROUP, TOKEN),)
    jobs.on(ClaimEnded(group=GROUP, token=TOKEN, outcome="fenced"))
    assert [one.is_lost for one in jobs.now()] == [True]
    jobs.on(ClaimEnded(group=GROUP, token=TOKEN, outcome="closed"))
    before, now = jobs.on(ClaimEnded(group=GROUP, token=TOKEN, outcome="fenced"))
    assert before == now, "a transaction of a closed claim may still meet a fence"
    jobs.on(STARTED)
    assert jobs.now() == ()
