"""What a job tells its observers: frozen values, each emitted once, by the driver.

Ranges are of next offsets. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from offsetstore.offsets import OffsetRange, Pause, Token, TopicPartition
from offsetstore.protocol.query_status import WatchedQuery
from offsetstore.protocol.starting import StartingOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStarted:
    """A streaming query, or one that was restarted, has given the sink its first batch.

    :param run_id: of this start of the query.
    :param ui_url: where Spark's own page is, if there is one.
    """

    group: str
    query_id: str
    run_id: str
    application_id: str
    ui_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStarted:
    """A micro-batch has reached the sink; ``ranges`` is what it reads.

    The thread of this event gets those that are about the batch too, at last how it ended.
    """

    group: str
    batch: int
    ranges: Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWritten:
    """A micro-batch is committed.

    :param rows: how many were written, by output.
    :param seconds: how long it took, by phase: ``plan``, ``compute``, ``write`` and ``commit``, or ``tasks`` where
        executors write; ``search`` for records that the database refuses, and ``wait`` before these are tried again.
    """

    outcome: ClassVar = "written"

    group: str
    batch: int
    ranges: Mapping[TopicPartition, OffsetRange]
    rows: Mapping[str, int]
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSkipped:
    """The whole micro-batch was already in the results."""

    outcome: ClassVar = "skipped"

    group: str
    batch: int
    ranges: Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKept:
    """With a `Flush`: a batch was computed, and its rows are kept in memory, or were flushed with those before.

    :param rows: as in `BatchWritten`, also ``seconds``.
    """

    outcome: ClassVar = "kept"

    group: str
    batch: int
    ranges: Mapping[TopicPartition, OffsetRange]
    rows: Mapping[str, int]
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersWritten:
    """Records of a micro-batch, or of a part of it, were kept as dead letters.

    :param ranges: what was committed with them.
    :param letters: how many, by cause: ``rejected``, ``refused``, ``raised`` or ``sequence``.
    """

    group: str
    batch: int
    ranges: Mapping[TopicPartition, OffsetRange]
    letters: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersReplayed:
    """Requested dead letters were put back: ``replayed`` of them are in the results, ``failed`` ones are dead again.

    :param without_rows: how many of those that were replayed make no row.
    """

    group: str
    replayed: int
    failed: int
    without_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainStarted:
    """A sink has begun to replay the requested dead letters, without a query."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainEnded:
    """It is done with that, or an error has ended it."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferFlushed:
    """Kept batches and their offsets are committed.

    :param batches: the numbers of the first and the last.
    :param rows: as in `BatchWritten`, also ``seconds``.
    """

    group: str
    batches: tuple[int, int]
    ranges: Mapping[TopicPartition, OffsetRange]
    rows: Mapping[str, int]
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushFailed:
    """A flush between two batches failed; the next batch, or `Claim.close`, tries again and raises the error."""

    group: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWorkFailed:
    """The sink's `Tick` raised; it will be called again. ``error`` is `CommitUnknown` if it may be committed."""

    group: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed:
    """A micro-batch failed and ended the query. ``error`` holds no values of rows if it is an `OffsetStoreError`.

    :param stored: what was committed of its ranges before, as the records before a refused one.
    :param rows: how many rows were written with that, by output; those of tasks that Spark has ended are not known.
    """

    outcome: ClassVar = "failed"

    group: str
    batch: int
    ranges: Mapping[TopicPartition, OffsetRange]
    error: BaseException
    stored: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict["TopicPartition", "OffsetRange"])
    rows: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInterrupted:
    """The query was stopped in the middle of a micro-batch. What is not written of it is left to the next start.

    :param stored: as in `BatchFailed`, also ``rows``.
    """

    outcome: ClassVar = "interrupted"

    group: str
    batch: int
    ranges: Mapping[TopicPartition, OffsetRange]
    stored: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict["TopicPartition", "OffsetRange"])
    rows: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """The group is paused: the job waits before its next batch."""

    group: str
    pause: Pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The pause is over: the job goes on with its batch."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """A database operation failed with a transient error, and is retried after ``wait`` seconds."""

    group: str
    attempt: int
    error: Exception
    wait: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResolved:
    """The answer to a COMMIT was lost; ``happened`` is what the rows show, ``None`` if they do not."""

    group: str
    topic_partition: TopicPartition | None
    happened: bool | None

    @property
    def outcome(self) -> str:
        """``committed``, ``rolled_back`` or ``unknown``."""
        return {True: "committed", False: "rolled_back", None: "unknown"}[self.happened]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTaken:
    """The group was claimed; ``starting`` is where it starts, ``None`` if Kafka was not asked."""

    group: str
    token: Token
    owner: str
    starting: StartingOffsets | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimLost:
    """A heartbeat has noticed that another claim took the group over."""

    group: str
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimClosed:
    """The claim was closed, in good order: it writes nothing any more."""

    group: str
    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMade:
    """A sink was made for the claim; ``query`` tells about its query, as soon as there is one, and may hang.

    :param replays_letters: whether it replays the dead letters that are requested: it has ``dead_letters=``.
    """

    group: str
    token: Token
    query: WatchedQuery
    replays_letters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAnswered:
    """The database took a heartbeat or, while the claim sends none because its query has ended, answered a question."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatMissed:
    """The database did not take a heartbeat; the next one follows. ``error`` is the reason, for its class alone."""

    group: str
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorCopied:
    """The mirror compared the stored offsets with Kafka's group; ``offsets`` are those that it copied, perhaps none."""

    group: str
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorFailed:
    """The mirror could not copy.

    :param reason: in words, for people.
    :param is_over: whether the mirror has stopped for good; otherwise it will try again.
    :param error: what Kafka's client raised, for its class alone; ``None`` if Kafka has answered.
    """

    group: str
    reason: str
    is_over: bool
    error: Exception | None = None


Event: TypeAlias = (
    QueryStarted
    | BatchStarted
    | BatchWritten
    | BatchSkipped
    | BatchKept
    | BatchFailed
    | BatchInterrupted
    | LettersWritten
    | LettersReplayed
    | DrainStarted
    | DrainEnded
    | BufferFlushed
    | FlushFailed
    | IdleWorkFailed
    | Paused
    | Resumed
    | Retried
    | CommitResolved
    | ClaimTaken
    | ClaimLost
    | ClaimClosed
    | SinkMade
    | DatabaseAnswered
    | HeartbeatMissed
    | MirrorCopied
    | MirrorFailed
)
