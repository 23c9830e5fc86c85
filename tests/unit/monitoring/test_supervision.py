"""What health is judged by: the states of the jobs, looks at their queries, and the memory of their processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from threading import Event as Flag
from uuid import uuid4

import pytest

from offsetstore import Token
from offsetstore.monitoring.health import Limits
from offsetstore.monitoring.supervision import FactCollector, RunningClock
from offsetstore.protocol.events import ClaimEnded, ClaimTaken, Event, QueryStatus, SinkMade
from offsetstore.protocol.job_state import JobState
from offsetstore.store import heartbeat
from offsetstore.store.heartbeat import resident_bytes
from offsetstore.testing import InMemoryOffsetStore
from tests.support.clock import Clock
from tests.support.waiting import wait_until

pytestmark = pytest.mark.behaviour("OPS-4")

GROUP = "billing"
TOKEN = Token(7, uuid4())
TAKEN = ClaimTaken(group=GROUP, token=TOKEN, owner="host", starting=None)


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


def group_of(collector: FactCollector) -> JobState:
    [group] = collector.facts().groups
    return group


def tell(collector: FactCollector, clock: Clock, *events: Event) -> JobState:
    """Each ten seconds after the one before."""
    for event in events:
        clock.now += 10
        collector.on(event)
    return group_of(collector)


def looked_at(collector: FactCollector, clock: Clock, *statuses: QueryStatus | Exception) -> JobState:
    query = Query(*statuses)
    tell(collector, clock, TAKEN, SinkMade(group=GROUP, token=TOKEN, query=query))
    assert query.is_done.wait(20)
    query.goes_on.set()
    return group_of(collector)


def test_a_claim_is_lost_and_is_forgotten_when_it_is_closed(collector: FactCollector, clock: Clock) -> None:
    assert not collector.facts().has_claimed
    assert tell(collector, clock, TAKEN, ClaimEnded(outcome="fenced", group=GROUP, token=TOKEN)).is_lost
    collector.on(ClaimEnded(outcome="closed", group=GROUP, token=TOKEN))
    assert (collector.facts().groups, collector.facts().has_claimed) == ((), True)


RUNS = QueryStatus(is_active=True, trigger=5, interval=2.0, pid=os.getppid())


def test_java_that_raises_or_hangs_has_not_answered(collector: FactCollector, clock: Clock) -> None:
    query = Query(RUNS, ConnectionError("gone"))
    tell(collector, clock, TAKEN, SinkMade(group=GROUP, token=TOKEN, query=query))
    assert query.is_done.wait(20)  # and hangs there
    clock.now = 500
    assert group_of(collector).java_answered == 20
    query.goes_on.set()


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


def test_the_memory_is_pythons_and_javas(
    collector: FactCollector, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = collector.facts().rss
    assert alone is not None
    assert alone > 10_000_000
    assert resident_bytes(2**22 + 1) == 0
    sizes = {os.getpid(): 70, os.getppid(): 500}  # the real ones grow and shrink meanwhile
    monkeypatch.setattr("offsetstore.monitoring.supervision.resident_bytes", sizes.__getitem__)
    assert collector.facts().rss == 70
    looked_at(collector, clock, RUNS)
    assert collector.facts().rss == 570


def test_time_for_which_the_process_was_stopped_does_not_count() -> None:
    times = iter([1000.0, 1001.0, 1002.5, 4000.0, 4001.0])
    clock = RunningClock(lambda: next(times))
    assert [clock(), clock(), clock(), clock()] == [1.0, 2.5, 4.5, 5.5]
