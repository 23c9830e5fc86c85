"""What the database knows of records that the job has still to read, or has left behind, from before this start."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.protocol.database import Session


@dataclass(frozen=True, slots=True)
class Ahead:
    """The highest offset with an open letter, and with a failed attempt, of each partition that has any.

    A transaction that reaches these records marks the letters as superseded, and deletes the attempts. Neither is
    looked for otherwise: without a reset or a failure they cost nothing.

    :param sequences: the highest offset of an open letter for which later records of its key wait. A transaction for
        which none waits marks such letters as overtaken: a replay could replace what it has written.
    """

    letters: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    failures: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    sequences: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])

    @classmethod
    def read(cls, session: Session, group: str) -> Ahead:
        """Read all of it, under the lock of the group's rows."""
        failures: dict[TopicPartition, int] = {}
        for tp, offset in session.failures(group):
            failures[tp] = max(offset, failures.get(tp, 0))
        return cls(session.letters_ahead(group), failures, session.letters_in_sequence(group))

    def of(self, partitions: Collection[TopicPartition]) -> Ahead:
        """Those of these partitions alone."""
        every = (self.letters, self.failures, self.sequences)
        return Ahead(*({tp: at for tp, at in one.items() if tp in partitions} for one in every))

    def replace(self, partitions: Collection[TopicPartition], found: Ahead) -> None:
        """Forget what is known of these partitions, and take over what was found of them."""
        for known, new in (
            (self.letters, found.letters),
            (self.failures, found.failures),
            (self.sequences, found.sequences),
        ):
            for tp in partitions:
                known.pop(tp, None)
            known.update({tp: at for tp, at in new.items() if tp in partitions})

    def note_failure(self, tp: TopicPartition, offset: int) -> None:
        """Record a failed attempt."""
        self.failures[tp] = max(offset, self.failures.get(tp, 0))

    def note_sequence(self, tp: TopicPartition, offset: int) -> None:
        """Record a letter for which later records of its key wait."""
        self.sequences[tp] = max(offset, self.sequences.get(tp, 0))

    def has_letters(self, ranges: Mapping[TopicPartition, OffsetRange]) -> bool:
        """Whether there may be letters in the ranges."""
        return bool(_reaching(ranges, self.letters))

    def settle(
        self,
        session: Session,
        group: str,
        ranges: Mapping[TopicPartition, OffsetRange],
        *,
        actor: str,
        gone: Collection[tuple[TopicPartition, int]] = (),
        in_sequence: bool = False,
    ) -> None:
        """Supersede the letters in the ranges, without those of records that are gone; delete the attempts below.

        :param in_sequence: whether later records of letters' keys wait; otherwise the letters below are overtaken.
        """
        letters = _reaching(ranges, self.letters)
        below = {} if in_sequence else {tp: one for tp, one in ranges.items() if one and tp in self.sequences}
        if letters and below:  # each locks in order, but the second one has letters before those of the first
            session.lock_passed_letters(group, letters | below)
        if letters:
            session.supersede(group, letters, actor=actor, gone=gone)
        if failures := _reaching(ranges, self.failures):
            session.pass_failures(group, failures)
        if below:
            session.overtake_letters(group, below)

    def passed(self, ranges: Mapping[TopicPartition, OffsetRange], *, in_sequence: bool = False) -> None:
        """Forget those below the ranges' ends, once that is committed."""
        for highest in filter(None, (self.letters, self.failures, {} if in_sequence else self.sequences)):
            for tp, range_ in ranges.items():
                if highest.get(tp, range_.until) < range_.until:
                    highest.pop(tp, None)


def _reaching(
    ranges: Mapping[TopicPartition, OffsetRange], highest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetRange]:
    if not highest:
        return {}
    return {tp: range_ for tp, range_ in ranges.items() if highest.get(tp, -1) >= range_.from_}
