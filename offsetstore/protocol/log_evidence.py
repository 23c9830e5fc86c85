"""Does a log still hold what was read from it? Pure, except for the question that the broker answers.

Two things show that a log lost records below a stored offset, under the same topic id. Its high watermark is below the
offset; this passes as the log grows. Or the leader epoch has changed, and the log no longer has the former epoch up to
the offset that was stored with it (`EpochPair`); this stays. Under an unchanged epoch nothing can have been lost.
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
    :param checked: the pairs that were checked and hold, each with the leader epoch of this look.
    :param doubtful: the ends of logs in ``short`` that may never have held the offset: the row is pinned, so a reset
        may have set it, and no pair shows that the log had records above its end.
    :param untold: errors of logs with another leader epoch that could not be asked about.
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
        return {**self.short, **self.truncated}

    def expect_told(self) -> None:
        """Raise the error of a log that could not be asked about. Deal with what the other logs have shown first."""
        for error in self.untold.values():
            raise error

    def pair(self, tp: TopicPartition, row: StoredOffset | None, offset: int, log: Watermarks) -> EpochPair | None:
        """The pair to keep for an offset that was read before ``log``.

        :param row: the row as it is now; ``None`` if nothing is known of this log.
        """
        known = None if row is None else row.pair
        if known == (offset, log.leader_epoch):
            return known
        new = log.pair(offset)
        if new is None or known is None or known.leader_epoch == new.leader_epoch:
            return new or known
        # A pair is replaced only if it was checked against this epoch. If the leader has changed between two looks, the
        # old pair stays: no lock waits for another question to Kafka (decision 0049).
        return new if self.checked.get(tp) == (known, new.leader_epoch) else known


def known_ids(rows: Mapping[TopicPartition, StoredOffset]) -> dict[str, str]:
    """The id of each topic whose rows agree on it. It counts for rows without an id, too."""
    # A row without an id is of a partition that was added while a job ran: it gets the id in the next claim, and each
    # batch until then has compared the topic's id with that of the other rows (decision 0049).
    of_topics: defaultdict[str, set[str]] = defaultdict(set)
    for tp, row in rows.items():
        if row.topic_id:
            of_topics[tp.topic].add(row.topic_id)
    return {topic: next(iter(ids)) for topic, ids in of_topics.items() if len(ids) == 1}


def same_logs(rows: Mapping[TopicPartition, StoredOffset], view: BrokerView) -> dict[TopicPartition, Watermarks]:
    """The logs of the rows' own topics: both ids are known and equal."""
    known = known_ids(rows)
    logs: dict[TopicPartition, Watermarks] = {}
    for tp, row in rows.items():
        topic = view.topics.get(tp.topic)
        # Without ids, as with old brokers, the rules for recreated topics apply (decisions 0023 and 0049).
        if topic is None or not topic.topic_id or topic.topic_id != (row.topic_id or known.get(tp.topic)):
            continue
        if (log := topic.partitions.get(tp.partition)) is not None:
            logs[tp] = log
    return logs


def look(
    rows: Mapping[TopicPartition, StoredOffset], logs: Mapping[TopicPartition, Watermarks], find: FindTruncated | None
) -> LogLook:
    """Judge logs that were read after the rows.

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
            # A reset without brokers can set an offset that the log never had (decision 0049).
            if row.pinned and (row.pair is None or row.pair.offset <= log.high):
                doubtful[tp] = log.high
        elif epoch is None or row.pair is None or epoch == row.pair.leader_epoch:
            continue
        # A log's epochs only grow, unless a broker's disk was put back.
        elif epoch < row.pair.leader_epoch:
            truncated[tp] = (
                f"the log had leader epoch {epoch}, and a later one, {row.pair.leader_epoch}, when offset "
                f"{row.pair.offset} was stored"
            )
        else:
            changed[tp] = row.pair, epoch
    # One request for each partition, so only changed epochs are asked about (decision 0049).
    if changed and find is not None:
        for tp, at in find({tp: pair for tp, (pair, _) in changed.items()}).items():
            pair, epoch = changed.pop(tp)
            # It keeps no other log from being judged: what these show is recorded first (decision 0049).
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
    """The error for a log with evidence of loss, from this look or recorded earlier (``found.at``)."""
    since = "" if found.at is None else f" (recorded on {found.at.isoformat(timespec='seconds')})"
    return LogTruncated(
        "the log lost records that had been read, although the topic is the same",
        topic_partition=tp,
        found=f"{found.what}{since}",
        expected="the log that the stored offset was read from",
    )
