"""The searches for bad records, all by trial: whatever an error says, only what is refused or accepted counts.

With dead letters, every bad record is looked for. `find_failing` finds records that can't be computed, one job per try.
Then `discover` finds records that the database refuses: a record is dead if it was refused, alone, on top of everything
that was accepted. `sweep` decides what is tried and in which order; it needs no database. All tries are made under the
locks of the offsets, in one transaction that is always rolled back. The dead are to blame only if another record is
accepted after they were refused; see docs/decisions/0036 and 0047.

Without dead letters the job ends, and what comes before the bad record is stored. So `blame` bisects for the first
record with which the batch is refused: see docs/decisions/0020, and 0077 for why that is another question.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, combinations, count, takewhile
from typing import Final, Never, Protocol, TypeAlias

from offsetstore.errors import FunctionFailed, OffsetStoreError, RowsRefused, StaleClaim
from offsetstore.offsets import OffsetRange, TopicPartition, count_offsets, describe, in_parts
from offsetstore.processing.delivery import Delivery
from offsetstore.processing.unit import Along, Coordinates, Decisions, Ending, PlanOutdated, Ranges, Unit, commit
from offsetstore.protocol import failpoints
from offsetstore.protocol.functions import without_frames
from offsetstore.protocol.letters import Letter
from offsetstore.protocol.work import Work
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction
from offsetstore.text import command

Together: TypeAlias = "tuple[int, ...]"
"""The numbers of records that stay together, ascending."""
Hint: TypeAlias = Callable[[RowsRefused, Sequence[int]], int | None]
"""The record that the refusal of these records may be about, if it tells."""
Attempt: TypeAlias = Callable[[Ranges, Collection[Coordinates]], int]
"""Computes, and perhaps writes, the records of the ranges except the given ones, and takes it back; returns their rows,
and raises as the batch does."""

SECONDS: Final = 60.0
"""`blame` tries no further part after this time."""
MOST_KEPT: Final = 48
"""Savepoints that are kept at once. With more than 64 in a transaction, all of the server's snapshots get slower."""

ALL_REFUSED: Final = 10
"""When this many records fail in a row and none is accepted, the records are not to blame."""
_MAX_OTHERS: Final = 4
"""`blame` shows a record to be the cause only if the batch has at most this many other bad records."""
_TRIES_DOWN_TO_A_64TH: Final = 2 * 64 - 1
_SAMPLE: Final = 16
_CERTAINLY_TOO_MANY: Final = 1000
_CHECK_EVERY: Final = 0.1
"""Seconds. To ask Spark whether the query is being stopped takes 3 ms, and a try hardly more than 10."""

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
    :param place: where to cut, in offsets from the begin, if not in the middle.
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
    """So many records fail that it is a bug or an outage, not bad data.

    :param error: one of their errors.
    """

    def __init__(self, found: str, error: RowsRefused) -> None:
        super().__init__(found)
        self.error = error


class TimeIsUp(Exception):
    """`find_failing` ended at this place; before it, all that fails is known, and others make a row."""

    def __init__(self, place: int, failed: Mapping[int, FunctionFailed]) -> None:
        super().__init__(place)
        self.place = place
        self.failed = failed


class AcceptedThen(PlanOutdated):
    """The refusal did not recur: the batch may be accepted now."""

    def __init__(self) -> None:
        super().__init__("rows were refused, and accepted a moment later")


def speaks_for_itself(refused: RowsRefused) -> bool:
    """Tell whether a refusal shows a bad record where no other record was accepted after it.

    The one place where codes count: values (but not 2200H, a sequence that has come to its end), constraints, and what
    functions raise without a code of their own. A value that a writer or psycopg does not send has no code.
    """
    state = refused.sqlstate
    if state is None:
        return not isinstance(refused, FunctionFailed)
    return state.startswith(("22", "23", "P0001")) and state != "2200H"


def cut(ranges: Ranges, begin: int, end: int) -> Ranges:
    """Take out the offsets from index ``begin`` up to but excluding ``end``, through all partitions in order."""
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

    :param fails: tells it of a number, given the largest one below that is known to be good.
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

        :return: how many rows they make that are not rejected.
        """
        ...


def find_failing(
    size: int, try_: Try, *, seconds: float = math.inf, check: Callable[[], None] = lambda: None
) -> dict[int, FunctionFailed]:
    """Find the records that can't be computed, by their places from 0, each with the error that it has alone.

    All of them together can't.

    :param check: called before each try; what it raises passes.
    :raises TooManyFailed: none of the first ten can be computed, nor any of nine others, chosen by chance.
    :raises TimeIsUp: after so many seconds, at least one record was found, and another one makes a row: without that
        one, what comes before the place would not show that its bad records are to blame.
    """
    return _Computing(size, try_, check).run(time.monotonic() + seconds)


@dataclass(slots=True)
class _Computing:
    size: int
    try_: Try
    check: Callable[[], None]
    failed: dict[int, FunctionFailed] = field(default_factory=dict[int, "FunctionFailed"])
    has_computed: bool = False
    """Whether any could be."""
    has_rows: bool = False
    """Whether any record made a row; records chosen by chance don't count."""

    def run(self, deadline: float) -> dict[int, FunctionFailed]:
        begin, length, is_known = 0, self.size, True
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
        """See that some record can be computed."""
        if self.has_computed:
            return
        others = sorted({*range(self.size)} - self.failed.keys())
        chosen = random.Random(0).sample(others, min(len(others), ALL_REFUSED - 1))  # noqa: S311 - not a secret
        for place in sorted(chosen):
            self.check()
            if isinstance(self.try_(place, place + 1), int):
                return
        raise TooManyFailed(f"all {len(self.failed) + len(chosen)} records tried failed", error)


# -- records that the database refuses


@dataclass(frozen=True, slots=True)
class Found:
    """The dead, each with its last refusal.

    :param doubtful: those of them that may be refused for something that any record would meet: their refusals don't
        speak for themselves, and no other record was accepted after them.
    """

    dead: Mapping[int, RowsRefused]
    doubtful: Collection[int] = ()


def now_and_then(check: Callable[[], None], *, every: float = _CHECK_EVERY) -> Callable[[], None]:
    """Make a check to call before each try; it does something only once per interval."""
    due = -math.inf

    def checked() -> None:
        nonlocal due
        if (now := time.monotonic()) >= due:
            check()
            due = now + every

    return checked


class Trials(Protocol):
    """What `sweep` tries records with. Errors other than a record's refusal pass."""

    def accept(self, records: Sequence[int]) -> RowsRefused | None:
        """Write the records on top of all that was accepted, and keep them; if refused, undo it and return why."""
        ...

    def probe(self, records: Sequence[int]) -> RowsRefused | None:
        """Do the same, but undo it in any case."""
        ...


def units_of(records: Sequence[int], keys: Mapping[int, Hashable]) -> list[Together]:
    """Put records of one key together, in the order of their first records. ``None`` is no key."""
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
    """Find the dead among the records, from all of them at once to halves, quarters and single ones.

    The sum of accepted parts grows, and never shrinks: a larger part that was refused is not tried again as such, since
    its halves are. Where a refusal hints at a record, the part is tried again without it instead. Units are tried until
    nothing more is accepted; only those that are still refused are then split.

    :param units: in order of their first records.
    :param suspects: records that were refused before. The others are tried first, all at once, and then each of these:
        a second search needs hardly more tries than there are bad records.
    :param limit: how many may be dead; ``None`` for all of them: they are known to be bad, and each is tried alone.
    :param check: called before each try; what it raises passes.
    :param hint: the record that the refusal of these records may be about. Each such record is tried alone, later.
    :return: the dead in ascending order, each with its last refusal: after it nothing was accepted any more.
    :raises TooManyFailed: of ten or more records none was accepted; if no 64th of them was, sixteen single ones tell,
        which are chosen by chance, but the same each time. Or more than ``limit`` are dead; if as many single ones are
        refused in a row, and more than 1,000, the rest is not tried.
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
    """How many different single records were refused since a part was accepted."""
    tries: int = 0
    has_accepted: bool = False

    def run(self, suspects: frozenset[int]) -> dict[int, RowsRefused]:
        others = [unit for unit in self.units if suspects.isdisjoint(unit)]
        singles = [unit for unit in self.units if not suspects.isdisjoint(unit)]
        singles += self._singles_of(others)
        refused = self._until_nothing_is_accepted(sorted(singles))
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
        """Try the units, from all of them at once; return those that were left out, or have come down to be alone."""
        if len(units) == 1:
            return [*units]
        hinted, parts = self._without_hinted(units)
        return hinted + self._down_to_one([half for part in parts for half in _halves(part)])

    def _without_hinted(self, units: Sequence[Together]) -> tuple[list[Together], list[Sequence[Together]]]:
        """Try the units, first all at once; leave out those that refusals hint at, and try the others again.

        Each try sends all rows of its part. So a part with a second bad unit is cut in half, and the next ones are as
        small, until one is accepted at once.

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
                unit = self._hinted(part, refused)
                if unit is None:
                    parts.append(part)
                    break
                hinted.append(unit)
                hints += 1
                part = [one for one in part if one is not unit]
                if hints > 1:
                    part, later = _halves(part)
                    waiting += reversed(later)
                    size = max(1, len(part))
            else:
                size *= 1 if hints else 2
        return hinted, parts

    def _hinted(self, part: Sequence[Together], refused: RowsRefused) -> Together | None:
        record = self.hint(refused, sorted(chain.from_iterable(part)))
        return None if record is None else next(unit for unit in part if record in unit)

    def _down_to_one(self, parts: Sequence[Sequence[Together]]) -> list[Together]:
        """Try parts of several units, the largest first, and halve those that are refused; return what is left.

        These are single units, which have not been tried since they were single.
        """
        waiting = [part for part in parts if part]
        while (largest := max(map(len, waiting), default=1)) > 1:
            now = [part for part in waiting if 2 * len(part) > largest]  # the halves of an odd number differ by one
            waiting = [part for part in waiting if 2 * len(part) <= largest]
            for part in now:
                if not self._accepts(part):
                    waiting += _halves(part)
            waiting.sort(key=lambda part: part[0])
        return [unit for [unit] in waiting]

    def _until_nothing_is_accepted(self, units: Iterable[Together]) -> list[Together]:
        """Try the units in turn, again and again; return those that were refused on top of all that is accepted."""
        waiting = deque(units)
        refused_in_turn = self.in_a_row = 0
        while refused_in_turn < len(waiting):
            unit = waiting.popleft()
            if self._accepts([unit]):
                refused_in_turn = 0
            else:
                waiting.append(unit)
                refused_in_turn += 1
        return list(waiting)

    def _accepts(self, part: Sequence[Together]) -> bool:
        return self._refusal_of(part) is None

    def _refusal_of(self, part: Sequence[Together]) -> RowsRefused | None:
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
        """Try single records; if all of them are refused too, no further one is tried."""
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
    :param records: the numbers of those that make rows, ascending: the order in which they are written. A record
        without rows would be accepted, and seem to show that not all are refused.
    :param keys: records of one key stay together until that key alone is refused; one without a key is alone.
    :param write: writes all rows of the given records, in all outputs; it raises `RowsRefused` if they are refused.
    :param refused: the error of all of them.
    :param seconds: no further part is tried after this time under the lock, nor after half of the role's
        ``transaction_timeout``.
    :param limit: how many may be dead; ``None`` for all of them, see `sweep`.
    :param suspects: records that were refused before; see `sweep`.
    :param check: called before each try; raises if the query is being stopped.
    :param hint: see `sweep`.
    :return: the dead, each with its refusal when it was tried alone, on top of everything that was accepted. None if
        the refusal did not recur.
    :raises Halve: the time is up, or rows that were accepted are refused when they are written again. No record is
        to blame; halve the batch, and discover in each half.
    :raises TooManyFailed: see `sweep`.
    :raises StaleClaim, PlanOutdated: as a batch's transaction does.
    :raises OffsetStoreError: any other error; no record is to blame. Those that may pass begin it again first.
    """
    if not records:
        return Found({})
    _log.info("looking for the refused ones among %d records", len(records))
    found = Found({})

    def search(tx: Transaction) -> None:
        nonlocal found
        began = time.monotonic()  # what holds the lock is no record's fault
        trials = KeptTrials(tx, write)
        limits = [seconds, *([] if trials.transaction_timeout is None else [trials.transaction_timeout / 2])]
        deadline = began + min(limits)

        def proceed() -> None:
            check()
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

    # Trials that are rolled back overtake no letter.
    commit(claim, Unit(decisions, along=[_Trial(search)], ending=Ending.ROLL_BACK, in_sequence=True))
    return found


@dataclass(frozen=True, slots=True)
class _Trial(Along):
    """Something that is tried in place of rows."""

    attempt: Callable[[Transaction], None]

    def begin(self, tx: Transaction) -> None:
        """Try it."""
        self.attempt(tx)


class KeptTrials:
    """Trials on a database: what is accepted is kept in a savepoint of its own.

    Savepoint n has n accepted parts below it. They are nested and not released: a released one would go on counting
    towards the 64 that PostgreSQL remembers.

    :param tx: has locked its partitions; it must be rolled back at the end.
    """

    def __init__(self, tx: Transaction, write: Callable[[Work, Sequence[int]], object]) -> None:
        self.tried = 0
        self.accepted = 0
        self._tx = tx
        self._write = write
        self._savepoints = tx.trials()
        self.transaction_timeout = self._savepoints.begin_trials()
        self._kept: list[list[Sequence[int]]] = []
        """The records of each savepoint's writes; only `_fold` makes several writes in one."""

    def accept(self, records: Sequence[int]) -> RowsRefused | None:
        """See `Trials`."""
        self.tried += 1
        refused = self._keep([records])
        if refused is None:
            self.accepted += 1
            failpoints.reach("in_discovery")
            if len(self._kept) == MOST_KEPT:
                self._fold()
        return refused

    def probe(self, records: Sequence[int]) -> RowsRefused | None:
        """See `Trials`."""
        self.tried += 1
        refused = self._keep([records])
        if refused is None:
            self._kept.pop()
            self._savepoints.rollback_to(len(self._kept))
        return refused

    def told_apart(self, records: Sequence[int], check: Callable[[], None]) -> set[int]:
        """Those of the records that are refused in the place of others, which are accepted after them.

        The others are those that were accepted last, and then each half of these: a record that conflicts with one of
        them is accepted in the place of all, and refused in the place of the half without that one. Where there are
        more rows than a trigger allows, it is accepted in the place of either half.

        It is the last call: what was accepted may not be there any more.

        :param check: called before each try; what it raises passes.
        """
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
        """Those of the records that are refused after some parts and before others; none if these are refused too.

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
        """Roll back the newest of what is kept, a quarter or more, and write it as one.

        An older part is left where it is if it has more records than all newer ones: so no record is written again and
        again. In the records' order they may be refused, although they were accepted in another one (a withdrawal
        before its deposit); then they are written in that.
        """
        sizes = [sum(map(len, writes)) for writes in self._kept]
        first = MOST_KEPT * 3 // 4
        while first and sizes[first - 1] <= sum(sizes[first:]):
            first -= 1
        newer = list(chain.from_iterable(self._kept[first:]))
        del self._kept[first:]
        self._savepoints.rollback_to(first)
        if self._keep([sorted(chain.from_iterable(newer))]) is not None and (again := self._keep(newer)) is not None:
            raise Halve(again)


# -- the first record with which a batch is refused


def blame(
    refused: RowsRefused,
    ranges: Ranges,
    attempt: Attempt,
    claim: Claim,
    store: Callable[[Ranges], object] | None = None,
    *,
    repeats: Callable[[], bool] = lambda: True,
    check: Callable[[], None] = lambda: None,
    seconds: float | None = None,
    at_once: float = math.inf,
    only_computed: bool = False,
) -> RowsRefused:
    """Find the first record with which a batch is refused, store those before it, and return the error to raise.

    Each part that is tried begins where the batch does, since a row may depend on an earlier one (a balance, a parent).
    The command that passes over the record is given only where the record is shown to be the cause, and what comes
    before it is stored.

    :param refused: the error of the whole batch.
    :param ranges: the batch's records.
    :param store: writes the given records and advances, in one transaction; ``None`` if nothing is to be stored, since
        what comes before them waits in memory.
    :param repeats: tells whether the same rows are made each time. If not, nothing shows the cause.
    :param check: called before each try, and at the end; what it raises passes.
    :param seconds: how long to search, `SECONDS` by default; with 0 no part is tried.
    :param at_once: call ``store`` for partitions with so many offsets together; with 0 for each alone.
    :param only_computed: ``attempt`` writes nothing.
    :raises AcceptedThen: the refusal did not recur.
    :raises StaleClaim, PlanOutdated: the claim no longer owns the batch, or the plan is outdated.
    :raises OffsetStoreError: any error of ``store`` except `RowsRefused`, after which no record is named.
    """
    _log.warning("looking for the refused record among %s: %s", describe(ranges), refused.what)
    deadline = time.monotonic() + (SECONDS if seconds is None else seconds)
    search = _Bisection(refused, ranges, attempt, check, deadline, only_computed, claim.has_made_rows)
    first, is_cause, is_of_record, ended = 0, False, False, ""
    is_of_call = isinstance(refused, FunctionFailed) and refused.is_of_call
    try:
        first = search.first_refused()
        if not is_of_call:
            is_cause = repeats() and search.is_cause(first)
        is_of_record = isinstance(refused, FunctionFailed) and not is_cause and search.is_of_record(first)
    except _SearchEnded as why:
        _log.warning("gave up the search: %s", why)
        ended = f"; the search for the cause ended: {why}"
        is_of_record = isinstance(refused, FunctionFailed) and search.has_failed_alone and search.has_passed
    check()
    is_known = is_cause or (is_of_call and first > 0)  # a call is of one record, and what came of it is kept
    error = search.error if is_known else refused
    suspects = cut(ranges, search.accepted, first if is_known else search.size)
    stored: Ranges = {}
    accepted: Ranges = {} if store is None else cut(ranges, 0, search.accepted)
    try:
        for some in in_parts(accepted.items(), lambda one: one[1].size, at_once):
            if store is not None:
                check()
                store(dict(some))
                stored = {**stored, **dict(some)}
    except RowsRefused as again:
        _log.warning("records that the search had accepted were refused when they were stored: %s", again)
        suspects, first, is_cause = {tp: one for tp, one in ranges.items() if tp not in stored}, 0, False
    record = search.record(first) if first else None
    fault = is_cause or is_of_record
    skip = ""
    if record is not None and fault:  # a bug of a handler's function would only meet the next record
        by_code = _BY_NO_ROWS if is_of_call else _BY_A_FILTER
        skip = by_code if store is None else _by_a_reset(claim, record)
    return named(error, suspects, record, stored, is_known=is_known, is_of_record=fault, skip=skip, ended=ended)


def blame_uncomputable(
    failed: FunctionFailed,
    delivery: Delivery,
    ranges: Ranges,
    claim: Claim,
    store: Callable[[Ranges], object] | None = None,
    *,
    at_once: float = math.inf,
) -> RowsRefused:
    """Find the first record with which rows can't be computed, and return the error to raise. Parts are only computed.

    :param store, at_once: see `blame`.
    :raises Exception: the source's own, if it does not recur, or can't be looked for.
    """
    if (error := unreadable(failed, delivery, ranges, None if store is None else claim)) is not None:
        return error

    def attempt(part: Ranges, without: Collection[Coordinates]) -> int:
        try:
            return sum(output.rows for output in delivery.rows(part, without).values())
        except Exception as error:
            if (again := delivery.failed(error)) is None:
                raise
            raise again from error

    try:
        return blame(
            failed,
            ranges,
            attempt,
            claim,
            store,
            repeats=delivery.repeats,
            check=partial(delivery.sleep, 0),
            at_once=at_once,
            only_computed=True,
        )
    except AcceptedThen:  # a worker that died, say
        raise_own(failed)


def unreadable(failed: FunctionFailed, delivery: Delivery, ranges: Ranges, claim: Claim | None) -> RowsRefused | None:
    """The error for records that the source itself can't read; ``None`` if it can.

    :param claim: where all that comes before these records is stored: a reset may pass over one then.
    """
    if (next_step := delivery.unreadable()) is None:
        return None
    delivery.sleep(0)  # a source that is being stopped
    error = failed.among(ranges, "the source can't read it", stored={}, next_step=next_step)
    is_one = count_offsets(ranges) == 1
    record = next((tp, range_.from_) for tp, range_ in ranges.items()) if is_one else None
    skip = "" if record is None or claim is None else _by_a_reset(claim, record)
    return named(error, ranges, record, {}, is_known=is_one, is_of_record=True, skip=skip)


def raise_own(failed: FunctionFailed) -> Never:
    """Raise the source's own error, which tells more."""
    raise failed.__cause__ or failed from None


def named(
    error: RowsRefused,
    suspects: Ranges,
    record: Coordinates | None,
    stored: Ranges,
    *,
    is_known: bool,
    is_of_record: bool,
    skip: str,
    ended: str = "",
) -> RowsRefused:
    """The same error, which names the record, and says how to pass over it if it is known to be the cause.

    :param suspects: the records that include the cause.
    :param is_of_record: see `FunctionFailed`.
    :param skip: how; empty if there is no way.
    :param ended: what has ended the search for it, if anything has.
    """
    next_step = error.next_step
    if record is None:
        place = f"first refused at one of the records {describe(suspects)}"
    elif is_known:
        place = f"first refused at record {record[0]}@{record[1]}"
        next_step += skip
    else:
        place = f"first refused at record {record[0]}@{record[1]}, but the cause may be any of {describe(suspects)}"
    place += ended
    place += f"; stored before it: {describe(stored)}" if stored else "; nothing before it was stored"
    found = error.among(suspects, place, stored=stored, next_step=next_step)
    if isinstance(found, FunctionFailed):
        found.is_of_record = is_of_record
    return found


def _by_a_reset(claim: Claim, record: Coordinates) -> str:
    tp, offset = record
    return skipping(claim, tp, OffsetRange(offset, offset + 1))


def skipping(claim: Claim, tp: TopicPartition, range_: OffsetRange) -> str:
    """The command that moves the partition's stored offset past the one record in a range that begins there.

    If the offset has moved since, it is refused.
    """
    words = ["reset", "-g", claim.group, "-t", f"{tp.topic}:{tp.partition}"]
    words += ["--from-offset", str(range_.from_), "--to-offset", str(range_.until)]
    return f' To skip only this record: {command(*words, schema=claim.database.schema)} --reason "…" --execute'


def discarding(claim: Claim, letter: Letter) -> str:
    """The command that gives up one dead letter, and withdraws the request for its replay."""
    place = f"{letter.topic_partition.topic}:{letter.topic_partition.partition}:{letter.offset}"
    words = command("dead-letters", "discard", "-g", claim.group, place, schema=claim.database.schema)
    return f' To give up only this dead letter: {words} --reason "…" --execute'


class _SearchEnded(Exception):
    """The time is up, or an attempt failed for a reason that is not in the records."""


@dataclass(slots=True)
class _Bisection:
    """Tries parts of a batch. Its offsets are numbered from 1, through all partitions in order.

    ``accepted``: how many of the first offsets are known to be accepted. ``error``: the refusal of the smallest part.
    """

    error: RowsRefused
    ranges: Ranges
    attempt: Attempt
    check: Callable[[], None]
    deadline: float
    only_computed: bool
    has_made_rows: bool
    accepted: int = 0
    rows: int = 0
    """Of the last part that was accepted."""
    has_passed: bool = False
    """Whether any part has made rows."""
    has_failed_alone: bool = False
    size: int = field(init=False)
    fewest: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = self.fewest = count_offsets(self.ranges)

    def first_refused(self) -> int:
        """The number of the first offset with which the batch is refused, and is refused once more.

        :raises AcceptedThen: it is accepted now: a parent has arrived, or the refusal depends on time.
        """
        first = _first(0, self.size, lambda _, middle: self._refuses(middle))
        if not self._refuses(self.size):
            raise AcceptedThen
        return first

    def is_cause(self, first: int) -> bool:
        """Tell whether the batch is accepted without the record and its other bad records.

        If nothing is left to accept, only the refusal itself can tell: what would be refused of any record blames none.
        The record must be refused alone: a table or a function may take only so many records, and a duplicate may
        be either of two. With the record, the batch must be refused regardless of the others: a record that another
        one compensates is not the cause, even if each alone is refused, like the two legs of a ledger entry. And
        regardless of one more record: alone, it may be refused for something else, like a parent that is missing.

        :raises AcceptedThen: the record is the whole batch, and is accepted now.
        """
        record, others = self.record(first), list[Coordinates]()
        number, refused = first, self.error
        if not self._refuses(first, begin=first - 1):
            if self.size == 1:
                raise AcceptedThen
            return False
        while self._refuses(self.size, left_out := [record, *others]):
            if len(others) == _MAX_OTHERS:
                return False
            first = _first(first, self.size, lambda _, middle, left_out=left_out: self._refuses(middle, left_out))
            others.append(self.record(first))
        if not self.rows and not speaks_for_itself(refused):
            return False
        if self.only_computed:
            return True  # what fails alone fails beside any others
        one_more = next((one for one in self._beside(number) if one not in others), None)
        return all(
            self._refuses(self.size, left_out)
            for count in range(1, len(others) + 1)
            for left_out in combinations(others, count)
        ) and (one_more is None or self._refuses(self.size, [*others, one_more]))

    def is_of_record(self, first: int) -> bool:
        """Tell whether the record is refused alone, and rows are made of others: then a function has no bug for all.

        Where none of the others is refused or makes rows, such as those of a quiet topic, earlier deliveries count.
        """
        before = [(0, first - 1)] if first > 1 else []
        steps = takewhile(lambda step: first + step <= self.size, (1 << n for n in count()))
        after = [(first + step - 1, first + step) for step in steps]
        if not self._refuses(first, begin=first - 1):
            return False
        may_be = self.has_made_rows
        for begin, end in before + after:
            if self._refuses(end, begin=begin):
                may_be = False
            elif self.rows:
                return True
        return may_be

    def _beside(self, number: int) -> Iterable[Coordinates]:
        """The records around this one, from the nearest before it down, and then those after it."""
        return map(self.record, chain(range(number - 1, 0, -1), range(number + 1, self.size + 1)))

    def _refuses(self, count: int, without: Sequence[Coordinates] = (), *, begin: int = 0) -> bool:
        """Try the first ``count`` offsets, but for the first ``begin``, and tell whether they are refused.

        Only that counts, not why: a batch may have bad records of several kinds.

        :raises _SearchEnded: the time is up, or the attempt failed for a reason that is not in the records.
        """
        self.check()
        if time.monotonic() >= self.deadline:
            raise _SearchEnded("the time is up")
        try:
            self.rows = self.attempt(cut(self.ranges, begin, count), without)
        except (StaleClaim, PlanOutdated):
            raise
        except RowsRefused as error:
            if not (without or begin) and count <= self.fewest:
                self.error, self.fewest = error, count  # it may be raised
            else:
                without_frames(error)
            self.has_failed_alone |= count - begin == 1
            return True
        except Exception as error:  # noqa: BLE001 - the refusal matters more than what ended the search
            why = type(error).__name__
            if isinstance(error, OffsetStoreError):  # it may be what is wrong, such as rows of another type
                why += f": {str(error).removesuffix(error.next_step).rstrip('. ')}"
            raise _SearchEnded(why) from None
        self.has_passed |= self.rows > 0
        if not (without or begin) and count < self.fewest:  # else it is a refusal that did not recur
            self.accepted = count
        return False

    def record(self, number: int) -> Coordinates:
        """Return the record with this number."""
        [(tp, range_)] = cut(self.ranges, number - 1, number).items()
        return tp, range_.from_
