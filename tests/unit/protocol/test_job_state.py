"""What a job's events and its query make known of it: one fold, under health, metrics and the record of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def ended(outcome: Any) -> BatchEnded:
    return BatchEnded(**BATCH, outcome=outcome)


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
    ((STARTED,), {"in_batch_since": 20, "batch_began": 20}),
    *(((STARTED, ended(how)), NO_BATCH | {"ended_well": 30}) for how in ("written", "skipped", "kept")),
    *(((STARTED, ended(how)), NO_BATCH | {"ended_well": None}) for how in ("failed", "interrupted")),
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
    taken = ClaimTaken(group=GROUP, token=TOKEN, owner="host", starting=None)
    jobs.on(taken)
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


COUNTS = st.integers(0, 5)
TOKENS = st.sampled_from([OLD, TOKEN, NEXT])
SILENCES = [OSError("no"), StoreUnavailable("no")]
ERRORS: list[Any] = [None, *SILENCES, LockTimeout("no"), BrokerUnavailable("no")]
EVENTS = st.one_of(
    st.builds(ClaimTaken, group=st.just(GROUP), token=TOKENS, owner=st.just(""), starting=st.none()),
    st.builds(ClaimEnded, group=st.just(GROUP), token=TOKENS, outcome=st.sampled_from(["closed", "fenced"])),
    st.builds(SinkMade, group=st.just(GROUP), token=TOKENS, query=st.just(QUERY), replays_letters=st.booleans()),
    st.builds(
        QueryStarted, group=st.just(GROUP), query_id=st.text(), run_id=st.just(""), application_id=st.just(""),
        ui_url=st.none(),
    ),
    st.builds(BatchStarted, group=st.just(GROUP), batch=COUNTS, ranges=st.sampled_from([{}, RANGES])),
    st.builds(
        BatchEnded, group=st.just(GROUP), batch=COUNTS, ranges=st.just(RANGES), rows=st.just({"": 3}),
        outcome=st.sampled_from(["written", "skipped", "kept", "failed", "interrupted"]),
        error=st.sampled_from([None, OSError("no")]),
    ),
    st.builds(FlushEnded, group=st.just(GROUP), rows=st.just({"": 2}), error=st.sampled_from([None, OSError("no")])),
    st.builds(IdleWorkChanged, group=st.just(GROUP), work=st.sampled_from([None, "replay", "tick"])),
    st.builds(IdleWorkFailed, group=st.just(GROUP), error=st.just(OSError("no"))),
    st.builds(LettersWritten, group=st.just(GROUP), batch=COUNTS, ranges=st.just({}), letters=st.just({"raised": 2})),
    st.builds(LettersReplayed, group=st.just(GROUP), replayed=COUNTS, failed=COUNTS),
    st.builds(HandlerCalled, group=st.just(GROUP), calls=COUNTS),
    st.builds(RecordsDropped, group=st.just(GROUP), by=st.just("Expire"), records=COUNTS),
    st.builds(RecordsHeld, group=st.just(GROUP), held=st.sampled_from([{}, HELD])),
    st.builds(DrainChanged, group=st.just(GROUP), is_running=st.booleans()),
    st.builds(PauseChanged, group=st.just(GROUP), pause=st.sampled_from([None, PAUSE])),
    st.builds(Retried, group=st.just(GROUP), attempt=COUNTS, error=st.just(OSError("no")), wait=st.just(0.1)),
    st.builds(CommitResolved, group=st.just(GROUP), topic_partition=st.none(), happened=st.none()),
    st.builds(DatabaseAsked, group=st.just(GROUP), error=st.sampled_from(ERRORS)),
    st.builds(MirrorTried, group=st.just(GROUP)),
    st.builds(MirrorTried, group=st.just(GROUP), reason=st.just("no"), error=st.sampled_from(ERRORS)),
)  # fmt: skip


class History:
    """What a whole list of events says, asked question by question."""

    def __init__(self, events: Sequence[Event]) -> None:
        held, since = TOKEN, 0
        for number, event in enumerate(events):
            if isinstance(event, ClaimTaken) and event.token != held:
                held, since = event.token, number + 1
        self.token = held
        self.began = float(since)
        self.events = [(float(number + 1), event) for number, event in enumerate(events) if number >= since]

    def of(self, *kinds: type[Any]) -> list[tuple[float, Any]]:
        return [(at, event) for at, event in self.events if isinstance(event, kinds)]

    def last(self, *kinds: type[Any]) -> tuple[float, Any] | None:
        return next(iter(reversed(self.of(*kinds))), None)

    def ours(self, kind: type[Any]) -> list[tuple[float, Any]]:
        return [(at, event) for at, event in self.of(kind) if event.token == self.token]

    def phase(self) -> tuple[str, float]:
        at, last = self.last(BatchStarted, PauseChanged, BatchEnded) or (self.began, None)
        match last:
            case None:
                return "starting", at
            case BatchEnded(outcome="failed"):
                return "failed", at
            case BatchEnded():
                return "idle", at
            case PauseChanged() if last.pause is not None:
                return "paused", at
            case _:
                return "batch", at

    def counters(self) -> dict[str, int]:
        ended = [event for _, event in self.of(BatchEnded)]
        flushed = [event for _, event in self.of(FlushEnded) if event.error is None]
        counts = {
            outcome: sum(one.outcome == outcome for one in ended)
            for outcome in ("written", "skipped", "kept", "failed")
        } | {
            "offsets": sum(42 for one in ended if one.outcome in {"written", "skipped", "kept"}),
            "rows": sum(3 for one in ended if one.outcome != "kept") + sum(2 for _ in flushed),
            "flushed": len(flushed),
            "letters": 2 * len(self.of(LettersWritten)),
            "replayed": sum(event.replayed for _, event in self.of(LettersReplayed)),
            "retries": len(self.of(Retried)),
            "heartbeats_missed": sum(event.error is not None for _, event in self.of(DatabaseAsked)),
        }
        return {what: number for what, number in counts.items() if number}


@given(st.lists(EVENTS, max_size=30))
def test_a_state_is_what_the_whole_history_says(events: list[Event]) -> None:
    state = JobState.claimed_at(0.0, GROUP, TOKEN)
    for number, event in enumerate(events):
        state = state.after(event, float(number + 1))
    told = History(events)

    assert (state.token, state.counters) == (told.token, told.counters())
    assert (state.phase, state.phase_since) == told.phase()
    endings = {event.outcome for _, event in told.ours(ClaimEnded)}
    assert (state.is_lost, state.is_closed) == ("fenced" in endings, "closed" in endings)
    sinks = told.ours(SinkMade)
    assert state.replays_letters == (sinks[-1][1].replays_letters if sinks else None)
    held = told.last(RecordsHeld)
    assert state.held == (held[1].held if held else {})
    query = told.last(QueryStarted)
    assert state.query == (query[1] if query else None)
    begun = told.last(BatchStarted)
    assert state.batch == (begun[1].batch if begun else None)
    last = told.last(BatchStarted, BatchEnded)
    assert state.batch_began == (last[0] if last and isinstance(last[1], BatchStarted) else None)
    error = last[1].error if last and isinstance(last[1], BatchEnded) else None
    assert state.error == (None if error is None else "OSError")
    well = [at for at, event in told.of(BatchEnded) if event.outcome in {"written", "skipped", "kept"}]
    assert state.ended_well == (well[-1] if well else None)
    drain = told.last(DrainChanged)
    assert state.is_draining == (drain is not None and drain[1].is_running)
    idle = told.last(IdleWorkChanged)
    assert (state.idle_work, state.idle_work_since) == ((idle[1].work, idle[0]) if idle else (None, 0))
    mirror = told.last(MirrorTried)
    assert state.mirror_error == (mirror[1].reason if mirror else None)
    copied = [at for at, event in told.of(MirrorTried) if event.reason is None]
    assert state.mirrored == (copied[-1] if copied else None)
    asked = told.last(DatabaseAsked)
    assert state.is_database_failing == (asked is not None and asked[1].error in SILENCES)
    assert state.is_kafka_failing == (mirror is not None and isinstance(mirror[1].error, BrokerUnavailable | TlsFailed))
