"""Which record a refused row was made of: found by writing ever smaller parts of the batch, and rolling them back.

The database names a column or a constraint; the row may be anything that a transform made of the batch. So only Kafka's
offsets are cut, and all of the rest is done as it would be for the batch: read, transformed, written under the lock of
the offsets, and the deferred constraints checked. It costs a Spark job for each cut, and only where a batch has failed
for good.

Each part begins where the batch does: a row may need what an earlier one has brought (a balance, a parent). What is
found is the first record with which the batch is refused, and nothing is said of a record that was only tried alone.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from offsetstore.errors import RowsRefused, StaleClaim
from offsetstore.offsets import OffsetRange, TopicPartition, describe
from offsetstore.spark.micro_batch import PlanOutdated
from offsetstore.writers.refusals import check_deferred
from offsetstore.writers.staging import StagedRowsLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Connection

    from offsetstore.spark.micro_batch import Plan
    from offsetstore.store.claims import Claim
    from offsetstore.store.transaction import Transaction

Ranges: TypeAlias = "Mapping[TopicPartition, OffsetRange]"

SECONDS: Final = 60.0
"""No further part is tried after so long."""

# Cardinality, data, constraints, views' checks, limits of a row or value, and what a function or trigger raises. That a
# right or a table is missing is no record's doing.
_OF_RECORDS: Final = frozenset({"21", "22", "23", "44", "54", "P0"})

_log = logging.getLogger(__name__)


def find_poison(
    refused: RowsRefused, ranges: Ranges, attempt: Callable[[Ranges], object], *, seconds: float = SECONDS
) -> RowsRefused:
    """Return the error of the first record with which the batch is refused, or of as few records as are proven.

    :param refused: the error of all of them; returned as it is, where no record can have caused it.
    :param attempt: tries to write these records alone, leaves nothing behind, and raises as the batch did.
    :param seconds: with 0 no part is tried.
    :raises StaleClaim, PlanOutdated, StagedRowsLost: the batch is not ours any more, or no longer as it was planned.
    """
    if refused.sqlstate is not None and refused.sqlstate[:2] not in _OF_RECORDS:
        return refused
    _log.warning("the record is to be found among %s: %s", describe(ranges), refused)
    deadline = time.monotonic() + seconds
    told = refused
    passed, proven = 0, _size(ranges)
    while proven - passed > 1 and time.monotonic() < deadline:
        middle = (passed + proven) // 2
        found = _refusal(_cut(ranges, 0, middle), attempt)
        if found is None:
            passed = middle
        elif isinstance(found, RowsRefused) and _is_same(found, refused):
            told, proven = found, middle
        else:
            _log.warning("the search was given up: %s", type(found).__name__)
            break
    narrowest = _cut(ranges, passed, proven)
    return told.among(narrowest, _place(narrowest))


def try_out(claim: Claim, plan: Plan, write: Callable[[Connection], object]) -> None:
    """Write under the locks of the plan's offsets, as a batch does, in a transaction that is rolled back in any case.

    :raises StaleClaim: another claim has taken over.
    :raises PlanOutdated: the stored offsets have changed.
    :raises RowsRefused: a deferred constraint, or what ``write`` raises.
    """

    def work(tx: Transaction) -> None:
        if tx.lock({tp: decision.range for tp, decision in plan.items()}) != plan:
            raise PlanOutdated
        write(tx.connection)
        check_deferred(tx.connection)
        raise _TakenBack

    with suppress(_TakenBack):
        claim.store.run(claim, work)


class _TakenBack(Exception):
    """All was let pass."""


def _refusal(ranges: Ranges, attempt: Callable[[Ranges], object]) -> Exception | None:
    try:
        attempt(ranges)
    except (StaleClaim, PlanOutdated, StagedRowsLost):
        raise
    except Exception as error:  # noqa: BLE001 - what hinders the search does not matter beside what it is about
        return error
    return None


def _is_same(found: RowsRefused, refused: RowsRefused) -> bool:
    """Compare them as far as both are told: COPY knows a column where INSERT does not."""
    pairs = [(getattr(found, name), getattr(refused, name)) for name in ("table", "constraint", "column")]
    return found.sqlstate == refused.sqlstate and all(one == other or None in (one, other) for one, other in pairs)


def _size(ranges: Ranges) -> int:
    return sum(range_.until - range_.from_ for range_ in ranges.values())


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


def _place(ranges: Ranges) -> str:
    is_first = "is the first with which the batch is refused"
    if _size(ranges) == 1:
        [(tp, range_)] = ranges.items()
        return f"the record {tp}@{range_.from_} {is_first}"
    return f"one of the records {describe(ranges)} {is_first}"
