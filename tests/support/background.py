"""A function in a thread of its own: once, with its result or error asked for later, or again and again."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from socketserver import BaseServer
from threading import Event, Thread
from typing import TypeVar

_T = TypeVar("_T")


def in_background(function: Callable[[], _T]) -> Future[_T]:
    """Start it; a daemon thread, so that one that hangs fails its test and does not hold up the run."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            future.set_exception(error)

    Thread(target=run, daemon=True).start()
    return future


@contextmanager
def repeating(work: Callable[[], object], *, every: float) -> Generator[None]:
    """Do it every so many seconds in the background, until the block is left."""
    leaving = Event()
    failure: list[BaseException] = []

    def repeat() -> None:
        try:
            while not leaving.wait(every):
                work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the block is left
            failure.append(error)

    thread = Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        leaving.set()
        thread.join(120)
    if failure:
        raise failure[0]


@contextmanager
def serving(server: BaseServer) -> Generator[None]:
    """Answer requests until the block is left."""
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
