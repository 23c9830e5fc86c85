"""Manual marking: how far a job has read, apart from how far its results reach. Pure.

With ``marking="manual"`` the job's code decides what is done: the stored offset moves only to where it marks. After a
batch that marks less than its end, the next one begins above the stored offset. That is no gap: the records in between
were *delivered* to the job, and the next start reads them again. So `replay` compares a range with the delivered offset
instead of the stored one; and the stored offset must be the one that the job itself left there.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from offsetstore.errors import AdvanceMismatch, ConfigurationError, MarkBackwards, MarkBeyondDelivered
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.arguments import as_offset

Marking: TypeAlias = Literal["automatic", "manual"]

MARKINGS: Final = ("automatic", "manual")


class Position(NamedTuple):
    """How far a claim's job has come in a partition: kept in memory, and in each claim first at the stored offset.

    :param stored: the stored offset, as this claim last saw it.
    :param delivered: the first offset that the job has not been given yet.
    """

    stored: int
    delivered: int


def check_marking(marking: str) -> None:
    if marking not in MARKINGS:
        raise ConfigurationError('marking must be "automatic" or "manual"', found=repr(marking))


def base(tp: TopicPartition, stored: int, position: Position | None) -> int:
    """Return the offset that a range is compared with.

    :param stored: of the locked row.
    :param position: ``None`` if nothing was delivered yet.
    :raises AdvanceMismatch: the row is not as this claim last saw it.
    """
    if position is None:
        return stored
    # Something else has moved the row, so the position in memory means nothing any more (decision 0034).
    if position.stored != stored:
        raise AdvanceMismatch(
            "the stored offset is not the one that this claim last saw: something else has moved it",
            topic_partition=tp,
            found=stored,
            expected=position.stored,
            next_step="Start the job again: it reads from the stored offset. Don't mix manual and automatic marking.",
        )
    return position.delivered


def check_mark(tp: TopicPartition, next_offset: int, *, above: int, delivered: int) -> int:
    """Check that ``above < next_offset <= delivered``, and return it as an ``int``.

    :param next_offset: one above the last offset that is done.
    :param above: the stored offset, or one below an earlier mark of the same transaction.
    :raises ConfigurationError: it is not an offset.
    :raises MarkBackwards: it is too low.
    :raises MarkBeyondDelivered: it is too high.
    """
    next_offset = as_offset("next_offset", next_offset)
    # A mark at the stored offset is refused too: who marks the last offset that is done, instead of the next one, finds
    # out with the first record (decision 0034).
    if next_offset <= above:
        raise MarkBackwards(
            "a mark must be above the stored offset, and not below an earlier mark",
            topic_partition=tp,
            found=next_offset,
            expected=f"{above + 1} to {delivered}"
            if above < delivered
            else "no mark: all that was delivered is stored",
        )
    if next_offset > delivered:
        raise MarkBeyondDelivered(
            "the mark is beyond what the job was given",
            topic_partition=tp,
            found=next_offset,
            expected=f"{above + 1} to {delivered}",
        )
    return next_offset
