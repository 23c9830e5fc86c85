"""Records that a log lost records: for later starts, by which time it may have grown again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore.protocol.database import HistoryEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offsetstore.offsets import Token, TopicPartition
    from offsetstore.protocol.database import Session


def write_evidence(
    session: Session, group: str, token: Token, found: Mapping[TopicPartition, str], *, actor: str
) -> None:
    """Write evidence of loss to rows that still have the token and have none yet, with history."""
    rows = session.lock_partitions(group, found)
    written = session.write_suspects(group, token, {tp: found[tp] for tp in rows})
    session.append_history(
        group,
        [
            HistoryEvent("suspect", tp, rows[tp].next_offset, rows[tp].next_offset, token, actor, found[tp])
            for tp in sorted(written)
        ],
    )
