"""A unit of work, and the one transaction in which it is done.

Nothing is locked while a job plans and computes. So `commit` locks the partitions, decides anew, and compares that with
the plan's decisions. If they differ, nothing is written, and the work is planned again. Otherwise `commit` writes the
rows and whatever goes along with them; then the transaction ends in one of four ways, which a `TransactionEnd` names.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from offsetstore.errors import RowsRefused
from offsetstore.offsets import OffsetRange, Ranges, TopicPartition
from offsetstore.protocol.letters import Failed, NewLetter
from offsetstore.protocol.marking import Marking
from offsetstore.protocol.metadata import Text
from offsetstore.protocol.outbox import OutboxRecord
from offsetstore.protocol.ports import Work
from offsetstore.protocol.replay import Decision, Outcome, decide
from offsetstore.protocol.retries import may_pass
from offsetstore.runtime import failpoints
from offsetstore.runtime.functions import call
from offsetstore.store.term import Term, Terms
from offsetstore.store.transaction import Transaction

UNNAMED: Final = ""
"""The name of the output if there is only one."""

Decisions: TypeAlias = "Mapping[TopicPartition, Decision]"
Coordinates: TypeAlias = tuple[TopicPartition, int]
"""A record's partition and offset."""

_T = TypeVar("_T")


class PlanOutdated(Exception):
    """The plan or the computed rows are outdated: the transaction rolls back, and the work is planned again.

    `with_replanning` in `processing.runner` plans deliveries again. Work between deliveries is left for its next turn.

    :param is_stored: whether all of the work is in the results already.
    """

    def __init__(self, why: str = "the stored offsets changed", *, is_stored: bool = False) -> None:
        super().__init__(why)
        self.is_stored = is_stored


class Rows(Protocol):
    """The rows of one output, which is a writer and its name.

    They can be written again after a rollback; wrap rows that can't in `Once`.
    """

    def write(self, work: Work) -> int:
        """Write the rows; return their number."""
        ...


@dataclass(slots=True)
class Once:
    """Rows that can't be written again after a rollback: they are a stream, or the user's function may have kept them.

    ``has_begun``: writing has begun, so the rows may be used up.
    """

    rows: Rows
    has_begun: bool = False

    def write(self, work: Work) -> int:
        self.has_begun = True
        return self.rows.write(work)


class TransactionEnd(Enum):
    """How a unit's transaction ends."""

    ADVANCE = "advance"
    """Moves the stored offsets to the ends of the ranges."""
    MARK = "mark"
    """Moves them to where the rows' writer has marked."""
    TOUCH = "touch"
    """Moves nothing, since all ranges are empty or stored; the partitions' rows show that it was committed."""
    ROLL_BACK = "roll back"
    """A trial: nothing is kept."""


class Along:
    """What a transaction writes besides rows and offsets."""

    __slots__ = ()

    def begin(self, tx: Transaction) -> None:
        """Work before the rows are written.

        :raises PlanOutdated: the unit must be planned again.
        """

    def end(self, tx: Transaction) -> None:
        """Work after the rows were written."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The work of one transaction.

    :param decisions: the plan's `Decision` for each partition. A partition with an empty range is only locked.
    :param rows: of each output; ``None`` if they were not computed, see `DeliveryPlan.is_worth_computing`.
    :param metadata: the new text of each partition whose metadata change.
    :param terms, gone, in_sequence: see `Transaction.lock`.
    """

    decisions: Decisions = field(default_factory=dict[TopicPartition, Decision])
    rows: Mapping[str, Rows] | None = field(default_factory=dict[str, Rows])
    along: Sequence[Along] = ()
    ending: TransactionEnd = TransactionEnd.ADVANCE
    metadata: Mapping[TopicPartition, Text] = field(default_factory=dict[TopicPartition, "Text"])
    terms: Terms = field(default_factory=dict[TopicPartition, Term])
    gone: Collection[Coordinates] = ()
    in_sequence: bool = False

    @property
    def is_spent(self) -> bool:
        """Whether it can't be done again, since some of its rows may be used up."""
        return any(isinstance(output, Once) and output.has_begun for output in (self.rows or {}).values())


def only_locks(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Decision]:
    """Decisions that lock partitions and write nothing. Each partition must be stored at the given offset."""
    return {tp: decide(offset, OffsetRange(offset, offset)) for tp, offset in offsets.items()}


class Holder(Protocol):
    """Begins transactions: a `Claim`, or a task's attachment to one."""

    def run(
        self, work: Callable[[Transaction], _T], *, marking: Marking = ..., retry_if: Callable[[Exception], bool] = ...
    ) -> _T:
        """Run ``work`` in a transaction; it may be repeated after an error for which ``retry_if`` is true."""
        ...


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a batch: the rows of each output, and the seconds of each phase; see `BatchEnded`.

    :param is_kept: the rows were kept in memory. A `Flush` writes them later, with those of other batches, or has.
    """

    rows: Mapping[str, int]
    seconds: Mapping[str, float]
    is_kept: bool = False


@dataclass(slots=True)
class Stored:
    """What is committed so far of a batch that takes several transactions. It stays stored if the batch then fails."""

    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict[TopicPartition, OffsetRange])
    rows: Counter[str] = field(default_factory=Counter[str])

    def add(self, ranges: Ranges, rows: Mapping[str, int]) -> None:
        """Add what a transaction has stored. Each range begins where the last one of its partition ends."""
        for tp, range_ in ranges.items():
            self.ranges[tp] = OffsetRange(self.ranges.get(tp, range_).from_, range_.until)
        self.rows.update(rows)

    def written(self, seconds: Mapping[str, float]) -> Written | None:
        """The result so far, or ``None`` if nothing was stored."""
        return Written(dict(self.rows), seconds) if self.ranges else None


@dataclass(slots=True)
class Stopwatch:
    """Adds up the seconds of each phase.

    :param seconds: those to start from; later ones are added to this dict.
    """

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    _since: float = field(default_factory=time.monotonic, init=False)

    def lap(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now


def commit(holder: Holder, unit: Unit, watch: Stopwatch | None = None) -> Written | None:
    """Do a unit's work in one transaction; repeat it after an error that may pass, unless its rows may be used up.

    A unit with `TransactionEnd.ROLL_BACK` goes the same way, and commits nothing.

    :param watch: measures the phases "write" and "commit".
    :return: ``None`` if nothing remained to be done.
    :raises PlanOutdated: the stored offsets are not those of the plan, or `Along.begin` raised it; nothing was written.
    :raises RowsRefused: rows were refused, now or by a deferred constraint; the error names the output.
    """
    watch = watch or Stopwatch()
    try:
        rows = holder.run(
            partial(_transact, unit, watch),
            marking="manual" if unit.ending is TransactionEnd.MARK else "automatic",
            retry_if=lambda error: may_pass(error) and not unit.is_spent,
        )
    # Only an exception makes the holder roll back, so a trial that succeeded ends in one.
    except _RolledBack as trial:
        rows = trial.rows
    watch.lap("commit")
    return None if rows is None else Written(rows, watch.seconds)


def _transact(unit: Unit, watch: Stopwatch, tx: Transaction) -> dict[str, int] | None:
    """Do a unit's work, up to COMMIT; return the rows of each output, or ``None`` if nothing remained to be done."""
    ranges = {tp: decision.range for tp, decision in unit.decisions.items()}
    locked = tx.lock(ranges, terms=unit.terms, gone=unit.gone, in_sequence=unit.in_sequence)
    remaining = {tp: decision.remaining for tp, decision in locked.items() if decision.outcome is not Outcome.SKIP}
    # A unit that only locks is compared, too: what goes along with it would belong to other offsets (decision 0065).
    if locked != unit.decisions:
        raise PlanOutdated(is_stored=not remaining)
    # Nothing was computed, and something remains: the plan saw another claim's token, and the lock found ours. (After a
    # gap the lock would have raised; if the plan had nothing to write, nothing remains.) So the work is planned again.
    if unit.rows is None and remaining:
        raise PlanOutdated
    # Without anything to write, the transaction ends here. Idle work has rows, though it has no partitions.
    if not (remaining or unit.along or (unit.rows and not unit.decisions)):
        return None
    for along in unit.along:
        along.begin(tx)
    rows = write_all(unit.rows or {}, tx)
    for along in unit.along:
        along.end(tx)
    # Deferred constraints are checked here: at COMMIT, an error would quote rows, and could be mistaken for a lost
    # answer (decision 0020).
    match unit.ending:
        case TransactionEnd.ADVANCE | TransactionEnd.MARK:
            tx.finish(remaining, unit.metadata)
        case TransactionEnd.TOUCH:
            tx.touch()
        case TransactionEnd.ROLL_BACK:
            if rows:
                tx.check_deferred()
            raise _RolledBack(rows)
    watch.lap("write")
    return rows


class _RolledBack(Exception):
    """Rolls a trial back: all rows were accepted."""

    def __init__(self, rows: dict[str, int]) -> None:
        super().__init__("a trial")
        self.rows = rows


def write_all(outputs: Mapping[str, Rows], work: Work) -> dict[str, int]:
    """Write all outputs, and return the rows of each; a `RowsRefused` names the output."""
    rows: dict[str, int] = {}
    for name, output in outputs.items():
        try:
            # The writer, or a function that it calls, may be the user's: its SystemExit must not end the job.
            rows[name] = call(output.write, work)
        except RowsRefused as refused:
            refused.output = name
            raise
    return rows


@dataclass(frozen=True, slots=True)
class NewLetters(Along):
    """Records that a transaction passes over, with letters or without.

    :param skipped: the reasons of records that get no letter.
    :param records: what is also produced to the letters' topic.
    """

    letters: Sequence[NewLetter]
    skipped: Mapping[Coordinates, str]
    records: Sequence[OutboxRecord] = ()

    def end(self, tx: Transaction) -> None:
        if self.letters:
            tx.letters.write(self.letters)
            failpoints.reach("letters_written")
        if self.records:
            tx.produce_all(self.records)
        if self.skipped:
            tx.letters.note_skipped(self.skipped)


@dataclass(frozen=True, slots=True)
class Failures(Along):
    """Failed attempts at records."""

    failed: Mapping[Coordinates, Failed]

    def end(self, tx: Transaction) -> None:
        tx.letters.write_failures(self.failed)


@dataclass(frozen=True, slots=True)
class Turn(Along):
    """Idle work that the members of a fleet do in turns, at most once every ``every`` seconds."""

    name: UUID
    every: float

    def begin(self, tx: Transaction) -> None:
        if not tx.marks.take_turn(self.name, self.every):
            raise PlanOutdated("another member does it")


@dataclass(frozen=True, slots=True)
class BatchMark(Along):
    """The number of a stateful query's batch.

    :param is_new: whether the plan is to write the batch. Otherwise the plan took it for stored, and it has no rows.
    """

    query_id: UUID
    number: int
    is_new: bool

    def begin(self, tx: Transaction) -> None:
        if tx.marks.mark_batch(self.query_id, self.number) is not self.is_new:
            raise PlanOutdated
