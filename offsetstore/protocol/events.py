"""What a job reports to its observers: frozen values, each emitted once, by the driver.

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

# An outcome is a field, not an event of its own (decision 0071).
BatchOutcome: TypeAlias = Literal["written", "skipped", "kept", "failed", "interrupted"]
"""How a batch ended; see `BatchEnded`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStatus:
    """A streaming query at one moment.

    :param is_active: whether it runs; ``None`` if unknown.
    :param trigger: changes with each trigger, even one that finds no records; ``None`` if unknown.
    :param interval: seconds between two triggers, 0 without a pause.
    :param has_failed: whether an error ended it, if it does not run; ``None`` if unknown.
    :param pid: the process id of its Java; ``None`` if unknown.
    """

    is_active: bool | None
    trigger: int | None = None
    interval: float = 0.0
    pid: int | None = None
    has_failed: bool | None = None


class WatchedQuery(Protocol):
    """The streaming query of a sink, or a consumer's polling."""

    def status(self) -> QueryStatus:
        """Ask it. This hangs for as long as Java does not answer, so call it in a thread of its own.

        :raises Exception: Java does not answer at all.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryStarted:
    """A streaming query has given the sink its first batch, after its start or a restart.

    :param run_id: of this start of the query.
    :param ui_url: the address of Spark's own page, if there is one.
    """

    group: str
    query_id: str
    run_id: str
    application_id: str
    ui_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStarted:
    """A batch is about to be written: a micro-batch, or a consumer's flush. It reads ``ranges``, ``offsets`` in all.

    All events about the batch come in the thread of this one, the last being its end.

    :param headers: takes a number of records, and reads the propagated headers of at most as many. ``None`` if none are
        propagated.
    """

    group: str
    batch: int
    ranges: Ranges
    # A function, since it takes a Spark job that reads Kafka: only an observer that asks pays for it (decision 0097).
    headers: Callable[[int], Sequence[Headers]] | None = field(default=None, compare=False, repr=False)
    offsets: int = field(init=False)

    def __post_init__(self) -> None:
        # Counted once for all observers: there may be thousands of partitions.
        object.__setattr__(self, "offsets", count_offsets(self.ranges))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnded:
    """A batch has ended, in one of five ways.

    ``written``: it is committed. ``skipped``: all of it was already in the results. ``kept``: with a `Flush`, its rows
    are in memory, or were flushed with earlier ones. ``failed``: it ended the job. ``interrupted``: the job was stopped
    meanwhile, and the next start reads what is not written.

    :param rows: how many were written or kept, by output; if it failed or was interrupted, the rows of ``stored``,
        without those of tasks that Spark has ended.
    :param seconds: how long it took, by phase: ``plan``, ``compute``, ``write`` and ``commit``, or ``tasks`` where
        executors write; ``search`` for records that the database refuses, and ``wait`` before these are tried again.
    :param stored: if it failed or was interrupted, the part of its ranges that was committed before, such as the
        records before a refused one.
    :param error: why it failed; an `OffsetStoreError` holds no values of rows.
    :ivar offsets: how many are in ``done``.
    """

    group: str
    batch: int
    ranges: Ranges
    outcome: BatchOutcome
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    # In this event, not in one of its own: each row is counted in one event only (decision 0058).
    stored: Ranges = field(default_factory=dict["TopicPartition", "OffsetRange"])
    error: BaseException | None = None
    offsets: int = field(init=False)

    def __post_init__(self) -> None:
        # Counted once for all observers: there may be thousands of partitions.
        object.__setattr__(self, "offsets", count_offsets(self.done))

    @property
    def is_well(self) -> bool:
        return self.outcome in {"written", "skipped", "kept"}

    @property
    def done(self) -> Ranges:
        """The part of its ranges that is done: written, kept, or already in the results."""
        return self.ranges if self.is_well else self.stored

    @property
    def written(self) -> Mapping[str, int]:
        """The rows that it committed, by output; kept rows are committed with their flush."""
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
    """Requested dead letters were replayed: ``replayed`` of them are in the results, ``failed`` ones are dead again.

    :param without_rows: how many of ``replayed`` make no row.
    """

    group: str
    replayed: int
    failed: int
    without_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerCalled:
    """A `Handler` was called for the records of a batch, which has not ended yet, or of letters.

    A long flush of a consumer has several of these events.

    :param calls: how many since the last event, including ``retries``; ``timeouts`` of them took too long.
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
    """A consumer's filter has dropped polled records: their offsets are stored with what is delivered next.

    If the process ends before that, another one drops the same records again, and has an event for them too.

    :param by: the class of the filter.
    """

    group: str
    by: str
    records: int


@dataclass(frozen=True, slots=True)
class HeldRecord:
    """A record that a filter defers for far longer than the filter's own seconds, which holds up its partition.

    :param by: the class of the filter.
    :param until: when the filter is asked again, in seconds since 1970.
    """

    by: str
    offset: int
    until: float

    def __str__(self) -> str:
        return f"the filter {self.by} holds it at record {self.offset}, until {utc_time(self.until)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsHeld:
    """What a consumer's filters hold for far longer than their own seconds has changed, and is now ``held``."""

    group: str
    held: Mapping[TopicPartition, HeldRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainChanged:
    """A sink begins to replay requested dead letters without a query, or it has ended that, by an error or not."""

    group: str
    is_running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushEnded:
    """Kept batches and their offsets are committed; or a flush between two batches failed.

    After a failure the next batch, or `Claim.close`, tries again and raises the error.

    :param batches: the numbers of the first and the last; like the other fields, set only if they are committed.
    :param rows: as in `BatchEnded`, like ``seconds``.
    """

    group: str
    batches: tuple[int, int] | None = None
    ranges: Ranges = field(default_factory=dict["TopicPartition", "OffsetRange"])
    rows: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    error: BaseException | None = None

    @property
    def outcome(self) -> Literal["written", "failed"]:
        return "written" if self.error is None else "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWorkChanged:
    """A job begins to replay dead letters or to call its `Tick`, while batches wait; ``None`` when that is over."""

    group: str
    work: Literal["replay", "tick"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleWorkFailed:
    """The job's `Tick` raised, and will be called again. ``error`` is `CommitUnknown` if its work may be committed."""

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
    """The answer to a COMMIT was lost; ``happened`` is what the rows show, ``None`` if they show nothing."""

    group: str
    topic_partition: TopicPartition | None
    happened: bool | None

    @property
    def outcome(self) -> str:
        return {True: "committed", False: "rolled_back", None: "unknown"}[self.happened]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimTaken:
    """The group was claimed, or a process joined; ``starting`` is where the group starts, ``None`` if that is known.

    ``fenced`` describes the owner that this fenced, ``None`` if none was known to run.
    """

    group: str
    token: Token
    owner: str
    starting: StartingOffsets | None
    fenced: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEnded:
    """The claim writes nothing any more: it was closed cleanly, or a heartbeat found that another replaced it.

    A claim that was replaced is closed too, later. ``by`` is who has the group by then.
    """

    group: str
    token: Token
    outcome: Literal["closed", "fenced"]
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMade:
    """A sink or a consumer was made for the claim. ``query`` asks about its query, once there is one, and may hang.

    :param replays_letters: whether it replays requested dead letters: it has ``dead_letters=``.
    """

    group: str
    token: Token
    query: WatchedQuery
    replays_letters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAsked:
    """The database took a heartbeat or, while the claim sends none because its query has ended, answered a question.

    :param error: why it did not take the heartbeat; only its class is used. The next heartbeat follows.
    """

    group: str
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorTried:
    """The mirror compared the stored offsets with Kafka's group, or could not.

    :param offsets: those that it copied, perhaps none.
    :param reason: why it could not, in words, for people.
    :param is_over: whether the mirror has stopped for good; otherwise it will try again.
    :param error: what Kafka's client raised; only its class is used. ``None`` if Kafka has answered.
    """

    group: str
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict["TopicPartition", "int"])
    reason: str | None = None
    is_over: bool = False
    error: Exception | None = None

    @property
    def outcome(self) -> Literal["done", "failed", "ended"]:
        return "done" if self.reason is None else "ended" if self.is_over else "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSent:
    """A relay has produced this many rows of the outbox, in one Kafka transaction that took ``seconds``.

    :param group: the relay's own group in Kafka, as in the events below. No job claims it.
    """

    group: str
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRefused:
    """A relay has set rows aside that Kafka refuses; ``errors`` says why, by id, and quotes nothing of a record."""

    group: str
    errors: Mapping[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxBlocked:
    """A topic's rows wait while a relay sends those of others: it is missing, may not be written to, or refuses all.

    Emitted at most once a minute for a topic. ``row`` is the id of its first row, ``error`` why that is not sent.
    """

    group: str
    topic: str
    row: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRests:
    """A relay that has sent rows, or has waited, has none left, except those of ``blocked`` topics."""

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
