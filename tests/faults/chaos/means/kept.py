"""A process that is started again whenever it has ended, as a process manager would: a relay, a member of a fleet.

Such a process prints its events as `offsetstore.testing.job_process` reads them: ``begun`` when it is at work, and
``failed`` with the class of the error that ends it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from threading import Event as Flag
from threading import RLock, Thread
from types import TracebackType
from typing import Final, Self

from offsetstore.testing.job_process import JobProcess
from tests.support.waiting import PATIENCE, wait_until

_ROOT: Final = Path(__file__).parents[4]
_PAUSE: Final = 0.05
_BACKOFF: Final = 0.3
"""Seconds from an end that nobody wanted to the next start."""


class Kept:
    """A context manager, which kills what still runs.

    :param arguments: returns Python's, for each start.
    :param log: what all of its processes print.
    """

    def __init__(self, arguments: Callable[[], Sequence[str]], log: Path) -> None:
        self.ends: list[str] = []
        """The classes of the errors that have ended a process, in order; what has no class, in words."""
        self.delay = 0.0
        """Seconds from the next end to the start."""
        self._arguments, self._log = arguments, log
        log.parent.mkdir(parents=True, exist_ok=True)
        self._processes: list[JobProcess] = []
        self._leaving = Flag()
        self._is_kept = self._noted = True
        self._stopped: set[int] = set()
        self._guard = RLock()
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._watch, daemon=True)

    @property
    def process(self) -> JobProcess:
        """The one that runs, or ran last."""
        if self._failure is not None:
            raise self._failure
        return self._processes[-1]

    @property
    def processes(self) -> Sequence[JobProcess]:
        """All there were, in order."""
        return self._processes

    @property
    def starts(self) -> int:
        """How many processes there were."""
        return len(self._processes)

    @property
    def runs(self) -> bool:
        """Whether a process is alive."""
        return self.process.exit_status is None

    def begin(self, *, failpoint: str | None = None) -> JobProcess:
        """Start one, which is kept from now on; a failpoint is for this process alone."""
        with self._guard:
            assert not self._processes or not self.runs, "it runs already"
            self._is_kept = True
            return self._start(failpoint)

    def kill(self) -> int:
        """Send SIGKILL; return the process that got it."""
        with self._guard:
            process = self.process
            if process.exit_status is None:
                process.kill()
            return process.pid

    def replace(self, *, failpoint: str) -> JobProcess:
        """Kill it, and start another one that breaks at this point."""
        with self._guard:
            self.kill()
            return self._start(failpoint)

    def freeze(self) -> int:
        """Send SIGSTOP; return the process that got it."""
        pid = self.process.pid
        os.kill(pid, signal.SIGSTOP)
        return pid

    def let_go(self) -> None:
        """Do not start it again from now on."""
        with self._guard:
            self._is_kept = False

    def stop(self, *, again: bool = False, timeout: float = 60) -> None:
        """End it in order, with SIGTERM.

        :param again: whether another one is started.
        :raises AssertionError: it does not end well.
        """
        with self._guard:
            self._is_kept = again
            process = self.process
            self._stopped.add(process.pid)
            if process.exit_status is None:
                os.kill(process.pid, signal.SIGTERM)
        wait_until(lambda: process.exit_status is not None, timeout=timeout)

    def wait_until_begun(self, timeout: float = 60) -> JobProcess:
        """Wait until a process is at work, whichever it is."""

        def is_begun() -> JobProcess | None:
            process = self.process
            begun = any(event.kind == "begun" for event in process.events)
            return process if begun and process.exit_status is None else None

        found = wait_until(is_begun, timeout=timeout)
        assert found is not None
        return found

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._thread.join(60 * PATIENCE)
        with self._guard:
            for one in self._processes:
                one.end()
            if self._processes:
                self._note()
        if kind is None and self._failure is not None:
            raise self._failure

    def unexpected(self, allowed: Collection[str]) -> list[str]:
        """The ends that these errors, and what we have done, do not explain."""
        return [end for end in self.ends if end.partition(":")[0] not in allowed]

    def _start(self, failpoint: str | None) -> JobProcess:
        if self._processes:
            self._note()
        given = {"PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"}
        given |= {} if failpoint is None else {"OFFSETSTORE_FAILPOINT": failpoint}
        self._processes.append(JobProcess(self._arguments(), self._log, environment=given, cwd=_ROOT))
        self._noted = False
        return self._processes[-1]

    def _watch(self) -> None:
        try:
            while not self._leaving.wait(_PAUSE):
                with self._guard:
                    if not self._processes or self._processes[-1].exit_status is None:
                        continue
                    was_wanted = self._note()
                    pause, self.delay = self.delay, 0.0
                if not self._is_kept:
                    continue
                self._leaving.wait(pause or (0.0 if was_wanted else _BACKOFF))
                with self._guard:
                    if self._is_kept and not self._leaving.is_set() and not self.runs:
                        self._start(None)
        except BaseException as error:  # noqa: BLE001 - it is raised where the block is left
            self._failure = error

    def _note(self) -> bool:
        """Keep how the last one has ended; return whether we have ended it."""
        process = self._processes[-1]
        if self._noted or process.exit_status is None:
            return True
        self._noted = True
        process.finish_reading()
        failed = [event.what for event in process.events if event.kind == "failed"]
        if failed:
            self.ends.append(f"{failed[0]['class_name']}: {failed[0]['text']}")
            return False
        if process.exit_status == -signal.SIGKILL or (process.exit_status == 0 and process.pid in self._stopped):
            return True
        self.ends.append(f"exit status {process.exit_status}: {process.end_of_log[-1500:]}")
        return False
