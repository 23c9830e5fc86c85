"""What to do with a range, given the stored offset. Pure, and the one place that decides.

The range is ``[from, until)``. The stored offset ``s`` is a next offset: all records below it are in the results, have
letters, or were passed over by a recorded decision. With manual marking, ``s`` is the delivered offset.

=====================  ==========================================================================
``s >= until``         SKIP   all of it is already in the results
``s == from``          APPLY  the ordinary case
``from < s < until``   CROP   read again, and further than the first time: drop the records below ``s``
``s < from``           GAP    records between ``s`` and ``from`` would be lost: nothing may be written
=====================  ==========================================================================

The first line that applies counts. So an empty range at ``s`` is SKIP: it locks the partition, and writes nothing.

The range comes from the source, never from the rows: aborted transactions, control records, compaction and filters
leave holes, so the highest offset seen, plus one, is too low.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from offsetstore.offsets import OffsetRange


class Outcome(Enum):
    """What happens to a range."""

    APPLY = "apply"
    CROP = "crop"
    SKIP = "skip"
    GAP = "gap"


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome for one partition, and the facts that led to it."""

    outcome: Outcome
    stored: int
    range: OffsetRange

    @property
    def remaining(self) -> OffsetRange:
        """The part of the range that is still to be written: ``[stored, until)``, empty for SKIP.

        :raises ValueError: the outcome is GAP, so nothing may be written.
        """
        if self.outcome is Outcome.GAP:
            raise ValueError(f"nothing may be written: stored {self.stored} is below {self.range}")
        if self.outcome is Outcome.APPLY:
            return self.range
        # With SKIP, the stored offset may lie beyond the range, which would make a reversed one.
        return OffsetRange(self.stored, max(self.stored, self.range.until))

    @property
    def is_stored(self) -> bool:
        """Whether the whole range is in the results already.

        ``False`` for an empty range at the stored offset: it is SKIP, too, but only asks for the lock.
        """
        # With SKIP, `remaining` is an empty range at the stored offset, so only that range equals it.
        return self.outcome is Outcome.SKIP and self.range != self.remaining


def decide(stored: int, range_: OffsetRange) -> Decision:
    """Compare a range with the stored next offset."""
    # First, so that an empty range at the stored offset is SKIP: there is nothing to write.
    if stored >= range_.until:
        outcome = Outcome.SKIP
    elif stored == range_.from_:
        outcome = Outcome.APPLY
    elif stored > range_.from_:
        outcome = Outcome.CROP
    else:
        outcome = Outcome.GAP
    return Decision(outcome, stored, range_)
