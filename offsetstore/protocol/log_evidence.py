"""Does a log still hold what was read from it? Pure, but for the question that the broker answers.

Two things show that it lost records below a stored offset, under the same topic id. It ends below the offset, by its
high watermark; that passes as it grows. Or the leader epoch has changed, and the log no longer has the former epoch up
to the offset that was stored with it (`EpochPair`); that stays. Under an unchanged epoch nothing can have been lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from offsetstore.errors import BrokerError, LogTruncated
from offsetstore.offsets import BrokerView, EpochPair, StoredOffset, Suspect, TopicPartition, Watermarks

FindTruncated = Callable[[Mapping[TopicPartition, EpochPair]], Mapping[TopicPartition, int | BrokerError | None]]


@dataclass(frozen=True, slots=True)
class LogLook:
    """What one look at the logs has shown.

    :param short: logs that end below the stored offset, in words.
    :param truncated: logs that have lost the epoch of the pair, in words.
    :param checked: the pairs of the others that were checked, each with the leader epoch of this look.
    :param doubtful: the ends of those logs of ``short`` that may never have held the offset: the row is pinned, so a
        reset may have set it, and no pair shows that records above the log's end were there.
    :param untold: why those could not be asked about whose leader epoch has changed.
    """

    short: Mapping[TopicPartition, str] = field(default_factory=dict[TopicPartition, str])
    truncated: Mapping[TopicPartition, str] = field(default_factory=dict[TopicPartition, str])
    checked: Mapping[TopicPartition, tuple[EpochPair, int]] = field(
        default_factory=dict[TopicPartition, tuple[EpochPair, int]]
    )
    doubtful: Mapping[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    untold: Mapping[TopicPartition, BrokerError] = field(default_factory=dict[TopicPartition, BrokerError])

    @property
    def lost(self) -> dict[TopicPartition, str]:
        """Both kinds of evidence."""
        return {**self.short, **self.truncated}

    def expect_told(self) -> None:
        """Raise the error of a log that could not be asked about, once what the others have shown is dealt with."""
        for error in self.untold.values():
            raise error

    def pair(self, tp: TopicPartition, row: StoredOffset | None, offset: int, log: Watermarks) -> EpochPair | None:
        """The pair to keep for an offset that was read before ``log``: a former one is checked before it is replaced.

        :param row: the row as it is now; ``None`` if nothing is known of this log.
        """
        known = None if row is None else row.pair
        if known == (offset, log.leader_epoch):
            return known
        new = log.pair(offset)
        if new is None or known is None or known.leader_epoch == new.leader_epoch:
            return new or known
        return new if self.checked.get(tp) == (known, new.leader_epoch) else known


def known_ids(rows: Mapping[TopicPartition, StoredOffset]) -> dict[str, str]:
    """The id of each topic whose rows agree on one. It counts for a row without one, too.

    That is the row of a partition that was added while a job ran, which gets the id in the next claim. Until then, each
    batch has compared the topic's id with the others'.
    """
    of_topics: defaultdict[str, set[str]] = defaultdict(set)
    for tp, row in rows.items():
        if row.topic_id:
            of_topics[tp.topic].add(row.topic_id)
    return {topic: next(iter(ids)) for topic, ids in of_topics.items() if len(ids) == 1}


def same_logs(rows: Mapping[TopicPartition, StoredOffset], view: BrokerView) -> dict[TopicPartition, Watermarks]:
    """The logs of the rows' own topics: their ids are known and the same."""
    known = known_ids(rows)
    found: dict[TopicPartition, Watermarks] = {}
    for tp, row in rows.items():
        topic = view.topics.get(tp.topic)
        if topic is None or not topic.topic_id or topic.topic_id != (row.topic_id or known.get(tp.topic)):
            continue
        if (log := topic.partitions.get(tp.partition)) is not None:
            found[tp] = log
    return found


def look(
    rows: Mapping[TopicPartition, StoredOffset], logs: Mapping[TopicPartition, Watermarks], find: FindTruncated | None
) -> LogLook:
    """Judge logs that were read after the rows; only those with another leader epoch are asked for again.

    :param find: as `BrokerOffsets.find_truncated`; ``None`` if the broker can't tell.
    """
    short: dict[TopicPartition, str] = {}
    doubtful: dict[TopicPartition, int] = {}
    truncated: dict[TopicPartition, str] = {}
    changed: dict[TopicPartition, tuple[EpochPair, int]] = {}
    untold: dict[TopicPartition, BrokerError] = {}
    for tp, log in logs.items():
        row, epoch = rows[tp], log.leader_epoch
        if log.high is not None and log.high < row.next_offset:
            short[tp] = f"the log ended at {log.high}, below the stored offset {row.next_offset}"
            if row.pinned and (row.pair is None or row.pair.offset <= log.high):
                doubtful[tp] = log.high
        elif epoch is None or row.pair is None or epoch == row.pair.leader_epoch:
            continue
        elif epoch < row.pair.leader_epoch:
            truncated[tp] = (
                f"the log had leader epoch {epoch}, and a later one, {row.pair.leader_epoch}, when offset "
                f"{row.pair.offset} was stored"
            )
        else:
            changed[tp] = row.pair, epoch
    if changed and find is not None:
        for tp, at in find({tp: pair for tp, (pair, _) in changed.items()}).items():
            pair, epoch = changed.pop(tp)
            if isinstance(at, BrokerError):
                untold[tp] = at
                continue
            where = "below" if at is None else f"at offset {at}, below"
            truncated[tp] = (
                f"the log parts {where} the stored offset {pair.offset}: it was truncated there after leader epoch "
                f"{pair.leader_epoch}, and has epoch {epoch} now"
            )
    return LogLook(short, dict(sorted(truncated.items())), changed if find is not None else {}, doubtful, untold)


def log_truncated(tp: TopicPartition, found: Suspect) -> LogTruncated:
    """The error for a log with evidence against it: of this look, or recorded (``found.at``)."""
    since = "" if found.at is None else f" (recorded on {found.at.isoformat(timespec='seconds')})"
    return LogTruncated(
        "the log lost records that had been read, although the topic is the same",
        topic_partition=tp,
        found=f"{found.what}{since}",
        expected="the log that the stored offset was read from",
    )
