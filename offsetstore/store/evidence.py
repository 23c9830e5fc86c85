"""Records that a log lost records: for later starts, by which time it may have grown again."""

from __future__ import annotations

from collections.abc import Mapping

from offsetstore.offsets import Token, TopicPartition
from offsetstore.protocol.database import HistoryEvent, LockedRow, Session


def write_evidence(
    session: Session,
    group: str,
    token: Token,
    found: Mapping[TopicPartition, str],
    *,
    actor: str,
    doubtful: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Write evidence of loss to rows that still have the token and have none yet, with history.

    :param doubtful: as `LogLook.doubtful`; it is no evidence if the offset is still the one that a reset has set, from
        an offset that the log still holds.
    """
    rows = session.lock_partitions(group, found)
    ends = doubtful or {}
    sure = {
        tp: found[tp]
        for tp, row in rows.items()
        if tp not in ends or not _is_as_reset(session, group, tp, row, ends[tp])
    }
    written = session.write_suspects(group, token, sure)
    session.append_history(
        group,
        [
            HistoryEvent("suspect", tp, rows[tp].next_offset, rows[tp].next_offset, token, actor, found[tp])
            for tp in sorted(written)
        ],
    )


def _is_as_reset(session: Session, group: str, tp: TopicPartition, row: LockedRow, end: int) -> bool:
    last = session.history(group, events=["reset"], topic_partition=tp, limit=1)
    return bool(last) and last[0].to_offset == row.next_offset and (last[0].from_offset or 0) <= end
