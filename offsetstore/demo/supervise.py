"""Run a job to its end, kill it on the way as planned, start it again, and keep the evidence."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from offsetstore.demo.aim import Progress
from offsetstore.demo.failed import DemoFailed
from offsetstore.demo.kills import WORDS, Kill, Killed, plan
from offsetstore.demo.process import JobProcess
from offsetstore.demo.results import JobRun
from offsetstore.demo.tables import OURS, THEIRS, Tables
from offsetstore.demo.watch import Look, Watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from offsetstore.demo.kills import JobName
    from offsetstore.demo.settings import JobSettings

_RUN_SECONDS: Final = 240.0
_MOST_RUNS: Final = 12
_NEAR_SECONDS: Final = 0.005
_FAR_SECONDS: Final = 0.2


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


@dataclass(slots=True)
class Supervisor:
    """Runs and kills one job.

    :param logs: a directory for the output of its runs.
    :param show: gets the number of flights that have landed, and a few words on how it goes.
    :param say: gets a sentence about each kill.
    """

    job: Job
    settings: JobSettings
    seed: int
    logs: Path
    show: Callable[[int, str], None]
    say: Callable[[str], None]
    _left: list[Kill] = field(default_factory=list["Kill"], init=False)
    _kills: list[Killed] = field(default_factory=list["Killed"], init=False)
    _runs: int = field(default=0, init=False)
    _batches: int = field(default=0, init=False)

    def run(self) -> JobRun:
        """Run the job to its end.

        :raises DemoFailed: it ends by itself before that, or hangs.
        """
        self._left = plan(self.job.name, self.seed)
        with Watch(self.settings.url, self.job.tables, self._seen) as watch:
            while self._run_once(watch):
                if self._runs == _MOST_RUNS:
                    raise DemoFailed(
                        f"{self.job.name} is not done after {_MOST_RUNS} runs", next_step=f"See {self.logs}."
                    )
            seconds = watch.seconds
        return JobRun(self.job.name, seconds, self._runs, self._batches, self._kills, watch.looks)

    def _run_once(self, watch: Watch) -> bool:
        """Start the job; return whether it was killed, and has to be started again."""
        kill = self._left[0] if self._left else None
        self._runs += 1
        log = self.logs / f"{self.job.name}-{self._runs}.log"
        environment = self.settings.environment() | (kill.environment() if kill else {})
        progress = Progress()
        deadline = time.monotonic() + _RUN_SECONDS
        with JobProcess(self.job.module, environment, log) as process:
            while process.exit_status is None:
                near = kill is not None and progress.is_near(kill)
                if event := process.next_event(_NEAR_SECONDS if near else _FAR_SECONDS):
                    progress.take(event)
                    self._batches += event.kind == "begun"
                if kill is not None and progress.is_time(kill, watch.jdbc_writes):
                    self._kill(kill, process, progress, watch)
                    return True
                if time.monotonic() > deadline:
                    raise DemoFailed(
                        f"run {self._runs} of {self.job.name} is not done after {_RUN_SECONDS:.0f} s",
                        found=process.last_words(),
                        next_step=f"See {log}.",
                    )
            for event in process.remaining_events():
                self._batches += event.kind == "begun"
        if process.exit_status or kill is not None:
            raise DemoFailed(
                f"run {self._runs} of {self.job.name} ended by itself",
                found=f"exit status {process.exit_status}\n{process.last_words()}",
                expected=f"it runs until it is killed {WORDS[kill.point]}" if kill else "exit status 0",
                next_step=f"See {log}.",
            )
        return False

    def _kill(self, kill: Kill, process: JobProcess, progress: Progress, watch: Watch) -> None:
        at = watch.seconds
        exit_status = process.kill(kill.target)
        lingered, ended = process.await_jvm()
        for event in process.remaining_events():  # told just before the signal came
            progress.take(event)
            self._batches += event.kind == "begun"
        assert progress.last is not None
        killed = Killed(
            number=len(self._kills) + 1,
            job=kill.job,
            point=kill.point,
            target=kill.target,
            run=self._runs,
            batch=progress.last.batch,
            range=progress.last.ranges,
            at=at,
            landed=watch.look().landed,
            pid=process.pid,
            exit_status=exit_status,
            in_batch=progress.batch is not None,
            jvm_lingered=lingered,
            jvm_ended_by_demo=ended,
        )
        self._kills.append(killed)
        if killed.in_batch:
            self._left.pop(0)
        else:  # the random time fell between two batches: once more, soon
            self._left[0] = replace(kill, nth=2)
        records = sum(until - first for first, until in killed.range.values())
        self.say(
            f"SIGKILL {killed.number} {WORDS[kill.point]} ({kill.target}, pid {killed.pid}): "
            f"batch {killed.batch}, {records:,} records; {killed.landed:,} flights have landed"
        )

    def _seen(self, look: Look) -> None:
        restarts = max(self._runs - 1, 0)
        self.show(look.landed, f"{len(self._kills)} kills, {restarts} restarts, {self._batches} batches")
