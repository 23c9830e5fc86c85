"""The searches for bad records, all by trial: whatever an error says, only refusal and acceptance count.

With dead letters, every bad record is found. `find_failing` finds the records that can't be computed, one job per try.
Then `discover` finds the records that the database refuses: a record is dead if it was refused, alone, on top of
everything that was accepted. `sweep` decides what is tried and in which order; it needs no database. All tries are made
under the locks of the offsets, in one transaction that is always rolled back. Dead records are to blame only if another
record is accepted after they were refused; see docs/decisions/0036 and 0047.

Without dead letters, the job stores what comes before the first bad record, and ends: `write_in_halves`. See
docs/decisions/0020, and 0067 for why that is another question.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, combinations
from typing import Final, Never, Protocol, TypeAlias

from offsetstore.errors import FunctionFailed, OffsetStoreError, RowsRefused, StaleClaim
from offsetstore.offsets import OffsetRange, TopicPartition, count_offsets, describe, in_parts
from offsetstore.processing.delivery import Delivery
from offsetstore.processing.unit import (
    Along,
    Coordinates,
    Decisions,
    PlanOutdated,
    Ranges,
    TransactionEnd,
    Unit,
    commit,
)
from offsetstore.protocol.letters import Letter
from offsetstore.protocol.ports import Work
from offsetstore.runtime import failpoints
from offsetstore.runtime.functions import without_frames
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction
from offsetstore.text import command

Together: TypeAlias = "tuple[int, ...]"
"""The numbers of records that stay together, ascending."""
Hint: TypeAlias = Callable[[RowsRefused, Sequence[int]], int | None]
"""The record that the refusal of these records points to, if any."""
Attempt: TypeAlias = Callable[[Ranges, Ranges, Collection[Coordinates]], int]
"""Computes a part of the records that come next, except some, and perhaps writes it; takes it back; returns the number
of rows."""

SECONDS: Final = 60.0
"""After this time nothing more is tried to show that a record is the cause."""
MOST_KEPT: Final = 48
"""Savepoints kept at once. With more than 64 in a transaction, all of the server's snapshots get slower."""

ALL_REFUSED: Final = 10
"""When this many records fail in a row and none is accepted, the records are not to blame."""
_MAX_OTHERS: Final = 4
"""A record is shown to be the cause only if at most this many others in the rest of the batch are bad; see 0077."""
# From the whole down to its 64ths, each part is tried: 1 + 2 + 4 + … + 64. If none of these was accepted, a bug or an
# outage is likely, and a sample of single records is cheaper than all of them (decision 0036).
_TRIES_DOWN_TO_A_64TH: Final = 2 * 64 - 1
_SAMPLE: Final = 16
# A record refused now may be accepted later, on top of others, so a small limit of letters ends no search early.
_CERTAINLY_TOO_MANY: Final = 1000
# To ask Spark whether the query is being stopped takes 3 ms, and a try hardly more than 10.
_CHECK_EVERY: Final = 0.1
"""Seconds between two checks."""

_BY_A_FILTER: Final = (
    " To skip only this record, leave it out in the transform, by its partition and offset. Don't reset the group past "
    "it: what comes before it is not stored yet, and would be lost."
)
_BY_NO_ROWS: Final = _BY_A_FILTER.replace("leave it out in the transform, by", "return None for it, by")
_ALONE: Final = object()

_log = logging.getLogger(__name__)


class Halve(Exception):
    """The part can't be searched or written as a whole.

    :param why: the error to raise if there is nothing to halve.
    :param place: where to cut, in offsets from the beginning, if not in the middle.
    :param suspects: records that have failed, each with the error that it has alone.
    """

    def __init__(
        self, why: Exception, *, place: int | None = None, suspects: Mapping[Coordinates, FunctionFailed] | None = None
    ) -> None:
        super().__init__(type(why).__name__)
        self.why = why
        self.place = place
        self.suspects = suspects or {}


class TooManyFailed(Exception):
    """So many records failed that it is a bug or an outage, not bad data.

    :param error: the error of one of them.
    """

    def __init__(self, found: str, error: RowsRefused) -> None:
        super().__init__(found)
        self.error = error


class TimeIsUp(Exception):
    """`find_failing` ended at this place. All that fails before it is known, and another record there makes a row."""

    def __init__(self, place: int, failed: Mapping[int, FunctionFailed]) -> None:
        super().__init__(place)
        self.place = place
        self.failed = failed


def speaks_for_itself(refused: RowsRefused) -> bool:
    """Tell whether a refusal shows a bad record even though no other record was accepted after it.

    The one place where codes count: values, constraints, and what PL/pgSQL functions raise without a code.
    """
    state = refused.sqlstate
    # A value that a writer or psycopg refuses to send has no code. What a function raises is as often a bug.
    if state is None:
        return not isinstance(refused, FunctionFailed)
    # 2200H, a sequence that has come to its end, would meet any record.
    return state.startswith(("22", "23", "P0001")) and state != "2200H"


def cut(ranges: Ranges, begin: int, end: int) -> Ranges:
    """The offsets from place ``begin`` up to but excluding ``end``, counted through all partitions in order."""
    part: dict[TopicPartition, OffsetRange] = {}
    for tp, range_ in sorted(ranges.items()):
        size = range_.size
        taken = OffsetRange(range_.from_ + max(0, min(begin, size)), range_.from_ + max(0, min(end, size)))
        if taken:
            part[tp] = taken
        begin, end = begin - size, end - size
    return part


def _first(good: int, bad: int, fails: Callable[[int, int], bool]) -> int:
    """The least number that fails, above ``good`` and up to ``bad``.

    :param fails: gets the largest number known to be good, and the number to test.
    """
    while bad - good > 1:
        middle = (good + bad) // 2
        if fails(good, middle):
            bad = middle
        else:
            good = middle
    return bad


# -- records that can't be computed


class Try(Protocol):
    """Computes records, and forgets their rows."""

    def __call__(self, begin: int, end: int) -> FunctionFailed | int:
        """Compute the records from place ``begin`` up to but excluding ``end``.

        :return: the number of rows, without those of rejected records.
        """
        ...


def find_failing(
    size: int, try_: Try, *, seconds: float = math.inf, check: Callable[[], None] = lambda: None
) -> dict[int, FunctionFailed]:
    """Find the records that can't be computed, by their places from 0, each with the error that it has alone.

    Call this when all of them together can't be computed.

    :param check: called before each try; what it raises is passed on.
    :raises TooManyFailed: none of the first ten can be computed, nor any of nine others, chosen at random.
    :raises TimeIsUp: ``seconds`` have passed, and some record before the place makes a row.
    """
    return _Computing(size, try_, check).run(time.monotonic() + seconds)


@dataclass(slots=True)
class _Computing:
    size: int
    try_: Try
    check: Callable[[], None]
    failed: dict[int, FunctionFailed] = field(default_factory=dict[int, "FunctionFailed"])
    has_computed: bool = False
    """Whether any part could be computed."""
    has_rows: bool = False
    """Whether any record made a row; records chosen at random don't count."""

    def run(self, deadline: float) -> dict[int, FunctionFailed]:
        begin, length, is_known = 0, self.size, True
        # From left to right, twice as many after each good part: 300 jobs, not 450 as with halves (decision 0048).
        while begin < self.size:
            end = min(self.size, begin + length)
            if not is_known and self._fails(begin, end) is None:
                begin, length = end, 2 * length
            else:
                place = _first(begin, end, lambda good, middle: self._fails(good, middle) is not None) - 1
                if (error := self._fails(place, place + 1)) is not None:
                    self.failed[place] = error
                    if len(self.failed) == ALL_REFUSED:
                        self._require_any(error)
                begin, length, is_known = place + 1, 2 * (place + 1 - begin), False
            # Not before some record makes a row: without it nothing would show that the bad ones before the cut are to
            # blame, and the query would end at every start (decision 0048).
            if self.has_rows and time.monotonic() >= deadline and begin < self.size:
                raise TimeIsUp(begin, self.failed)
        return self.failed

    def _fails(self, begin: int, end: int) -> FunctionFailed | None:
        self.check()
        made = self.try_(begin, end)
        if isinstance(made, int):
            self.has_computed = True
            self.has_rows = self.has_rows or made > 0
            return None
        return made

    def _require_any(self, error: FunctionFailed) -> None:
        """Require that some record can be computed.

        :raises TooManyFailed: none can.
        """
        if self.has_computed:
            return
        others = sorted({*range(self.size)} - self.failed.keys())
        # The seed makes each try and each start choose the same records.
        chosen = random.Random(0).sample(others, min(len(others), ALL_REFUSED - 1))  # noqa: S311 - not a secret
        for place in sorted(chosen):
            self.check()
            if isinstance(self.try_(place, place + 1), int):
                return
        raise TooManyFailed(f"all {len(self.failed) + len(chosen)} records tried failed", error)


# -- records that the database refuses


@dataclass(frozen=True, slots=True)
class Found:
    """The dead records, each with its last refusal.

    :param doubtful: dead records that may be innocent, refused for something that any record would meet: their refusals
        don't speak for themselves, and no other record was accepted after them.
    """

    dead: Mapping[int, RowsRefused]
    doubtful: Collection[int] = ()


def now_and_then(check: Callable[[], None], *, every: float = _CHECK_EVERY) -> Callable[[], None]:
    """Make a check that can be called before each try: it calls ``check`` only once per interval."""
    due = -math.inf

    def checked() -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            check()
            due = now + every

    return checked


class Trials(Protocol):
    """Tries records for `sweep`. Errors other than the refusal of a record are passed on."""

    def accept(self, records: Sequence[int]) -> RowsRefused | None:
        """Write the records on top of all that was accepted, and keep them; if refused, undo that and return why."""
        ...

    def probe(self, records: Sequence[int]) -> RowsRefused | None:
        """The same, but undo it in any case."""
        ...


def units_of(records: Sequence[int], keys: Mapping[int, Hashable]) -> list[Together]:
    """Group records by key, in the order of the groups' first records. A record whose key is ``None`` is alone."""
    units: dict[Hashable, list[int]] = {}
    for record in records:
        key = keys.get(record)
        units.setdefault((_ALONE, record) if key is None else key, []).append(record)
    return [tuple(unit) for unit in units.values()]


def sweep(
    units: Sequence[Together],
    trials: Trials,
    *,
    limit: int | None,
    suspects: Collection[int] = (),
    check: Callable[[], None] = lambda: None,
    hint: Hint = lambda _, __: None,
) -> dict[int, RowsRefused]:
    """Find the dead among the records: try all of them at once, then halves, quarters and so on down to single ones.

    What was accepted is kept, so it only grows. A part that was refused is not tried again as a whole, but its halves
    are. Where a refusal hints at a record, the part is tried again without that record instead. Units are tried until
    nothing more is accepted; only the units that are still refused are then split.

    :param units: in order of their first records.
    :param suspects: records that were refused before. The others are tried first, all at once, and then each suspect:
        a second search takes hardly more tries than there are bad records.
    :param limit: how many may be dead; ``None`` if all may be: they are known to be bad, and each is tried alone.
    :param check: called before each try; what it raises is passed on.
    :param hint: the record that the refusal of these records points to. It is tried alone, later.
    :return: the dead in ascending order, each with its last refusal: nothing was accepted after it.
    :raises TooManyFailed: none of ten or more records was accepted; if no 64th of them was, sixteen single records
        decide, chosen at random, but the same each time. Or more than ``limit`` are dead; once more than ``limit``, and
        more than 1,000, single records are refused in a row, the rest is not tried.
    """
    return _Sweep(units, trials, limit, check, hint).run(frozenset(suspects))


@dataclass(slots=True)
class _Sweep:
    units: Sequence[Together]
    trials: Trials
    limit: int | None
    check: Callable[[], None]
    hint: Hint
    refusals: dict[int, RowsRefused] = field(default_factory=dict[int, RowsRefused])
    """The last refusal of each record that was tried alone."""
    in_a_row: int = 0
    """How many different single records were refused since a part was last accepted."""
    tries: int = 0
    has_accepted: bool = False

    def run(self, suspects: frozenset[int]) -> dict[int, RowsRefused]:
        # Suspects come last, so that the others are still accepted all at once.
        others = [unit for unit in self.units if suspects.isdisjoint(unit)]
        singles = [unit for unit in self.units if not suspects.isdisjoint(unit)]
        singles += self._singles_of(others)
        refused = self._until_nothing_is_accepted(sorted(singles))
        # Split only now: an Upsert merges the rows of a key, and a later one may make a bad one good (decision 0036).
        if any(len(unit) > 1 for unit in refused):
            singles = [unit for unit in refused if len(unit) == 1]
            singles += self._singles_of([(record,) for unit in refused if len(unit) > 1 for record in unit])
            refused = self._until_nothing_is_accepted(sorted(singles))
        dead = {record: self.refusals[record] for (record,) in sorted(refused)}
        if self.limit is None:
            return dead
        if len(dead) >= ALL_REFUSED and not self.has_accepted:
            raise self._none_accepted(next(iter(dead.values())))
        if len(dead) > self.limit:
            raise self._too_many(next(iter(dead.values())))
        return dead

    def _singles_of(self, units: Sequence[Together]) -> list[Together]:
        """Try the units, all at once first; return the units that a hint left out, or that halving has made single."""
        if len(units) == 1:
            return [*units]
        hinted, parts = self._without_hinted(units)
        return hinted + self._down_to_one([half for part in parts for half in _halves(part)])

    def _without_hinted(self, units: Sequence[Together]) -> tuple[list[Together], list[Sequence[Together]]]:
        """Try the units, first all at once; leave out those that refusals hint at, and try the others again.

        :return: the units that were left out, and the parts that were refused without a hint.
        """
        waiting, size = [*reversed(units)], len(units)
        hinted: list[Together] = []
        parts: list[Sequence[Together]] = []
        while waiting:
            part: Sequence[Together] = waiting[: -size - 1 : -1]
            del waiting[-size:]
            hints = 0
            while part and (refused := self._refusal_of(part)) is not None:
                record = self.hint(refused, sorted(chain.from_iterable(part)))
                if record is None:
                    parts.append(part)
                    break
                unit = next(unit for unit in part if record in unit)
                hinted.append(unit)
                hints += 1
                part = [other for other in part if other is not unit]
                # Each try sends all rows of its part. So a part with a second bad unit is cut in half, and the next
                # parts are as small, until one is accepted at once (decision 0047).
                if hints > 1:
                    part, later = _halves(part)
                    waiting += reversed(later)
                    size = max(1, len(part))
            else:
                size *= 1 if hints else 2
        return hinted, parts

    def _down_to_one(self, parts: Sequence[Sequence[Together]]) -> list[Together]:
        """Try parts of several units, the largest first, and halve the refused ones; return the single units left.

        These have not been tried since they became single.
        """
        waiting = [part for part in parts if part]
        while (largest := max(map(len, waiting), default=1)) > 1:
            now = [part for part in waiting if 2 * len(part) > largest]  # the halves of an odd number differ by one
            waiting = [part for part in waiting if 2 * len(part) <= largest]
            for part in now:
                if self._refusal_of(part) is not None:
                    waiting += _halves(part)
            waiting.sort(key=lambda part: part[0])
        return [unit for [unit] in waiting]

    def _until_nothing_is_accepted(self, units: Iterable[Together]) -> list[Together]:
        """Try the units in turn, again and again; return the units that are refused on top of all that is accepted."""
        waiting = deque(units)
        # Some of these were already tried alone; they are tried again here, and must count once.
        refused_in_turn = self.in_a_row = 0
        while refused_in_turn < len(waiting):
            unit = waiting.popleft()
            if self._refusal_of([unit]) is None:
                refused_in_turn = 0
            else:
                waiting.append(unit)
                refused_in_turn += 1
        return list(waiting)

    def _refusal_of(self, part: Sequence[Together]) -> RowsRefused | None:
        """Try a part; return why it was refused, or ``None`` if it is accepted, and kept."""
        self.check()
        records = sorted(chain.from_iterable(part))
        self.tries += 1
        refused = self.trials.accept(records)
        if refused is None:
            self.has_accepted, self.in_a_row = True, 0
            return None
        if len(records) == 1:
            self.refusals[records[0]] = refused
            self.in_a_row += 1
            if self.limit is not None and self.in_a_row > max(self.limit, _CERTAINLY_TOO_MANY):
                raise self._too_many(refused)
        if self.limit is not None and self.tries == _TRIES_DOWN_TO_A_64TH and not self.has_accepted:
            self._sample()
        return refused

    def _sample(self) -> None:
        """Try some single records.

        :raises TooManyFailed: all of them are refused, too.
        """
        records = sorted(chain.from_iterable(self.units))
        chosen = random.Random(0).sample(records, _SAMPLE)  # noqa: S311 - not a secret
        refused: RowsRefused | None = None
        for record in sorted(chosen):
            self.check()
            refused = self.trials.probe([record])
            if refused is None:
                return
        if refused is not None:
            raise self._none_accepted(refused)

    def _none_accepted(self, refused: RowsRefused) -> TooManyFailed:
        return TooManyFailed(f"all {sum(map(len, self.units))} records tried were refused", refused)

    def _too_many(self, refused: RowsRefused) -> TooManyFailed:
        tried = sum(map(len, self.units))
        return TooManyFailed(f"more than {self.limit} records were refused, of {tried} tried", refused)


def _halves(part: Sequence[Together]) -> list[Sequence[Together]]:
    middle = len(part) // 2
    return [part[:middle], part[middle:]]


def discover(
    claim: Claim,
    decisions: Decisions,
    records: Sequence[int],
    keys: Mapping[int, Hashable],
    write: Callable[[Work, Sequence[int]], object],
    *,
    refused: RowsRefused,
    seconds: float,
    limit: int | None,
    suspects: Collection[int] = (),
    check: Callable[[], None] = lambda: None,
    hint: Hint = lambda _, __: None,
) -> Found:
    """Find the records that the database refuses. Nothing is written for good; the offsets are locked meanwhile.

    :param decisions: of the batch's plan.
    :param records: the numbers of the records that make rows, in the order in which they are written, which is
        ascending. A record without rows would be accepted, and seem to show that not all are refused.
    :param keys: records of one key stay together until that key alone is refused; a record without a key is alone.
    :param write: writes all rows of the given records, in all outputs; raises `RowsRefused` if they are refused.
    :param refused: the error of all of them together.
    :param seconds: no further part is tried after this time under the lock, nor after half of the role's
        ``transaction_timeout``.
    :param limit: how many may be dead; ``None`` if all may be, see `sweep`.
    :param suspects: records that were refused before; see `sweep`.
    :param check: called before each try; raises if the query is being stopped.
    :param hint: see `sweep`.
    :return: the dead, each with its refusal when it was tried alone, on top of everything that was accepted; no record
        if the refusal did not recur.
    :raises Halve: the time is up, or rows that were accepted are refused when they are written again. No record is
        to blame; halve the batch, and search each half.
    :raises TooManyFailed: see `sweep`.
    :raises StaleClaim, PlanOutdated: as a batch's transaction does.
    :raises OffsetStoreError: any other error; no record is to blame. After an error that may pass the search begins
        again first.
    """
    if not records:
        return Found({})
    _log.info("looking for the refused ones among %d records", len(records))
    found = Found({})

    def search(tx: Transaction) -> None:
        nonlocal found
        # Counted from here: the wait for the lock takes no time from the search.
        began = time.monotonic()
        trials = KeptTrials(tx, write)
        limits = [seconds, *([] if trials.transaction_timeout is None else [trials.transaction_timeout / 2])]
        deadline = began + min(limits)

        def proceed() -> None:
            check()
            # At least one try: where the refusal does not recur, that one is enough.
            if trials.tried and time.monotonic() >= deadline:
                raise Halve(refused)

        try:
            units = units_of(records, keys)
            dead = sweep(units, trials, limit=limit, suspects=suspects, check=proceed, hint=hint)
            doubtful = [record for record, refused in dead.items() if not speaks_for_itself(refused)]
            told = set[int]() if limit is None else trials.told_apart(doubtful, proceed)
            found = Found(dead, [record for record in doubtful if record not in told])
        finally:
            took = time.monotonic() - began
            _log.info("tried %d parts in %.1f s, of which %d were accepted", trials.tried, took, trials.accepted)

    # `in_sequence`: trials are rolled back, so they overtake no letter.
    commit(claim, Unit(decisions, along=[_Trial(search)], ending=TransactionEnd.ROLL_BACK, in_sequence=True))
    return found


@dataclass(frozen=True, slots=True)
class _Trial(Along):
    """A search, in place of rows."""

    attempt: Callable[[Transaction], None]

    def begin(self, tx: Transaction) -> None:
        self.attempt(tx)


class KeptTrials:
    """Trials on a database. Each accepted part is kept under its own savepoint; savepoint n has n parts below it.

    :param tx: has locked its partitions; it must be rolled back at the end.
    """

    def __init__(self, tx: Transaction, write: Callable[[Work, Sequence[int]], object]) -> None:
        self.tried = 0
        self.accepted = 0
        self._tx = tx
        self._write = write
        self._savepoints = tx.trials()
        self.transaction_timeout = self._savepoints.begin_trials()
        # Nested, not released: a released savepoint still counts towards the 64 that PostgreSQL remembers.
        self._kept: list[list[Sequence[int]]] = []
        """The records of each savepoint's writes; only `_fold` makes several writes in one."""

    def accept(self, records: Sequence[int]) -> RowsRefused | None:
        self.tried += 1
        refused = self._keep([records])
        if refused is None:
            self.accepted += 1
            failpoints.reach("in_discovery")
            if len(self._kept) == MOST_KEPT:
                self._fold()
        return refused

    def probe(self, records: Sequence[int]) -> RowsRefused | None:
        self.tried += 1
        refused = self._keep([records])
        if refused is None:
            self._kept.pop()
            self._savepoints.rollback_to(len(self._kept))
        return refused

    def told_apart(self, records: Sequence[int], check: Callable[[], None]) -> set[int]:
        """The records that are refused in the place of others, where these others are accepted after them.

        Call this last: what was accepted may be gone afterwards.

        :param check: called before each try; what it raises is passed on.
        """
        # The others are what was accepted last, and then each half of that. A record that conflicts with one of them is
        # accepted in the place of all, and refused in the place of the half without it. A record that only exceeds the
        # number of rows that a trigger allows is accepted in the place of either half (decision 0047).
        told: set[int] = set()
        left, begin = [*records], len(self._kept)
        others: list[Sequence[int]] = []
        while begin and sum(map(len, others)) < 2:  # noqa: PLR2004 - so that there are halves
            begin -= 1
            others = [*chain.from_iterable(self._kept[begin:])]
        parts = others
        if len(others) == 1:
            middle = len(others[0]) // 2
            parts = [others[0][:middle], others[0][middle:]]
        first, second = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        none: list[Sequence[int]] = []
        for before, after in (none, others), (first, second), (second, first):
            if left and any(map(len, after)) and (not before or any(map(len, before))):
                told |= self._refused_between(begin, before, left, after, check)
                left = [record for record in left if record not in told]
        return told

    def _refused_between(
        self,
        begin: int,
        before: list[Sequence[int]],
        records: Sequence[int],
        after: list[Sequence[int]],
        check: Callable[[], None],
    ) -> set[int]:
        """The records that are refused after ``before`` and before ``after``; none if one of these parts is, too.

        :param begin: how many savepoints stay as they are.
        """
        del self._kept[begin:]
        self._savepoints.rollback_to(begin)
        check()
        if before and self._keep(before) is not None:
            return set()
        refused: set[int] = set()
        for record in records:
            check()
            if self.probe([record]) is not None:
                refused.add(record)
        return refused if refused and self._keep(after) is None else set()

    def _keep(self, writes: list[Sequence[int]]) -> RowsRefused | None:
        kept = len(self._kept)
        try:
            for records in writes:
                self._write(self._tx, records)
            self._savepoints.check_and_save(kept + 1)
        except RowsRefused as refused:
            self._savepoints.rollback_to(kept)
            return without_frames(refused)
        self._kept.append(writes)
        return None

    def _fold(self) -> None:
        """Roll back the newest kept parts, a quarter or more of them, and write them as one.

        :raises Halve: they are refused now.
        """
        # A part stays where it is if it has more records than all newer ones: so no record is written again and again.
        sizes = [sum(map(len, writes)) for writes in self._kept]
        first = MOST_KEPT * 3 // 4
        while first and sizes[first - 1] <= sum(sizes[first:]):
            first -= 1
        newer = list(chain.from_iterable(self._kept[first:]))
        del self._kept[first:]
        self._savepoints.rollback_to(first)
        # In ascending order they may be refused, although they were accepted in another one: a withdrawal before its
        # deposit. Then that other order is kept.
        if self._keep([sorted(chain.from_iterable(newer))]) is not None and (again := self._keep(newer)) is not None:
            raise Halve(again)


# -- the record at which a job without dead letters ends


def refusal_of(error: Exception, delivery: Delivery) -> RowsRefused | None:
    """The error, translated, if a record may have caused it; else ``None``."""
    return error if isinstance(error, RowsRefused) else delivery.failed(error)


def write_in_halves(
    refused: RowsRefused,
    ranges: Ranges,
    delivery: Delivery,
    claim: Claim,
    *,
    write: Callable[[Ranges], int],
    attempt: Attempt,
    at_once: float = math.inf,
    is_stored: bool = True,
) -> None:
    """Write records that were refused together, in halves, and end at the first record that is refused alone.

    Everything before that record is stored then, and nothing else. If no record is refused alone, all of them are
    stored.

    :param refused: why they were refused together.
    :param write: writes the records that come next, and moves their offsets, in one transaction; returns the number of
        rows.
    :param at_once: call ``write`` for partitions with up to this many offsets together; with 0 for each partition.
    :param is_stored: whether ``write`` stores anything. If not, what comes before the record waits in memory.
    :raises RowsRefused: the record was refused. Its error has the command that passes over it only if the record is
        shown to be the cause.
    :raises Exception: any other error of ``write`` or `Delivery.sleep`.
    """
    _log.warning("looking for the refused record among %s: %s", describe(ranges), refused.what)
    parts = in_parts(sorted(ranges.items()), lambda item: item[1].size, at_once)
    begin = rows = size = 0  # the size of the last part that was accepted
    # Each part begins where all before it is stored: a row may depend on an earlier one (a balance, a parent), and what
    # is stored stays a prefix (decision 0067).
    for bound in accumulate(count_offsets(dict(part)) for part in parts):
        end = bad = bound  # up to `bad` they were refused
        while begin < bound:
            delivery.sleep(0)
            made = _written(write, cut(ranges, begin, end), delivery)
            if isinstance(made, int):
                begin, rows, size = end, rows + made, end - begin
            elif end - begin > 1:
                without_frames(made)
                bad = end
            else:
                rest, before = cut(ranges, begin, bound), cut(ranges, 0, begin)
                judge = _Judge(made, rest, before, delivery, claim, attempt, has_passed=rows > 0)
                judge.judge()
                delivery.sleep(0)
                # Only if the rest is refused once more, a record is named: a refusal need not recur (decision 0020).
                more = _written(write, rest, delivery)
                if isinstance(more, RowsRefused):
                    without_frames(more)
                    raise judge.named(is_stored=is_stored) from made.__cause__
                without_frames(made)  # the record needs a later one, such as its parent; or it is accepted now
                begin, rows = bound, rows + more
            # If only large parts are refused, all that is left would be refused again and again.
            if begin >= bad:
                end = bad = min(bound, begin + 2 * size)
            else:
                end = max(begin + 1, (begin + bad) // 2)


def _written(write: Callable[[Ranges], int], part: Ranges, delivery: Delivery) -> int | RowsRefused:
    try:
        return write(part)
    except RowsRefused as refused:
        refused.__cause__ = None  # a function's own error may quote a record
        return refused
    except Exception as error:
        if (failed := delivery.failed(error)) is None:
            raise
        return failed


def name_uncomputable(failed: FunctionFailed, delivery: Delivery, claim: Claim) -> RowsRefused:
    """Find the first record whose rows can't be computed, and return the error to raise. Nothing is written.

    :raises Exception: the source's own error, if the failure does not recur.
    """
    if (error := unreadable(failed, delivery, delivery.ranges, None)) is not None:
        return error

    def compute(part: Ranges) -> int:
        return attempt(part, part, ())

    def attempt(_: Ranges, part: Ranges, without: Collection[Coordinates]) -> int:
        return sum(output.rows for output in delivery.rows(part, without).values())

    try:
        write_in_halves(failed, delivery.ranges, delivery, claim, write=compute, attempt=attempt, is_stored=False)
    except RowsRefused as found:
        return found
    return raise_own(failed)  # a worker that died, say


def unreadable(failed: FunctionFailed, delivery: Delivery, ranges: Ranges, claim: Claim | None) -> RowsRefused | None:
    """The error for records that the source itself can't read; ``None`` if it can.

    :param claim: if all that comes before these records is stored, so that a reset may pass over one of them.
    """
    if (next_step := delivery.unreadable()) is None:
        return None
    delivery.sleep(0)  # raises if the source is only being stopped
    if claim is not None and count_offsets(ranges) == 1:
        next_step += skipping(claim, *next(iter(ranges.items())))
    error = failed.among(ranges, f"the source can't read {describe(ranges)}", stored={}, next_step=next_step)
    assert isinstance(error, FunctionFailed)
    error.is_of_record = True
    return error


def raise_own(failed: FunctionFailed) -> Never:
    """Raise the source's own error, which says more than ours."""
    raise failed.__cause__ or failed from None


def skipping(claim: Claim, tp: TopicPartition, range_: OffsetRange) -> str:
    """The command that moves the partition's stored offset past the only record of a range."""
    # While any member of a fleet is live, a reset is refused; a job that prints this has ended.
    when = ", once all consumers are stopped" if claim.is_member else ""
    # `--from-offset`: run late, after the job has gone on, the command does nothing (decision 0020).
    words = ["reset", "-g", claim.group, "-t", f"{tp.topic}:{tp.partition}"]
    words += ["--from-offset", str(range_.from_), "--to-offset", str(range_.until)]
    return f' To skip only this record{when}: {command(*words, schema=claim.database.schema)} --reason "…" --execute'


def discarding(claim: Claim, letter: Letter) -> str:
    """The command that discards one dead letter, and so withdraws the request for its replay."""
    place = f"{letter.topic_partition.topic}:{letter.topic_partition.partition}:{letter.offset}"
    words = command("dead-letters", "discard", "-g", claim.group, place, schema=claim.database.schema)
    return f' To give up only this dead letter: {words} --reason "…" --execute'


class _SearchEnded(Exception):
    """The time is up, or an attempt failed for another reason than the records."""


@dataclass(slots=True)
class _Judge:
    """Finds out whether a record that was refused alone, on top of all before it, is to blame. Its tries are undone.

    ``rest``: that record and all after it. ``before``: the records written before it. ``is_of_record``: see
    `FunctionFailed`. ``ended``: what ended the search for other records that are accepted, if anything did.
    """

    refused: RowsRefused
    rest: Ranges
    before: Ranges
    delivery: Delivery
    claim: Claim
    attempt: Attempt
    has_passed: bool
    """Whether any other record has made rows."""
    rows: int = 0
    """The number of rows of the last records that were accepted."""
    is_cause: bool = False
    is_of_record: bool = False
    ended: str = ""
    deadline: float = field(default_factory=lambda: time.monotonic() + SECONDS)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = count_offsets(self.rest)

    @property
    def is_of_call(self) -> bool:
        """Whether a handler's call has failed: then it is known which record it was for (decision 0099)."""
        return isinstance(self.refused, FunctionFailed) and self.refused.is_of_call

    def judge(self) -> None:
        """Find out whether the record is the cause, and if not, whether a failure is at least not a bug."""
        try:
            # Nothing is shown where the same rows are not made each time (decision 0077).
            self.is_cause = not self.is_of_call and self.delivery.repeats() and self._accepts_without()
            self.is_of_record = self.is_cause or (isinstance(self.refused, FunctionFailed) and self._accepts_another())
        except _SearchEnded as why:
            _log.warning("gave up the search: %s", why)
            self.is_of_record, self.ended = self.has_passed, f"; the search for the cause ended: {why}"

    def _accepts_without(self) -> bool:
        """Tell whether the rest is accepted without the record and up to four other bad ones, and refused with it."""
        record, others, good = self._record(0), list[Coordinates](), 1
        while self._refuses(self.size, left_out := [record, *others]):
            if len(others) == _MAX_OTHERS:
                return False
            good = _first(good, self.size, lambda _, end, left_out=left_out: self._refuses(end, left_out))
            others.append(self._record(good - 1))
        # Without rows of others, only the refusal itself can tell: what any record would meet blames none.
        if not (self.rows or speaks_for_itself(self.refused) or self._computes_only_others()):
            return False
        # With the record, the rest must be refused whichever of the others are there: a record that another one
        # compensates is not the cause, like the two legs of a ledger entry, each of which is refused alone.
        subsets = chain.from_iterable(combinations(others, count) for count in range(1, len(others) + 1))
        return all(self._refuses(self.size, left_out) for left_out in subsets)

    def _accepts_another(self) -> bool:
        """Tell whether rows are made of other records: then a function has no bug that all of them meet."""
        # A quiet topic may have no other record here: then earlier deliveries count (decision 0099).
        may_be, step = self.claim.has_made_rows, 1
        while not self.has_passed and step < self.size:
            may_be &= not self._refuses(step + 1, begin=step)
            step *= 2
        return self.has_passed or may_be

    def _computes_only_others(self) -> bool:
        """Tell whether the record can't be computed, and then the records before it still can be."""
        # Once more, since a function may take only so many calls, a quota (decision 0077).
        return bool(self.before) and not self._computes(cut(self.rest, 0, 1)) and self._computes(self.before)

    def _computes(self, part: Ranges) -> bool:
        try:
            return any(output.rows for output in self.delivery.rows(part).values())
        except Exception as error:  # noqa: BLE001 - whatever it is, it shows nothing
            without_frames(error)
            return False

    def _refuses(self, end: int, without: Sequence[Coordinates] = (), *, begin: int = 0) -> bool:
        """Try the rest from place ``begin`` up to but excluding ``end``, and tell whether it is refused.

        :raises _SearchEnded: the time is up, or the attempt failed for a reason that is not in the records.
        """
        self.delivery.sleep(0)
        if time.monotonic() >= self.deadline:
            raise _SearchEnded("the time is up")
        try:
            self.rows = self.attempt(self.rest, cut(self.rest, begin, end), without)
        except (StaleClaim, PlanOutdated):
            raise
        except Exception as error:  # noqa: BLE001 - the refusal matters more than what ended the search
            is_refused = refusal_of(error, self.delivery) is not None
            without_frames(error)
            # For whatever reason: a batch may have bad records of several kinds (decision 0020).
            if is_refused:
                return True
            why = type(error).__name__
            if isinstance(error, OffsetStoreError):  # it may say what is wrong, such as rows of another type
                why += f": {str(error).removesuffix(error.next_step).rstrip('. ')}"
            raise _SearchEnded(why) from None
        self.has_passed |= self.rows > 0
        return False

    def _record(self, number: int) -> Coordinates:
        [(tp, range_)] = cut(self.rest, number, number + 1).items()
        return tp, range_.from_

    def named(self, *, is_stored: bool) -> RowsRefused:
        """The error that names the record, with the way to pass over it only if the record is known to be the cause."""
        only = cut(self.rest, 0, 1)
        [(tp, range_)] = only.items()
        is_known, next_step = self.is_cause or self.is_of_call, self.refused.next_step
        # A bug of a handler would only meet the next record (decision 0099).
        if is_known and self.is_of_record:
            by_code = _BY_NO_ROWS if self.is_of_call else _BY_A_FILTER
            next_step += skipping(self.claim, tp, range_) if is_stored else by_code
        place = f"first refused at record {tp}@{range_.from_}"
        if not is_known:
            place += f", but the cause may be any of {describe(self.rest)}"
        stored: Ranges = self.before if is_stored else {}
        place += f"{self.ended}; "
        place += f"stored before it: {describe(stored)}" if stored else "nothing before it was stored"
        named = self.refused.among(only if is_known else self.rest, place, stored=stored, next_step=next_step)
        if isinstance(named, FunctionFailed):
            named.is_of_record = self.is_of_record
        return named
