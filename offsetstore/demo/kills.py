"""When, where and what the demo kills: planned from a seed, the same way for both jobs."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from offsetstore.demo.events import PAUSE
from offsetstore.protocol import failpoints

if TYPE_CHECKING:
    from offsetstore.demo.events import Ranges

JobName: TypeAlias = Literal["offsetstore", "at_least_once"]
Target: TypeAlias = Literal["process group", "Python alone"]

RANDOM: Final = "random_time"
JDBC_WRITE: Final = "in_jdbc_write"
POINTS: Final[dict[JobName, tuple[str, ...]]] = {
    "offsetstore": ("in_copy", "before_commit", "after_sink", RANDOM),
    "at_least_once": (JDBC_WRITE, "between_write_and_upsert", "after_function", RANDOM),
}
WORDS: Final = {
    "in_copy": "in the middle of COPY",
    "before_commit": "before COMMIT",
    "after_sink": "after the sink, before Spark's commit log",
    JDBC_WRITE: "while the JDBC write runs",
    "between_write_and_upsert": "between the write and the upsert",
    "after_function": "after the function, before Spark's commit log",
    RANDOM: "at a random time",
}
_BATCHES: Final = (3, 5)
_TARGETS: Final[tuple[Target, ...]] = ("process group", "Python alone")


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
        if self.point in failpoints.POINTS:
            # Both outputs are copied in; the flights come first.
            reached = 2 * self.nth - 1 if self.point == "in_copy" else self.nth
            return {failpoints.VARIABLE: f"{self.point}:{reached}:hang"}
        return {} if self.meets_it_running else {PAUSE: f"{self.point}:{self.nth}"}

    @property
    def meets_it_running(self) -> bool:
        """Whether the job is killed while it runs, rather than at a stop."""
        return self.point in {RANDOM, JDBC_WRITE}


@dataclass(frozen=True, slots=True)
class Killed:
    """The evidence of one SIGKILL.

    ``at`` counts seconds from the job's first start. ``exit_status`` is -9 if the process died of the signal.
    ``in_batch`` is whether the batch had begun and was not done. ``jvm_lingered``: seconds that Spark's Java process
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

    def as_json(self) -> dict[str, Any]:
        """Return it for the report."""
        return asdict(self) | {"at": round(self.at, 2), "jvm_lingered": round(self.jvm_lingered, 2)}


def plan(job: JobName, seed: int) -> list[Kill]:
    """Put the job's four points in random order, and assign the targets to them: two of each."""
    dice = random.Random(seed)  # noqa: S311 - repeatable, not secret
    order = dice.sample(range(4), 4)
    targets = dice.sample(_TARGETS * 2, 4)
    return [
        Kill(job, POINTS[job][index], target, dice.randint(*_BATCHES), dice.uniform(0.1, 0.9))
        for index, target in zip(order, targets, strict=True)
    ]
