"""What a job does with records that can't be written: try again, keep them as dead letters, skip them, or stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast, get_args

from offsetstore.errors import ConfigurationError, FunctionFailed, RecordsRejected, RowsRefused
from offsetstore.offsets import TopicPartition
from offsetstore.protocol.arguments import check_seconds, check_whole
from offsetstore.protocol.letters import Cause, LetterError, NewLetter, rejected, trace_id
from offsetstore.protocol.outbox import TOPIC_NAMES, OutboxRecord, is_topic
from offsetstore.runtime.functions import call

_OURS: Final = "source_"

KeptContents: TypeAlias = Literal["all", "coordinates"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt at a record.

    :param attempt: its number, from 1.
    :param errors: how often each error was seen so far, including this time, by SQLSTATE or else by the error's class.
    :param error: the last error.
    """

    topic_partition: TopicPartition
    offset: int
    attempt: int
    errors: Mapping[str, int]
    error: RowsRefused


@dataclass(frozen=True, slots=True)
class Retry:
    """Try the record again after this many seconds, by default after the wait of the store's `Retries`."""

    after: float | None = None

    def __post_init__(self) -> None:
        if self.after is not None:
            check_seconds("after", self.after, or_zero=True)


@dataclass(frozen=True, slots=True)
class Skip:
    """Pass over the record without a letter. The group's history gets a line with the reason."""

    reason: str

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.reason), str):
            raise ConfigurationError("the reason of a Skip must be a text", found=type(self.reason).__name__)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Pass over the record, and keep it as a dead letter; docs/dead-letters-limits.md: when the query ends instead."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the query with the record's error; the records before it are stored."""


Choice: TypeAlias = Retry | Skip | DeadLetter | Stop
Strategy: TypeAlias = Callable[[Failure], Choice]


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """How a job handles records that can't be written; see docs/dead-letters.md.

    A record that ``transform`` rejects, or that has a value that can never fit, becomes a letter at once. What the
    database refuses is tried again first.

    :param max_retries: how often a record is tried again before it becomes a letter.
    :param independent: count the attempts at each record by itself, and start again after a success. By default the
        attempts at a partition's records add up until it moves on, so a record that fails later has fewer left. A try
        counts once, however many records of the partition fail in it.
    :param strategy: decides after each failed attempt, instead of ``max_retries``.
    :param sequence: ``"key"``: later records of a dead record's key wait behind it, as letters too, and are replayed in
        order.
    :param limit: with more letters than this in a batch, the query ends with `TooManyLetters`: it is a bug or an
        outage.
    :param seconds: how long to search the database for bad records, under the offsets' lock, before the batch is halved
        instead.
    :param keep: ``"coordinates"``: keep no key, value and headers. Such a letter can't be replayed, so this does not go
        with ``sequence`` or ``topic``.
    :param topic: also produce each record that becomes a letter to this topic, through the outbox, in the transaction
        that writes the letter: key, value and headers as they were, followed by the headers ``source_topic``,
        ``source_partition``, ``source_offset``, ``source_consumer_group``, ``source_attempts``,
        ``source_error_class`` and, if the record has a trace, ``source_trace_id``, as text. The record's own headers
        whose names begin with ``source_`` are left out there.
    :raises ConfigurationError: a value is invalid, or two don't go together.
    """

    max_retries: int = 3
    independent: bool = False
    strategy: Strategy | None = None
    sequence: Literal["key"] | None = None
    limit: int = 10_000
    seconds: float = 60.0
    keep: KeptContents = "all"
    topic: str | None = None

    def __post_init__(self) -> None:
        check_whole("max_retries", self.max_retries)
        check_whole("limit", self.limit, "letters", least=1)
        check_seconds("seconds", self.seconds)
        if self.sequence not in {None, "key"}:
            raise ConfigurationError('sequence must be "key" or None', found=repr(self.sequence))
        if self.keep not in get_args(KeptContents):
            raise ConfigurationError('keep must be "all" or "coordinates"', found=repr(self.keep))
        if self.sequence is not None and self.keep == "coordinates":
            raise ConfigurationError(
                "records that wait behind a dead one of their key are kept in their letters alone",
                found='sequence="key" and keep="coordinates"',
                expected="one of them",
            )
        if self.topic is not None and not is_topic(self.topic):
            raise ConfigurationError(
                "the name of the letters' topic is not valid", found=repr(self.topic), expected=TOPIC_NAMES
            )
        if self.topic is not None and self.keep == "coordinates":
            raise ConfigurationError(
                "a letter without its record can't be produced",
                found='topic= and keep="coordinates"',
                expected="one of them",
            )
        if self.strategy is not None and not callable(self.strategy):
            raise ConfigurationError("strategy must be a function of a Failure", found=repr(self.strategy))

    def decide(self, failure: Failure) -> Choice:
        """Decide what to do after a failed attempt.

        :raises ConfigurationError: the strategy returned none of the four.
        """
        if self.strategy is None:
            return Retry() if failure.attempt <= self.max_retries else DeadLetter()
        decision = call(self.strategy, failure)
        if not isinstance(cast("object", decision), (Retry, Skip, DeadLetter, Stop)):
            raise ConfigurationError(
                "the strategy did not decide",
                found=repr(decision),
                expected="Retry(), Skip(reason), DeadLetter() or Stop()",
            )
        return decision


def as_record(letter: NewLetter, topic: str, group: str) -> OutboxRecord:
    """The record to produce to the letters' topic.

    All of the record's own headers that begin with ``source_`` are left out; the letter has them.
    """
    payload = letter.payload
    own = {
        "source_topic": letter.topic_partition.topic,
        "source_partition": str(letter.topic_partition.partition),
        "source_offset": str(letter.offset),
        "source_consumer_group": group,
        "source_attempts": str(letter.attempts),
        "source_error_class": letter.error.error_class,
    }
    headers = () if payload is None or payload.headers is None else payload.headers
    if (trace := trace_id(headers)) is not None:
        own["source_trace_id"] = trace
    # Readers must be able to believe `source_` headers, so none may come from the record, not even after it is made
    # sendable: Java's clients allow names that ours can't send.
    kept = [(_sendable(name), value) for name, value in headers if not _sendable(name).startswith(_OURS)]
    own_headers = ((name, _sendable(text).encode()) for name, text in own.items())
    return OutboxRecord(topic, payload and payload.key, payload and payload.value, (*kept, *own_headers))


def _sendable(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")


def name_of(error: Exception) -> str:
    """The name under which attempts count the error: its SQLSTATE, or else its class."""
    if isinstance(error, FunctionFailed):
        return error.error_class
    return (error.sqlstate if isinstance(error, RowsRefused) else None) or type(error).__name__


def cause_of(error: RowsRefused) -> Cause:
    """What rejected the record: transform, database or function."""
    if isinstance(error, FunctionFailed):
        return "raised"
    return "rejected" if isinstance(error, RecordsRejected) else "refused"


def described(error: RowsRefused) -> LetterError:
    """What a letter keeps of an error; nothing that quotes a value, if the database refused it."""
    if isinstance(error, FunctionFailed):
        return LetterError(error.error_class, error.text, sqlstate=error.sqlstate, traceback=error.traceback)
    if isinstance(error, RecordsRejected) and error.reasons:
        return rejected("; ".join(error.reasons.values()), "; ".join(dict.fromkeys(error.codes.values())))
    text = error.what if error.found is None else f"{error.what}; found: {error.found}"
    if error.expected is not None:
        text += f"; expected: {error.expected}"
    return LetterError(
        type(error).__name__,
        text,
        sqlstate=error.sqlstate,
        table=error.table,
        constraint=error.constraint,
        column=error.column,
    )
