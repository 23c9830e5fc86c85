"""Where a job starts: its policy, for cases in which it is safe only to stop, and the resolver's result.

The result is an offset and a reason for each partition, for Spark and for people.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from enum import Enum
from typing import Final, Literal, get_args

from offsetstore.errors import ConfigurationError, UnsupportedQuery
from offsetstore.offsets import CommittedOffset, OffsetRange, StoredOffset, TopicPartition, Watermarks
from offsetstore.text import counted, documentation, numbered

Prefer = Literal["larger", "stored", "agree"]
AutoOffsetReset = Literal["earliest", "latest", "none"]
OnDataLoss = Literal["fail", "earliest"]
OnRecreated = Literal["fail", "restart"]
OnRewound = Literal["fail", "stored", "kafka"]
OnUncertain = Literal["fail", "replay", "skip"]
OnMembers = Literal["warn", "refuse"]


@dataclass(frozen=True, slots=True)
class StartPolicy:
    """How a job's start is resolved.

    The defaults skip nothing, with one exception: if another tool committed an offset in Kafka beyond the stored one
    while no job ran, the job starts there, and the skip is recorded.

    ``prefer``: if the store and Kafka both have an offset, use the ``"larger"`` (a foreign commit is adopted, and the
    skipped range recorded), the ``"stored"`` one, or ``"agree"``, which raises if they differ. None of them adopts a
    commit that another application made while the job ran: then only ``"stored"`` starts, pinned and recorded.

    ``auto_offset_reset``: if neither has one: ``"earliest"``, ``"latest"``, ``"none"`` (raise), or a time: the first
    record at or after it. A new partition of a topic that the group already knows starts at its beginning unless this
    is ``"none"``: its records came after the group's start.

    ``on_data_loss``: if the next record is no longer in the log: ``"fail"``, or continue at the ``"earliest"`` record.

    ``on_recreated``: if the log is not the one that was read before: ``"fail"``, or ``"restart"`` the whole topic from
    its beginning.

    ``on_rewound``: if Kafka holds a copy of ours beyond the stored offset, because the database was restored or lost:
    ``"fail"``, start at the ``"stored"`` offset, or at the copy in ``"kafka"``. Either start is pinned and recorded.
    Without a stored offset, ``"stored"`` starts at the beginning of the log or at the time of ``auto_offset_reset``;
    with a checkpoint to adopt, it is refused.

    ``on_uncertain``: if the checkpoint to adopt ends in a batch that may or may not have been written: ``"fail"``,
    ``"replay"`` the batch, or ``"skip"`` it. The choice is recorded.

    ``on_members``: if the group in Kafka has members, so another application uses it: ``"warn"`` and copy no offsets
    there, or ``"refuse"`` the start. Checked only if the claim copies its offsets to Kafka.
    """

    prefer: Prefer = "larger"
    auto_offset_reset: AutoOffsetReset | datetime = "earliest"
    on_data_loss: OnDataLoss = "fail"
    on_recreated: OnRecreated = "fail"
    on_rewound: OnRewound = "fail"
    on_uncertain: OnUncertain = "fail"
    on_members: OnMembers = "warn"

    def __post_init__(self) -> None:
        _one_of("prefer", self.prefer, get_args(Prefer))
        _one_of("on_data_loss", self.on_data_loss, get_args(OnDataLoss))
        _one_of("on_recreated", self.on_recreated, get_args(OnRecreated))
        _one_of("on_rewound", self.on_rewound, get_args(OnRewound))
        _one_of("on_uncertain", self.on_uncertain, get_args(OnUncertain))
        _one_of("on_members", self.on_members, get_args(OnMembers))
        if isinstance(self.auto_offset_reset, datetime):
            if self.auto_offset_reset.tzinfo is None:
                raise ConfigurationError(
                    "auto_offset_reset has no time zone",
                    found=self.auto_offset_reset.isoformat(),
                    expected="a datetime with tzinfo, such as UTC",
                )
        else:
            _one_of("auto_offset_reset", self.auto_offset_reset, get_args(AutoOffsetReset), "a datetime")

    @property
    def timestamp_ms(self) -> int | None:
        """The time of ``auto_offset_reset`` in milliseconds since 1970 UTC, ``None`` if it is not a time."""
        if isinstance(self.auto_offset_reset, datetime):
            return int(self.auto_offset_reset.timestamp() * 1000)
        return None


# Spark prefers each of these to ``startingOffsets``, and reads ``startingOffsetsByTimestampStrategy`` for these alone.
_OTHER_STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp")
# A streaming query ends at none of these: Spark refuses two of them, and ignores the third.
_ENDS: Final = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


def check_reader(option: Callable[[str], str | None]) -> None:
    """Check the options of Spark's Kafka source that decide where a query begins, and what it may pass over.

    :param option: returns the value of an option by its name, whose case does not matter; ``None`` if it is not set.
    :raises UnsupportedQuery: with the option's name.
    :raises ConfigurationError: ``failOnDataLoss`` is not a boolean.
    """
    found = {name: option(name) for name in (*_OTHER_STARTS, *_ENDS)}
    refused = next((name for name, value in found.items() if value is not None), None)
    if refused in _OTHER_STARTS:
        raise UnsupportedQuery(
            f"the Kafka source has {refused}, which overrides the start that the claim has resolved",
            found=f"{refused}={found[refused]}",
            expected="startingOffsets=claim.starting_offsets alone",
            next_step="Leave the option out; to begin at a time, claim with StartPolicy(auto_offset_reset=<datetime>), "
            "or reset the group to it.",
        )
    if refused is not None:
        raise UnsupportedQuery(
            f"the Kafka source has {refused}, at which a streaming query does not end",
            found=f"{refused}={found[refused]}",
            expected="no end: the next start continues where this one has stored",
            next_step="Leave the option out; to end where the log ends now, use the trigger availableNow=True.",
        )
    loss = option("failOnDataLoss")
    if loss is not None and not spark_boolean("failOnDataLoss", loss):
        raise UnsupportedQuery(
            "the Kafka source has failOnDataLoss=false: it would skip lost records silently",
            found=f"failOnDataLoss={loss}",
            expected="true, which is Spark's default",
            next_step='Leave the option out; to accept a loss, start with StartPolicy(on_data_loss="earliest").',
        )


def spark_boolean(name: str, value: str) -> bool:
    """Read a boolean of Spark's settings or of a reader's options as Spark does: in upper or lower case.

    :raises ConfigurationError: it is not a boolean; Spark refuses it, too.
    """
    if (word := value.strip().lower()) not in {"true", "false"}:
        raise ConfigurationError(f"{name} is not a boolean", found=repr(value), expected="true or false")
    return word == "true"


def _one_of(name: str, value: object, allowed: tuple[str, ...], *more: str) -> None:
    """Refuse a value that is not ``allowed``. What else would be, of another type, is only told."""
    if value not in allowed:
        raise ConfigurationError(
            f"StartPolicy has an unknown {name}", found=repr(value), expected=" or ".join((*allowed, *more))
        )


class Reason(Enum):
    """Why a partition starts where it does. The value is shown to people."""

    PINNED = "stored, pinned by an operator's decision"
    REWOUND_STORED = "stored; Kafka has a later copy, and on_rewound chose the database"
    REWOUND_KAFKA = "our own copy in Kafka; the database was rewound, and on_rewound chose Kafka"
    CONTEST_STORED = "stored, or the beginning; another application's offset in Kafka was ignored"
    COPY_STORED = "stored, or the beginning; a copy of this database has copied its offsets to the group in Kafka"
    CHECKPOINT = "the checkpoint of the query that ran before"
    STORED = "stored; what Kafka has committed is not larger, or does not count"
    ONLY_STORED = "stored; nothing is committed in Kafka"
    COMMITTED_IS_LARGER = "committed in Kafka by another tool, larger than stored"
    ONLY_COMMITTED = "committed in Kafka; nothing is stored"
    EARLIEST = "no offset anywhere: the beginning of the log"
    LATEST = "no offset anywhere: the end of the log"
    TIMESTAMP = "no offset anywhere: the first record at or after the time asked for"
    NEW_PARTITION = "a new partition of a known topic: its beginning"
    DATA_LOSS_ACCEPTED = "the next records are gone, and the loss was accepted: the beginning of the log"
    RECREATED_RESTART = "the topic was recreated, and a restart was asked for: the beginning of the log"


_NOWHERE: Final = frozenset({Reason.EARLIEST, Reason.LATEST, Reason.TIMESTAMP})


@dataclass(frozen=True, slots=True)
class Start:
    """Where one partition starts, and the facts that led there."""

    offset: int
    reason: Reason
    stored: StoredOffset | None
    committed: CommittedOffset | None
    log: Watermarks

    @property
    def is_new(self) -> bool:
        return self.stored is None

    @property
    def skipped(self) -> OffsetRange | None:
        """The unread records that the start skips, ``None`` if there are none."""
        # After a restart the two offsets belong to different logs.
        if self.reason is Reason.RECREATED_RESTART:
            return None
        if self.stored is not None and self.stored.next_offset < self.offset:
            return OffsetRange(self.stored.next_offset, self.offset)
        return None


@dataclass(frozen=True, slots=True)
class StartingOffsets:
    """The start of every partition of every topic of the job, as Spark requires.

    ``vanished`` are stored partitions that Kafka no longer has, after a restart: their rows go to 0. ``unknown`` is the
    group's name if the store has no offset of it, and ``similar`` are the names of groups that may be meant instead.
    """

    starts: Mapping[TopicPartition, Start]
    vanished: tuple[TopicPartition, ...] = ()
    timestamp_ms: int | None = None
    unknown: str | None = None
    similar: tuple[str, ...] = ()

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The next offset of each partition."""
        return {tp: start.offset for tp, start in self.starts.items()}

    @property
    def warning(self) -> str | None:
        """What to check before an unknown group starts in logs that have records; ``None`` if there is nothing."""
        if self.unknown is None:
            return None
        starts = {tp: start for tp, start in self.starts.items() if start.reason in _NOWHERE}
        reads = sum((start.log.high or start.log.end) - start.offset for start in starts.values())
        leaves = sum(start.offset - start.log.beginning for start in starts.values())
        if not reads + leaves:
            return None
        does = [f"reads at most {counted(reads, 'record')}"] if reads else []
        does += [f"leaves out at most {counted(leaves, 'record')}"] if leaves else []
        if any(start.reason is Reason.ONLY_COMMITTED for start in self.starts.values()):
            return (
                f"group {self.unknown!r} is taken over at its committed offsets in Kafka, but there are none for "
                f"{numbered(sorted(starts))}: it {' and '.join(does)} of them. Where these start is decided by "
                "StartPolicy(auto_offset_reset=...)."
            )
        what = f"it {' and '.join(does)} of {', '.join(sorted({tp.topic for tp in starts}))}"
        # Most of these are new jobs: a hint is enough (decision 0058).
        if not self.similar:
            return (
                f"group {self.unknown!r} is new: {what}. If its job ran before under another name, or without "
                f"offsetstore, don't let it run, and see {documentation('starting')}."
            )
        # It holds before the group's first claim, too, as `offsetstore resolve` prints it: there is nothing to delete.
        return (
            f"the store has no offsets of group {self.unknown!r}, which is right for a new job: {what}. Groups with "
            f"similar names: {', '.join(map(repr, self.similar))}. If the job is not new, don't let it run: correct "
            "the name, or take over the earlier offsets, and remove what it has written already. "
            f"See {documentation('starting')}."
        )

    def json(self) -> str:
        """Spark's ``startingOffsets``: ``{"topic": {"0": 42}}``."""
        return _spark_json(self.offsets)

    def timestamps_json(self) -> str:
        """Spark's ``startingOffsetsByTimestamp``, in milliseconds, if every partition starts by time.

        :raises ConfigurationError: a partition has an offset of its own, which the time would override.
        """
        others = [tp for tp, start in self.starts.items() if start.reason is not Reason.TIMESTAMP]
        if others or self.timestamp_ms is None:
            raise ConfigurationError(
                "not every partition starts by timestamp",
                found=f"{len(others)} of {len(self.starts)} partitions start for another reason",
                expected="a start by time in every partition",
                next_step="Give Spark json() as startingOffsets: it holds the resolved offsets.",
            )
        return _spark_json(dict.fromkeys(self.starts, self.timestamp_ms))

    def explain(self) -> str:
        """One line for each partition, for people: where it starts, why, and the known offsets; then the `warning`."""
        width = max((len(str(tp)) for tp in self.starts), default=0)
        lines = [_line(tp, start, width) for tp, start in self.starts.items()]
        lines += [f"{tp!s:<{width}}  vanished from Kafka: its stored offset goes to 0" for tp in self.vanished]
        lines += [] if self.warning is None else [self.warning]
        return "\n".join(lines)


def similar_names(name: str, others: Iterable[str]) -> tuple[str, ...]:
    """Return at most three of the other names that are close to this one, the closest first."""
    # `get_close_matches` returns three by default, and compares upper and lower case as different letters.
    by_lower = {other.lower(): other for other in others}
    return tuple(by_lower[close] for close in get_close_matches(name.lower(), by_lower))


def _line(tp: TopicPartition, start: Start, width: int) -> str:
    stored = "-" if start.stored is None else str(start.stored.next_offset)
    committed = "-" if start.committed is None else str(start.committed.next_offset)
    line = (
        f"{tp!s:<{width}}  starts at {start.offset}: {start.reason.value}"
        f" (stored {stored}, committed {committed}, log [{start.log.beginning}, {start.log.end}))"
    )
    return line if start.skipped is None else f"{line}; skips {start.skipped}"


def _spark_json(values: Mapping[TopicPartition, int]) -> str:
    topics: dict[str, dict[str, int]] = {}
    for tp, value in sorted(values.items()):
        topics.setdefault(tp.topic, {})[str(tp.partition)] = value
    return json.dumps(topics)
