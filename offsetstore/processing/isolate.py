"""Which record a refused row was made of: found by writing parts of the batch, and rolling them back.

The database names a column or a constraint; the row may be anything that a transform made of the batch. So only Kafka's
offsets are cut, and all of the rest is done as for the batch: read, transformed, written under the lock of the offsets,
and the deferred constraints checked. It costs a Spark job for each part, and only where a batch has failed.

Each part begins where the batch does: a row may need what an earlier one has brought (a balance, a parent). What is
found is the first record with which the batch is refused. That alone does not make it the cause: the refusal may not
recur, and a later record may lift it (a parent, a deposit). So the whole batch is tried again, and then without the
record; see docs/decisions/0020-which-record.md. The records before it, which were accepted, are then stored, so that
passing over the record passes over no other.

All that counts is whether records are accepted or refused, for whatever reason: a batch may have bad records of several
kinds, and its parts are then refused in several ways.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import TYPE_CHECKING, Final, TypeAlias

from offsetstore.errors import RowsRefused, StaleClaim
from offsetstore.offsets import OffsetRange, TopicPartition, describe
from offsetstore.processing.cycle import lock_as_planned
from offsetstore.processing.plan import PlanOutdated, Ranges
from offsetstore.writers.append import Append
from offsetstore.writers.errors import check_deferred
from offsetstore.writers.staging import StagedRowsLost
from offsetstore.writers.upsert import Upsert

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from offsetstore.processing.plan import Plan
    from offsetstore.protocol.ports import Writer
    from offsetstore.store.claim import Claim
    from offsetstore.store.transaction import Transaction

Record: TypeAlias = tuple[TopicPartition, int]
Attempt: TypeAlias = Callable[[Ranges, Collection[Record]], object]
"""Writes the records of these ranges without some of them, leaves nothing behind, and raises as the batch did."""

SECONDS: Final = 60.0
"""No further part is tried after so long."""

_MOST_OTHERS: Final = 4
"""So many other bad records may be in the batch where one is to be shown to be a cause."""

# Cardinality, data, constraints, checks of views, limits of a row or value, and what functions and triggers raise, with
# codes of their own if they like. That a right or a table is missing, for example, is no record's doing.
_NOT_OF_RECORDS: Final = ("0", "2B", "2D", "2F", "24", "25", "26", "27", "28", "3", "4", "5", "7", "F", "H", "X")
_OF_RECORDS: Final = ("21", "22", "23", "38", "44", "54", "P0")

_log = logging.getLogger(__name__)


class Proof(Enum):
    """What it takes to show that a record is the cause of a refusal."""

    ROW = "row"
    """Each row is of one record, and its own values were refused: no other record can lift that."""
    BATCH = "batch"
    """The batch is refused with the record, and accepted without it."""
    NONE = "none"
    """The transform makes other rows each time: what was refused need not be refused again."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a search has found out.

    :param error: the refusal of the record, or where none is shown to be a cause, of the batch.
    :param accepted: the records before the first one with which the batch is refused; they were written and taken back.
    :param suspects: the records among which the cause is.
    :param record: the one of them that is shown to be a cause, else ``None``.
    """

    error: RowsRefused
    accepted: Ranges
    suspects: Ranges
    record: Record | None


def is_of_records(refused: RowsRefused) -> bool:
    """Tell whether a record can have caused it."""
    state = refused.sqlstate
    return state is None or state.startswith(_OF_RECORDS) or not state.startswith(_NOT_OF_RECORDS)


def is_of_values(refused: RowsRefused, writer: Writer | None) -> bool:
    """Tell whether a row was refused for its own values, by us: what the database refuses, another row may lift.

    A trigger raises what it likes, with any SQLSTATE, and a CHECK may call a function that looks at other rows.

    :param writer: that of the refused rows, ``None`` if that is not known.
    """
    return refused.sqlstate is None and type(writer) in {Append, Upsert}


def isolate(
    refused: RowsRefused,
    ranges: Ranges,
    attempt: Attempt,
    *,
    proof: Callable[[RowsRefused], Proof] = lambda _: Proof.BATCH,
    seconds: float = SECONDS,
) -> Verdict:
    """Look for the record that is the cause of a refusal.

    :param refused: the error of the whole batch, which a record can have caused.
    :param ranges: the batch's records.
    :param proof: says of the refusal of the smallest part what it takes to show its cause.
    :param seconds: with 0 no part is tried.
    :raises PlanOutdated: the refusal did not recur; the batch may be written by now.
    :raises StaleClaim, PlanOutdated, StagedRowsLost: the batch is not ours any more, or no longer as it was planned.
    """
    _log.warning("looking for the refused record among %s: %s", describe(ranges), refused)
    search = _Search(refused, ranges, attempt, time.monotonic() + seconds)
    record: Record | None = None
    try:
        first = search.bisect(0, search.size)
        if not search.refuses(search.size):
            raise PlanOutdated("rows were refused, and a moment later they were not")
        needed = proof(search.told)
        if needed is Proof.ROW or (needed is Proof.BATCH and search.is_cause(first)):
            record = search.record(first)
    except _GivenUp as why:
        _log.warning("the search was given up: %s", why)
    accepted = _cut(ranges, 0, search.accepted)
    suspects = _cut(ranges, search.accepted, search.accepted + 1 if record else search.size)
    return Verdict(search.told if record else refused, accepted, suspects, record)


def conclude(
    verdict: Verdict, ranges: Ranges, store: Callable[[Ranges], object], *, group: str, schema: str | None
) -> RowsRefused:
    """Store the records before the refused one, and return the error that tells all of it.

    :param ranges: the batch's records.
    :param store: writes these records and advances, in one transaction.
    :param schema: that of the store's tables.
    :raises OffsetStoreError: whatever ``store`` raises, but for `RowsRefused`: then no record is named.
    """
    stored: Ranges = {}
    suspects, record = verdict.suspects, verdict.record
    if verdict.accepted:
        try:
            store(verdict.accepted)
            stored = verdict.accepted
        except RowsRefused as again:
            _log.warning("records that were accepted in the search were refused when they were to be stored: %s", again)
            suspects, record = ranges, None
    if record is None:
        place = f"one of the records {describe(suspects)} is the first with which the batch is refused"
    else:
        place = f"the record {record[0]}@{record[1]} is the first with which the batch is refused"
    place += f"; stored before it: {describe(stored)}" if stored else "; nothing before it was stored"
    next_step = verdict.error.next_step
    if record is not None:
        next_step += f" To pass over this record alone: {_recipe(group, schema, record)}"
    return verdict.error.among(suspects, place, stored=stored, next_step=next_step)


def try_out(claim: Claim, plan: Plan, write: Callable[[Connection], object]) -> None:
    """Write under the locks of the plan's offsets, as a batch does, in a transaction that is rolled back in any case.

    :raises StaleClaim: another claim has taken over.
    :raises PlanOutdated: the stored offsets have changed.
    :raises RowsRefused: a deferred constraint, or what ``write`` raises.
    """

    def work(tx: Transaction) -> None:
        lock_as_planned(tx, plan)
        write(tx.connection)
        check_deferred(tx.connection)
        raise _TakenBack

    with suppress(_TakenBack):
        claim.run(work)


class _TakenBack(Exception):
    """All rows were accepted."""


class _GivenUp(Exception):
    """The time is up, or something else than the records is in the way."""


class _Search:
    """Tries parts of a batch; offsets are counted from 1, from partition to partition.

    ``accepted`` is how many of the first offsets are known to be accepted; ``told`` is the refusal of the fewest.
    """

    def __init__(self, refused: RowsRefused, ranges: Ranges, attempt: Attempt, deadline: float) -> None:
        self.told = refused
        self.size = sum(range_.until - range_.from_ for range_ in ranges.values())
        self.accepted = 0
        self._fewest = self.size
        self._ranges = ranges
        self._attempt = attempt
        self._deadline = deadline

    def bisect(self, accepted: int, refused: int, without: Sequence[Record] = ()) -> int:
        """Return the number of the first offset with which the batch is refused.

        :param accepted: so many of the first offsets are accepted; with ``refused`` of them the batch is refused.
        """
        while refused - accepted > 1:
            middle = (accepted + refused) // 2
            if self.refuses(middle, without):
                refused = middle
            else:
                accepted = middle
            if not without:
                self.accepted = accepted
        return refused

    def is_cause(self, first: int) -> bool:
        """Tell whether the batch is accepted without the record, and without the other bad ones that it has.

        With it the batch must be refused, whichever of the others are there too: a record that another makes good is no
        cause, also where that other one looks bad without it, as the two legs of an entry do.
        """
        record = self.record(first)
        others: list[Record] = []
        while self.refuses(self.size, [record, *others]):
            if len(others) == _MOST_OTHERS:
                return False
            first = self.bisect(first, self.size, [record, *others])
            others.append(self.record(first))
        return all(
            self.refuses(self.size, left_out)
            for count in range(1, len(others) + 1)
            for left_out in combinations(others, count)
        )

    def refuses(self, count: int, without: Sequence[Record] = ()) -> bool:
        """Try the first so many offsets.

        :raises _GivenUp: the time is up, or something else than the records is in the way.
        """
        if time.monotonic() >= self._deadline:
            raise _GivenUp("the time is up")
        try:
            self._attempt(_cut(self._ranges, 0, count), without)
        except (StaleClaim, PlanOutdated, StagedRowsLost):
            raise
        except Exception as error:  # noqa: BLE001 - what hinders the search does not matter beside what it is about
            if not (isinstance(error, RowsRefused) and is_of_records(error)):
                raise _GivenUp(type(error).__name__) from None
            if not without and count <= self._fewest:
                self.told, self._fewest = error, count
            return True
        return False

    def record(self, number: int) -> Record:
        """Return the offset of that number."""
        [(tp, range_)] = _cut(self._ranges, number - 1, number).items()
        return tp, range_.from_


def _cut(ranges: Ranges, begin: int, end: int) -> Ranges:
    """Take out the offsets from number ``begin`` to before number ``end``, counted from partition to partition."""
    part: dict[TopicPartition, OffsetRange] = {}
    for tp, range_ in sorted(ranges.items()):
        size = range_.until - range_.from_
        taken = OffsetRange(range_.from_ + max(0, min(begin, size)), range_.from_ + max(0, min(end, size)))
        if taken:
            part[tp] = taken
        begin, end = begin - size, end - size
    return part


def schema_of(claim: Claim) -> str | None:
    """The schema of the store's tables, ``None`` where it has none."""
    return claim.database.schema


def _recipe(group: str, schema: str | None, record: Record) -> str:
    """The command that moves the partition's stored offset behind the record, and only if it stands there."""
    tp, offset = record
    words = ["offsetstore", "reset", "-g", group, "-t", f"{tp.topic}:{tp.partition}"]
    words += ["--from-offset", str(offset), "--to-offset", str(offset + 1)]
    words += [] if schema in {None, "public"} else ["--schema", schema or ""]
    return f'{shlex.join(words)} --reason "…" --execute'
