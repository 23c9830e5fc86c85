"""A process that is started again whenever it has ended, as a process manager would; a relay, a member of a fleet.

Such a process prints its events as `offsetstore.testing.job_process` reads them: ``begun`` when it is at work, and
``failed`` with the class of the error that ends it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import RLock
from typing import Final, Self

from offsetstore.errors import OffsetStoreError, exit_code
from offsetstore.protocol.events import Event
from offsetstore.testing.job_process import JobProcess, print_event
from tests.support.background import repeating
from tests.support.waiting import wait_until

_ROOT: Final = Path(__file__).parents[4]
_PAUSE: Final = 0.05
_BACKOFF: Final = 0.3
"""Seconds from an end that nobody wanted to the next start."""


class Begun:
    """In such a process: an observer that prints ``begun`` at the first event of a kind."""

    def __init__(self, kind: type[Event]) -> None:
        self._waits_for: type[Event] | None = kind

    def on(self, event: Event) -> None:
        if self._waits_for is not None and isinstance(event, self._waits_for):
            self._waits_for = None
            print_event("begun")


@contextmanager
def telling() -> Generator[None]:
    """In such a process: it ends with an error of ours as a command does, once that is printed."""
    try:
        yield
    except OffsetStoreError as error:
        print_event("failed", class_name=type(error).__name__, text=str(error))
        sys.exit(exit_code(error))


class Kept:
    """A context manager, which kills what still runs.

    ``ends`` are the classes of the errors that have ended a process, in order; what has no class, in words.

    :param arguments: returns Python's, for each start.
    :param log: what all of its processes print.
    """

    def __init__(self, arguments: Callable[[], Sequence[str]], log: Path) -> None:
        self.ends: list[str] = []
        self.processes: list[JobProcess] = []
        self.delay = 0.0
        """Seconds from the next end to the start."""
        self._arguments, self._log = arguments, log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._is_kept = True
        self._stopped: set[int] = set()
        self._noted: set[int] = set()
        self._guard = RLock()
        self._closing = ExitStack()

    @property
    def process(self) -> JobProcess:
        return self.processes[-1]

    @property
    def runs(self) -> bool:
        return self.process.exit_status is None

    def begin(self, *, failpoint: str | None = None) -> JobProcess:
        """Start one, which is kept from now on; a failpoint is for this process alone."""
        with self._guard:
            assert not self.processes or not self.runs, "it runs already"
            self._is_kept = True
            if self.processes:
                self._note(self.process)
            given = {"PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"}
            given |= {} if failpoint is None else {"OFFSETSTORE_FAILPOINT": failpoint}
            self.processes.append(JobProcess(self._arguments(), self._log, environment=given, cwd=_ROOT))
            return self.process

    def kill(self) -> int:
        with self._guard:
            if self.runs:
                self.process.kill()
            return self.process.pid

    def replace(self, *, failpoint: str) -> JobProcess:
        with self._guard:
            self.kill()
            wait_until(lambda: not self.runs)
            return self.begin(failpoint=failpoint)

    def let_go(self) -> None:
        with self._guard:
            self._is_kept = False

    def stop(self, *, again: bool = False, timeout: float = 60) -> None:
        """End it in order, with SIGTERM.

        :param again: whether another one is started.
        """
        with self._guard:
            self._is_kept = again
            process = self.process
            self._stopped.add(process.pid)
            if process.exit_status is None:
                os.kill(process.pid, signal.SIGTERM)
        wait_until(lambda: process.exit_status is not None, timeout=timeout)

    def wait_until_begun(self, timeout: float = 120) -> JobProcess:
        """Wait until a process is at work, whichever it is."""

        def begun() -> list[JobProcess]:
            one = self.process
            is_begun = one.exit_status is None and any(event.kind == "begun" for event in one.events)
            return [one] if is_begun else []

        return wait_until(begun, timeout=timeout)[0]

    def __enter__(self) -> Self:
        self._closing.enter_context(repeating(self._look, every=_PAUSE))
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        try:
            self._closing.close()
        finally:
            for one in self.processes:
                one.end()
                self._note(one)

    def _look(self) -> None:
        """Start the next one where one has ended."""
        with self._guard:
            if not self.processes or self.runs:
                return
            process, was_wanted = self.process, self._note(self.process)
            pause, self.delay = self.delay, 0.0
        if self._is_kept:
            time.sleep(pause or (0.0 if was_wanted else _BACKOFF))
            with self._guard:
                if self._is_kept and self.process is process:
                    self.begin()

    def _note(self, process: JobProcess) -> bool:
        """Keep how one has ended; return whether we have ended it."""
        if process.pid in self._noted:
            return True
        self._noted.add(process.pid)
        process.finish_reading()
        failed = [event.what for event in process.events if event.kind == "failed"]
        if failed:
            self.ends.append(f"{failed[0]['class_name']}: {failed[0]['text']}")
            return False
        if process.exit_status == -signal.SIGKILL or (process.exit_status == 0 and process.pid in self._stopped):
            return True
        self.ends.append(f"exit status {process.exit_status}: {process.end_of_log[-1500:]}")
        return False


class Several:
    """Some processes that are kept alive; a context manager."""

    def __init__(self, arguments: Callable[[], Sequence[str]], directory: Path, name: str) -> None:
        self._arguments, self._directory, self._name = arguments, directory, name
        self._closing = ExitStack()
        self._all: list[Kept] = []

    def another(self) -> Kept:
        """Have one more place, which nothing is in yet."""
        made = Kept(self._arguments, self._directory / f"{self._name}-{len(self._all)}.log")
        self._all.append(self._closing.enter_context(made))
        return made

    @property
    def processes(self) -> list[JobProcess]:
        return [process for one in self._all for process in one.processes]

    def unexpected(self, allowed: Collection[str]) -> list[str]:
        """The ends that these errors, and what we have done, do not explain."""
        return [end for one in self._all for end in one.ends if end.partition(":")[0] not in allowed]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()
