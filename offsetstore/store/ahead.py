"""What the database knows of records that the job has still to read, from before a reset or a restart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from offsetstore.offsets import OffsetRange, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from offsetstore.protocol.database import Session


@dataclass(frozen=True, slots=True)
class Ahead:
    """The highest offset with an open letter, and with a failed attempt, of each partition that has any.

    A transaction that reaches these records marks the letters as superseded, and deletes the attempts. Neither is
    looked for otherwise: without a reset or a failure they cost nothing.
    """

    letters: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    failures: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])

    @classmethod
    def read(cls, session: Session, group: str) -> Ahead:
        """Read both, under the lock of the group's rows."""
        failures: dict[TopicPartition, int] = {}
        for tp, offset in session.failures(group):
            failures[tp] = max(offset, failures.get(tp, 0))
        return cls(session.letters_ahead(group), failures)

    def of(self, partitions: Collection[TopicPartition]) -> Ahead:
        """Those of these partitions alone."""
        return Ahead(*({tp: at for tp, at in one.items() if tp in partitions} for one in (self.letters, self.failures)))

    def note_failure(self, tp: TopicPartition, offset: int) -> None:
        """Take note of a failed attempt."""
        self.failures[tp] = max(offset, self.failures.get(tp, 0))

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
    ) -> None:
        """Supersede the letters in the ranges, without those of records that are gone; delete the attempts below."""
        if letters := _reaching(ranges, self.letters):
            session.supersede(group, letters, actor=actor, gone=gone)
        if failures := _reaching(ranges, self.failures):
            session.pass_failures(group, failures)

    def passed(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Forget those below the ranges' ends, once that is committed."""
        for highest in (self.letters, self.failures):
            for tp, range_ in ranges.items():
                if highest.get(tp, range_.until) < range_.until:
                    highest.pop(tp, None)


def _reaching(
    ranges: Mapping[TopicPartition, OffsetRange], highest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, OffsetRange]:
    if not highest:
        return {}
    return {tp: range_ for tp, range_ in ranges.items() if highest.get(tp, -1) >= range_.from_}
