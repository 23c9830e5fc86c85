"""Run a job to its end, kill it on the way as planned, start it again, and keep the evidence."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeAlias

from offsetstore.demo.job_settings import DemoFailed, JobSettings
from offsetstore.demo.kills import TARGETS, WORDS, JobName, Kill, Killed, Progress, Target, plan
from offsetstore.demo.tables import OURS, THEIRS, Look, Tables, Watch
from offsetstore.local.servers import end_process
from offsetstore.testing.job_process import JobProcess

RUN_SECONDS: Final = 240.0
_MOST_RUNS: Final = 12
NEAR_SECONDS: Final = 0.005
FAR_SECONDS: Final = 0.2
_LOOK_SECONDS: Final = 0.05
_JVM_SECONDS: Final = 15.0
_END_SECONDS: Final = 10.0
_TERM_SECONDS: Final = 30.0

Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One of the two, and where it writes."""

    name: JobName
    module: str
    tables: Tables


JOBS: Final = (
    Job("offsetstore", "offsetstore.demo.job", OURS),
    Job("at_least_once", "offsetstore.demo.at_least_once", THEIRS),
)


@dataclass(frozen=True, slots=True)
class JobRun:
    """What happened from the job's first start to its end. ``batches``: how many were begun, by all its runs."""

    job: JobName
    seconds: float
    runs: int
    batches: int
    kills: list[Killed]
    looks: list[Look]


@dataclass(slots=True)
class Supervisor:
    """Runs and kills one job.

    :param logs: a directory for the output of its runs.
    :param show: gets the number of flights that have landed, and a few words on how it goes.
    :param say: gets a sentence about each kill.
    :param points: where it is killed, if not at the job's own points.
    """

    job: Job
    settings: JobSettings
    seed: int
    logs: Path
    show: Callable[[int, str], None]
    say: Say
    points: Sequence[str] | None = None
    targets: Sequence[Target] = TARGETS
    _left: list[Kill] = field(default_factory=list["Kill"], init=False)
    _kills: list[Killed] = field(default_factory=list["Killed"], init=False)
    _runs: int = field(default=0, init=False)
    _progress: list[Progress] = field(default_factory=list[Progress], init=False)

    def run(self) -> JobRun:
        """Run the job to its end.

        :raises DemoFailed: it ends by itself before that, or hangs.
        """
        self._left = plan(self.job.name, self.seed, points=self.points, targets=self.targets)
        with Watch(self.settings.url, self.job.tables, self._seen) as watch:
            while self._run_once(watch):
                if self._runs == _MOST_RUNS:
                    raise DemoFailed(
                        f"{self.job.name} is not done after {_MOST_RUNS} runs", next_step=f"See {self.logs}."
                    )
            seconds = watch.seconds
        return JobRun(self.job.name, seconds, self._runs, self._batches, self._kills, watch.looks)

    @property
    def note(self) -> str:
        """A few words on how it goes."""
        return f"{len(self._kills)} kills, {self._batches} batches"

    @property
    def _batches(self) -> int:
        return sum(progress.begun for progress in self._progress)

    def _run_once(self, watch: Watch) -> bool:
        """Start the job; return whether it was killed, and has to be started again."""
        kill = self._left[0] if self._left else None
        progress = Progress()
        self._progress.append(progress)
        log = self._next_log()
        number = self._runs
        environment = self.settings.environment() | (kill.environment() if kill else {})
        deadline = time.monotonic() + RUN_SECONDS
        with JobProcess(["-m", self.job.module], log, environment=environment) as process:
            while process.exit_status is None:
                near = kill is not None and progress.is_near(kill)
                process.wait_for_more(progress.events, NEAR_SECONDS if near else FAR_SECONDS)
                _follow(process, progress)
                if kill is not None and progress.is_time(kill, watch.jdbc_writes):
                    self._kill_job(kill, process, progress, watch)
                    return True
                if time.monotonic() > deadline:
                    raise DemoFailed(
                        f"run {number} of {self.job.name} is not done after {RUN_SECONDS:.0f} s",
                        found=process.end_of_log,
                        next_step=f"See {log}.",
                    )
            process.finish_reading()
            _follow(process, progress)
        if process.exit_status or kill is not None:
            raise DemoFailed(
                f"run {number} of {self.job.name} ended by itself",
                found=f"exit status {process.exit_status}\n{process.end_of_log}",
                expected=f"it runs until it is killed {WORDS[kill.point]}" if kill else "exit status 0",
                next_step=f"See {log}.",
            )
        return False

    def _kill_job(self, kill: Kill, process: JobProcess, progress: Progress, watch: Watch) -> None:
        at = watch.seconds
        exit_status = process.kill(group=kill.target == "process group")
        lingered, ended = _await_jvm(process)
        process.finish_reading()
        _follow(process, progress)  # what it printed just before the signal came
        self._record(
            kill, progress, watch, at=at, pid=process.pid, exit_status=exit_status, lingered=lingered, ended=ended
        )

    def _record(
        self,
        kill: Kill,
        progress: Progress,
        watch: Watch,
        *,
        at: float,
        pid: int,
        exit_status: int,
        lingered: float = 0.0,
        ended: bool = False,
    ) -> None:
        """Keep the evidence of a kill, and plan it again if it fell between two batches."""
        assert progress.last is not None
        killed = Killed(
            number=len(self._kills) + 1,
            job=kill.job,
            point=kill.point,
            target=kill.target,
            run=self._runs,
            batch=progress.last.what["batch"],
            range=progress.last.what["ranges"],
            at=at,
            landed=watch.look().landed,
            pid=pid,
            exit_status=exit_status,
            in_batch=progress.is_in_batch,
            jvm_lingered=lingered,
            jvm_ended_by_demo=ended,
        )
        self._kills.append(killed)
        if killed.in_batch:
            self._left.pop(0)
        else:  # the random time fell between two batches: once more, soon
            self._left[0] = replace(kill, nth=2)
        self.say(
            f"SIGKILL {killed.number} {WORDS[kill.point]} ({kill.target}, pid {killed.pid}): "
            f"batch {killed.batch}, {killed.records:,} records; {killed.landed:,} flights have landed"
        )

    def _next_log(self) -> Path:
        self._runs += 1
        return self.logs / f"{self.job.name}-{self._runs}.log"

    def _seen(self, look: Look) -> None:
        self.show(look.passed, self.note)


def command(*arguments: str) -> list[str]:
    """Return the arguments with which Python runs the command line."""
    return ["-c", "from offsetstore.cli.main import main; main()", *arguments]


def end_well(process: JobProcess) -> None:
    """Have it end by SIGTERM.

    :raises DemoFailed: it does not, or has an error.
    """
    os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + _TERM_SECONDS
    while process.exit_status is None and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    if process.exit_status != 0:
        raise DemoFailed(
            "a process has not ended well after SIGTERM",
            found=f"exit status {process.exit_status}\n{process.end_of_log}",
            expected=f"exit status 0 within {_TERM_SECONDS:.0f} s",
        )
    process.finish_reading()


def _follow(process: JobProcess, progress: Progress) -> None:
    for event in process.events[progress.events :]:
        progress.take(event)


def _await_jvm(process: JobProcess) -> tuple[float, bool]:
    """Wait until Spark's Java process has ended too, as it does when Python is gone; end it if it does not.

    :return: seconds that it took, and whether it had to be ended.
    """
    begin = time.monotonic()
    while process.jvm_runs:
        if time.monotonic() - begin > _JVM_SECONDS:
            end_process(process.jvm, seconds=_END_SECONDS)
            return time.monotonic() - begin, True
        time.sleep(_LOOK_SECONDS)
    return time.monotonic() - begin, False
