"""What a job's events and its query make known of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from threading import Event as Flag
from uuid import uuid4

import pytest

from offsetstore import Pause, Token
from offsetstore.errors import (
    BrokerRefused,
    BrokerUnavailable,
    ConnectionLost,
    LockTimeout,
    MissingPrivilege,
    RowsRefused,
    StoreUnavailable,
)
from offsetstore.monitoring.facts import FactCollector, RunningClock
from offsetstore.monitoring.health import GroupFacts, Limits
from offsetstore.protocol.events import (
    BatchFailed,
    BatchSkipped,
    BatchStarted,
    BatchWritten,
    ClaimClosed,
    ClaimLost,
    ClaimTaken,
    DatabaseAnswered,
    DrainEnded,
    DrainStarted,
    Event,
    HeartbeatMissed,
    MirrorCopied,
    MirrorFailed,
    Paused,
    Resumed,
    SinkMade,
)
from offsetstore.protocol.query_status import QueryStatus
from offsetstore.store import heartbeat
from offsetstore.store.run_record import resident_bytes
from offsetstore.testing import InMemoryOffsetStore
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("OPS-4")

GROUP = "billing"
TOKEN = Token(7, uuid4())
TAKEN = ClaimTaken(group=GROUP, token=TOKEN, owner="host", starting=None)
STARTED = BatchStarted(group=GROUP, batch=3, ranges={})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Query:
    """One whose next looks are preset."""

    def __init__(self, *statuses: QueryStatus | Exception) -> None:
        self._statuses = [*statuses]
        self.is_done = Flag()
        self.goes_on = Flag()

    def status(self) -> QueryStatus:
        if not self._statuses:
            self.is_done.set()
            self.goes_on.wait()
            raise ConnectionError
        status = self._statuses.pop(0)
        if isinstance(status, Exception):
            raise status
        return status


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def collector(clock: Clock) -> Iterator[FactCollector]:
    made = FactCollector(clock, Limits(jvm=0.03, unreachable=60))
    yield made
    made.close()


def group_of(collector: FactCollector) -> GroupFacts:
    [group] = collector.facts().groups
    return group


def tell(collector: FactCollector, clock: Clock, *events: Event) -> GroupFacts:
    """Each ten seconds after the one before."""
    for event in events:
        clock.now += 10
        collector.on(event)
    return group_of(collector)


def looked_at(collector: FactCollector, clock: Clock, *statuses: QueryStatus | Exception) -> GroupFacts:
    query = Query(*statuses)
    tell(collector, clock, TAKEN, SinkMade(group=GROUP, token=TOKEN, query=query))
    assert query.is_done.wait(20)
    query.goes_on.set()
    return group_of(collector)


def test_a_claim_begins_with_answers_from_all(collector: FactCollector, clock: Clock) -> None:
    assert not collector.facts().has_claimed
    facts = tell(collector, clock, TAKEN)
    assert (facts.claimed, facts.database_answered, facts.kafka_answered) == (10, 10, 10)
    assert (facts.has_sink, facts.is_active, facts.java_answered) == (False, None, None)
    assert collector.facts().has_claimed


def test_a_claim_is_lost_and_is_forgotten_when_it_is_closed(collector: FactCollector, clock: Clock) -> None:
    assert tell(collector, clock, TAKEN, ClaimLost(group=GROUP, token=TOKEN)).is_lost
    collector.on(ClaimClosed(group=GROUP, token=TOKEN))
    assert (collector.facts().groups, collector.facts().has_claimed) == ((), True)


def test_what_comes_late_of_a_claim_that_was_replaced_is_not_about_the_new_one(
    collector: FactCollector, clock: Clock
) -> None:
    old = Token(6, uuid4())
    late = [ClaimLost(group=GROUP, token=old), SinkMade(group=GROUP, token=old, query=Query())]
    facts = tell(collector, clock, TAKEN, *late)
    assert (facts.is_lost, facts.has_sink) == (False, False)
    collector.on(ClaimClosed(group=GROUP, token=old))
    assert group_of(collector).claimed == 10


@pytest.mark.parametrize(
    "end",
    [
        BatchWritten(group=GROUP, batch=3, ranges={}, rows={}, seconds={}),
        BatchSkipped(group=GROUP, batch=3, ranges={}),
        BatchFailed(group=GROUP, batch=3, ranges={}, error=RowsRefused("no")),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_batch_is_in_flight_until_its_end_which_is_a_sign_of_a_trigger(
    collector: FactCollector, clock: Clock, end: Event
) -> None:
    assert tell(collector, clock, TAKEN, STARTED).batch_since == 20
    facts = tell(collector, clock, end)
    assert (facts.batch_since, facts.triggered) == (None, 30)


def test_a_pause_does_not_count_for_its_batch(collector: FactCollector, clock: Clock) -> None:
    pause = Pause(datetime.now(UTC), None, "a reason")
    paused = tell(collector, clock, TAKEN, STARTED, Paused(group=GROUP, pause=pause))
    assert (paused.is_paused, paused.batch_since) == (True, 20)
    resumed = tell(collector, clock, Resumed(group=GROUP))
    assert (resumed.is_paused, resumed.batch_since) == (False, 40)


@pytest.mark.parametrize("error", [StoreUnavailable("no"), ConnectionLost("no"), OSError("no")], ids=repr)
def test_a_database_that_can_t_be_reached_is_away_until_it_answers(
    collector: FactCollector, clock: Clock, error: Exception
) -> None:
    away = tell(collector, clock, TAKEN, HeartbeatMissed(group=GROUP, error=error))
    assert (away.is_database_failing, away.database_answered, away.outage_ended) == (True, 10, 0)
    back = tell(collector, clock, DatabaseAnswered(group=GROUP))
    assert (back.is_database_failing, back.database_answered) == (False, 30)
    assert back.outage_ended == 0, "one missed heartbeat must not begin the limits of a batch that hangs anew"
    missed = [HeartbeatMissed(group=GROUP, error=error)] * 7
    assert tell(collector, clock, *missed, DatabaseAnswered(group=GROUP)).outage_ended == 110


@pytest.mark.parametrize("error", [LockTimeout("no"), MissingPrivilege("no")], ids=repr)
def test_a_database_that_refuses_a_heartbeat_has_answered(
    collector: FactCollector, clock: Clock, error: Exception
) -> None:
    facts = tell(collector, clock, TAKEN, HeartbeatMissed(group=GROUP, error=error))
    assert (facts.is_database_failing, facts.database_answered) == (False, 20)


def test_silence_longer_than_its_limit_was_an_outage_too(clock: Clock) -> None:
    collector = FactCollector(clock, Limits(unreachable=15))
    tell(collector, clock, TAKEN)
    assert tell(collector, clock, DatabaseAnswered(group=GROUP)).outage_ended == 0
    clock.now += 6
    assert tell(collector, clock, DatabaseAnswered(group=GROUP)).outage_ended == 36


def _failed(error: Exception | None, *, is_over: bool = False) -> MirrorFailed:
    return MirrorFailed(group=GROUP, reason="no", is_over=is_over, error=error)


def test_kafka_is_away_while_it_does_not_answer(collector: FactCollector, clock: Clock) -> None:
    away = tell(collector, clock, TAKEN, _failed(BrokerUnavailable("no")))
    assert (away.is_kafka_failing, away.kafka_answered) == (True, 10)
    back = tell(collector, clock, MirrorCopied(group=GROUP, offsets={}))
    assert (back.is_kafka_failing, back.kafka_answered, back.outage_ended) == (False, 30, 30)


@pytest.mark.parametrize("answer", [_failed(BrokerRefused("no")), _failed(None, is_over=True)], ids=["refused", "over"])
def test_kafka_that_refuses_or_a_mirror_that_is_over_is_no_outage(
    collector: FactCollector, clock: Clock, answer: MirrorFailed
) -> None:
    assert not tell(collector, clock, TAKEN, _failed(BrokerUnavailable("no")), answer).is_kafka_failing


RUNS = QueryStatus(is_active=True, trigger=5, interval=2.0, pid=os.getppid())
ENDED = QueryStatus(is_active=False)


def test_a_query_that_has_not_begun_has_not_ended(collector: FactCollector, clock: Clock) -> None:
    facts = looked_at(collector, clock, ENDED, ENDED)
    assert (facts.has_sink, facts.is_active, facts.java_answered) == (True, None, 20)


def test_a_query_runs_and_ends(collector: FactCollector, clock: Clock) -> None:
    facts = looked_at(collector, clock, ENDED, RUNS)
    assert (facts.is_active, facts.active_since, facts.triggered, facts.interval) == (True, 20, 20, 2.0)
    facts = looked_at(collector, clock, RUNS, ENDED)
    assert (facts.is_active, facts.active_since) == (False, 40)


def test_only_another_trigger_is_a_trigger(collector: FactCollector, clock: Clock) -> None:
    query = Query(RUNS)
    tell(collector, clock, TAKEN, SinkMade(group=GROUP, token=TOKEN, query=query))
    wait_until(lambda: group_of(collector).triggered == 20)
    clock.now = 100
    query._statuses += [RUNS, RUNS]
    query.is_done.clear()
    query.goes_on.set()
    wait_until(lambda: group_of(collector).java_answered == 100)
    assert group_of(collector).triggered == 20
    query._statuses.append(QueryStatus(is_active=True, trigger=6))
    wait_until(lambda: group_of(collector).triggered == 100)


def test_a_query_of_which_nothing_can_be_told_stays_as_it_was(collector: FactCollector, clock: Clock) -> None:
    facts = looked_at(collector, clock, RUNS, QueryStatus(is_active=None))
    assert (facts.is_active, facts.java_answered) == (True, 20)


def test_java_that_raises_or_hangs_has_not_answered(collector: FactCollector, clock: Clock) -> None:
    query = Query(RUNS, ConnectionError("gone"))
    tell(collector, clock, TAKEN, SinkMade(group=GROUP, token=TOKEN, query=query))
    assert query.is_done.wait(20)  # and hangs there
    clock.now = 500
    assert group_of(collector).java_answered == 20
    query.goes_on.set()


def test_a_query_stopped_in_the_middle_of_a_batch_has_none_in_flight(collector: FactCollector, clock: Clock) -> None:
    query = Query(RUNS)
    tell(collector, clock, TAKEN, SinkMade(group=GROUP, token=TOKEN, query=query))
    assert query.is_done.wait(20)
    assert tell(collector, clock, STARTED).batch_since == 30
    query._statuses.append(ENDED)
    query.goes_on.set()
    wait_until(lambda: group_of(collector).is_active is False)
    assert group_of(collector).batch_since is None


def test_a_store_tells_of_its_claims_and_of_answers(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "INTERVAL", 0.02)
    collector = FactCollector(clock, Limits())
    with InMemoryOffsetStore(observers=[collector]) as store, store.claim(GROUP, topics=["payments"]) as claim:
        clock.now = 50
        wait_until(lambda: group_of(collector).database_answered == 50)
        claim.bind("one", lambda: False)
        wait_until(claim._heartbeat._has_ended)
        clock.now = 90
        wait_until(lambda: group_of(collector).database_answered == 90)
        claim.lose()
        assert group_of(collector).is_lost
    assert collector.facts().groups == ()


def test_the_memory_is_pythons_and_javas(collector: FactCollector, clock: Clock) -> None:
    alone = collector.facts().rss
    assert alone is not None
    assert alone > 10_000_000
    looked_at(collector, clock, RUNS)
    both = collector.facts().rss
    assert both is not None
    assert both - alone == pytest.approx(resident_bytes(os.getppid()), abs=5_000_000)
    assert resident_bytes(2**22 + 1) == 0


def test_time_for_which_the_process_was_stopped_does_not_count() -> None:
    times = iter([1000.0, 1001.0, 1002.5, 4000.0, 4001.0])
    clock = RunningClock(lambda: next(times))
    assert [clock(), clock(), clock(), clock()] == [1.0, 2.5, 4.5, 5.5]


def test_a_batch_shows_that_a_query_runs_where_spark_can_t_be_read(collector: FactCollector, clock: Clock) -> None:
    assert tell(collector, clock, TAKEN).is_active is None
    facts = tell(collector, clock, STARTED)
    assert (facts.is_active, facts.active_since) == (True, 20)


def test_after_a_drain_the_query_has_its_time_to_start(collector: FactCollector, clock: Clock) -> None:
    assert tell(collector, clock, TAKEN, DrainStarted(group=GROUP)).is_draining
    facts = tell(collector, clock, DrainEnded(group=GROUP))
    assert (facts.is_draining, facts.claimed) == (False, 30)
