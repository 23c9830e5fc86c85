"""Dead letters: records that can't be written, kept in the transaction that passes over them.

A letter is named by its record, and there is one for each: a record that fails again after a reset reopens its letter.
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
"""By ``transform``, by the database, by the user's function; or it waits behind an earlier record of its key."""

LetterState: TypeAlias = Literal["dead", "requested", "replayed", "discarded", "superseded"]
"""``requested``: to be replayed. ``superseded``: a job has read the record again since."""

CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
STATES: Final[tuple[LetterState, ...]] = get_args(LetterState)

OPEN: Final[tuple[LetterState, ...]] = ("dead", "requested")
"""The states of a letter whose record is not in the results, and may still get there."""

FINAL: Final[tuple[LetterState, ...]] = ("replayed", "discarded", "superseded")
"""The others: what they are about is settled."""

PayloadState: TypeAlias = Literal["kept", "left out", "erased"]
PAYLOADS: Final[tuple[PayloadState, ...]] = get_args(PayloadState)

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

SEQUENCE_BYTES: Final = 32
"""The length of a `digest`. A longer sequence is that of a letter which was overtaken."""

LONGEST_CODE: Final = 64
"""Characters of the code with which a transform or a function rejects a record."""

_LONGEST: Final = 8_192  # characters of a text
# Version ff and ids of zeros are none. Only versions after 00 may have more behind another hyphen.
_TRACE: Final = re.compile(
    rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", re.DOTALL
)


class Payload(NamedTuple):
    """A record as Kafka had it. A tuple, because the consumer makes one of each record.

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

    :param text: of a refusal without values; a reject's or an exception's is its author's, and may quote the record.
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

    :param attempts: how often it was tried, this time included; 0 if it never was.
    :param sequence: the `digest` of its key, ``None`` if nothing waits behind it.
    :param payload: ``None`` if only the coordinates are kept.
    :param trace_id: of its trace, if that follows the record; one that has its headers anyway needs none.
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
        """The id of its trace, as far as it is known."""
        return trace_id(self.payload.headers) if self.payload else self.trace_id


class LetterKey(NamedTuple):
    """What a letter is named by: its record. Letters are locked and replayed in this order.

    :param topic_id: Kafka's id of the topic, ``""`` where it was not known. To ask for a letter, ``None`` will do: the
        newest of this partition and offset, of which there are several only if the topic was created again.
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
    :param payload: ``None`` if it is left out or erased, see ``payload_state``; and in a list without contents, where
        the error's text and traceback are missing too.
    :param times: how often the record became a letter: more than once after a reset.
    :param forced: replay it although rows that were written later may be replaced by older ones.
    :param decided_at: when its state last changed; like ``actor`` and ``reason`` ``None`` if it is as it was written.
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
        """What it is named by."""
        return LetterKey(self.topic_partition, self.offset, self.topic_id)

    @property
    def is_in_sequence(self) -> bool:
        """Whether all later records of its key have waited for it; a record without a key has none."""
        return self.sequence is not None and not is_overtaken(self.sequence)


class ChosenLetter(NamedTuple):
    """What a decision looks at; times, attempts and creation tell that a letter was written again.

    ``is_overtaken`` is false, too, where it was not asked for: it takes a right to read the letters' contents.
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


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempts at a record so far, or at its partition.

    :param errors: how often each error's class was seen.
    """

    attempts: int
    errors: Mapping[str, int]


def digest(tp: TopicPartition, key: bytes | None) -> bytes | None:
    """Name the sequence of a key; a key itself may be too long for an index. A record without a key has none."""
    if key is None:
        return None
    return hashlib.sha256(f"{tp.topic}\0{tp.partition}\0".encode() + key).digest()


def is_overtaken(sequence: bytes) -> bool:
    """Whether a job has written later records of the key: a byte follows the digest then.

    So the letters of a key still have one sequence, and are replayed in order, but nothing more waits behind them.
    """
    return len(sequence) > SEQUENCE_BYTES


def trace_id(headers: Headers | None) -> str | None:
    """The trace id of the last ``traceparent`` header that is valid by W3C's recommendation, if there is one."""
    for name, value in reversed(headers or ()):
        found = _TRACE.fullmatch(value) if name == "traceparent" and value is not None else None
        if found is not None and (found[3] is None or found[1] != b"00"):
            return found[2].decode()
    return None


def writable(text: str) -> str:
    """Return a text that every database can store: without NUL or lone surrogates, and not too long."""
    clean = text.replace("\0", "").encode("utf-8", "replace").decode()
    return clean if len(clean) <= _LONGEST else clean[: _LONGEST - 1] + "…"


REJECT: Final = "_reject"
"""The column by which a transform rejects a row's record: the reason, or a struct of a code and a reason."""


def rejected(reason: str | None, code: str | None = None) -> LetterError:
    """What a letter keeps of the reason that the user's own code gives.

    Lists show the code, and group letters by it, so it may not quote the record, as a reason may. What is too long for
    a code becomes part of the reason, which is not shown.
    """
    name = writable(code or "")
    if 0 < len(name) <= LONGEST_CODE:
        return LetterError(name, reason or "")
    return LetterError("Rejected", ": ".join(filter(None, (name, reason))))


def check_reject(tp: TopicPartition, reason: object, code: object) -> None:
    """Refuse what a function can't name a record with.

    :raises ConfigurationError: the reason, or a code, is no text.
    """
    for name, text in (("reason", reason), ("code", "" if code is None else code)):
        if not isinstance(text, str):
            raise ConfigurationError(
                f"the {name} of a dead letter must be a text", topic_partition=tp, found=type(text).__name__
            )


class LetterSession(Protocol):
    """The part of a `Session` for letters: to write and to settle them, and to replay those that are requested.

    The caller holds the locks of the partitions' rows. Letters are always locked in the order of their keys, after
    these and the group's.
    """

    def write_letters(self, group: str, letters: Sequence[NewLetter]) -> int:
        """Write letters, or reopen those of the same records; return how many. They get the rows' topic ids."""
        ...

    def open_letters(self, group: str) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The highest offset of an open letter, of each partition that has one, in two mappings.

        The first is about those at or above the stored offset, the second about those for which later records of their
        key wait.
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
        """Settle open letters that a transaction passes. All of them are locked in one order.

        :param again: where the job has read the records again: these letters are superseded.
        :param below: below the ends of these ranges, letters are marked as overtaken by later records.
        :param gone: the records that it has not read: their letters are not superseded.
        """
        ...

    def letters_in(
        self, group: str, ranges: Mapping[TopicPartition, OffsetRange]
    ) -> dict[tuple[TopicPartition, int], bytes | None]:
        """The records of the open letters in the ranges, with their sequences; not those of an earlier topic."""
        ...

    def adopt_letters(self, group: str, topic_ids: Mapping[str, str]) -> None:
        """Give letters without a topic id the one that has become known."""
        ...

    def failures(self, group: str) -> dict[tuple[TopicPartition, int], Failed]:
        """The failed attempts at records that are not stored yet, by partition and offset."""
        ...

    def write_failures(self, group: str, failures: Mapping[tuple[TopicPartition, int], Failed]) -> None:
        """Write these, in place of those of the same records."""
        ...

    def pass_failures(self, group: str, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Delete those below the ranges' ends: their records are stored, or letters."""
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
