"""When, where and what the demo kills."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from offsetstore.demo.kills import JOBS, POISON_POINTS, TARGETS, Kill, Progress, plan
from offsetstore.testing.job_process import OutputLine

OURS, THEIRS = JOBS


@pytest.mark.parametrize("points", [OURS.points, THEIRS.points, (*OURS.points, *POISON_POINTS)])
def test_a_seed_gives_a_plan_that_kills_at_each_point_once_and_each_target_as_often(points: tuple[str, ...]) -> None:
    plans = [plan(seed, points) for seed in range(20)]
    assert plans[7] == plan(7, points)
    assert len({tuple(one) for one in plans}) > 1
    for kills in plans:
        assert sorted(kill.point for kill in kills) == sorted(points)
        assert Counter(kill.target for kill in kills) == dict.fromkeys(TARGETS, len(points) // 2)


def test_both_jobs_are_killed_alike() -> None:
    ours, theirs = (
        [(kill.target, kill.nth, kill.fraction) for seed in range(20) for kill in plan(seed, job.points)]
        for job in JOBS
    )
    assert ours == theirs


def never() -> bool:
    return False


def at(point: str, nth: int = 1) -> Kill:
    return Kill(point, "process group", nth, 0.5)


def progress(*kinds: str, ago: tuple[float, ...] = (), point: str = "") -> Progress:
    """Of a run with these events, so many seconds ago."""
    made, now = Progress(), time.monotonic()
    for number, kind in enumerate(kinds):
        what: dict[str, Any] = {"batch": 0, "ranges": {}, "point": point}
        made.take(OutputLine(kind, now - ago[number] if ago else 0.0, what))
    return made


def test_a_random_time_is_half_of_the_batch_before_where_the_fraction_says_half() -> None:
    for begun, is_time in ((6, True), (1, False)):
        made = progress("begun", "done", "begun", ago=(20, 10, begun))
        assert made.is_time(at("random_time", 2), never) is is_time
    assert not progress("begun", "done", "begun", "done").is_time(at("random_time", 2), never), "between two batches"


def test_a_point_is_waited_for_until_the_job_says_that_it_is_there_or_the_database_sees_it() -> None:
    assert not progress("begun").is_time(at("before_commit"), never)
    assert progress("begun", "reached", point="before_commit").is_time(at("before_commit"), never)
    jdbc = at("in_jdbc_write")
    assert not progress("begun").is_time(jdbc, never)
    assert progress("begun").is_time(jdbc, lambda: True)
    # A kill at a point hits a batch though its results may be committed.
    assert not progress("begun", "done").is_in_batch
    assert progress("begun", "done", "reached", point="after_sink").is_in_batch
