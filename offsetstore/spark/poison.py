"""Which record a refused row was made of: found by writing ever smaller parts of the batch, and rolling them back.

The database names a column or a constraint; the row may be anything that a transform made of the batch. So only Kafka's
offsets are halved, and all of the rest is done as it would be for the batch: read, transformed, written, and the
deferred constraints checked. It costs a Spark job for each halving, and only where a batch has failed for good.

What no part of the batch is refused for (a sum that becomes too large with all of its records) is told with the
smallest part for which it was.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeAlias

from offsetstore.errors import RowsRefused
from offsetstore.offsets import OffsetRange, TopicPartition, describe
from offsetstore.writers.refusals import check_deferred

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy import Connection

    from offsetstore.store.claims import Claim

Ranges: TypeAlias = "Mapping[TopicPartition, OffsetRange]"

SECONDS: Final = 60.0
"""No further part is tried after so long."""

_log = logging.getLogger(__name__)


def find_poison(
    refused: RowsRefused, ranges: Ranges, attempt: Callable[[Ranges], object], *, seconds: float = SECONDS
) -> RowsRefused:
    """Return the error of the first record that is refused, or of as few records as can be told.

    :param refused: the error of all of them.
    :param attempt: tries to write these records alone, leaves nothing behind, and raises as the batch did.
    """
    _log.warning("looking for the record that was refused: %s", describe(ranges))
    deadline = time.monotonic() + seconds
    proven, suspected = ranges, ranges
    while _size(suspected) > 1 and time.monotonic() < deadline:
        first, second = _halves(suspected)
        found = _refusal(first, attempt)
        if isinstance(found, RowsRefused):
            refused, proven, suspected = found, first, first
        elif found is None:
            suspected = second
        else:
            break
    # Where the first half was let pass, it must be in the second; at the end that is made sure of.
    if suspected is not proven and isinstance(found := _refusal(suspected, attempt), RowsRefused):
        refused, proven = found, suspected
    return refused.among(proven, _place(proven))


def roll_back(claim: Claim, write: Callable[[Connection], object]) -> None:
    """Write in a transaction that is not committed, whatever becomes of it.

    :raises RowsRefused: a deferred constraint, or what ``write`` raises.
    """
    store = claim.store
    session = store.database.begin(name=claim.name, lock_timeout=store.timeouts.lock)
    try:
        write(session.connection)
        check_deferred(session.connection)
    finally:
        session.rollback()


def _refusal(ranges: Ranges, attempt: Callable[[Ranges], object]) -> Exception | None:
    try:
        attempt(ranges)
    except Exception as error:  # noqa: BLE001 - what hinders the search does not matter beside what it is about
        if not isinstance(error, RowsRefused):
            _log.warning("the search was given up: %s", type(error).__name__)
        return error
    return None


def _size(ranges: Ranges) -> int:
    return sum(range_.until - range_.from_ for range_ in ranges.values())


def _halves(ranges: Ranges) -> tuple[Ranges, Ranges]:
    """Cut the partitions' offsets, one after the other, in the middle."""
    left = _size(ranges) // 2
    first: dict[TopicPartition, OffsetRange] = {}
    second: dict[TopicPartition, OffsetRange] = {}
    for tp, range_ in sorted(ranges.items()):
        middle = min(range_.until, range_.from_ + left)
        left -= middle - range_.from_
        for half, part in ((first, OffsetRange(range_.from_, middle)), (second, OffsetRange(middle, range_.until))):
            if part:
                half[tp] = part
    return first, second


def _place(ranges: Ranges) -> str:
    if _size(ranges) == 1:
        [(tp, range_)] = ranges.items()
        return f"the record {tp}@{range_.from_}"
    return f"the records {describe(ranges)}"
