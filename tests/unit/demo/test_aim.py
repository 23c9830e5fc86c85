from __future__ import annotations

import time

from offsetstore.demo.kills import Kill, Progress
from offsetstore.testing.job_process import Event


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
