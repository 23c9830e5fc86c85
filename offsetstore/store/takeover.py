"""Who took a group from whom: what a claim tells of the owner that it fences, and a fenced job of the next owner."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from offsetstore.protocol.database import TAKING, GroupRow, Session

_NAMED: Final = 5  # members of a fleet


def taken_by(session: Session, group: str) -> str:
    """Who has the group now, and how it was taken: for the job that no longer has it."""
    owner = session.group(group)
    if owner is None:
        return "no row of the group"
    # Not "copy": that is also a line of a group that keeps its owner.
    events = ["claim", *(event for event in TAKING if event != "copy")]
    last = session.history(group, events=events, limit=1)
    event = last[-1].event if last and last[-1].token == owner.token else None
    how = "claimed" if event == "claim" else TAKING.get(event or "", "taken")
    return f"{how} by {owner.in_words()}"


def fenced_by_claim(session: Session, group: str, owner: GroupRow | None, claim_id: UUID) -> str | None:
    """Whom a claim fences; ``None`` if nobody is known to run.

    :param owner: the group's row under its lock.
    :param claim_id: the claim's own: its COMMIT may have happened, and its answer been lost.
    """
    if owner is None or owner.token.claim_id == claim_id or owner.alive_for is None:
        return None
    # A silent owner may be frozen, or cut off from the database: its next write fails all the same.
    if owner.state not in {"live", "silent"}:
        return None
    who = f"{owner.state}: {owner.in_words()}"
    members = [member.owner for member in session.members(group)] if owner.fleet is not None else []
    if not members:
        return who
    more = f" and {len(members) - _NAMED} more" if len(members) > _NAMED else ""
    return f"{who}; its members: {', '.join(members[:_NAMED])}{more}"


def replaced_since(session: Session, group: str, epoch: int) -> bool:
    """Whether, after ``epoch``, the group was renamed or deleted, or another group was given its name.

    Or whether the offsets of one of its topics were deleted.
    """
    last = session.history(group, events=["rename", "delete", "delete-topic"], limit=1)  # epochs of a group only grow
    return bool(last) and last[-1].token.epoch > epoch
