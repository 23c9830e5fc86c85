"""Units of work for tests: a trial, and a batch whose rows are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from offsetstore import Claim
from offsetstore.processing.plan import DeliveryPlan, commit_plan
from offsetstore.processing.unit import UNNAMED, Decisions, Rows, Stopwatch, TransactionEnd, Unit, Written, commit
from offsetstore.protocol.ports import Work


@dataclass(frozen=True)
class By:
    """Rows that a function writes."""

    function: Callable[[Work], int]

    def write(self, work: Work) -> int:
        return self.function(work)


def tried(claim: Claim, decisions: Decisions, write: Callable[[Work], int]) -> int:
    """Write under the locks of the planned offsets, and take it back; return what ``write`` did."""
    written = commit(claim, Unit(decisions, {UNNAMED: By(write)}, ending=TransactionEnd.ROLL_BACK))
    assert written is not None
    return written.rows[UNNAMED]


def commit_rows(claim: Claim, plan: DeliveryPlan, rows: Mapping[str, Rows] | None) -> Written | None:
    """Write what remains of a plan, as a batch does."""
    return commit_plan(claim, plan, Unit(plan.decisions, rows), Stopwatch())
