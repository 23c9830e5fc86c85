"""Work in a thread of its own, and what becomes of it where there can be no more threads."""

from __future__ import annotations

import gc
import sys
import threading
from typing import NoReturn

import pytest

from offsetstore.errors import FunctionEnded
from offsetstore.kafka.client import let_go
from offsetstore.runtime.background import Background, as_main_work, meanwhile
from tests.support.background import in_background
from tests.support.waiting import wait_until


def _fail(_: threading.Thread) -> NoReturn:
    raise RuntimeError("can't start new thread")


def test_the_work_is_done_in_another_thread() -> None:
    assert meanwhile("test", threading.current_thread).result(10) is not threading.current_thread()


def test_without_threads_the_work_is_left_undone_instead_of_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hang with the database or with Kafka, and the caller has a limit."""
    monkeypatch.setattr(threading.Thread, "start", _fail)
    done: list[int] = []

    with pytest.raises(RuntimeError, match="can't start new thread"):
        meanwhile("test", lambda: done.append(1)).result(0)
    assert done == []


@pytest.mark.behaviour("CONS-15")
def test_a_thread_that_is_ended_by_what_is_no_error_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[threading.ExceptHookArgs]()
    monkeypatch.setattr(threading, "excepthook", told.append)
    turns = Background("test", lambda: sys.exit(3), lambda: 0.0)
    turns.start()
    wait_until(lambda: not turns.is_alive)
    assert [one.exc_type for one in told] == [FunctionEnded]


def test_without_threads_a_consumer_is_let_go_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", _fail)
    holder = [object()]
    let_go(holder)
    assert holder == []


def test_a_main_work_collects_garbage_seldom_and_a_thread_s_as_ever() -> None:
    def threshold() -> int:
        with as_main_work():
            return gc.get_threshold()[0]

    def fail() -> NoReturn:
        with as_main_work():
            assert gc.get_threshold()[0] > 100 * before[0]
            assert gc.get_freeze_count() > 0
            raise ValueError("it")

    before = gc.get_threshold()
    with pytest.raises(ValueError, match="it"):
        fail()
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
    assert in_background(threshold).result(timeout=10) == before[0]
