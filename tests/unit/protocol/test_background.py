"""Work in a thread of its own, and what becomes of it where there can be no more threads."""

from __future__ import annotations

import threading
from typing import NoReturn

import pytest

from offsetstore.kafka.client import let_go
from offsetstore.protocol.background import meanwhile


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


def test_without_threads_a_consumer_is_let_go_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", _fail)
    holder = [object()]
    let_go(holder)
    assert holder == []
