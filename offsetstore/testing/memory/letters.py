"""Dead letters and failed attempts in memory: the part of a `MemorySession` that implements `LetterSession`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from offsetstore.offsets import OffsetRange, StoredOffset, TopicPartition
from offsetstore.protocol.database import NewOffset
from offsetstore.protocol.letters import (
    OPEN,
    STATES,
    ChosenLetter,
    Failed,
    FailedReplay,
    Letter,
    LetterError,
    LetterKey,
    LetterState,
    NewLetter,
    writable,
)
from offsetstore.testing.memory.rows import MemoryTransaction

LETTERS = "dead_letters"
FAILURES = "record_failures"


class LetterMemory(MemoryTransaction):
    """See the module."""

    def rows(self, group: str) -> dict[TopicPartition, StoredOffset]:
        rows = self.table("kafka_partitions")
        return {tp: rows[name, tp] for name, tp in sorted(rows) if name == group}

    # -- letters that are written

    def write_letters(self, group: str, letters: Sequence[NewLetter]) -> int:
        with self.statement():
            rows = self.rows(group)
            for new in letters:
                tp = new.topic_partition
                known = [row.topic_id for other, row in rows.items() if other.topic == tp.topic and row.topic_id]
                key = (tp, new.offset, max(known, default=""))
                self.lock(LETTERS, group, *key)
                before = self.get(LETTERS, group, *key)
                letter = Letter(
                    *key,
                    "dead",
                    new.cause,
                    _storable(new.error),
                    new.attempts,
                    before.times + 1 if before else 1,
                    new.sequence,
                    new.payload,
                    "left out" if new.payload is None else "kept",
                    forced=False,
                    trace_id=new.trace,
                    created_at=before.created_at if before else self._clock(),
                    decided_at=None,
                    actor=None,
                    reason=None,
                )
                self.put(LETTERS, (group, *key), letter)
        return len(letters)

    def open_letters(self, group: str) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        with self.statement():
            rows, letters = self.rows(group), self._letters(group, OPEN)
            ahead = (
                letter
                for letter in letters
                if _is_current(letter, rows) and letter.offset >= rows[letter.topic_partition].next_offset
            )
            return _highest(ahead), _highest(letter for letter in letters if letter.is_in_sequence)

    def pass_letters(
        self,
        group: str,
        again: Mapping[TopicPartition, OffsetRange],
        below: Mapping[TopicPartition, OffsetRange],
        *,
        actor: str,
        gone: Collection[tuple[TopicPartition, int]] = (),
    ) -> None:
        def is_passed(letter: Letter) -> bool:
            range_ = below.get(letter.topic_partition)
            return range_ is not None and letter.offset < range_.until and letter.is_in_sequence

        def overtaken(letter: Letter) -> Letter | None:
            return replace(letter, sequence=(letter.sequence or b"") + b"\0") if letter.is_in_sequence else None

        with self.statement():
            read = [letter for letter in self._within(group, OPEN, again) if letter.key[:2] not in gone]
            passed = list(filter(is_passed, self._letters(group, OPEN)))
            for key in sorted({letter.key for letter in (*read, *passed)}):
                self.lock(LETTERS, group, *key)
            reason = "the job has read the record again"
            self._change(group, read, OPEN, state="superseded", actor=actor, reason=reason)
            self._change(group, passed, OPEN, overtaken)

    def letters_in(
        self, group: str, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> dict[tuple[TopicPartition, int], bytes | None]:
        return {letter.key[:2]: letter.sequence for letter in self._within(group, OPEN, ranges)}

    def adopt_letters(self, group: str, topic_ids: Mapping[str, str]) -> None:
        with self.statement():
            for letter in self._letters(group):
                new = replace(letter, topic_id=topic_ids.get(letter.topic_partition.topic, ""))
                if not letter.topic_id and new.topic_id and self.get(LETTERS, group, *new.key) is None:
                    self.put(LETTERS, (group, *letter.key), None)
                    self.put(LETTERS, (group, *new.key), new)

    def failures(self, group: str) -> dict[tuple[TopicPartition, int], Failed]:
        rows = self.table(FAILURES).items()
        return {(tp, offset): failed for (name, tp, offset), failed in rows if name == group}

    def write_failures(self, group: str, failures: Mapping[tuple[TopicPartition, int], Failed]) -> None:
        for place, failed in failures.items():
            self.put(FAILURES, (group, *place), failed)

    def pass_failures(self, group: str, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        for tp, offset in self.failures(group):
            if tp in ranges and offset < ranges[tp].until:
                self.put(FAILURES, (group, tp, offset), None)

    def drop_failures(self, group: str, offsets: Mapping[TopicPartition, NewOffset]) -> None:
        """Delete the attempts of partitions whose stored offset or topic changes."""
        rows = self.rows(group)
        for tp, offset in self.failures(group):
            row, new = rows.get(tp), offsets.get(tp)
            if new is None:
                continue
            is_same = row is not None and (row.topic_id or new.topic_id) == (new.topic_id or row.topic_id)
            if row is None or not is_same or row.next_offset != new.next_offset:
                self.put(FAILURES, (group, tp, offset), None)

    # -- for tests, what a person would see and decide

    def dead_letters(self, group: str) -> list[Letter]:
        return self._letters(group)

    def decide_letters(
        self, group: str, keys: Collection[LetterKey] | None, state: LetterState, *, forced: bool
    ) -> None:
        chosen = self._letters(group, OPEN) if keys is None else self._known(group, keys)
        if keys is None and state == "requested":
            chosen = [letter for letter in chosen if letter.state == "dead" and letter.payload is not None]
        self._change(group, chosen, OPEN, state=state, forced=forced, actor="a test", reason="decided by a test")

    # -- letters that are replayed

    def has_requested(self, group: str) -> bool:
        return bool(self._letters(group, ("requested",)))

    def requested_letters(
        self,
        group: str,
        topics: Collection[str],
        partitions: Collection[TopicPartition] | None = None,
        *,
        limit: int,
        max_bytes: int,
    ) -> list[Letter]:
        with self.statement():
            rows, dead = self.rows(group), self._letters(group, ("dead",))
            ready = [
                letter
                for letter in self._letters(group, ("requested",))
                if (tp := letter.topic_partition).topic in topics
                and (partitions is None or tp in partitions)
                and tp in rows
                # A letter ahead of the job, after a reset, is passed by a batch: replayed, it would be written twice
                # (decision 0036).
                and (letter.offset < rows[tp].next_offset or not _is_current(letter, rows))
                and not any(_precedes(earlier, letter) for earlier in dead)
            ]
        return _page(ready, limit, max_bytes)

    def lock_letters(self, group: str, keys: Collection[LetterKey]) -> dict[LetterKey, ChosenLetter]:
        with self.statement():
            known = sorted(letter.key for letter in self._known(group, keys))
            for key in known:
                self.lock(LETTERS, group, *key)
            # As they are now: another transaction may have changed them while we waited.
            now = {key: self.get(LETTERS, group, *key) for key in known}
            return {key: ChosenLetter.of(letter) for key, letter in now.items() if letter is not None}

    def mark_replayed(self, group: str, keys: Collection[LetterKey], *, actor: str) -> int:
        return self._change(group, self._known(group, keys), ("requested",), state="replayed", actor=actor)

    def return_letters(self, group: str, failed: Mapping[LetterKey, FailedReplay], *, actor: str) -> int:
        def returned(letter: Letter) -> Letter:
            why = failed[letter.key]
            return replace(
                letter, cause=why.cause or letter.cause, error=_storable(why.error), attempts=letter.attempts + 1
            )

        decided = {"state": "dead", "forced": False, "actor": actor, "reason": "the replay failed"}
        return self._change(group, self._known(group, failed), ("requested",), returned, **decided)

    def open_sequences(self, group: str) -> dict[bytes, int]:
        sequences: dict[bytes, int] = {}
        rows = self.rows(group)
        for letter in self._letters(group, OPEN):
            is_below = _is_current(letter, rows) and letter.offset < rows[letter.topic_partition].next_offset
            if letter.sequence is not None and letter.is_in_sequence and is_below:
                sequences.setdefault(letter.sequence, letter.offset)
        return sequences

    def _letters(self, group: str, states: Collection[LetterState] = STATES) -> list[Letter]:
        """The group's letters in these states, in the order in which they are locked."""
        rows = self.table(LETTERS).items()
        letters = [letter for (name, *_), letter in rows if name == group and letter.state in states]
        return sorted(letters, key=lambda letter: letter.key)

    def _within(
        self, group: str, states: Collection[LetterState], ranges: Mapping[TopicPartition, OffsetRange]
    ) -> list[Letter]:
        """The letters in the ranges, of current topics."""
        rows = self.rows(group)
        return [
            letter
            for letter in self._letters(group, states)
            if _is_current(letter, rows)
            and (range_ := ranges.get(letter.topic_partition))
            and range_.from_ <= letter.offset < range_.until
        ]

    def _named(self, group: str, key: LetterKey) -> Letter | None:
        if key.topic_id is not None:
            return self.get(LETTERS, group, *key)
        of_record = [letter for letter in self._letters(group) if letter.key[:2] == key[:2]]
        return max(of_record, key=lambda letter: (letter.created_at, letter.topic_id), default=None)

    def _known(self, group: str, keys: Collection[LetterKey]) -> list[Letter]:
        return [letter for key in keys if (letter := self._named(group, key)) is not None]

    def _change(
        self,
        group: str,
        letters: Iterable[Letter],
        states: Collection[LetterState],
        change: Callable[[Letter], Letter | None] = lambda letter: letter,
        **decided: Any,
    ) -> int:
        """Lock letters, and change those that are still in one of the states; return how many.

        :param decided: the values of a decision; the letters get its time too.
        """
        changed = 0
        with self.statement():
            for letter in sorted(letters, key=lambda letter: letter.key):
                self.lock(LETTERS, group, *letter.key)
                now: Letter | None = self.get(LETTERS, group, *letter.key)
                new = change(now) if now is not None and now.state in states else None
                if new is not None:
                    new = replace(new, decided_at=self._clock(), **decided) if decided else new
                    self.put(LETTERS, (group, *letter.key), new)
                    changed += 1
        return changed


def _storable(error: LetterError) -> LetterError:
    """The error as a database holds it."""
    traceback = None if error.traceback is None else writable(error.traceback)
    return replace(error, text=writable(error.text), traceback=traceback)


def _highest(letters: Iterable[Letter]) -> dict[TopicPartition, int]:
    highest: dict[TopicPartition, int] = {}
    for letter in letters:
        highest[letter.topic_partition] = max(letter.offset, highest.get(letter.topic_partition, 0))
    return highest


def _is_current(letter: Letter, rows: Mapping[TopicPartition, StoredOffset]) -> bool:
    """Whether the letter is of the current topic, and not of one that was deleted since, as far as is known."""
    row = rows.get(letter.topic_partition)
    return row is not None and letter.topic_id in {"", row.topic_id or letter.topic_id}


def _precedes(earlier: Letter, letter: Letter) -> bool:
    return (
        letter.sequence is not None
        and earlier.sequence == letter.sequence
        and earlier.offset < letter.offset
        and (earlier.topic_id == letter.topic_id or "" in {earlier.topic_id, letter.topic_id})
    )


def _page(letters: list[Letter], limit: int, max_bytes: int) -> list[Letter]:
    """The first ``limit`` letters, up to ``max_bytes`` of keys, values and headers, but at least one."""
    page: list[Letter] = []
    size = 0
    for letter in letters[:limit]:
        if (payload := letter.payload) is not None:
            texts = [payload.key, payload.value, *(text for header in payload.headers or () for text in header)]
            size += sum(len(text or b"") for text in texts)
        if page and size > max_bytes:
            break
        page.append(letter)
    return page
