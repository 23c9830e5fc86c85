"""Discovery: which records of a refused batch the database refuses, by writing parts of it and rolling them back.

A record is dead if it was refused, alone, on top of everything that was accepted. `sweep` decides what is tried and in
which order; it needs no database. `discover` gives it one: all tries are made under the locks of the offsets, in one
transaction that is always rolled back. Whatever the error, the dead are to blame only if another record is accepted
after they were refused. See docs/decisions/0036 and 0047.

`isolate` finds one record, for jobs without dead letters.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol, TypeAlias

from offsetstore.errors import RowsRefused
from offsetstore.processing.blame import speaks_for_itself
from offsetstore.processing.unit import Along, Decisions, Ending, Unit, commit
from offsetstore.protocol import failpoints
from offsetstore.protocol.work import Work
from offsetstore.store.claim import Claim
from offsetstore.store.transaction import Transaction

Together: TypeAlias = "tuple[int, ...]"
"""The numbers of records that stay together, ascending."""

MOST_KEPT: Final = 48
"""Savepoints that are kept at once. With more than 64 in a transaction, all of the server's snapshots get slower."""

_ALL_REFUSED: Final = 10
"""If so many records are tried, and none is accepted, the records are not to blame."""
_TRIES_DOWN_TO_A_64TH: Final = 2 * 64 - 1
_SAMPLE: Final = 16
_CERTAINLY_TOO_MANY: Final = 1000
_CHECK_EVERY: Final = 0.1
"""Seconds. To ask Spark whether the query is being stopped takes 3 ms, and a try hardly more than 10."""

_ALONE: Final = object()

_log = logging.getLogger(__name__)


class DiscoveryEnded(Exception):
    """Discovery ended without a result, and blames no record; halve the batch, and discover in each half."""


class NothingAccepted(Exception):
    """No record was accepted, of ten or more, so it is a bug or an outage.

    :param refused: one of the refusals.
    """

    def __init__(self, refused: RowsRefused) -> None:
        super().__init__("all records were refused")
        self.refused = refused


class TooManyRefused(Exception):
    """More records than allowed were refused.

    :param refused: one of the refusals.
    """

    def __init__(self, limit: int, refused: RowsRefused) -> None:
        super().__init__(f"more than {limit} records were refused")
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Found:
    """The dead, each with its last refusal.

    :param doubtful: those of them that may be refused for something that any record would meet: their refusals don't
        speak for themselves, and no other record was accepted after them.
    """

    dead: Mapping[int, RowsRefused]
    doubtful: Collection[int] = ()


def now_and_then(check: Callable[[], None], *, every: float = _CHECK_EVERY) -> Callable[[], None]:
    """Make a check that can be called before each try, and does something only every so many seconds."""
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
    hint: Callable[[RowsRefused, Sequence[int]], int | None] = lambda _, __: None,
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
    :raises NothingAccepted: of ten or more records none was accepted. If no 64th of them was accepted, sixteen single
        ones tell, which are chosen by chance, but the same each time.
    :raises TooManyRefused: more than ``limit`` are dead. If as many single ones are refused in a row, and more than
        1,000, the rest is not tried.
    """
    return _Sweep(units, trials, limit, check, hint).run(frozenset(suspects))


class _Sweep:
    def __init__(
        self,
        units: Sequence[Together],
        trials: Trials,
        limit: int | None,
        check: Callable[[], None],
        hint: Callable[[RowsRefused, Sequence[int]], int | None],
    ) -> None:
        self._units = units
        self._trials = trials
        self._limit = limit
        self._check = check
        self._hint = hint
        self._refusals: dict[int, RowsRefused] = {}
        """The last refusal of each record that was tried alone."""
        self._in_a_row = 0
        """How many different single records were refused since a part was accepted."""
        self._tries = 0
        self._has_accepted = False

    def run(self, suspects: frozenset[int]) -> dict[int, RowsRefused]:
        others = [unit for unit in self._units if suspects.isdisjoint(unit)]
        singles = [unit for unit in self._units if not suspects.isdisjoint(unit)]
        singles += self._singles_of(others)
        refused = self._until_nothing_is_accepted(sorted(singles))
        if any(len(unit) > 1 for unit in refused):
            singles = [unit for unit in refused if len(unit) == 1]
            singles += self._singles_of([(record,) for unit in refused if len(unit) > 1 for record in unit])
            refused = self._until_nothing_is_accepted(sorted(singles))
        dead = {record: self._refusals[record] for (record,) in sorted(refused)}
        if self._limit is None:
            return dead
        if len(dead) >= _ALL_REFUSED and not self._has_accepted:
            raise NothingAccepted(next(iter(dead.values())))
        if len(dead) > self._limit:
            raise TooManyRefused(self._limit, next(iter(dead.values())))
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
        record = self._hint(refused, sorted(chain.from_iterable(part)))
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
        refused_in_turn = self._in_a_row = 0
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
        self._check()
        records = sorted(chain.from_iterable(part))
        self._tries += 1
        refused = self._trials.accept(records)
        if refused is None:
            self._has_accepted, self._in_a_row = True, 0
            return None
        if len(records) == 1:
            self._refusals[records[0]] = refused
            self._in_a_row += 1
            if self._limit is not None and self._in_a_row > max(self._limit, _CERTAINLY_TOO_MANY):
                raise TooManyRefused(self._limit, refused)
        if self._limit is not None and self._tries == _TRIES_DOWN_TO_A_64TH and not self._has_accepted:
            self._sample()
        return refused

    def _sample(self) -> None:
        """Try single records; if all of them are refused too, no further one is tried."""
        records = sorted(chain.from_iterable(self._units))
        chosen = random.Random(0).sample(records, _SAMPLE)  # noqa: S311 - not a secret
        refused: RowsRefused | None = None
        for record in sorted(chosen):
            self._check()
            refused = self._trials.probe([record])
            if refused is None:
                return
        if refused is not None:
            raise NothingAccepted(refused)


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
    seconds: float,
    limit: int | None,
    suspects: Collection[int] = (),
    check: Callable[[], None] = lambda: None,
    hint: Callable[[RowsRefused, Sequence[int]], int | None] = lambda _, __: None,
) -> Found:
    """Find the records that the database refuses. Nothing is written for good; the offsets are locked meanwhile.

    :param decisions: of the batch's plan.
    :param records: the numbers of those that make rows, ascending: the order in which they are written. A record
        without rows would be accepted, and seem to show that not all are refused.
    :param keys: records of one key stay together until that key alone is refused; one without a key is alone.
    :param write: writes all rows of the given records, in all outputs; it raises `RowsRefused` if they are refused.
    :param seconds: no further part is tried after this time under the lock, nor after half of the role's
        ``transaction_timeout``.
    :param limit: how many may be dead; ``None`` for all of them, see `sweep`.
    :param suspects: records that were refused before; see `sweep`.
    :param check: called before each try; raises if the query is being stopped.
    :param hint: see `sweep`.
    :return: the dead, each with its refusal when it was tried alone, on top of everything that was accepted. None if
        the refusal did not recur.
    :raises DiscoveryEnded: the time is up, or rows that were accepted are refused when they are written again.
    :raises NothingAccepted, TooManyRefused: see `sweep`.
    :raises StaleClaim, PlanOutdated: as a batch's transaction does.
    :raises OffsetStoreError: any other error; no record is to blame.
        Those that may pass begin it again first.
    """
    if not records:
        return Found({})
    _log.warning("looking for the refused ones among %d records", len(records))
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
                raise DiscoveryEnded("the time is up")

        try:
            units = units_of(records, keys)
            dead = sweep(units, trials, limit=limit, suspects=suspects, check=proceed, hint=hint)
            doubtful = [record for record, refused in dead.items() if not speaks_for_itself(refused)]
            told = set[int]() if limit is None else trials.told_apart(doubtful, proceed)
            found = Found(dead, [record for record in doubtful if record not in told])
        finally:
            took = time.monotonic() - began
            _log.warning("tried %d parts in %.1f s, of which %d were accepted", trials.tried, took, trials.accepted)

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
            return refused
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
        if self._keep([sorted(chain.from_iterable(newer))]) is not None and self._keep(newer) is not None:
            raise DiscoveryEnded("rows that were accepted are refused when they are written again")
