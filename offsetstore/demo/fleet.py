"""The consumer's processes: one of them is killed as planned, or all, and started again."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from offsetstore.demo.consume import PROCESSES, pause_file, slow_file
from offsetstore.demo.job_settings import DemoFailed
from offsetstore.demo.kills import Kill, Progress
from offsetstore.demo.supervise import FAR_SECONDS, NEAR_SECONDS, RUN_SECONDS, Supervisor, command, end_well
from offsetstore.demo.tables import Watch
from offsetstore.testing.job_process import JobProcess

_CONSUME: Final = ("consume", "offsetstore.demo.consume:consumer", "--processes", str(PROCESSES), "--static")
_KILLED: Final = "has ended with SIGKILL"  # as `offsetstore consume` says
_HEARD_SECONDS: Final = 10.0


@dataclass(slots=True)
class FleetSupervisor(Supervisor):
    """Runs `offsetstore consume`, which replaces a process that is killed; if all are, and itself, it is run again.

    :param flights: how many records there are.
    """

    flights: int = field(kw_only=True)
    _members: dict[int, Progress] = field(default_factory=dict[int, Progress], init=False)
    _dead: set[int] = field(default_factory=set[int], init=False)
    _taken: int = field(default=0, init=False)
    _is_pausing: bool = field(default=False, init=False)

    def _run_once(self, watch: Watch) -> bool:
        log = self._next_log()
        deadline = time.monotonic() + RUN_SECONDS
        self._taken, self._is_pausing = 0, False
        slow = slow_file(self.settings)
        slow.touch()
        with JobProcess(command(*_CONSUME), log, environment=self.settings.environment()) as process:
            try:
                while not watch.looks or watch.looks[-1].offsets < self.flights:
                    if (kill := self._left[0] if self._left else None) is None:
                        slow.unlink(missing_ok=True)
                    process.wait_for_more(self._taken, NEAR_SECONDS if kill else FAR_SECONDS)
                    self._follow(process)
                    if kill and (pid := self._victim(kill, watch)):
                        self._kill(kill, pid, process, watch)
                        if kill.target == "all processes":
                            return True
                    if process.exit_status is not None or time.monotonic() > deadline:
                        raise DemoFailed(
                            f"the consumer has not landed all flights within {RUN_SECONDS:.0f} s",
                            found=f"exit status {process.exit_status}\n{process.end_of_log}",
                            next_step=f"See {log}.",
                        )
                end_well(process)
                self._follow(process)
                self._members.clear()
            finally:
                self._end()
        return False

    def _follow(self, process: JobProcess) -> None:
        for event in process.events[self._taken :]:
            self._taken += 1
            pid = event.what["pid"]
            if pid in self._dead:
                continue
            if pid not in self._members:
                self._members[pid] = Progress()
                self._progress.append(self._members[pid])
            self._members[pid].take(event)

    def _victim(self, kill: Kill, watch: Watch) -> int | None:
        """Return the process in which it is time. Before that, have one of them stop at the point."""
        newest = next(reversed(self._members.values()), None)
        is_well = len(self._members) == PROCESSES and newest is not None and newest.begun >= kill.nth
        if is_well and not kill.meets_it_running and not self._is_pausing:
            self._is_pausing = True
            file = pause_file(self.settings)
            (new := file.with_suffix(".new")).write_text(kill.point)
            new.rename(file)
        if not is_well and kill.meets_it_running:
            return None
        return next((pid for pid, one in self._members.items() if one.is_time(kill, watch.jdbc_writes)), None)

    def _kill(self, kill: Kill, pid: int, process: JobProcess, watch: Watch) -> None:
        at = watch.seconds
        if kill.target == "all processes":
            exit_status = process.kill()
            self._end()
            process.finish_reading()
        else:
            exit_status = _kill_one(pid, process)
        self._follow(process)  # what it printed just before the signal came
        self._record(kill, self._members.pop(pid), watch, at=at, pid=pid, exit_status=exit_status)
        self._dead.add(pid)
        self._is_pausing = False
        if kill.target == "all processes":
            self._members.clear()

    def _end(self) -> None:
        """Kill the processes, whose supervisor is gone: by themselves they would end a second or two later."""
        for pid in self._members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _kill_one(pid: int, process: JobProcess) -> int:
    """Kill it, and wait until the supervisor has seen its end; return its exit status.

    :raises DemoFailed: it has not.
    """
    before = process.log.read_text().count(_KILLED)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _HEARD_SECONDS
    while process.log.read_text().count(_KILLED) == before:
        if time.monotonic() > deadline:
            raise DemoFailed("a process of the consumer was killed, and still runs", found=process.end_of_log)
        time.sleep(NEAR_SECONDS)
    return -signal.SIGKILL
