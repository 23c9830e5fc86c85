"""What a job tells its observers: frozen values, each emitted once, by the driver.

Ranges are of next offsets. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from offsetstore.errors import OffsetStoreError
from offsetstore.offsets import OffsetRange, Pause, Ranges, Token, TopicPartition, count_offsets
from offsetstore.protocol.letters import Headers
from offsetstore.protocol.starting import StartingOffsets
from offsetstore.text import utc_time

BatchOutcome: TypeAlias = Literal["written", "skipped", "kept", "failed", "interrupted"]
"""How a batch ended; see `BatchEnded`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStatus:
    """A streaming query at one moment.

    :param is_active: whether it runs; ``None`` if that can't be told.
    :param trigger: another value with each trigger, also one that finds no records; ``None`` if that can't be told.
    :param interval: seconds between two triggers, 0 without a pause.
    :param has_failed: of one that does not run: whether an error ended it; ``None`` if that can't be told.
    :param pid: the process id of its Java; ``None`` if that can't be told.
    """

    is_active: bool | None
    trigger: int | None = None
    interval: float = 0.0
    pid: int | None = None
    has_failed: bool | None = None


class WatchedQuery(Protocol):
    """The streaming query of a sink, or a consumer's polling."""

    def status(self) -> QueryStatus:
        """Ask it. Spark may not answer for as long as Java does not, so call this in a thread of its own.

        :raises Exception: Java does not answer at all.
        """
        ...


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
    """A batch is to be written: a micro-batch, or a consumer's flush. ``ranges`` is what it reads, ``offsets`` in all.

    The thread of this event gets those that are about the batch too, at last how it ended.

    :param headers: reads the headers that are propagated of at most as many records as it is given; Spark reads Kafka
        for it. ``None`` if none are.
    """

    group: str
    batch: int
    ranges: Ranges
    headers: Callable[[int], Sequence[Headers]] | None = field(default=None, compare=False, repr=False)
    offsets: int = field(init=False)

    def __post_init__(self) -> None:
        """Count them once for all observers: there may be thousands of partitions."""
        object.__setattr__(self, "offsets", count_offsets(self.ranges))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnded:
    """A batch has ended, in one of five ways.

    ``written``: it is committed. ``skipped``: all of it was already in the results. ``kept``: with a `Flush`, its rows
    are in memory, or were flushed with those before. ``failed``: it ended the job. ``interrupted``: the job was
    stopped meanwhile, and the next start reads what is not written.

    :param rows: how many were written or kept, by output; of a batch that failed or was interrupted, those of
        ``stored``, without those of tasks that Spark has ended.
    :param seconds: how long it took, by phase: ``plan``, ``compute``, ``write`` and ``commit``, or ``tasks`` where
        executors write; ``search`` for records that the database refuses, and ``wait`` before these are tried again.
    :param stored: of a batch that failed or was interrupted: what was committed of its ranges before, as the records
        before a refused one.
    :param error: why it failed; an `OffsetStoreError` holds no values of rows.
    :ivar offsets: how many are in ``done``.
    """

    group: str
    batch: int
    ranges: Ranges
    outcome: BatchOutcome
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    stored: Ranges = field(default_factory=dict["TopicPartition", "OffsetRange"])
    error: BaseException | None = None
    offsets: int = field(init=False)

    def __post_init__(self) -> None:
        """Count them once for all observers: there may be thousands of partitions."""
        object.__setattr__(self, "offsets", count_offsets(self.done))

    @property
    def is_well(self) -> bool:
        """Whether its records are written or kept now."""
        return self.outcome in {"written", "skipped", "kept"}

    @property
    def done(self) -> Ranges:
        """What of its ranges is behind it, now: written, kept, or in the results before."""
        return self.ranges if self.is_well else self.stored

    @property
    def written(self) -> Mapping[str, int]:
        """The rows that it committed, by output; kept ones are committed with their flush."""
        return {} if self.outcome == "kept" else self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersWritten:
    """Records of a batch, or of a part of it, were kept as dead letters.

    :param ranges: what was committed with them.
    :param letters: how many, by cause: ``rejected``, ``refused``, ``raised`` or ``sequence``.
    """

    group: str
    batch: int
    ranges: Ranges
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
class HandlerCalled:
    """A `Handler` was called for the records of a batch, which has not ended yet, or for those of letters.

    A consumer tells of long flushes several times.

    :param calls: how many since the last time, ``retries`` among them; ``timeouts`` of them took too long.
    :param seconds: in all calls together.
    :param lag: the longest time in seconds for which an event loop did not answer.
    """

    group: str
    calls: int
    retries: int = 0
    timeouts: int = 0
    seconds: float = 0.0
    lag: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsDropped:
    """A filter of a consumer has dropped polled records: their offsets are stored with what is delivered next.

    One process may tell it again of records that another one has dropped, if it ended before that.

    :param by: the class of the filter.
    """

    group: str
    by: str
    records: int


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """A record that a filter defers for far longer than the filter's own seconds, and with it its partition.

    :param by: the class of the filter.
    :param until: when it is asked again, in seconds since 1970.
    """

    by: str
    offset: int
    until: float

    def __str__(self) -> str:
        return f"the filter {self.by} holds it at record {self.offset}, until {utc_time(self.until)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsHeld:
    """What a consumer's filters hold for far longer than their own seconds has changed: now it is this."""

    group: str
    held: Mapping[TopicPartition, HeldRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainChanged:
    """A sink begins to replay the requested dead letters, without a query; or it is done, or an error ended it."""

    group: str
    is_running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushEnded:
    """Kept batches and their offsets are committed; or a flush between two batches failed.

    After a failure the next batch, or `Claim.close`, tries again and raises the error.

    :param batches: the numbers of the first and the last; like the rest, only if they are committed.
    :param rows: as in `BatchEnded`, also ``seconds``.
    """

    group: str
    batches: tuple[int, int] | None = None
    ranges: Ranges = field(default_factory=dict["TopicPartition", "OffsetRange"])
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    error: BaseException | None = None

    @property
    def outcome(self) -> Literal["written", "failed"]:
        """Whether they are committed."""
        return "written" if self.error is None else "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWorkChanged:
    """A job begins to replay dead letters, or to call its `Tick`, while batches wait; or that is over: ``None``."""

    group: str
    work: Literal["replay", "tick"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWorkFailed:
    """The job's `Tick` raised; it will be called again. ``error`` is `CommitUnknown` if it may be committed."""

    group: str
    error: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseChanged:
    """The group is paused, and the job waits before its next batch; or the pause is over, and the job goes on.

    A stop, or another claim, ends the wait without this event.
    """

    group: str
    pause: Pause | None


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
    """The group was claimed, or a process joined; ``starting`` is where the group starts, ``None`` if that is known.

    ``fenced`` tells whom that has fenced, ``None`` if nobody was known to run.
    """

    group: str
    token: Token
    owner: str
    starting: StartingOffsets | None
    fenced: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEnded:
    """The claim writes nothing any more: it was closed cleanly, or a heartbeat found that another replaced it.

    One that was replaced is closed too, later; ``by`` tells who has the group by then.
    """

    group: str
    token: Token
    outcome: Literal["closed", "fenced"]
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMade:
    """A sink or a consumer was made for the claim; ``query`` tells about its query, once there is one, and may hang.

    :param replays_letters: whether it replays the dead letters that are requested: it has ``dead_letters=``.
    """

    group: str
    token: Token
    query: WatchedQuery
    replays_letters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAsked:
    """The database took a heartbeat or, while the claim sends none because its query has ended, answered a question.

    :param error: why it did not take the heartbeat, for its class alone; the next one follows.
    """

    group: str
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorTried:
    """The mirror compared the stored offsets with Kafka's group, or could not.

    :param offsets: those that it copied, perhaps none.
    :param reason: why it could not, in words, for people.
    :param is_over: whether the mirror has stopped for good; otherwise it will try again.
    :param error: what Kafka's client raised, for its class alone; ``None`` if Kafka has answered.
    """

    group: str
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict["TopicPartition", "int"])
    reason: str | None = None
    is_over: bool = False
    error: Exception | None = None

    @property
    def outcome(self) -> Literal["done", "failed", "ended"]:
        """``ended`` for a mirror that has stopped for good."""
        return "done" if self.reason is None else "ended" if self.is_over else "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSent:
    """A relay has produced this many rows of the outbox, in one transaction of Kafka; ``seconds`` are that one's.

    :param group: the relay's own group in Kafka, also in the events below. No job claims it.
    """

    group: str
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRefused:
    """A relay has set rows aside that Kafka refuses; ``errors`` says why, by id, without anything of a record."""

    group: str
    errors: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxBlocked:
    """Rows of a topic wait, and a relay sends those of others: it is missing, may not be written to, or refuses all.

    It is told at most once a minute. ``row`` is the id of its first row, ``error`` why that is not sent.
    """

    group: str
    topic: str
    row: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRests:
    """A relay that has sent rows, or has waited, has none left, but for those of ``blocked`` topics."""

    group: str
    blocked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxWaits:
    """A relay can't go on because of the database or Kafka, and tries again in ``wait`` seconds."""

    group: str
    error: OffsetStoreError
    wait: float


Event: TypeAlias = (
    QueryStarted
    | BatchStarted
    | BatchEnded
    | LettersWritten
    | LettersReplayed
    | HandlerCalled
    | RecordsDropped
    | RecordsHeld
    | DrainChanged
    | FlushEnded
    | IdleWorkChanged
    | IdleWorkFailed
    | PauseChanged
    | Retried
    | CommitResolved
    | ClaimTaken
    | ClaimEnded
    | SinkMade
    | DatabaseAsked
    | MirrorTried
    | OutboxSent
    | OutboxRefused
    | OutboxBlocked
    | OutboxRests
    | OutboxWaits
)
