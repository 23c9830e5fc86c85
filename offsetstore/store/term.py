"""A *term*: the time for which a claim has a partition, and what it keeps in memory of the partition meanwhile.

A job has one term of each partition, as long as its claim. A member of a fleet begins a new one each time that it takes
the partition. Whoever has begun with a term goes on with it: when it is over, the claim no longer has it, and nothing
in it changes (decision 0090).
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.database import Session
from offsetstore.protocol.marking import Position
from offsetstore.protocol.metadata import Text

NO_OFFSET: Final = -1
# One lock for all terms: a term is pickled with a `TaskClaim`, and a lock can't be.
_changing: Final = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class ForNextAdvance:
    """A text that was stored for a partition's next advance. Compared by identity: a text may be stored twice."""

    text: Text


@dataclass(slots=True, eq=False)
class Term:
    """What a claim keeps in memory of one partition. Threads may share it.

    A transaction that reaches the records at these offsets marks their letters as superseded, and deletes the failed
    attempts. Neither is looked for otherwise: without a reset or a failure they cost nothing.

    :param metadata: as it was when the term began.
    :param letter: the highest offset with an open letter that the job has still to read, -1 without one.
    :param failure: the highest offset with a failed attempt, -1 without one.
    :param sequence: the highest offset of an open letter for which later records of its key wait, -1 without one. A
        transaction for which none waits marks such letters as overtaken: a replay could replace what it has written.
    :param position: how far the job has come in memory, with manual marking or a buffer.
    :param next: what the next advance writes as metadata.
    :param has_row: ``False`` until the transaction that creates the partition's row is committed.
    """

    metadata: Text = None
    letter: int = NO_OFFSET
    failure: int = NO_OFFSET
    sequence: int = NO_OFFSET
    position: Position | None = None
    next: ForNextAdvance | None = None
    has_row: bool = True

    @property
    def has_failure(self) -> bool:
        """Whether there is a failed attempt at a record that is still to be read."""
        return self.failure != NO_OFFSET

    def store(self, text: Text) -> None:
        with _changing:
            self.next = ForNextAdvance(text)

    def forget(self, used: ForNextAdvance | None) -> None:
        """Forget what an advance has used, once it is known to be committed; what was stored since then stays."""
        with _changing:
            if self.next is used:
                self.next = None

    def note_failure(self, offset: int) -> None:
        self.failure = max(offset, self.failure)

    def note_sequence(self, offset: int) -> None:
        """Record a letter for which later records of its key wait."""
        self.sequence = max(offset, self.sequence)

    def passed(self, range_: OffsetRange, *, in_sequence: bool = False) -> None:
        """Forget letters and attempts below the range's end, once that is committed."""
        if self.letter < range_.until:
            self.letter = NO_OFFSET
        if self.failure < range_.until:
            self.failure = NO_OFFSET
        if not in_sequence and self.sequence < range_.until:
            self.sequence = NO_OFFSET


Terms: TypeAlias = Mapping[TopicPartition, Term]


def begin(
    session: Session, group: str, partitions: Collection[TopicPartition], metadata: Mapping[TopicPartition, Text]
) -> dict[TopicPartition, Term]:
    """Begin a term of each partition, with what the database knows of it; under the locks of the rows."""
    letters, sequences = session.open_letters(group)
    failures: dict[TopicPartition, int] = {}
    for tp, offset in session.failures(group):
        failures[tp] = max(offset, failures.get(tp, NO_OFFSET))
    return {
        tp: Term(
            metadata.get(tp), letters.get(tp, NO_OFFSET), failures.get(tp, NO_OFFSET), sequences.get(tp, NO_OFFSET)
        )
        for tp in partitions
    }


def delivered(terms: Terms) -> dict[TopicPartition, int]:
    """The next offset that the job has not been given yet, where that is kept in memory."""
    return {tp: term.position.delivered for tp, term in terms.items() if term.position is not None}


def unmarked(terms: Terms) -> dict[TopicPartition, OffsetRange]:
    """An empty range at the end of what was delivered, for each partition where that is not all stored."""
    return {
        tp: OffsetRange(position.delivered, position.delivered)
        for tp, term in terms.items()
        if (position := term.position) is not None and position.stored < position.delivered
    }


def may_have_letters(terms: Terms, ranges: Mapping[TopicPartition, OffsetRange]) -> bool:
    return any(tp in terms and terms[tp].letter >= range_.from_ for tp, range_ in ranges.items())
