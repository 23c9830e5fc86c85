"""What a resolved start writes: the partitions' rows, and the history of what was decided about them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore.protocol.database import HistoryEvent, NewOffset
from offsetstore.protocol.stamp import Stamp
from offsetstore.protocol.starting import Reason, Start, StartingOffsets

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetstore.offsets import BrokerView, StoredOffset, Token, TopicPartition

_EVENTS = {
    Reason.RECREATED_RESTART: "restart",
    Reason.DATA_LOSS_ACCEPTED: "skip",
    Reason.REWOUND_STORED: "rewound",
    Reason.REWOUND_KAFKA: "rewound",
    Reason.CONTEST_STORED: "contested",
}
# Recorded also where the offset stays what it was.
_DECIDED = {"rewound", "contested"}
# What Kafka has must not win over these the next time, until the mirror has overwritten it.
_PINS = {Reason.RECREATED_RESTART, Reason.REWOUND_STORED, Reason.REWOUND_KAFKA, Reason.CONTEST_STORED}


def new_offsets(
    rows: Mapping[TopicPartition, StoredOffset], starting: StartingOffsets, view: BrokerView
) -> dict[TopicPartition, NewOffset]:
    """Return what has to be written: the rows that are not as the start says."""
    new: dict[TopicPartition, NewOffset] = {}
    for tp, start in starting.starts.items():
        row = rows.get(tp)
        # After a restart Kafka's own offset is the old log's: it must not win the next time.
        is_restart = start.reason is Reason.RECREATED_RESTART
        known = None if is_restart else row
        new[tp] = NewOffset(
            start.offset,
            # An id that this broker does not tell is not forgotten.
            view.topics[tp.topic].topic_id or (known.topic_id if known else None),
            view.cluster_id or (known.cluster_id if known else None),
            start.reason in _PINS or (row is not None and row.pinned) or _passes_over(start),
            row is not None and row.contested and start.reason not in _PINS,
        )
    for tp in starting.vanished:
        new[tp] = NewOffset(0, view.topics[tp.topic].topic_id, view.cluster_id, pinned=True)
    return {tp: value for tp, value in sorted(new.items()) if not _same(rows.get(tp), value)}


def _passes_over(start: Start) -> bool:
    """Below what Kafka has: an adopted offset, and a rewound row whose records are gone too."""
    if start.committed is None or start.offset >= start.committed.next_offset:
        return False
    is_accepted = start.reason is Reason.DATA_LOSS_ACCEPTED
    return start.reason is Reason.CHECKPOINT or (is_accepted and (not start.stored or bool(Stamp.of(start.committed))))


def _same(row: StoredOffset | None, new: NewOffset) -> bool:
    # A pin is renewed: its epoch shall be above those of all copies that were seen.
    if row is None or new.pinned:
        return False
    return NewOffset(row.next_offset, row.topic_id, row.cluster_id, row.pinned, row.contested) == new


def decisions(
    rows: Mapping[TopicPartition, StoredOffset], starting: StartingOffsets, token: Token, owner: str
) -> list[HistoryEvent]:
    """Return a line for each offset that is set, but where it stays what it was."""
    events = [
        HistoryEvent(_EVENTS.get(start.reason, "adopt"), tp, _before(start), start.offset, token, owner, _why(start))
        for tp, start in starting.starts.items()
        if _before(start) != start.offset or _EVENTS.get(start.reason) in _DECIDED
    ]
    return events + [
        HistoryEvent(
            "restart", tp, rows[tp].next_offset, 0, token, owner, "vanished from Kafka, and a restart was asked for"
        )
        for tp in starting.vanished
    ]


def _before(start: Start) -> int | None:
    return None if start.stored is None else start.stored.next_offset


def _why(start: Start) -> str:
    return start.reason.value if start.skipped is None else f"{start.reason.value}; skips {start.skipped}"
