from __future__ import annotations

import time
from collections import Counter

import pytest

from offsetstore.demo.job import Pause
from offsetstore.demo.job_settings import PAUSE
from offsetstore.demo.kills import (
    CONSUMER_POINTS,
    CONSUMER_TARGETS,
    POINTS,
    POISON_POINTS,
    JobName,
    Kill,
    Progress,
    plan,
)
from offsetstore.protocol import failpoints
from offsetstore.protocol.events import BatchStarted
from offsetstore.testing.job_process import Event

JOBS = list(POINTS)


@pytest.mark.parametrize("job", JOBS)
def test_a_seed_gives_the_same_plan_each_time(job: JobName) -> None:
    assert plan(job, 7) == plan(job, 7)
    assert len({tuple(plan(job, seed)) for seed in range(20)}) > 1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("job", JOBS)
def test_each_point_is_killed_once_and_both_targets_are_met(job: JobName, seed: int) -> None:
    kills = plan(job, seed)
    assert sorted(kill.point for kill in kills) == sorted(POINTS[job])
    assert sorted(kill.target for kill in kills) == ["Python alone", "Python alone", "process group", "process group"]


@pytest.mark.parametrize("seed", range(20))
def test_both_jobs_are_killed_alike(seed: int) -> None:
    ours, theirs = (plan(job, seed) for job in JOBS)
    assert [(kill.target, kill.nth, kill.fraction) for kill in ours] == [
        (kill.target, kill.nth, kill.fraction) for kill in theirs
    ]


@pytest.mark.parametrize("seed", range(20))
def test_with_broken_flights_two_more_points_are_killed(seed: int) -> None:
    kills = plan("offsetstore", seed, points=POISON_POINTS)
    assert sorted(kill.point for kill in kills) == sorted(POISON_POINTS)
    assert sorted(kill.target for kill in kills) == ["Python alone"] * 3 + ["process group"] * 3


@pytest.mark.parametrize("seed", range(20))
def test_of_the_consumer_one_process_or_all_are_killed(seed: int) -> None:
    kills = plan("offsetstore", seed, points=CONSUMER_POINTS, targets=CONSUMER_TARGETS)
    assert sorted(kill.point for kill in kills) == sorted(CONSUMER_POINTS)
    assert sorted(kill.target for kill in kills) == ["all processes"] * 2 + ["one process"] * 2


@pytest.mark.parametrize("point", [point for point in POISON_POINTS if point != "random_time"])
def test_a_point_is_armed_when_its_batch_begins(point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, "")  # the job arms it: undone with this
    monkeypatch.setattr(failpoints, "_reached", Counter[str]())  # by earlier tests of this process
    for name, value in Kill("offsetstore", point, "process group", 3, 0.5).environment().items():
        monkeypatch.setenv(name, value)
    job = Pause()

    for number in range(3):
        assert not failpoints.armed(point)
        job.on(BatchStarted(group="carrier-delays", batch=number, ranges={}))
    assert failpoints.armed(point)


def test_a_run_that_is_not_to_be_killed_has_no_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    monkeypatch.delenv(PAUSE, raising=False)
    Pause().on(BatchStarted(group="carrier-delays", batch=0, ranges={}))
    assert failpoints.setting() is None


def test_a_random_time_needs_nothing_in_the_job() -> None:
    assert Kill("offsetstore", "random_time", "process group", 3, 0.5).environment() == {}


def never() -> bool:
    return False


def at_random(nth: int) -> Kill:
    return Kill("offsetstore", "random_time", "process group", nth, 0.5)


def event(kind: str, at: float = 0.0, point: str = "") -> Event:
    return Event(kind, at, {"batch": 0, "ranges": {}, "point": point})


def progress(*events: Event) -> Progress:
    made = Progress()
    for one in events:
        made.take(one)
    return made


def test_a_random_time_is_half_of_the_batch_before_where_the_fraction_says_half() -> None:
    now = time.monotonic()
    first = [event("begun", now - 20), event("done", now - 10)]
    assert progress(*first, event("begun", now - 6)).is_time(at_random(2), never)
    assert not progress(*first, event("begun", now - 1)).is_time(at_random(2), never)


def test_nothing_is_killed_between_two_batches() -> None:
    done = progress(event("begun"), event("done"), event("begun"), event("done"))
    assert not done.is_time(at_random(2), never)


def test_a_point_is_waited_for_until_the_job_says_that_it_is_there() -> None:
    kill = Kill("offsetstore", "before_commit", "Python alone", 1, 0.5)
    assert not progress(event("begun")).is_time(kill, never)
    assert progress(event("begun"), event("reached", point="before_commit")).is_time(kill, never)


def test_the_jdbc_write_is_killed_while_the_database_sees_it() -> None:
    kill = Kill("at_least_once", "in_jdbc_write", "Python alone", 1, 0.5)
    assert not progress(event("begun")).is_time(kill, never)
    assert progress(event("begun")).is_time(kill, lambda: True)


def test_a_kill_at_a_point_hits_a_batch_though_its_results_may_be_committed() -> None:
    committed = progress(event("begun"), event("done"))
    assert not committed.is_in_batch
    committed.take(event("reached", point="after_sink"))
    assert committed.is_in_batch
