"""Whether the running job replays the letters that are requested, by what it has recorded. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from offsetstore.offsets import StoredOffset, TopicPartition
from offsetstore.protocol.database import GroupRow
from offsetstore.protocol.runs import Run
from offsetstore.text import counted

_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Requested:
    """Letters of one partition that are to be replayed: how many, and when the first of them was requested."""

    letters: int
    since: datetime | None


def unreplayed(
    requested: Mapping[TopicPartition, Requested],
    owner: GroupRow,
    run: Run | None,
    rows: Mapping[TopicPartition, StoredOffset],
    members: Collection[UUID] = (),
) -> str | None:
    """By whom requested letters are to be replayed, if not by the job that runs; ``None`` if by that, or if none runs.

    :param requested: those of each partition.
    :param run: the group's last; it counts only if the owner is still its own: epochs of a group only grow.
    :param rows: the stored offsets of the group.
    :param members: the ids of the fleet's live members.
    """
    if not requested or not owner.is_live:
        return None
    run = run if run is not None and run.token.epoch == owner.token.epoch else None
    replays = None if run is None else run.status.replays_letters
    if replays is False:
        return "by no one: the job has no dead_letters="
    if run is None or replays is None:
        return (
            "perhaps by no one: no sink or consumer with dead_letters= is known to run, and a job that stores offsets "
            "in transactions of its own replays none"
        )
    reasons = (
        ("which it does not read", [tp for tp in requested if tp.topic not in run.topics]),
        ("which have no stored offset", [tp for tp in requested if tp.topic in run.topics and tp not in rows]),
        ("which no process has", [tp for tp in requested if _is_left(tp, owner, rows, members)]),
    )
    told = [_told(requested, sorted(left), why) for why, left in reasons if left]
    return f"by the job, but for {' and '.join(told)}" if told else None


def _is_left(
    tp: TopicPartition, owner: GroupRow, rows: Mapping[TopicPartition, StoredOffset], members: Collection[UUID]
) -> bool:
    """Whether a fleet has the group, and none of its members the partition: Kafka may not have it any more."""
    return owner.fleet is not None and tp in rows and rows[tp].token.claim_id not in members


def _told(requested: Mapping[TopicPartition, Requested], left: list[TopicPartition], why: str) -> str:
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    count = counted(sum(requested[tp].letters for tp in left), "letter")
    return f"{count} of {', '.join(map(str, left[:_NAMED]))}{more}, {why}"
