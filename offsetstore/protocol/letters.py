"""Dead letters: records that can't be written, kept in the transaction that passes over them.

A letter is named by its record, and a record has at most one: if it fails again after a reset, its letter is reopened.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, get_args

from offsetstore.errors import ConfigurationError
from offsetstore.offsets import OffsetRange, TopicPartition

Cause: TypeAlias = Literal["rejected", "refused", "raised", "sequence"]
"""Rejected by ``transform``, refused by the database, raised by the user's function; ``sequence``: it waits behind an
earlier record of its key."""

LetterState: TypeAlias = Literal["dead", "requested", "replayed", "discarded", "superseded"]
"""``requested``: to be replayed. ``superseded``: a job has read the record again since then."""

CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
STATES: Final[tuple[LetterState, ...]] = get_args(LetterState)

OPEN: Final[tuple[LetterState, ...]] = ("dead", "requested")
"""The states of a letter whose record is not in the results but may still get there."""

FINAL: Final[tuple[LetterState, ...]] = ("replayed", "discarded", "superseded")
"""The other states: what becomes of the record is settled."""

PayloadState: TypeAlias = Literal["kept", "left out", "erased"]
PAYLOADS: Final[tuple[PayloadState, ...]] = get_args(PayloadState)

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

SEQUENCE_BYTES: Final = 32
"""The length of a `digest`. A letter that was overtaken has a longer sequence."""

LONGEST_CODE: Final = 64
"""Characters of the code with which a transform or a function rejects a record."""

_LONGEST: Final = 8_192  # characters of a text
# By W3C's recommendation, version ff and ids of zeros are invalid.
_TRACE: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", re.DOTALL
)


class Payload(NamedTuple):
    """A record as Kafka had it. A tuple, because the consumer makes one for each record.

    :param headers: in order; names may repeat. ``None`` if the reader did not read them (``includeHeaders``).
    :param timestamp_type: Kafka's number: 0 for the producer's time, 1 for the broker's, -1 for none.
    """

    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp_ms: int | None
    timestamp_type: int | None


@dataclass(frozen=True, slots=True)
class LetterError:
    """Why a record is dead.

    :param text: a refusal's holds no values; the text of a reject or an exception is its author's, and may quote the
        record.
    """

    error_class: str
    text: str
    sqlstate: str | None = None
    table: str | None = None
    constraint: str | None = None
    column: str | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class NewLetter:
    """A letter to be written.

    :param attempts: how often it was tried, including this time; 0 if never.
    :param sequence: the `digest` of its key, ``None`` if nothing waits behind it.
    :param payload: ``None`` if only the coordinates are kept.
    :param trace_id: of its trace, if that follows the record; not needed with a ``payload``, which has the headers.
    """

    topic_partition: TopicPartition
    offset: int
    cause: Cause
    error: LetterError
    attempts: int
    sequence: bytes | None
    payload: Payload | None
    trace_id: str | None = None

    @property
    def trace(self) -> str | None:
        # A letter with contents has all headers of its record, propagated or not (decision 0097).
        return trace_id(self.payload.headers) if self.payload else self.trace_id


class LetterKey(NamedTuple):
    """What a letter is named by: its record. Letters are locked and replayed in this order.

    :param topic_id: Kafka's id of the topic, ``""`` where it was not known. To look a letter up, ``None`` is enough: it
        means the newest at this partition and offset. There are several only if the topic was created again.
    """

    topic_partition: TopicPartition
    offset: int
    topic_id: str | None = None

    def __str__(self) -> str:
        """``payments:0:17``, as the command line takes it."""
        return f"{self.topic_partition.topic}:{self.topic_partition.partition}:{self.offset}"


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter as it is stored.

    :param topic_id: Kafka's id of the topic, ``""`` where it was not known.
    :param payload: ``None`` if it was left out or erased, see ``payload_state``; also in a list without contents, which
        leaves out the error's text and traceback too.
    :param times: how often the record became a letter: more than once after a reset.
    :param forced: replay it even if that may replace newer rows by older ones.
    :param decided_at: when its state last changed. Like ``actor`` and ``reason``, ``None`` until it changes.
    """

    topic_partition: TopicPartition
    offset: int
    topic_id: str
    state: LetterState
    cause: Cause
    error: LetterError
    attempts: int
    times: int
    sequence: bytes | None
    payload: Payload | None
    payload_state: PayloadState
    forced: bool
    trace_id: str | None
    created_at: datetime
    decided_at: datetime | None
    actor: str | None
    reason: str | None

    @property
    def key(self) -> LetterKey:
        """The record that names it."""
        return LetterKey(self.topic_partition, self.offset, self.topic_id)

    @property
    def is_in_sequence(self) -> bool:
        """Whether all later records of its key have waited for it; ``False`` for a record without a key."""
        return self.sequence is not None and not is_overtaken(self.sequence)


class ChosenLetter(NamedTuple):
    """What a decision looks at. ``times``, ``attempts`` and ``created_at`` show whether a letter was written again.

    ``is_overtaken`` is also false if it was not asked for: that takes the right to read the letters' contents.
    """

    state: LetterState
    payload_state: PayloadState
    forced: bool
    times: int
    attempts: int
    created_at: datetime
    is_overtaken: bool = False

    @classmethod
    def of(cls, letter: Letter) -> ChosenLetter:
        """Take the fields of a letter that was read with its contents."""
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
    """Why a letter could not be replayed; ``cause`` is ``None`` if it has not changed."""

    error: LetterError
    cause: Cause | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The failed attempts at a record, or at its partition, so far.

    :param errors: how often each class of error was seen.
    """

    attempts: int
    errors: Mapping[str, int]


def digest(tp: TopicPartition, key: bytes | None) -> bytes | None:
    """Name the sequence of a key; a record without a key has none."""
    if key is None:
        return None
    # Not the key itself, which may be too long: an entry of an index holds 2,704 bytes (decision 0036).
    return hashlib.sha256(f"{tp.topic}\0{tp.partition}\0".encode() + key).digest()


def is_overtaken(sequence: bytes) -> bool:
    """Whether a job has written later records of the key: then a byte follows the digest."""
    # The digest stays, so the letters of a key still sort as one sequence and are replayed in order; but no digest
    # equals the longer value, so nothing more waits behind them.
    return len(sequence) > SEQUENCE_BYTES


def trace_id(headers: Headers | None) -> str | None:
    """The trace id of the last ``traceparent`` header that is valid by W3C's recommendation, ``None`` without one."""
    for name, value in reversed(headers or ()):
        found = _TRACE.fullmatch(value) if name == "traceparent" and value is not None else None
        # Only versions after 00 may have more behind another hyphen.
        if found is not None and (found[3] is None or found[1] != b"00"):
            return found[2].decode()
    return None


def writable(text: str) -> str:
    """Return a text that every database can store: without NUL or lone surrogates, and not too long."""
    # Not refused: a letter that can't be written would stop the job for good (decision 0036).
    clean = text.replace("\0", "").encode("utf-8", "replace").decode()
    return clean if len(clean) <= _LONGEST else clean[: _LONGEST - 1] + "…"


REJECT: Final = "_reject"
"""The column with which a transform rejects a row's record: the reason, or a struct of a code and a reason."""


def rejected(reason: str | None, code: str | None = None) -> LetterError:
    """What a letter keeps of a reason and a code that the user's own code gives.

    Lists show the code, and group letters by it; they don't show the reason, which may quote the record.
    """
    name = writable(code or "")
    if 0 < len(name) <= LONGEST_CODE:
        return LetterError(name, reason or "")
    # A longer code may hold a value of the record, so it goes where lists don't show it. It never ends the query: the
    # transform has already said that the record is bad (decision 0061).
    return LetterError("Rejected", ": ".join(filter(None, (name, reason))))


def check_reject(tp: TopicPartition, reason: object, code: object) -> None:
    """Check the reason and the code with which a function names a record.

    :raises ConfigurationError: the reason, or a code, is not a text.
    """
    for name, text in (("reason", reason), ("code", "" if code is None else code)):
        if not isinstance(text, str):
            raise ConfigurationError(
                f"the {name} of a dead letter must be a text", topic_partition=tp, found=type(text).__name__
            )


class LetterSession(Protocol):
    """The part of a `Session` for letters: it writes and settles them, and replays requested ones.

    The caller holds the locks of the partitions' rows. Letters are always locked after these and the group's row, in
    the order of their keys.
    """

    def write_letters(self, group: str, letters: Sequence[NewLetter]) -> int:
        """Write letters, or reopen those of the same records; return how many. They get the topic ids of the rows."""
        ...

    def open_letters(self, group: str) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The highest offset of an open letter in each partition that has one, in two mappings.

        The first counts letters at or above the stored offset, the second letters for which later records of their key
        wait.
        """
        ...

    def pass_letters(
        self,
        group: str,
        again: Mapping[TopicPartition, OffsetRange],
        below: Mapping[TopicPartition, OffsetRange],
        *,
        actor: str,
        gone: Collection[tuple[TopicPartition, int]] = (),
    ) -> None:
        """Settle the open letters that a transaction passes. All of them are locked in one order.

        :param again: ranges whose records the job has read again: their letters are superseded.
        :param below: below the ends of these ranges, letters are marked as overtaken by later records.
        :param gone: records that it has not read, so that their letters are not superseded.
        """
        ...

    def letters_in(
        self, group: str, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> dict[tuple[TopicPartition, int], bytes | None]:
        """The records of open letters in the ranges, with their sequences; without letters of an earlier topic."""
        ...

    def adopt_letters(self, group: str, topic_ids: Mapping[str, str]) -> None:
        """Write topic ids that have become known into letters without one."""
        ...

    def failures(self, group: str) -> dict[tuple[TopicPartition, int], Failed]:
        """The failed attempts at records that are not stored yet, by partition and offset of the record."""
        ...

    def write_failures(self, group: str, failures: Mapping[tuple[TopicPartition, int], Failed]) -> None:
        """Write failed attempts, in place of those at the same records."""
        ...

    def pass_failures(self, group: str, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Delete the failed attempts below the ranges' ends: these records are stored, or are letters."""
        ...

    def has_requested(self, group: str) -> bool:
        """Whether a replay of any letter is requested, even of one that can't be replayed yet."""
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

        Each is below its partition's stored offset, or of an earlier topic of the same name; other letters are ahead of
        the job, which reads their records itself. A letter that follows a dead one of its sequence waits. Check both
        again under the locks.

        :param partitions: whose letters; by default those of all the topics' partitions.
        :param max_bytes: stop before the letter that would exceed it, but return at least one.
        """
        ...

    def lock_letters(self, group: str, keys: Collection[LetterKey]) -> dict[LetterKey, ChosenLetter]:
        """Lock letters FOR UPDATE, in order, and return the existing ones, with ``is_overtaken``."""
        ...

    def mark_replayed(self, group: str, keys: Collection[LetterKey], *, actor: str) -> int:
        """Mark these letters as replayed if they are requested; return how many were. The request's reason stays."""
        ...

    def return_letters(self, group: str, failed: Mapping[LetterKey, FailedReplay], *, actor: str) -> int:
        """Mark these letters as dead again if they are requested, with their new errors and one more attempt."""
        ...

    def open_sequences(self, group: str) -> dict[bytes, int]:
        """The digests of keys with an open letter below the stored offset, and the lowest such offset.

        Letters of an earlier topic of the same name don't count, since its sequences ended with it. Nor do overtaken
        letters.
        """
        ...
