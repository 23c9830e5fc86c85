"""How dead letters are put back into the results.

`PutBack` replays letters: a batch of no length, through the same transform and writers. It locks the letters'
partitions, writes the rows, marks the letters, and advances by nothing, so that the partitions' rows show its
transaction if the answer to COMMIT is lost. Only letters below the stored offset are replayed: the records of others
are still ahead of the job, which reads them itself. A letter waits for all open letters of its key before it. A request
never ends the job: what can't be written is dead again, with its new error. If the table no longer fits, all letters
stay requested.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from offsetstore.errors import (
    ColumnMismatch,
    CommitUnknown,
    OffsetStoreError,
    PartitionLost,
    RowsRefused,
    SinkError,
    StaleClaim,
    TargetRefused,
    UnsafeTarget,
)
from offsetstore.processing.between import at_work
from offsetstore.processing.blame import Halve, TooManyFailed, discover
from offsetstore.processing.dead_letters import DeadLetters, cause_of, described, name_of
from offsetstore.processing.delivery import CarefulPart, ComputeLetters, CountedRows
from offsetstore.processing.plan import is_paused
from offsetstore.processing.unit import (
    Along,
    Decisions,
    PlanOutdated,
    Rows,
    TransactionEnd,
    Unit,
    commit,
    only_locks,
    write_all,
)
from offsetstore.protocol.events import LettersReplayed
from offsetstore.protocol.letters import FailedReplay, Letter, LetterError, LetterKey
from offsetstore.protocol.ports import Work
from offsetstore.protocol.retries import doubled
from offsetstore.runtime import failpoints
from offsetstore.runtime.functions import without_frames
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction
from offsetstore.text import logger

MOST: Final = 1_000
"""Letters that are replayed at once."""
MOST_BYTES: Final = 64 << 20
"""Size of the letters that are replayed at once."""

_EVERY: Final = 5.0
"""Seconds between two looks for requested letters."""
_SELDOM: Final = 300.0
"""The most seconds between two looks while replays fail."""
_LONGEST: Final = 10.0
"""Seconds of replaying after which a batch comes first."""

_OUT_OF_ORDER: Final = LetterError(
    "ReplayOutOfOrder",
    "the Upsert replaces columns and has no version, and later records of the key did not wait for the letter: a later "
    "row may be in the table, and would be replaced by this older one. Request it again with forced to do so.",
)
_NO_PAYLOAD: Final = LetterError("PayloadMissing", "the letter no longer holds its record")

_log = logger(__name__)


@dataclass(slots=True)
class _Replay:
    """One call of `PutBack.run`, and what became of the letters so far.

    :param deadline: once any letters are settled, begin no more after this time.
    :param settled: the letters that are in the results, or dead again.
    """

    check: Callable[[], None]
    deadline: float
    settled: set[LetterKey] = field(default_factory=set["LetterKey"])
    replayed: int = 0
    without_rows: int = 0
    failed: int = 0

    @property
    def is_over(self) -> bool:
        """Whether batches come first now."""
        # Not before any are settled, so that each run makes progress.
        return bool(self.settled) and time.monotonic() >= self.deadline


class PutBack:
    """Replays the letters of a claim's group. The caller holds the runner's lock: no batch is written meanwhile."""

    def __init__(self, claim: Claim, settings: DeadLetters, compute: ComputeLetters) -> None:
        self._claim = claim
        self._settings = settings
        self._compute = compute
        self._terms = claim.terms

    def run(self, check: Callable[[], None] = lambda: None, *, seconds: float = math.inf) -> int:
        """Replay all requested letters that can be; return how many were replayed.

        :param check: raises if the job is to stop.
        :param seconds: begin no more letters after this time.
        :raises StaleClaim, CommitUnknown: as a batch does.
        :raises Exception: any other error that says nothing about the letters: they are still requested.
        """
        claim, run = self._claim, _Replay(check, time.monotonic() + seconds)
        if not claim.read(lambda session: session.has_requested(claim.group)):
            return 0
        with at_work(claim, "replay"):
            self._run(run)
        return run.replayed

    def _run(self, run: _Replay) -> None:
        claim = self._claim
        try:
            while not is_paused(claim) and (letters := self._next()):
                before = len(run.settled)
                # Requested once more, perhaps by a program that would do so for ever.
                if not run.settled.isdisjoint(letter.key for letter in letters):
                    break
                self._replay(run, letters)
                # The letters have changed meanwhile: the next call reads them again.
                if len(run.settled) == before:
                    break
                if run.is_over:
                    break
        finally:
            if run.settled:
                claim.observers.on(
                    LettersReplayed(
                        group=claim.group, replayed=run.replayed, failed=run.failed, without_rows=run.without_rows
                    )
                )

    def _next(self) -> list[Letter]:
        """The next letters, for each topic of one topic id only."""
        claim = self._claim
        self._terms = claim.terms
        # A member replays the letters of its partitions; a job also those of partitions that Kafka no longer has.
        own = sorted(self._terms) if claim.is_member else None
        requested = claim.read(
            lambda session: session.requested_letters(claim.group, claim.topics, own, limit=MOST, max_bytes=MOST_BYTES)
        )
        ids: dict[str, str] = {}
        later: set[bytes | None] = set()
        letters: list[Letter] = []
        for letter in requested:
            # A topic that was created again has other records at the same offsets.
            is_same = ids.setdefault(letter.topic_partition.topic, letter.topic_id) == letter.topic_id
            if is_same and (letter.sequence is None or letter.sequence not in later):
                letters.append(letter)
            else:
                later.add(letter.sequence)
        return letters

    def _replay(self, run: _Replay, letters: Sequence[Letter]) -> None:
        """Replay these letters, or their halves; when the run's time is up, the rest stays requested."""
        if not letters or run.is_over:
            return
        try:
            run.check()
            with self._compute(letters) as part:
                self._write(run, letters, part)
        except (PlanOutdated, PartitionLost) as outdated:
            _log.info("a replay is left for later: %s", without_frames(outdated))
            return
        except TooManyFailed as none:
            self._give_back(run, letters, without_frames(none).error)
            return
        except Halve as halve:
            without_frames(halve)
            if len(letters) == 1:
                self._give_back(run, letters, halve.why)
                return
        else:
            return
        middle = len(letters) // 2
        self._replay(run, letters[:middle])
        # Without those that wait for a letter of the first half, which may have failed just now.
        keys = {letter.sequence for letter in letters[:middle] if letter.sequence is not None}
        self._replay(run, [letter for letter in letters[middle:] if letter.sequence not in keys])

    def _write(self, run: _Replay, letters: Sequence[Letter], part: CarefulPart) -> None:
        failed = {n: FailedReplay(_NO_PAYLOAD) for n, letter in enumerate(letters) if letter.payload is None}
        failed |= {n: FailedReplay(described(error), "raised") for n, error in part.failed.items()}
        failed |= {n: FailedReplay(reject.error, reject.cause) for n, reject in part.rejected.items()}
        misfits = self._claim.read(lambda session: part.misfits(session.connection))
        failed |= {n: FailedReplay(described(error), "refused") for n, error in misfits.items() if n not in failed}
        if part.replaces_in_order:
            late = self._out_of_order(letters)
            failed |= {number: FailedReplay(_OUT_OF_ORDER) for number in late if number not in failed}
        is_searched = False
        while True:
            kept = _kept(letters, failed)
            run.check()
            try:
                returned = {letters[number].key: why for number, why in failed.items()}
                self._commit(letters, [letters[n] for n in kept], returned, _or_halve(part.rows_of(kept)))
            except RowsRefused as refused:
                if is_searched:
                    raise Halve(refused) from None
                found = self._discover(run, letters, part, kept, without_frames(refused))
            else:
                run.replayed += len(kept)
                run.without_rows += len({*kept}.difference(part.with_rows))
                run.failed += len(failed)
                run.settled.update(letters[number].key for number in (*kept, *failed))
                return
            failed |= {number: FailedReplay(described(error), cause_of(error)) for number, error in found.items()}
            is_searched = True

    def _out_of_order(self, letters: Sequence[Letter]) -> list[int]:
        """The numbers of letters that later records of their keys may have overtaken."""
        # Later records wait only in a job with sequences, and only for letters of the topic as it is now. Nor have they
        # waited if another run of the job had no sequences, or no dead letters at all (decision 0052).
        rows = self._claim.offsets()

        def waits(letter: Letter) -> bool:
            row = rows.get(letter.topic_partition)
            is_current = row is None or letter.topic_id in {"", row.topic_id or letter.topic_id}
            return self._settings.sequence is not None and letter.is_in_sequence and is_current

        return [number for number, letter in enumerate(letters) if not letter.forced and not waits(letter)]

    def _discover(
        self, run: _Replay, letters: Sequence[Letter], part: CarefulPart, kept: Sequence[int], refused: RowsRefused
    ) -> Mapping[int, RowsRefused]:
        """Find the letters that the database refuses, on top of all that it accepts."""
        # On top of these, so that a parent's letter saves its child's (decision 0036).
        numbers = sorted({*kept}.intersection(part.with_rows))
        return discover(
            self._claim,
            self._stored(letters),
            numbers,
            part.keys,
            lambda work, some: write_all(_or_halve(part.rows_of(some)), work),
            refused=refused,
            seconds=self._settings.seconds,
            # Letters are known to be bad, so each gets its own error, even if all are refused (decision 0036).
            limit=None,
            check=run.check,
            hint=part.hinted,
        ).dead

    def _commit(
        self,
        letters: Sequence[Letter],
        kept: Sequence[Letter],
        failed: Mapping[LetterKey, FailedReplay],
        rows: Mapping[str, Rows],
    ) -> None:
        """Write the rows, mark their letters, and give back the failed ones, in one transaction.

        :param letters: their partitions are locked, and advanced by nothing.
        """
        keys = {letter.key for letter in kept} | failed.keys()
        settled = [letter for letter in letters if letter.key in keys]
        along = _Settled(settled, kept, failed)
        commit(self._claim, Unit(self._stored(letters), rows, [along], TransactionEnd.TOUCH, terms=self._terms))

    def _give_back(self, run: _Replay, letters: Sequence[Letter], error: Exception) -> None:
        """Make all of them dead again: they can't be computed or written, and no single one shows why."""
        # The error's text may quote one record, and would stand in the letters of others.
        if len(letters) > 1:
            text = f"{len(letters)} letters were computed together, and failed. The first error was {name_of(error)}"
            failed = FailedReplay(LetterError(name_of(error), text), "raised")
        elif isinstance(error, RowsRefused):
            failed = FailedReplay(described(error), cause_of(error))
        else:  # the rows of one letter are too many, or its writer fails
            failed = FailedReplay(LetterError(type(error).__name__, str(error)), "raised")

        try:
            self._commit(letters, [], {letter.key: failed for letter in letters}, {})
        except (PlanOutdated, PartitionLost) as outdated:
            _log.info("letters that can't be replayed are left for later: %s", without_frames(outdated))
        else:
            run.failed += len(letters)
            run.settled.update(letter.key for letter in letters)

    def _stored(self, letters: Sequence[Letter]) -> Decisions:
        """Decisions that lock the letters' partitions at their stored offsets, and advance by nothing."""
        rows = self._claim.offsets()
        partitions = sorted({letter.topic_partition for letter in letters})
        if any(tp not in rows for tp in partitions):
            raise PlanOutdated("a partition of a letter has no row")
        return only_locks({tp: rows[tp].next_offset for tp in partitions})


@dataclass(frozen=True, slots=True)
class _Settled(Along):
    """The letters that a replay settles: their rows are written, or they are dead again."""

    letters: Sequence[Letter]
    replayed: Sequence[Letter]
    returned: Mapping[LetterKey, FailedReplay]

    def begin(self, tx: Transaction) -> None:
        """Lock the letters.

        :raises PlanOutdated: they have changed since they were read.
        """
        if not tx.letters.lock(self.letters):
            raise PlanOutdated("letters were decided about meanwhile")

    def end(self, tx: Transaction) -> None:
        tx.letters.settle(self.replayed, self.returned)
        failpoints.reach("letters_replayed")


@dataclass(frozen=True, slots=True)
class _OrHalve:
    """Rows whose writer may fail because of a single letter."""

    rows: Rows

    def write(self, work: Work) -> int:
        """Write the rows; return their number.

        :raises RowsRefused: the database refuses them.
        :raises Halve: the writer itself fails.
        """
        try:
            return self.rows.write(work)
        # A table that has changed is no letter's fault: all of them stay requested (decision 0047).
        except (RowsRefused, ColumnMismatch, TargetRefused, UnsafeTarget):
            raise
        except SinkError as error:
            raise Halve(error) from error


def _or_halve(outputs: Mapping[str, CountedRows]) -> dict[str, Rows]:
    return {name: _OrHalve(rows) for name, rows in outputs.items()}


def _kept(letters: Sequence[Letter], failed: Collection[int]) -> list[int]:
    """The numbers of the letters to write: without failed ones and those behind a failed one of their sequence."""
    stopped: set[bytes] = set()
    kept: list[int] = []
    for number, letter in enumerate(letters):
        if letter.sequence is not None and (number in failed or letter.sequence in stopped):
            stopped.add(letter.sequence)
        elif number not in failed:
            kept.append(number)
    return kept


class ReplayRequests:
    """Looks for requested letters, and replays them: before a delivery, while the job is idle, or on demand.

    The runner's lock guards it. ``compute`` is set once the source has begun.
    """

    def __init__(self, claim: Claim, settings: DeadLetters) -> None:
        self._claim = claim
        self._settings = settings
        self.compute: ComputeLetters | None = None
        self._next_look = 0.0
        self._failed_in_a_row = 0

    def drain(self, compute: ComputeLetters) -> int:
        return PutBack(self._claim, self._settings, compute).run(self._claim.require_open)

    def look(self, check: Callable[[], None]) -> None:
        """Replay what is requested, if it is time to look. A request never ends the job.

        :param check: raises if the job is to stop.
        :raises StaleClaim: as a batch does.
        """
        if self.compute is None or time.monotonic() < self._next_look:
            return
        began = time.monotonic()
        try:
            PutBack(self._claim, self._settings, self.compute).run(check, seconds=_LONGEST)
            self._failed_in_a_row = 0
        except StaleClaim:
            raise
        # Unlike a batch, a replay need not know: the letters' states tell whether it happened (decision 0036).
        except CommitUnknown as error:
            check()
            _log.error("dead letters were replayed, or are still requested: %s", without_frames(error))
        except Exception as error:  # noqa: BLE001 - it concerns the letters alone
            check()  # a stop interrupts Spark
            without_frames(error)
            self._failed_in_a_row += 1
            text = f": {error}" if isinstance(error, OffsetStoreError) else ""  # other texts may quote values of rows
            _log.error("could not replay dead letters, which are still requested: %s%s", type(error).__name__, text)
        finally:
            now = time.monotonic()
            # Less and less often while it fails, since a handler is called each time.
            pause = doubled(_EVERY, self._failed_in_a_row, _SELDOM)
            # At least half of the time is left to batches (decision 0036).
            self._next_look = now + max(pause, now - began)

    def look_while_idle(self, is_running: Callable[[], bool]) -> None:
        """Look while no batch is being written.

        :param is_running: whether the query runs; may raise if Java is gone.
        :raises PlanOutdated: the query was stopped, or the claim closed, while it replayed.
        """

        def check() -> None:
            if self._claim.is_closed or not is_running():
                raise PlanOutdated("the query was stopped")

        if time.monotonic() < self._next_look:
            return
        try:
            runs = is_running()
        except Exception:  # noqa: BLE001 - Java is gone, or busy
            return
        if runs:
            self.look(check)
