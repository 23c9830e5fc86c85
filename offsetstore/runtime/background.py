"""Work in a background thread, repeated at intervals or done once; and a process's main work."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, TypeVar

from offsetstore.runtime.functions import call, without_frames
from offsetstore.runtime.process import is_own

_T = TypeVar("_T")
_SELDOM: Final = 100_000  # new objects between two garbage collections


class Background:
    """Calls ``turn`` in a daemon thread every ``interval()`` seconds, until it returns ``False`` or `stop` is called.

    It begins with `start`, since the first turn may need the object that it belongs to, with all its attributes.

    :param name: the thread's name.
    :param turn: returns whether there is more to do. An exception ends the thread.
    :param at_end: called at the end, in the same thread.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], bool],
        interval: Callable[[], float],
        *,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._turn = turn
        self._interval = interval
        self._at_end = at_end
        self._pid = os.getpid()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin, with the first wait."""
        self._thread.start()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def stop(self, timeout: float | None = None) -> bool:
        """Tell the thread to end, wait at most ``timeout`` seconds (``None``: no limit), and return whether it did.

        If the thread itself calls this, it does not wait.
        """
        # A forked child does not have the thread.
        if not is_own(self._pid):
            return True
        self._stopping.set()
        # A thread that has not begun can't be joined; it ends at its first wait.
        if not self.is_current and self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval()) and call(self._turn):
            pass
        self._at_end()


def meanwhile(name: str, work: Callable[[], _T]) -> Future[_T]:
    """Call ``work`` in a daemon thread, which the process's exit does not wait for.

    If no thread can be started, the future has that error.
    """
    future: Future[_T] = Future()
    try:
        threading.Thread(target=_answer, args=(future, work), name=name, daemon=True).start()
    except RuntimeError as error:
        # There can be no more threads. The work is not done in this one, whose caller must not wait for it.
        future.set_exception(without_frames(error))
    return future


def _answer(future: Future[_T], work: Callable[[], _T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
        future.set_exception(error)
    finally:
        # The error's frames lead to this one, which must not lead back to the error (decision 0100).
        del future, work


@contextmanager
def as_main_work() -> Generator[None]:
    """Collect garbage seldom, for work that makes many objects that stay for a while; in a main thread only."""
    # Python goes through such objects again and again while they wait: after each thousand new ones, with all that the
    # modules have. That took half of the time of polling records, and a page of ten thousand partitions waited 70 ms
    # (decisions 0091 and 0046).
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    often = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*often)
        gc.unfreeze()
