"""Each job is run to its end, and killed on the way: as planned from a seed, and aimed by the events that it prints."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from offsetstore.demo.flights import DemoFailed, Ledger
from offsetstore.demo.job_settings import PAUSE, JobSettings
from offsetstore.demo.tables import OURS, THEIRS, Findings, JobTables, LandingWatch, Observation, verify
from offsetstore.testing.job_process import JobProcess, OutputLine

JobName: TypeAlias = Literal["offsetstore", "at_least_once"]
KillTarget: TypeAlias = Literal["process group", "Python alone"]

RANDOM: Final = "random_time"
JDBC_WRITE: Final = "in_jdbc_write"
WORDS: Final = {
    "in_copy": "in the middle of COPY",
    "before_commit": "before COMMIT",
    "after_sink": "after the sink, before Spark's commit log",
    "in_discovery": "while it looks for refused records",
    "letters_written": "after its dead letters are written",
    JDBC_WRITE: "while the JDBC write runs",
    "between_write_and_upsert": "between the write and the upsert",
    "after_function": "after the function, before Spark's commit log",
    RANDOM: "at a random time",
}
TARGETS: Final[tuple[KillTarget, ...]] = ("process group", "Python alone")
_BATCHES: Final = (3, 5)
_RUN_SECONDS: Final = 240.0
_WAIT_SECONDS: Final = 0.01
_LOOK_SECONDS: Final = 0.05
_JVM_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One of the two jobs.

    :param tables: where it writes.
    :param points: where it is killed.
    """

    name: JobName
    module: str
    tables: JobTables
    points: Sequence[str]

    @property
    def title(self) -> str:
        return self.name.replace("_", "-")


JOBS: Final = (
    DemoJob("offsetstore", "offsetstore.demo.job", OURS, ("in_copy", "before_commit", "after_sink", RANDOM)),
    DemoJob(
        "at_least_once",
        "offsetstore.demo.at_least_once",
        THEIRS,
        (JDBC_WRITE, "between_write_and_upsert", "after_function", RANDOM),
    ),
)
POISON_POINTS: Final = ("in_discovery", "letters_written")
"""Further points of our job if some flights are broken."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A planned SIGKILL: in which batch of its run (from 1), and for a random time how far into it (0 to 1)."""

    point: str
    target: KillTarget
    nth: int
    fraction: float

    @property
    def meets_it_running(self) -> bool:
        """Whether the job is killed while it runs, rather than at a stop."""
        return self.point in {RANDOM, JDBC_WRITE}


def plan(seed: int, points: Sequence[str]) -> list[Kill]:
    """Put the points in random order, and assign the targets to them, each to half of them."""
    dice = random.Random(seed)  # noqa: S311 - repeatable, not secret
    order = dice.sample(points, len(points))
    targets = dice.sample(TARGETS * (len(points) // 2), len(points))
    return [
        Kill(point, target, dice.randint(*_BATCHES), dice.uniform(0.1, 0.9))
        for point, target in zip(order, targets, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Killed:
    """The evidence of one SIGKILL.

    ``range``: each partition's first offset, and the one after its last. ``at`` counts seconds from the job's first
    start. ``exit_status`` is -9 if the process died of the signal.
    ``in_batch`` is whether Spark waited for the end of the batch. ``jvm_ended_by_demo``: Spark's Java process did not
    end by itself when Python was gone.
    """

    number: int
    job: JobName
    point: str
    target: KillTarget
    run: int
    batch: int
    range: Mapping[str, Sequence[int]]
    at: float
    landed: int
    pid: int
    exit_status: int
    in_batch: bool
    jvm_ended_by_demo: bool

    @property
    def records(self) -> int:
        return sum(until - first for first, until in self.range.values())


@dataclass(slots=True)
class Progress:
    """Progress of one run. ``batch`` has begun and is not done; ``last`` is the batch that began last."""

    events: int = 0
    begun: int = 0
    batch: OutputLine | None = None
    last: OutputLine | None = None
    seconds: float = 0.0
    """How long the previous batch took."""
    reached: str = ""

    def take(self, event: OutputLine) -> None:
        """Note an event of the job."""
        self.events += 1
        match event.kind:
            case "begun":
                self.begun += 1
                self.batch = self.last = event
            case "done" if self.batch is not None:
                self.seconds, self.batch = event.at - self.batch.at, None
            case "reached":
                self.reached = event.what["point"]
            case _:
                pass

    @property
    def is_in_batch(self) -> bool:
        """Whether Spark waits for the end of a batch; at ``after_sink`` the results are committed already."""
        return self.batch is not None or bool(self.reached)

    def is_time(self, kill: Kill, jdbc_writes: Callable[[], bool]) -> bool:
        """Whether to send the signal now."""
        if not kill.meets_it_running:
            return self.reached == kill.point
        if self.batch is None or self.begun < kill.nth:
            return False
        if kill.point == JDBC_WRITE:
            return jdbc_writes()
        # How long this batch will take is not known: if it is quicker than this share of the last, the next is tried.
        return time.monotonic() >= self.batch.at + kill.fraction * self.seconds


@dataclass(frozen=True, slots=True)
class JobResult:
    """What happened from a job's first start to its end, and what it left.

    ``batches``: how many were begun, in all its runs.
    """

    seconds: float
    runs: int
    batches: int
    kills: list[Killed]
    looks: list[Observation]
    findings: Findings

    @property
    def looks_apart(self) -> int:
        """How many looks saw rows and letters that don't match the stored offsets: none, if all change together."""
        return sum(look.passed != look.offsets for look in self.looks)

    @property
    def kills_in_batch(self) -> int:
        """How many kills hit a batch that had begun and was not done, and ended the process."""
        return sum(kill.in_batch and kill.exit_status == -signal.SIGKILL for kill in self.kills)

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self.findings),
            "seconds": round(self.seconds, 1),
            "runs": self.runs,
            "batches": self.batches,
            "looks": len(self.looks),
        }


@dataclass(slots=True)
class DemoSupervisor:
    """Runs and kills one job.

    :param kills: the planned ones.
    :param logs: a directory for the output of its runs.
    :param show: gets the number of flights that have landed, and a few words on how it goes.
    :param say: gets a sentence about each kill.
    """

    job: DemoJob
    settings: JobSettings
    kills: list[Kill]
    logs: Path
    show: Callable[[int, str], None]
    say: Callable[[str], None]
    _killed: list[Killed] = field(default_factory=list["Killed"], init=False)
    _runs: list[Progress] = field(default_factory=list[Progress], init=False)

    def run(self, ledger: Ledger) -> JobResult:
        """Run the job to its end, and compare what it leaves with the ledger.

        :raises DemoFailed: it ends by itself before that, or hangs.
        """
        watch = LandingWatch(self.settings.url, self.job.tables, lambda look: self.show(look.passed, self.note))
        with closing(watch):
            while self._run_once(watch):
                pass
            seconds = watch.look().at
        findings = verify(self.settings.url, self.job.tables, ledger)
        return JobResult(seconds, len(self._runs), self._batches, self._killed, watch.looks, findings)

    @property
    def note(self) -> str:
        return f"{len(self._killed)} kills, {self._batches} batches"

    @property
    def _batches(self) -> int:
        return sum(progress.begun for progress in self._runs)

    def _run_once(self, watch: LandingWatch) -> bool:
        """Start the job; return whether it was killed, and has to be started again."""
        kill = self.kills[0] if self.kills else None
        progress = Progress()
        self._runs.append(progress)
        number = len(self._runs)
        log = self.logs / f"{self.job.name}-{number}.log"
        environment = self.settings.environment()
        if kill and not kill.meets_it_running:
            environment[PAUSE] = f"{kill.point}:{kill.nth}"
        deadline = time.monotonic() + _RUN_SECONDS
        with JobProcess(["-m", self.job.module], log, environment=environment) as process:
            while process.exit_status is None and time.monotonic() < deadline:
                process.wait_for_more(progress.events, _WAIT_SECONDS)
                _follow(process, progress)
                if kill is not None and progress.is_time(kill, watch.jdbc_writes):
                    self._kill(kill, process, progress, watch)
                    return True
                watch.look_if_due()
            exit_status = process.exit_status
        _follow(process, progress)
        if exit_status != 0 or kill is not None:
            how = f"is not done after {_RUN_SECONDS:.0f} s" if exit_status is None else "ended by itself"
            raise DemoFailed(
                f"run {number} of {self.job.name} {how}",
                found=f"exit status {exit_status}\n{process.end_of_log}",
                expected=f"it runs until it is killed {WORDS[kill.point]}" if kill else "exit status 0",
                next_step=f"See {log}.",
            )
        return False

    def _kill(self, kill: Kill, process: JobProcess, progress: Progress, watch: LandingWatch) -> None:
        """Kill the job, and keep the evidence; plan the kill again if it fell between two batches."""
        at = round(watch.seconds, 2)
        exit_status = process.kill(group=kill.target == "process group")
        deadline = time.monotonic() + _JVM_SECONDS
        # Without Python, Java ends by itself a little later.
        while process.jvm_runs and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        process.finish_reading()
        _follow(process, progress)  # what it printed just before the signal came
        assert progress.last is not None
        killed = Killed(
            number=len(self._killed) + 1,
            job=self.job.name,
            point=kill.point,
            target=kill.target,
            run=len(self._runs),
            batch=progress.last.what["batch"],
            range=progress.last.what["ranges"],
            at=at,
            landed=watch.look().landed,
            pid=process.pid,
            exit_status=exit_status,
            in_batch=progress.is_in_batch,
            jvm_ended_by_demo=process.jvm_runs,
        )
        self._killed.append(killed)
        if killed.in_batch:
            self.kills.pop(0)
        else:  # the random time fell between two batches: once more, soon
            self.kills[0] = replace(kill, nth=2)
        self.say(
            f"SIGKILL {killed.number} {WORDS[kill.point]} ({kill.target}, pid {killed.pid}): "
            f"batch {killed.batch}, {killed.records:,} records; {killed.landed:,} flights have landed"
        )


def _follow(process: JobProcess, progress: Progress) -> None:
    for event in process.events[progress.events :]:
        progress.take(event)
