"""Dead letters that are stored, in memory: the part of a `MemorySession` that implements `StoredLetterSession`."""

# ruff: noqa: D102 - the Protocol says what the methods do

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from offsetstore.offsets import OffsetRange, StoredOffset, TopicPartition
from offsetstore.protocol.letters import OPEN, PAYLOADS, Letter, LetterKey, PayloadState, State
from offsetstore.protocol.stored_letters import (
    STATES,
    ChosenLetter,
    FailedReplay,
    LetterCursor,
    LetterFilter,
)
from offsetstore.testing.memory.letters import LetterMemory, storable


class StoredLetterMemory(LetterMemory):
    """See the module."""

    def letters(
        self,
        group: str,
        which: LetterFilter,
        *,
        after: LetterCursor | None,  # noqa: ARG002 - only people read lists page by page
        limit: int,  # noqa: ARG002
        max_bytes: int | None,  # noqa: ARG002
        within: int | None = None,  # noqa: ARG002
    ) -> tuple[list[Letter], LetterCursor | None]:
        """All, with their contents."""
        with self._statement():
            return sorted(self._of(group, which), key=LetterCursor.of, reverse=True), None

    def letter(self, group: str, key: LetterKey, *, contents: bool) -> Letter | None:  # noqa: ARG002
        with self._statement():
            return self._named(group, key)

    def count_letters(
        self, group: str, states: Collection[State] = STATES, *, up_to: int | None = None
    ) -> dict[State, int]:
        with self._statement():
            found: dict[State, int] = dict(Counter(one.state for one in self._of(group) if one.state in states))
        return found if up_to is None else {state: min(count, up_to) for state, count in found.items()}

    def count_replayed(self, group: str, ranges: Mapping[TopicPartition, OffsetRange]) -> int:
        with self._statement():
            rows = self._rows(group)
            return sum(
                letter.state == "replayed"
                and _is_current(letter, rows)
                and range_.from_ <= letter.offset < range_.until
                for letter in self._of(group)
                if (range_ := ranges.get(letter.topic_partition)) is not None
            )

    def choose_letters(
        self,
        group: str,
        which: LetterFilter | Collection[LetterKey],
        *,
        limit: int,
        payloads: Collection[PayloadState] = PAYLOADS,
        lock: bool = False,
        overtaken: bool = False,
    ) -> dict[LetterKey, ChosenLetter]:
        def choose() -> dict[LetterKey, Letter]:
            if isinstance(which, LetterFilter):
                found: Iterable[Letter] = self._of(group, which)
            else:
                found = [letter for key in which if (letter := self._named(group, key)) is not None]
            return {letter.key: letter for letter in found if letter.payload_state in payloads}

        with self._statement():
            keys = sorted(choose())[:limit]
            for key in keys if lock else ():
                self._lock_letter(group, key)
            # As it is now: another transaction may have changed it while we waited.
            now = choose()
            found = {key: ChosenLetter.of(now[key]) for key in keys if key in now}
            return found if overtaken else {key: one._replace(is_overtaken=False) for key, one in found.items()}

    def count_without_payload(self, group: str, which: LetterFilter) -> int:
        with self._statement():
            return sum(letter.payload_state != "kept" for letter in self._of(group, which))

    def decide_letters(
        self, group: str, keys: Collection[LetterKey], state: State, *, actor: str, reason: str, forced: bool = False
    ) -> None:
        now = self._letter_clock()
        self._change(
            group,
            keys,
            lambda letter: replace(letter, state=state, forced=forced, decided_at=now, actor=actor, reason=reason),
        )

    def has_requested(self, group: str) -> bool:
        return bool(self.count_letters(group, ("requested",)))

    def requested_letters(self, group: str, topics: Collection[str], *, limit: int, max_bytes: int) -> list[Letter]:
        with self._statement():
            rows = self._rows(group)
            dead = [letter for letter in self._of(group) if letter.state == "dead"]
            found = [
                letter
                for letter in self._of(group)
                if letter.state == "requested"
                and letter.topic_partition.topic in topics
                and letter.topic_partition in rows
                and (letter.offset < rows[letter.topic_partition].next_offset or not _is_current(letter, rows))
                and not any(_precedes(one, letter) for one in dead)
            ]
        return _within(sorted(found, key=lambda letter: letter.key), limit, max_bytes)

    def lock_letters(self, group: str, keys: Collection[LetterKey]) -> dict[LetterKey, ChosenLetter]:
        return self.choose_letters(group, keys, limit=len(keys), lock=True, overtaken=True)

    def mark_replayed(self, group: str, keys: Collection[LetterKey], *, actor: str) -> int:
        now = self._letter_clock()
        return self._change(
            group,
            self._requested(group, keys),
            lambda letter: replace(letter, state="replayed", decided_at=now, actor=actor),
        )

    def return_letters(self, group: str, failed: Mapping[LetterKey, FailedReplay], *, actor: str) -> int:
        now = self._letter_clock()
        return self._change(
            group,
            self._requested(group, failed),
            lambda letter: replace(
                letter,
                state="dead",
                cause=failed[letter.key].cause or letter.cause,
                error=storable(failed[letter.key].error),
                attempts=letter.attempts + 1,
                forced=False,
                decided_at=now,
                actor=actor,
                reason="the replay failed",
            ),
        )

    def _requested(self, group: str, keys: Collection[LetterKey]) -> list[LetterKey]:
        locked = self.lock_letters(group, keys)
        return [key for key, letter in locked.items() if letter.state == "requested"]

    def open_sequences(self, group: str) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        with self._statement():
            rows = self._rows(group)
            for letter in self._of(group):
                row = rows.get(letter.topic_partition)
                is_below = row is not None and letter.offset < row.next_offset and _is_current(letter, rows)
                if letter.sequence is not None and letter.is_in_sequence and letter.state in OPEN and is_below:
                    found[letter.sequence] = min(letter.offset, found.get(letter.sequence, letter.offset))
        return found

    def _of(self, group: str, which: LetterFilter | None = None) -> list[Letter]:
        return [
            letter
            for (name, *_), letter in self._letters().items()
            if name == group and (which is None or which.has(letter))
        ]

    def _named(self, group: str, key: LetterKey) -> Letter | None:
        of_record = [
            letter
            for letter in self._of(group)
            if letter.key[:2] == key[:2] and key.topic_id in {None, letter.topic_id}
        ]
        return max(of_record, key=lambda letter: (letter.created_at, letter.topic_id), default=None)

    def _change(self, group: str, keys: Collection[LetterKey], change: Callable[[Letter], Letter]) -> int:
        with self._statement():
            for key in keys:
                self._lock_letter(group, key)
                self._letter_changes().letters[_row(group, key)] = change(self._letters()[_row(group, key)])
        return len(keys)

    def _lock_letter(self, group: str, key: LetterKey) -> None:
        self._take_letter(_row(group, key))


def _row(group: str, key: LetterKey) -> tuple[str, TopicPartition, int, str]:
    return (group, key.topic_partition, key.offset, key.topic_id or "")


def _is_current(letter: Letter, rows: Mapping[TopicPartition, StoredOffset]) -> bool:
    """Whether it is of the topic that there is now, as far as is known."""
    row = rows.get(letter.topic_partition)
    return row is not None and letter.topic_id in {"", row.topic_id or letter.topic_id}


def _precedes(one: Letter, letter: Letter) -> bool:
    return (
        letter.sequence is not None
        and one.sequence == letter.sequence
        and one.offset < letter.offset
        and (one.topic_id == letter.topic_id or "" in {one.topic_id, letter.topic_id})
    )


def _within(letters: list[Letter], limit: int, max_bytes: int) -> list[Letter]:
    page: list[Letter] = []
    size = 0
    for letter in letters[:limit]:
        size += _size(letter)
        if page and size > max_bytes:
            break
        page.append(letter)
    return page


def _size(letter: Letter) -> int:
    payload = letter.payload
    if payload is None:
        return 0
    headers = sum(len(name) + len(value or b"") for name, value in payload.headers or ())
    return len(payload.key or b"") + len(payload.value or b"") + headers
