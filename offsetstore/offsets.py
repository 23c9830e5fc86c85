"""The nouns of the project: frozen, typed, pure.

All offsets are *next offsets*, last processed + 1, as Kafka and Spark count: 64-bit, never negative.
"""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any, Final, NamedTuple, ParamSpec, Self, TypeAlias, TypeVar
from uuid import UUID

MAX_OFFSET = 2**63 - 1
"""The largest offset that Kafka, Spark and PostgreSQL's ``bigint`` can hold."""

MAX_PARTITION = 2**31 - 1
"""The largest partition number that they can hold."""


_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")


def makes_many(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep Python's collector from running while a function makes objects by the ten thousand, none of them garbage."""
    # The number of new objects triggers the collector: it took a third of a claim of 10,000 partitions (decision 0073).

    @wraps(function)
    def without_collecting(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        # Whoever has switched it off, such as an outer call, switches it on again.
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return without_collecting


def whole(value: Any) -> int | None:
    """Return a number as an ``int``, which NumPy's integers are not; ``None`` if it is not whole, or is a ``bool``."""
    if type(value) is int:
        return value
    if isinstance(value, bool):
        return None
    try:
        return int(operator.index(value))
    except TypeError:
        return None


class _TopicPartition(NamedTuple):
    topic: str
    partition: int


class TopicPartition(_TopicPartition):
    """One partition of one topic. Sorts as the locks are taken: by topic (bytewise), then partition.

    A tuple, because a batch may hash and compare each of ten thousand partitions a dozen times; a tuple is four times
    as fast at that as a dataclass.
    """

    __slots__ = ()

    def __new__(cls, topic: str, partition: int) -> Self:
        """Check the values.

        :raises ValueError: an empty topic, a partition that is negative or beyond 32 bits.
        """
        # `ValueError`, since the errors of this package carry partitions and import this module (decision 0028).
        number = partition if type(partition) is int else whole(partition)
        if not topic or number is None or not 0 <= number <= MAX_PARTITION:
            raise ValueError(
                f"not a partition of a topic: {topic!r}, {partition}; expected a name and a number from 0 to 2**31 - 1"
            )
        return super().__new__(cls, topic, number)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """``[from_, until)`` of one partition: what one micro-batch reads. It may hold fewer records than offsets."""

    from_: int
    until: int

    def __post_init__(self) -> None:
        """Check the values, and convert NumPy's integers.

        :raises ValueError: negative, reversed, or beyond 64 bits.
        """
        from_, until = whole(self.from_), whole(self.until)
        if from_ is None or until is None or not 0 <= from_ <= until <= MAX_OFFSET:
            raise ValueError(f"not a range of offsets: {self}; expected whole numbers, 0 <= from <= until < 2**63")
        if from_ is not self.from_ or until is not self.until:
            object.__setattr__(self, "from_", from_)
            object.__setattr__(self, "until", until)

    def __str__(self) -> str:
        return f"[{self.from_}, {self.until})"

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.until - self.from_

    def __bool__(self) -> bool:
        """Whether the range can hold a record."""
        return self.from_ < self.until


Ranges: TypeAlias = Mapping[TopicPartition, OffsetRange]


def count_offsets(ranges: Ranges) -> int:
    return sum(range_.until - range_.from_ for range_ in ranges.values())


def in_parts(items: Iterable[_T], size: Callable[[_T], int], most: float) -> Iterator[list[_T]]:
    """Split the items, in order, into parts of at most ``most`` in size; a larger item is a part of its own."""
    part: list[_T] = []
    total = 0
    for item in items:
        more = size(item)
        if part and total + more > most:
            yield part
            part, total = [], 0
        part.append(item)
        total += more
    if part:
        yield part


def describe(ranges: Ranges, most: int = 8) -> str:
    """Name the partitions and their ranges for a message: the first ``most``, and how many more there are."""
    named = [f"{tp} {range_}" for tp, range_ in sorted(ranges.items())]
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return ", ".join(named[:most]) + more


@dataclass(frozen=True, slots=True)
class Token:
    """Who may write: the epoch orders claims, the id distinguishes two with the same epoch (a restored backup)."""

    epoch: int
    claim_id: UUID

    def __str__(self) -> str:
        return f"epoch {self.epoch}, claim {self.claim_id}"


NO_CLAIM: Final = Token(0, UUID(int=0))
"""The token of a name that no job has claimed."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A group is paused: its job writes nothing until the group is resumed, or until the time ``until``.

    ``at`` is when it was paused, by the database's clock. Without ``until`` the pause has no end.
    """

    at: datetime
    until: datetime | None
    reason: str

    def __str__(self) -> str:
        end = "" if self.until is None else f" until {self.until.isoformat(timespec='seconds')}"
        return f"paused since {self.at.isoformat(timespec='seconds')}{end}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The log's first offset, and where it ends for the job: its high watermark, or its last stable offset.

    ``high`` is always the high watermark, and ``leader_epoch`` the leader's epoch in the same answer; ``None`` if the
    broker did not tell them.
    """

    beginning: int
    end: int
    high: int | None = field(default=None, kw_only=True)
    leader_epoch: int | None = field(default=None, kw_only=True)

    def pair(self, offset: int) -> EpochPair | None:
        """The pair for a next offset that was read before these; ``None`` if there can be none."""
        # Beyond the high watermark the log does not hold what was read, so the epoch of its end says nothing about it.
        if self.leader_epoch is None or self.high is None or offset > self.high:
            return None
        return EpochPair(offset, self.leader_epoch)


class EpochPair(NamedTuple):
    """A next offset, and the leader epoch of the log's end, read after it: no record below it has a later epoch.

    If the log no longer has that epoch up to the offset, it was truncated below it, however far it has grown since.
    """

    offset: int
    leader_epoch: int


class Suspect(NamedTuple):
    """Evidence that a log lost records below a stored offset: what was found and, by the database's clock, when."""

    what: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoredOffset:
    """One row of ``kafka_partitions``: a group's position in one partition, and what travels with it.

    ``metadata`` is the text as stored, see `protocol.metadata`. ``transaction_id`` is the id of the last advance, and
    ``None`` until the first one. ``pinned_epoch`` is the epoch in which an operator's decision last set the row, or in
    which it was contested, 0 if neither: copies in Kafka of earlier epochs don't count. ``updated_at`` is by the
    database's clock. ``contested`` is set if another application, or a copy of the database, used the group in Kafka
    while the job ran: its commits are not adopted. ``pair`` reveals a truncated log, see `EpochPair`; ``suspect`` is
    evidence of one, which stays until a reset.
    """

    next_offset: int
    token: Token
    metadata: str | None = None
    topic_id: str | None = None
    cluster_id: str | None = None
    transaction_id: UUID | None = None
    pinned: bool = False
    updated_at: datetime | None = None
    pinned_epoch: int = 0
    contested: bool = False
    pair: EpochPair | None = None
    suspect: Suspect | None = None

    @property
    def advanced_at(self) -> datetime | None:
        """When it last changed, ``None`` if no job has stored it: a claim or a decision is no advance."""
        return None if self.transaction_id is None else self.updated_at

    def is_of_another_cluster(self, cluster_id: str | None) -> bool:
        """Whether it is known to belong to another Kafka cluster; ``False`` if either id is unknown."""
        return bool(self.cluster_id and cluster_id) and self.cluster_id != cluster_id

    def is_of_another_topic(self, topic_id: str | None) -> bool:
        """Whether it is known to belong to an earlier topic, which was deleted and created again with this id."""
        return bool(self.topic_id and topic_id) and self.topic_id != topic_id


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What Kafka keeps for the group: the next offset, and the text that was committed with it."""

    next_offset: int
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class TopicLog:
    """One topic as the broker shows it: its id (``None`` if the broker is too old to have ids) and its logs.

    ``partition_count`` is how many partitions the topic has, if ``partitions`` holds only those that the job reads
    (Spark's ``assign``); ``None`` if it holds all.
    """

    topic_id: str | None
    partitions: dict[int, Watermarks]
    partition_count: int | None = None

    def has(self, partition: int) -> bool:
        """Whether the topic has the partition, whether the job reads it or not."""
        # Kafka numbers partitions from 0 without a gap, and one that the job does not read has not vanished
        # (decision 0009).
        return partition in self.partitions if self.partition_count is None else partition < self.partition_count


@dataclass(frozen=True, slots=True)
class BrokerView:
    """What Kafka said, at one moment: the cluster, the topics, and what is committed for the group.

    ``timestamps`` holds the first offset at or after the time that was asked for, ``None`` without such a time.
    """

    cluster_id: str | None
    topics: dict[str, TopicLog]
    committed: dict[TopicPartition, CommittedOffset]
    timestamps: dict[TopicPartition, int] | None = None

    def of(self, partitions: Collection[TopicPartition]) -> BrokerView:
        """The same for these partitions only; each topic keeps its count of partitions."""
        numbers: dict[str, set[int]] = {}
        for tp in partitions:
            numbers.setdefault(tp.topic, set()).add(tp.partition)
        topics = {
            topic: TopicLog(
                log.topic_id,
                {number: ends for number, ends in log.partitions.items() if number in numbers[topic]},
                len(log.partitions) if log.partition_count is None else log.partition_count,
            )
            for topic, log in self.topics.items()
            if topic in numbers
        }
        committed = {tp: offset for tp, offset in self.committed.items() if tp in partitions}
        return BrokerView(self.cluster_id, topics, committed, self.timestamps)
