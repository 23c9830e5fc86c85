"""Dead letters and failed attempts in memory: the part of a `MemorySession` that implements `LetterSession`."""

# ruff: noqa: D102 - the Protocol says what the methods do

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeAlias

from offsetstore.offsets import OffsetRange, StoredOffset, TopicPartition
from offsetstore.protocol.database import NewOffset
from offsetstore.protocol.letters import OPEN, Failed, Letter, LetterError, NewLetter, trace_id, writable

LetterRow: TypeAlias = tuple[str, TopicPartition, int, str]
"""Group, partition, offset and topic id."""
FailureKey: TypeAlias = tuple[str, TopicPartition, int]


@dataclass(slots=True)
class LetterContents:
    """Both tables; ``None`` stands for a row that was deleted."""

    letters: dict[LetterRow, Letter | None] = field(default_factory=dict[LetterRow, "Letter | None"])
    failures: dict[FailureKey, Failed | None] = field(default_factory=dict[FailureKey, "Failed | None"])

    def apply(self, changes: LetterContents) -> None:
        """Take over what a transaction wrote."""
        self.letters |= changes.letters
        self.failures |= changes.failures

    def copy(self) -> LetterContents:
        """As it is now."""
        return LetterContents(dict(self.letters), dict(self.failures))


def storable(error: LetterError) -> LetterError:
    """The error as a database holds it."""
    traceback = None if error.traceback is None else writable(error.traceback)
    return replace(error, text=writable(error.text), traceback=traceback)


class LetterMemory:
    """See the module. A session gives it its own changes, what is committed, and its rows."""

    _statement: Callable[[], AbstractContextManager[object]]
    _rows: Callable[[str], dict[TopicPartition, StoredOffset]]
    _take_letter: Callable[[LetterRow], None]
    """Locks a letter's row FOR UPDATE."""

    def __init__(
        self, committed: LetterContents, changes: Callable[[], LetterContents], clock: Callable[[], datetime]
    ) -> None:
        self._committed_letters = committed
        self._letter_changes = changes
        self._letter_clock = clock

    def write_letters(self, group: str, letters: Sequence[NewLetter]) -> int:
        with self._statement():
            rows = self._rows(group)
            for new in letters:
                tp = new.topic_partition
                known = [row.topic_id for one, row in rows.items() if one.topic == tp.topic and row.topic_id]
                key = (group, tp, new.offset, max(known, default=""))
                self._take_letter(key)
                before = self._letters().get(key)
                self._letter_changes().letters[key] = Letter(
                    tp,
                    new.offset,
                    key[-1],
                    "dead",
                    new.cause,
                    storable(new.error),
                    new.attempts,
                    before.times + 1 if before else 1,
                    new.sequence,
                    new.payload,
                    "left out" if new.payload is None else "kept",
                    forced=False,
                    trace_id=trace_id(new.payload.headers) if new.payload else None,
                    created_at=before.created_at if before else self._letter_clock(),
                    decided_at=None,
                    actor=None,
                    reason=None,
                )
        return len(letters)

    def letters_ahead(self, group: str) -> dict[TopicPartition, int]:
        with self._statement():
            rows = self._rows(group)
            ahead: dict[TopicPartition, int] = {}
            for tp, offset, letter in self._open(group):
                if (
                    tp in rows
                    and offset >= rows[tp].next_offset
                    and letter.topic_id in {"", rows[tp].topic_id or letter.topic_id}
                ):
                    ahead[tp] = max(offset, ahead.get(tp, 0))
            return ahead

    def letters_in_sequence(self, group: str) -> dict[TopicPartition, int]:
        with self._statement():
            found: dict[TopicPartition, int] = {}
            for tp, offset, letter in self._open(group):
                if letter.is_in_sequence:
                    found[tp] = max(offset, found.get(tp, 0))
            return found

    def overtake_letters(self, group: str, ranges: Mapping[TopicPartition, OffsetRange]) -> int:
        count = 0
        with self._statement():
            for tp, offset, letter in sorted(self._open(group), key=lambda one: one[:2]):
                if tp not in ranges or offset >= ranges[tp].until or not letter.is_in_sequence:
                    continue
                key = (group, tp, offset, letter.topic_id)
                self._take_letter(key)
                now = self._letters()[key]
                if now.state in OPEN and now.sequence is not None and now.is_in_sequence:
                    self._letter_changes().letters[key] = replace(now, sequence=now.sequence + b"\0")
                    count += 1
        return count

    def lock_passed_letters(self, group: str, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        with self._statement():
            for tp, offset, letter in sorted(self._open(group), key=lambda one: (*one[:2], one[2].topic_id)):
                range_ = ranges.get(tp)
                if range_ and offset < range_.until and (offset >= range_.from_ or letter.is_in_sequence):
                    self._take_letter((group, tp, offset, letter.topic_id))

    def letters_in(
        self, group: str, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> dict[tuple[TopicPartition, int], bytes | None]:
        with self._statement():
            return {key[1:3]: self._letters()[key].sequence for key in self._within(group, ranges)}

    def supersede(
        self,
        group: str,
        ranges: Mapping[TopicPartition, OffsetRange],
        *,
        actor: str,
        gone: Collection[tuple[TopicPartition, int]] = (),
    ) -> int:
        count = 0
        with self._statement():
            for key in self._within(group, ranges):
                if key[1:3] in gone:
                    continue
                self._take_letter(key)
                now = self._letters().get(key)
                if now is None or now.state not in OPEN:
                    continue
                self._letter_changes().letters[key] = replace(
                    now,
                    state="superseded",
                    decided_at=self._letter_clock(),
                    actor=actor,
                    reason="the job has read the record again",
                )
                count += 1
        return count

    def _within(self, group: str, ranges: Mapping[TopicPartition, OffsetRange]) -> list[LetterRow]:
        """The open letters in the ranges, in the order in which they are locked."""
        rows = self._rows(group)
        return sorted(
            (group, tp, offset, letter.topic_id)
            for tp, offset, letter in self._open(group)
            if tp in rows
            and letter.topic_id in {"", rows[tp].topic_id or letter.topic_id}
            and tp in ranges
            and ranges[tp].from_ <= offset < ranges[tp].until
        )

    def adopt_letters(self, group: str, topic_ids: Mapping[str, str]) -> None:
        with self._statement():
            for key, letter in self._letters().items():
                name, tp, offset, topic_id = key
                new = (name, tp, offset, topic_ids.get(tp.topic, ""))
                if name == group and not topic_id and new[-1] and new not in self._letters():
                    self._letter_changes().letters[key] = None
                    self._letter_changes().letters[new] = replace(letter, topic_id=new[-1])

    def failures(self, group: str) -> dict[tuple[TopicPartition, int], Failed]:
        with self._statement():
            return {(tp, offset): failed for (name, tp, offset), failed in self._failures().items() if name == group}

    def write_failures(self, group: str, failures: Mapping[tuple[TopicPartition, int], Failed]) -> None:
        with self._statement():
            self._letter_changes().failures.update({(group, *place): failed for place, failed in failures.items()})

    def pass_failures(self, group: str, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        with self._statement():
            for name, tp, offset in self._failures():
                if name == group and tp in ranges and offset < ranges[tp].until:
                    self._letter_changes().failures[name, tp, offset] = None

    def _drop_failures(self, group: str, offsets: Mapping[TopicPartition, NewOffset]) -> None:
        """Delete the attempts of partitions whose stored offset, or topic, will be another."""
        rows = self._rows(group)
        for name, tp, offset in self._failures():
            if name != group or tp not in offsets:
                continue
            row, new = rows.get(tp), offsets[tp]
            is_same = row is not None and (row.topic_id or new.topic_id) == (new.topic_id or row.topic_id)
            if row is None or not is_same or row.next_offset != new.next_offset:
                self._letter_changes().failures[name, tp, offset] = None

    def _open(self, group: str) -> list[tuple[TopicPartition, int, Letter]]:
        return [
            (tp, offset, letter)
            for (name, tp, offset, _), letter in self._letters().items()
            if name == group and letter.state in OPEN
        ]

    def _letters(self) -> dict[LetterRow, Letter]:
        both = self._committed_letters.letters | self._letter_changes().letters
        return {key: letter for key, letter in both.items() if letter is not None}

    def _failures(self) -> dict[FailureKey, Failed]:
        both = self._committed_letters.failures | self._letter_changes().failures
        return {key: failed for key, failed in both.items() if failed is not None}
