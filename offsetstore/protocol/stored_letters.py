"""Dead letters that are stored: how they are listed, chosen, decided about, and replayed by the job."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Final, NamedTuple, Protocol, get_args

from offsetstore.errors import ConfigurationError
from offsetstore.offsets import MAX_OFFSET, MAX_PARTITION, OffsetRange, TopicPartition
from offsetstore.protocol.letters import (
    PAYLOADS,
    Cause,
    Letter,
    LetterError,
    LetterKey,
    PayloadState,
    State,
    is_overtaken,
)
from offsetstore.protocol.numbers import check_whole
from offsetstore.protocol.texts import check_text

STATES: Final[tuple[State, ...]] = get_args(State)
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters of a group: those that have all of this. ``None`` is for any, as no states are for all states.

    :param error_class: this one and those that follow also take ``""``, for letters that have none.
    """

    states: tuple[State, ...] = ()
    cause: Cause | None = None
    topic: str | None = None
    partition: int | None = None
    error_class: str | None = None
    sqlstate: str | None = None
    table: str | None = None
    constraint: str | None = None
    column: str | None = None

    def __post_init__(self) -> None:
        if self.partition is not None:
            check_whole("partition", self.partition, most=MAX_PARTITION)
        for name in ("topic", "error_class", "sqlstate", "table", "constraint", "column"):
            if (text := getattr(self, name)) is not None:
                check_text(name, text)
        if unknown := [one for one in self.states if one not in STATES]:
            raise ConfigurationError(
                "a dead letter has no such state", found=", ".join(map(repr, unknown)), expected=", ".join(STATES)
            )
        if self.cause is not None and self.cause not in CAUSES:
            raise ConfigurationError(
                "a dead letter has no such cause", found=repr(self.cause), expected=", ".join(CAUSES)
            )

    def __str__(self) -> str:
        """``cause=refused, constraint=payments_pkey``: what is given, but for the states."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "states"}
        return ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)

    def has(self, letter: Letter) -> bool:
        """Whether the letter is one of them."""
        error = letter.error
        exact = ((self.cause, letter.cause), (self.topic, letter.topic_partition.topic))
        or_none = (
            (self.error_class, error.error_class),
            (self.sqlstate, error.sqlstate),
            (self.table, error.table),
            (self.constraint, error.constraint),
            (self.column, error.column),
        )
        return (
            (not self.states or letter.state in self.states)
            and self.partition in {None, letter.topic_partition.partition}
            and all(asked in {None, found} for asked, found in exact)
            and all(asked in {None, found or ""} for asked, found in or_none)
        )


class LetterCursor(NamedTuple):
    """The place of a letter in a list, the newest letter first."""

    created_at: datetime
    topic: str
    partition: int
    offset: int
    topic_id: str

    @classmethod
    def of(cls, letter: Letter) -> LetterCursor:
        """The letter's own place."""
        tp = letter.topic_partition
        return cls(letter.created_at, tp.topic, tp.partition, letter.offset, letter.topic_id)

    @classmethod
    def parse(cls, text: str) -> LetterCursor:
        """Read what `__str__` has written.

        :raises ConfigurationError: it is something else.
        """
        try:
            at, topic, partition, offset, topic_id = json.loads(base64.urlsafe_b64decode(text.encode()))
            found = cls(datetime.fromisoformat(at), str(topic), int(partition), int(offset), str(topic_id))
            is_storable = (
                found.created_at.tzinfo is not None
                and b"\0" not in (found.topic + found.topic_id).encode()
                and 0 <= found.partition <= MAX_PARTITION
                and 0 <= found.offset <= MAX_OFFSET
            )
        except (binascii.Error, ValueError, TypeError, OverflowError, RecursionError):
            found, is_storable = None, False
        if found is None or not is_storable:
            raise ConfigurationError("after is not a valid cursor", expected="the `next` of an earlier page")
        return found

    def __str__(self) -> str:
        """One word, for a command line or an address."""
        fields_ = (self.created_at.isoformat(), *self[1:])
        return base64.urlsafe_b64encode(json.dumps(fields_).encode()).decode()


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Letters with one cause and one error.

    :param first_at: when the first of them was written, by the database's clock.
    :param example: the newest of them.
    """

    cause: Cause
    error_class: str
    sqlstate: str | None
    table: str | None
    constraint: str | None
    column: str | None
    count: int
    first_at: datetime
    last_at: datetime
    example: LetterKey

    @property
    def which(self) -> LetterFilter:
        """These letters, in any state and of any topic, for a replay or a discard."""
        return LetterFilter(
            cause=self.cause,
            error_class=self.error_class,
            sqlstate=self.sqlstate or "",
            table=self.table or "",
            constraint=self.constraint or "",
            column=self.column or "",
        )


class ChosenLetter(NamedTuple):
    """What a decision looks at; times, attempts and creation tell that a letter was written again.

    ``is_overtaken`` is false, too, where it was not asked for: it takes a right to read the letters' contents.
    """

    state: State
    payload_state: PayloadState
    forced: bool
    times: int
    attempts: int
    created_at: datetime
    is_overtaken: bool = False

    @classmethod
    def of(cls, letter: Letter) -> ChosenLetter:
        """The same of a letter that was read with its contents."""
        return cls(
            letter.state,
            letter.payload_state,
            letter.forced,
            letter.times,
            letter.attempts,
            letter.created_at,
            letter.sequence is not None and is_overtaken(letter.sequence),
        )


@dataclass(frozen=True, slots=True)
class FailedReplay:
    """Why a letter could not be replayed; ``cause`` is ``None`` if it is the same as before."""

    error: LetterError
    cause: Cause | None = None


class StoredLetterSession(Protocol):
    """The part of a `Session` that reads and changes the letters that are stored.

    Letters are always locked in the order of their keys, after the rows of the group and of its partitions.
    """

    def letters(
        self,
        group: str,
        which: LetterFilter,
        *,
        after: LetterCursor | None,
        limit: int,
        max_bytes: int | None,
        within: int | None = None,
    ) -> tuple[list[Letter], LetterCursor | None]:
        """Read letters, the newest first, and where those begin that follow, if there are any.

        :param max_bytes: end with the letter before this many bytes of keys, values and headers, but read at least one;
            ``None``: without contents. Those are not even read from the table then.
        :param within: look only at the first so many letters in these states; for lists without contents.
        """
        ...

    def letter(self, group: str, key: LetterKey, *, contents: bool) -> Letter | None:
        """One letter; without contents those are not even read from the table."""
        ...

    def count_letters(
        self, group: str, states: Collection[State] = STATES, *, up_to: int | None = None
    ) -> dict[State, int]:
        """How many letters there are, of each of these states that has any; count no further than ``up_to``."""
        ...

    def count_replayed(self, group: str, ranges: Mapping[TopicPartition, OffsetRange]) -> int:
        """How many letters in the ranges were replayed, of the topics that there are now."""
        ...

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
        """Find letters with such payloads, at most ``limit``, in order, and perhaps lock them FOR UPDATE.

        :param overtaken: look at whether they were overtaken, which a dashboard's role may not read.
        """
        ...

    def count_without_payload(self, group: str, which: LetterFilter) -> int:
        """How many of these letters have no payload, or none any longer."""
        ...

    def decide_letters(
        self, group: str, keys: Collection[LetterKey], state: State, *, actor: str, reason: str, forced: bool = False
    ) -> None:
        """Write the state to letters that are locked."""
        ...

    def has_requested(self, group: str) -> bool:
        """Whether any letter is requested, even if it can't be replayed yet."""
        ...

    def requested_letters(
        self,
        group: str,
        topics: Collection[str],
        partitions: Collection[TopicPartition] | None = None,
        *,
        limit: int,
        max_bytes: int,
    ) -> list[Letter]:
        """The next letters to replay, in order, with their contents.

        Each is below its partition's stored offset, or of an earlier topic of the same name; the others are ahead of
        the job, which reads their records itself. A letter that follows a dead one of its sequence waits. Look at both
        again under the locks.

        :param partitions: whose letters; by default those of all of the topics' partitions.
        :param max_bytes: end with the letter before this many bytes, but return at least one.
        """
        ...

    def lock_letters(self, group: str, keys: Collection[LetterKey]) -> dict[LetterKey, ChosenLetter]:
        """Lock them FOR UPDATE, in order, and return those that there are; with whether they were overtaken."""
        ...

    def mark_replayed(self, group: str, keys: Collection[LetterKey], *, actor: str) -> int:
        """Mark those of them that are requested as replayed; return how many. The reason stays the request's."""
        ...

    def return_letters(self, group: str, failed: Mapping[LetterKey, FailedReplay], *, actor: str) -> int:
        """Mark those of them that are requested as dead again, with their new errors and one more attempt."""
        ...

    def open_sequences(self, group: str) -> dict[bytes, int]:
        """The digests of keys with an open letter below the stored offset, and the lowest such offset.

        Letters of an earlier topic of the same name don't count: its sequences have ended with it. Nor do letters that
        were overtaken.
        """
        ...
