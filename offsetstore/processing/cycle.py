"""The cycle of a batch: plan, compute, lock, compare with the plan, write, advance, commit.

Nothing is locked while a job computes, so the plan is compared under the lock: if a stored offset has changed, nothing
is written and the batch is planned again. Spark's stateful way has an order of its own, since it computes a batch for
its state even if nothing of it remains to be written.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from offsetstore.errors import RowsRefused, SinkError
from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.processing.plan import Decisions, Plan, PlanOutdated, Ranges, check_topics
from offsetstore.protocol import failpoints
from offsetstore.protocol.marking import Marking
from offsetstore.protocol.metadata import Text
from offsetstore.protocol.replay import Outcome
from offsetstore.protocol.retries import may_pass
from offsetstore.protocol.work import Work
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction

UNNAMED: Final = ""
"""The name of the output if there is only one."""

_MAX_PLANS: Final = 5


class Computed(Protocol):
    """One output's rows, which can be written again after a rollback."""

    def write(self, work: Work) -> int:
        """Write the rows; return their number."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a batch: the rows of each output, and the seconds of each phase; see `BatchEnded`.

    :param is_kept: they are not written, or not by a transaction of this batch alone; see `BatchEnded`.
    """

    rows: Mapping[str, int]
    seconds: Mapping[str, float]
    is_kept: bool = False


@dataclass(slots=True)
class Stored:
    """What is committed of a batch so far, where that takes several transactions: it stays if the batch then fails."""

    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict[TopicPartition, OffsetRange])
    rows: Counter[str] = field(default_factory=Counter[str])

    def add(self, ranges: Ranges, rows: Mapping[str, int]) -> None:
        """Add what a transaction has stored; each of its ranges begins where that partition's last one ends."""
        for tp, range_ in ranges.items():
            self.ranges[tp] = OffsetRange(self.ranges.get(tp, range_).from_, range_.until)
        self.rows.update(rows)

    def written(self, seconds: Mapping[str, float]) -> Written | None:
        """The outcome if that was all; ``None`` if it is nothing."""
        return Written(dict(self.rows), seconds) if self.ranges else None


class Stopwatch:
    """Adds up the seconds of each phase.

    :param before: what was measured before.
    """

    def __init__(self, before: Mapping[str, float] | None = None) -> None:
        self.seconds: dict[str, float] = dict(before or {})
        self._since = time.monotonic()

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to this phase."""
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now


def with_replanning(write: Callable[[], Written | None], name: str) -> Written | None:
    """Plan and write a batch; if its plan is outdated, plan it again, up to five times in all.

    :param write: plans and writes; raises `PlanOutdated` if it wrote nothing and the batch must be planned again.
    :param name: the batch's name, for the error.
    :return: what ``write`` returned: ``None`` if all of it was in the results already.
    :raises SinkError: every plan was outdated.
    """
    reason = ""
    for _ in range(_MAX_PLANS):
        try:
            return write()
        except PlanOutdated as outdated:
            reason = str(outdated)
    raise SinkError(
        f"{_MAX_PLANS} plans of {name} were outdated before they could be written",
        found=reason,
        next_step="Check the group's history for another writer.",
    )


def commit_plan(
    claim: Claim,
    plan: Plan,
    computed: Mapping[str, Computed] | None,
    watch: Stopwatch,
    metadata: Mapping[TopicPartition, Text] | None = None,
    *,
    marking: Marking = "automatic",
    retry_if: Callable[[Exception], bool] = may_pass,
    pass_over: Callable[[Transaction], None] | None = None,
    gone: Collection[tuple[TopicPartition, int]] = (),
    in_sequence: bool = False,
) -> Written | None:
    """Write the computed rows and advance, in one transaction.

    :param computed: the rows of what remains of the plan; ``None`` if it was not worth computing.
    :param metadata: the text of each partition that gets another one.
    :param marking: with ``"manual"`` the rows' writer marks what is stored.
    :param retry_if: whether to repeat the transaction after an error.
    :param pass_over: writes, after the rows, what is kept of records that have none.
    :param gone, in_sequence: see `Transaction.lock`.
    :return: ``None`` if nothing remained.
    :raises PlanOutdated: the stored offsets have changed; nothing was written.
    """
    if computed is not None:
        check_topics(claim, plan.stored, plan.decisions)
        watch.lap("compute")
    failpoints.reach("before_lock")

    # Rows of earlier batches may wait in the user's own memory: their partitions can be marked too.
    unmarked = claim.unmarked() if marking == "manual" else {}

    def work(tx: Transaction) -> dict[str, int] | None:
        remaining = lock_as_planned(tx, plan.decisions, unmarked, gone, in_sequence=in_sequence)
        if not remaining:
            return None
        if computed is None:  # the reason not to compute is gone
            raise PlanOutdated
        rows = write_and_advance(computed, tx, remaining, metadata, pass_over)
        watch.lap("write")
        return rows

    rows = claim.run(work, marking=marking, retry_if=retry_if)
    watch.lap("commit")
    return None if rows is None else Written(rows, watch.seconds)


def lock_as_planned(
    tx: Transaction,
    decisions: Decisions,
    others: Ranges | None = None,
    gone: Collection[tuple[TopicPartition, int]] = (),
    *,
    in_sequence: bool = False,
) -> Ranges:
    """Lock the partitions, and return the remaining range of each one that has any.

    :param others: empty ranges of further partitions to lock.
    :param gone, in_sequence: see `Transaction.lock`.
    :raises PlanOutdated: a stored offset has changed since the decisions were made.
    """
    ranges = {**(others or {}), **{tp: decision.range for tp, decision in decisions.items()}}
    locked = tx.lock(ranges, gone=gone, in_sequence=in_sequence)
    if any(locked[tp] != decision for tp, decision in decisions.items()):
        raise PlanOutdated
    return {tp: decision.remaining for tp, decision in locked.items() if decision.outcome is not Outcome.SKIP}


def write_and_advance(
    computed: Mapping[str, Computed],
    tx: Transaction,
    remaining: Ranges,
    metadata: Mapping[TopicPartition, Text] | None = None,
    pass_over: Callable[[Transaction], None] | None = None,
) -> dict[str, int]:
    """Write all outputs and advance; return the rows of each. Deferred constraints are checked here, not by COMMIT."""
    rows = write_all(computed, tx)
    if pass_over is not None:
        pass_over(tx)
    tx.finish(remaining, metadata)
    return rows


def write_all(computed: Mapping[str, Computed], work: Work) -> dict[str, int]:
    """Write all outputs, and return the rows of each; a `RowsRefused` names the output."""
    rows: dict[str, int] = {}
    for name, output in computed.items():
        with of_output(name):
            rows[name] = output.write(work)
    return rows


@contextmanager
def of_output(name: str) -> Generator[None]:
    """Add the output's name to a `RowsRefused` from the block."""
    try:
        yield
    except RowsRefused as refused:
        refused.output = name
        raise
