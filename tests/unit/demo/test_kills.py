from __future__ import annotations

import pytest

from offsetstore.demo.kills import POINTS, JobName, Kill, plan
from offsetstore.protocol.failpoints import VARIABLE

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


def test_a_batch_reaches_in_copy_twice_and_the_flights_are_first() -> None:
    third = Kill("offsetstore", "in_copy", "process group", 3, 0.5)
    assert third.environment() == {VARIABLE: "in_copy:5:hang"}


def test_a_random_time_needs_nothing_in_the_job() -> None:
    assert Kill("offsetstore", "random_time", "process group", 3, 0.5).environment() == {}
