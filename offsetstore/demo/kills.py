"""When, where and what the demo kills: planned from a seed, the same way for both jobs, and aimed by their events."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

from offsetstore.demo.job_settings import PAUSE
from offsetstore.testing.job_process import Event

Ranges: TypeAlias = Mapping[str, Sequence[int]]
"""The first offset of each partition, and the one after its last."""
JobName: TypeAlias = Literal["offsetstore", "at_least_once"]
Target: TypeAlias = Literal["process group", "Python alone", "all processes", "one process"]

RANDOM: Final = "random_time"
JDBC_WRITE: Final = "in_jdbc_write"
POINTS: Final[dict[JobName, tuple[str, ...]]] = {
    "offsetstore": ("in_copy", "before_commit", "after_sink", RANDOM),
    "at_least_once": (JDBC_WRITE, "between_write_and_upsert", "after_function", RANDOM),
}
POISON_POINTS: Final = (*POINTS["offsetstore"], "in_discovery", "letters_written")
"""The points of our job if some flights are broken."""
CONSUMER_POINTS: Final = ("in_copy", "before_commit", "after_commit", RANDOM)
"""The points of the consumer."""
WORDS: Final = {
    "in_copy": "in the middle of COPY",
    "before_commit": "before COMMIT",
    "after_commit": "after COMMIT",
    "after_sink": "after the sink, before Spark's commit log",
    "in_discovery": "while it looks for refused records",
    "letters_written": "after its dead letters are written",
    JDBC_WRITE: "while the JDBC write runs",
    "between_write_and_upsert": "between the write and the upsert",
    "after_function": "after the function, before Spark's commit log",
    RANDOM: "at a random time",
}
_BATCHES: Final = (3, 5)
TARGETS: Final[tuple[Target, ...]] = ("process group", "Python alone")
CONSUMER_TARGETS: Final[tuple[Target, ...]] = ("all processes", "one process")


@dataclass(frozen=True, slots=True)
class Kill:
    """A planned SIGKILL: in which batch of its run (from 1), and for a random time how far into it (0 to 1)."""

    job: JobName
    point: str
    target: Target
    nth: int
    fraction: float

    def environment(self) -> dict[str, str]:
        """Return the variables that make the job stop at the point; none if it is to be killed while it runs."""
        return {} if self.meets_it_running else {PAUSE: f"{self.point}:{self.nth}"}

    @property
    def meets_it_running(self) -> bool:
        """Whether the job is killed while it runs, rather than at a stop."""
        return self.point in {RANDOM, JDBC_WRITE}


@dataclass(frozen=True, slots=True)
class Killed:
    """The evidence of one SIGKILL.

    ``at`` counts seconds from the job's first start. ``exit_status`` is -9 if the process died of the signal.
    ``in_batch`` is whether Spark waited for the end of the batch. ``jvm_lingered``: seconds that Spark's Java process
    outlived Python; ``jvm_ended_by_demo``: the demo had to end it.
    """

    number: int
    job: JobName
    point: str
    target: Target
    run: int
    batch: int
    range: Ranges
    at: float
    landed: int
    pid: int
    exit_status: int
    in_batch: bool
    jvm_lingered: float
    jvm_ended_by_demo: bool

    @property
    def records(self) -> int:
        """How many the batch had."""
        return sum(until - first for first, until in self.range.values())

    def as_json(self) -> dict[str, Any]:
        """Return it for the report."""
        return asdict(self) | {"at": round(self.at, 2), "jvm_lingered": round(self.jvm_lingered, 2)}


def plan(
    job: JobName, seed: int, *, points: Sequence[str] | None = None, targets: Sequence[Target] = TARGETS
) -> list[Kill]:
    """Put the points in random order, and assign the targets to them, each to half of them.

    :param points: the job's own if not given.
    """
    points = points or POINTS[job]
    dice = random.Random(seed)  # noqa: S311 - repeatable, not secret
    order = dice.sample(range(len(points)), len(points))
    each: list[Target] = [*targets] * (len(points) // 2)
    chosen = dice.sample(each, len(points))
    return [
        Kill(job, points[index], target, dice.randint(*_BATCHES), dice.uniform(0.1, 0.9))
        for index, target in zip(order, chosen, strict=True)
    ]


@dataclass(slots=True)
class Progress:
    """Progress of one run. ``batch`` is the one that has begun and is not done, ``last`` the one that began last."""

    events: int = 0
    begun: int = 0
    batch: Event | None = None
    last: Event | None = None
    seconds: float = 0.0
    """How long the previous batch took."""
    reached: str = ""

    def take(self, event: Event) -> None:
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

    def is_near(self, kill: Kill) -> bool:
        """Whether the job has reached the batch in which it is to be killed, and has to be watched closely."""
        return kill.meets_it_running and self.begun >= kill.nth and self.batch is not None

    def is_time(self, kill: Kill, jdbc_writes: Callable[[], bool]) -> bool:
        """Whether to send the signal now.

        A random time is a share of the previous batch's. If this batch is quicker than that, the next one is tried.
        """
        if not kill.meets_it_running:
            return self.reached == kill.point
        if self.batch is None or not self.is_near(kill):
            return False
        if kill.point == JDBC_WRITE:
            return jdbc_writes()
        assert kill.point == RANDOM
        return time.monotonic() >= self.batch.at + kill.fraction * self.seconds
