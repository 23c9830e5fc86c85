"""The result of a job's runs, and whether it is the proof that the demo is for."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from offsetstore.demo.kills import JobName, Killed
    from offsetstore.demo.verify import Findings
    from offsetstore.demo.watch import Look

NAMES: Final[dict[JobName, str]] = {"offsetstore": "offsetstore", "at_least_once": "at-least-once"}
KILLS: Final = 4
"""The least number of kills in mid-batch."""
BATCHES: Final = 20
"""The least number of batches, not counting those that were killed."""


@dataclass(frozen=True, slots=True)
class JobRun:
    """What happened from the job's first start to its end. ``batches``: how many were begun, by all its runs."""

    job: JobName
    seconds: float
    runs: int
    batches: int
    kills: list[Killed]
    looks: list[Look]


@dataclass(frozen=True, slots=True)
class Result:
    """One job: what happened, and what it left."""

    run: JobRun
    findings: Findings

    @property
    def looks_apart(self) -> int:
        """How many looks saw a number of rows that the stored offsets don't match: none, if both change at once."""
        return sum(look.landed != look.offsets for look in self.run.looks)

    @property
    def kills_in_batch(self) -> int:
        """How many kills hit a batch that had begun and was not done, and ended the process."""
        return sum(kill.in_batch and kill.exit_status == -signal.SIGKILL for kill in self.run.kills)

    def as_json(self) -> dict[str, Any]:
        """Return it for the report."""
        return self.findings.as_json() | {
            "seconds": round(self.run.seconds, 1),
            "runs": self.run.runs,
            "batches": self.run.batches,
            "looks": len(self.run.looks),
        }


Results: TypeAlias = Mapping["JobName", Result]


def is_proven(produced: int, flights: int, results: Results) -> bool:
    """Whether Kafka has all flights, the job was killed as often as required, and its results are exact.

    The at-least-once job's figures are not checked, only its kills.
    """
    killed = all(result.kills_in_batch >= KILLS for result in results.values())
    ours = results.get("offsetstore")
    exact = ours is None or (
        ours.findings.exact and ours.looks_apart == 0 and ours.run.batches - len(ours.run.kills) >= BATCHES
    )
    return produced == flights and killed and exact
