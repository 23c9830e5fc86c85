from __future__ import annotations

import time

from offsetstore.demo.aim import Progress
from offsetstore.demo.events import Event
from offsetstore.demo.kills import Kill


def never() -> bool:
    return False


def at_random(nth: int) -> Kill:
    return Kill("offsetstore", "random_time", "process group", nth, 0.5)


def progress(*events: Event) -> Progress:
    made = Progress()
    for event in events:
        made.take(event)
    return made


def test_a_random_time_is_half_of_the_batch_before_where_the_fraction_says_half() -> None:
    now = time.monotonic()
    first = [Event("begun", 0, at=now - 20), Event("done", 0, at=now - 10)]
    assert progress(*first, Event("begun", 1, at=now - 6)).is_time(at_random(2), never)
    assert not progress(*first, Event("begun", 1, at=now - 1)).is_time(at_random(2), never)


def test_nothing_is_killed_between_two_batches() -> None:
    done = progress(Event("begun", 0), Event("done", 0), Event("begun", 1), Event("done", 1))
    assert not done.is_time(at_random(2), never)


def test_a_point_is_waited_for_until_the_job_says_that_it_is_there() -> None:
    kill = Kill("offsetstore", "before_commit", "Python alone", 1, 0.5)
    assert not progress(Event("begun", 0)).is_time(kill, never)
    assert progress(Event("begun", 0), Event("reached", point="before_commit")).is_time(kill, never)


def test_the_jdbc_write_is_killed_while_the_database_sees_it() -> None:
    kill = Kill("at_least_once", "in_jdbc_write", "Python alone", 1, 0.5)
    assert not progress(Event("begun", 0)).is_time(kill, never)
    assert progress(Event("begun", 0)).is_time(kill, lambda: True)
