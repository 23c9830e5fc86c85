"""Find the record that a refused row was made from, by writing parts of the batch and rolling them back.

The database names a column or a constraint, but a transform can make the row from any records of the batch. So a part
is a cut of Kafka's offsets, and is treated as the batch is: read, transformed, written under the lock of the offsets,
its deferred constraints checked. Each part costs a Spark job, and only after a batch has failed.

Each part begins where the batch does, since a row may depend on an earlier one (a balance, a parent). The search finds
the first record with which the batch is refused. That record need not be the cause: the refusal may not recur, and a
later record may lift it (a parent, a deposit). So the whole batch is tried again, and then without the record; see
docs/decisions/0020-which-record.md. The records before it, which were accepted, are then stored, so that passing over
the record passes over no other.

The search looks only at whether records are accepted, not at why they are refused: a batch may have bad records of
several kinds, and its parts are then refused for different reasons.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import Final, TypeAlias

from offsetstore.errors import FunctionFailed, RowsRefused, StaleClaim
from offsetstore.offsets import OffsetRange, TopicPartition, count_offsets, describe
from offsetstore.processing.unit import PlanOutdated, Ranges, Record
from offsetstore.protocol.ports import Writer
from offsetstore.store.claim import Claim
from offsetstore.text import command
from offsetstore.writers.append import Append
from offsetstore.writers.upsert import Upsert

Attempt: TypeAlias = Callable[[Ranges, Collection[Record]], int]
"""Writes the records of the ranges except the given ones, rolls back, and returns their rows; raises as the batch."""

SECONDS: Final = 60.0
"""The search tries no further part after this time."""

_MAX_OTHERS: Final = 4
"""A record can be shown to be the cause only if the batch has at most this many other bad records."""

_log = logging.getLogger(__name__)


class AcceptedThen(PlanOutdated):
    """The refusal did not recur: the batch may be accepted now."""

    def __init__(self) -> None:
        super().__init__("rows were refused, and accepted a moment later")


class Proof(Enum):
    """What it takes to show that a record is the cause of a refusal."""

    ROW = "row"
    """Each row is made from one record, and was refused for its own values: no other record can change that.

    Where a function fails, it must fail for the record alone, and another one must be computed then: else a bug would
    name the first record, and a limit the first beyond it.
    """
    BATCH = "batch"
    """The batch is refused with the record, and accepted without it."""
    NONE = "none"
    """There is none: the transform makes different rows each time, so a refusal may not recur."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a search.

    :param error: the refusal of ``record``, or of the batch if ``record`` is ``None``.
    :param accepted: the records before the first one with which the batch is refused; they were written and rolled
        back.
    :param suspects: the records that include the cause.
    :param record: the one of them that was shown to be the cause, else ``None``.
    """

    error: RowsRefused
    accepted: Ranges
    suspects: Ranges
    record: Record | None


def speaks_for_itself(refused: RowsRefused) -> bool:
    """Tell whether a refusal shows a bad record where no other record was accepted after it.

    The one place where codes count: values (but not 2200H, a sequence that has come to its end), constraints, and what
    functions raise without a code of their own. A value that a writer or psycopg does not send has no code.
    """
    state = refused.sqlstate
    if state is None:
        return not isinstance(refused, FunctionFailed)
    return state.startswith(("22", "23", "P0001")) and state != "2200H"


def is_of_values(refused: RowsRefused, writer: Writer | None) -> bool:
    """Tell whether offsetstore itself refused a row for its own values; another row can't lift that.

    It may lift what the database refuses: a trigger may raise any SQLSTATE, and a CHECK may call a function that reads
    other rows.

    :param writer: the writer of the refused rows, ``None`` if it is not known.
    """
    return refused.sqlstate is None and is_ours(writer)


def is_ours(writer: Writer | None) -> bool:
    """Tell whether the writer's methods are offsetstore's own: what another one means by a refusal is not known."""
    return type(writer) in {Append, Upsert}


def isolate(
    refused: RowsRefused,
    ranges: Ranges,
    attempt: Attempt,
    *,
    proof: Callable[[RowsRefused], Proof] = lambda _: Proof.BATCH,
    seconds: float = SECONDS,
) -> Verdict:
    """Search for the record that caused a refusal.

    :param refused: the error of the whole batch.
    :param ranges: the batch's records.
    :param proof: tells, from the refusal of the smallest part, what it takes to show its cause.
    :param seconds: how long to search; with 0 no part is tried.
    :raises AcceptedThen: the refusal did not recur.
    :raises StaleClaim, PlanOutdated: the claim no longer owns the batch, or the plan is outdated.
    """
    _log.warning("looking for the refused record among %s: %s", describe(ranges), refused)
    search = _Search(refused, ranges, attempt, time.monotonic() + seconds)
    record: Record | None = None
    try:
        first = search.bisect(0, search.size)
        if not search.refuses(search.size):
            raise AcceptedThen
        needed = proof(search.error)
        is_shown = needed is Proof.ROW and search.is_of_record(first, search.error)
        if is_shown or (needed is Proof.BATCH and search.is_cause(first, search.error)):
            record = search.record(first)
    except _SearchEnded as why:
        _log.warning("gave up the search: %s", why)
    accepted = cut(ranges, 0, search.accepted)
    suspects = cut(ranges, search.accepted, search.accepted + 1 if record else search.size)
    return Verdict(search.error if record else refused, accepted, suspects, record)


def conclude(
    verdict: Verdict,
    ranges: Ranges,
    store: Callable[[Ranges], object],
    *,
    group: str,
    schema: str | None,
    by_partition: bool = False,
) -> RowsRefused:
    """Store the records before the refused one, and return the error to raise.

    :param ranges: the batch's records.
    :param store: writes the given records and advances, in one transaction.
    :param schema: the schema of the store's tables.
    :param by_partition: call ``store`` for each partition.
    :raises OffsetStoreError: any error of ``store`` except `RowsRefused`, after which no record is named.
    """
    stored: Ranges = {}
    suspects, record = verdict.suspects, verdict.record
    accepted = verdict.accepted
    if accepted:
        try:
            for part in [{tp: range_} for tp, range_ in accepted.items()] if by_partition else [accepted]:
                store(part)
                stored = {**stored, **part}
        except RowsRefused as again:
            _log.warning("records that the search had accepted were refused when they were stored: %s", again)
            suspects, record = {tp: range_ for tp, range_ in ranges.items() if tp not in stored}, None
    if record is None:
        place = f"first refused at one of the records {describe(suspects)}"
    else:
        place = f"first refused at record {record[0]}@{record[1]}"
    place += f"; stored before it: {describe(stored)}" if stored else "; nothing before it was stored"
    next_step = verdict.error.next_step
    if record is not None:
        next_step += f" To skip only this record: {_reset_command(group, schema, record)}"
    return verdict.error.among(suspects, place, stored=stored, next_step=next_step)


class _SearchEnded(Exception):
    """The time is up, or an attempt failed for a reason that is not in the records."""


class _Search:
    """Tries parts of a batch. Its offsets are numbered from 1, through all partitions in order.

    ``accepted``: how many of the first offsets are known to be accepted. ``error``: the refusal of the smallest part.
    """

    def __init__(self, refused: RowsRefused, ranges: Ranges, attempt: Attempt, deadline: float) -> None:
        self.error = refused
        self.size = count_offsets(ranges)
        self.accepted = 0
        self.rows = 0
        """Of the last part that was accepted."""
        self.has_rows = False
        """Whether any part that was accepted had some, since the record was refused alone."""
        self._fewest = self.size
        self._ranges = ranges
        self._attempt = attempt
        self._deadline = deadline

    def bisect(self, accepted: int, refused: int, without: Sequence[Record] = ()) -> int:
        """Return the number of the first offset with which the batch is refused.

        :param accepted: how many of the first offsets are known to be accepted.
        :param refused: how many of the first offsets are known to be refused.
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

    def is_of_record(self, first: int, refused: RowsRefused) -> bool:
        """Tell whether the refusal shows a bad record, or the record is refused alone, and others are accepted then.

        These must make rows. Else it may be innocent, as where a function takes only so many records or calls.
        """
        if speaks_for_itself(refused):
            return True
        if not self.refuses(first, begin=first - 1):
            return False
        self.has_rows = False
        if first > 1 and self.refuses(first - 1):
            return False
        left_out = [self.record(first)]
        while not self.has_rows and self.refuses(self.size, left_out):
            if len(left_out) > _MAX_OTHERS:
                return False
            first = self.bisect(first, self.size, left_out)
            left_out.append(self.record(first))
        return self.has_rows

    def is_cause(self, first: int, refused: RowsRefused) -> bool:
        """Tell whether the batch is accepted without the record and its other bad records.

        If nothing is left to accept, only the refusal itself can tell: what would be refused of any record blames none.
        With the record, the batch must be refused regardless of the others: a record that another one compensates
        is not the cause, even if each alone is refused, like the two legs of a ledger entry.
        """
        record = self.record(first)
        others: list[Record] = []
        while self.refuses(self.size, [record, *others]):
            if len(others) == _MAX_OTHERS:
                return False
            first = self.bisect(first, self.size, [record, *others])
            others.append(self.record(first))
        if not self.rows and not speaks_for_itself(refused):
            return False
        return all(
            self.refuses(self.size, left_out)
            for count in range(1, len(others) + 1)
            for left_out in combinations(others, count)
        )

    def refuses(self, count: int, without: Sequence[Record] = (), *, begin: int = 0) -> bool:
        """Try the first ``count`` offsets, but for the first ``begin``, and tell whether they are refused.

        :raises _SearchEnded: the time is up, or the attempt failed for a reason that is not in the records.
        """
        if time.monotonic() >= self._deadline:
            raise _SearchEnded("the time is up")
        try:
            self.rows = self._attempt(cut(self._ranges, begin, count), without)
            self.has_rows = self.has_rows or self.rows > 0
        except (StaleClaim, PlanOutdated):
            raise
        except Exception as error:  # noqa: BLE001 - the refusal matters more than what ended the search
            if not isinstance(error, RowsRefused):
                raise _SearchEnded(type(error).__name__) from None
            if not without and count - begin <= self._fewest:
                self.error, self._fewest = error, count - begin
            return True
        return False

    def record(self, number: int) -> Record:
        """Return the record with this number."""
        [(tp, range_)] = cut(self._ranges, number - 1, number).items()
        return tp, range_.from_


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


def schema_of(claim: Claim) -> str | None:
    """The schema of the store's tables, ``None`` if it has none."""
    return claim.database.schema


def _reset_command(group: str, schema: str | None, record: Record) -> str:
    """The command that moves the partition's stored offset past the record, if it is still at the record."""
    tp, offset = record
    words = ["reset", "-g", group, "-t", f"{tp.topic}:{tp.partition}"]
    words += ["--from-offset", str(offset), "--to-offset", str(offset + 1)]
    return f'{command(*words, schema=schema)} --reason "…" --execute'
