"""The resolver's answer: an offset and a reason for each partition, for Spark and for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Final

from offsetstore.errors import ConfigurationError
from offsetstore.offsets import CommittedOffset, OffsetRange, StoredOffset, TopicPartition, Watermarks
from offsetstore.text import command, counted, numbered, visible


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
    ``schema`` is the schema of the tables, for the commands in the `warning`.
    """

    starts: Mapping[TopicPartition, Start]
    vanished: tuple[TopicPartition, ...] = ()
    timestamp_ms: int | None = None
    unknown: str | None = None
    similar: tuple[str, ...] = ()
    schema: str | None = None

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
                "offsetstore, stop it, and see docs/starting.md."
            )
        delete, rename = self._ways_out(self.unknown)
        return (
            f"the store has no offsets of group {self.unknown!r}, which is right for a new job: {what}. Groups with "
            f"similar names: {', '.join(map(repr, self.similar))}. If this is not a new job, stop it, and remove what "
            f"it has written. Then correct the name; or delete this group, `{delete}`, and take over the earlier job's "
            f"offsets, with `{rename}` or adopt_checkpoint=. "
            'StartPolicy(auto_offset_reset="none") refuses such starts.'
        )

    def _ways_out(self, unknown: str) -> tuple[str, str]:
        """The commands of the `warning`: to delete this group, and to rename the earlier one."""
        delete, rename = ("groups", "delete"), ("groups", "rename")
        earlier = self.similar[0]
        # Without arguments if a name could break the line of a log.
        if visible(unknown) == unknown and visible(earlier) == earlier:
            reason = ("--reason", "wrong name")
            delete += ("-g", unknown, *reason)
            rename += ("-g", earlier, "--to", unknown, *reason)
            return command(*delete, schema=self.schema), command(*rename, schema=self.schema)
        return command(*delete, schema=None), command(*rename, schema=None)

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
