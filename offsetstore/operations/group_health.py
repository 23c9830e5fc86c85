"""Whether a group's job is well, as far as the database and Kafka show it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from offsetstore.offsets import StoredOffset
from offsetstore.operations.lag import GroupLag
from offsetstore.operations.reads import GroupState

Problem: TypeAlias = Literal["no-live-job", "lag-too-high", "lag-unknown", "log-lost-records"]

Condition: TypeAlias = Literal["stalled", "failed", "silent", "paused", "live"]
"""``stalled``: there are unread records, and no progress. ``failed``: an error has ended the job. ``silent``: no job
sends heartbeats."""

STALLED: Final = timedelta(minutes=15)
"""The time without progress after which the alert ``Stalled`` fires, too."""


@dataclass(frozen=True, slots=True)
class GroupHealth:
    """What was found about a group, at the moment of ``state``; ``problems`` is empty if it is well."""

    state: GroupState
    problems: tuple[Problem, ...]
    lag: GroupLag | None = None

    @property
    def is_well(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class LagLimit:
    """How far a group may be behind: so many records in all its partitions together, or so many seconds in any."""

    records: int | None = None
    seconds: float | None = None


def judge_lag(lag: GroupLag, limit: LagLimit) -> tuple[Problem, ...]:
    """Compare a group's lag with what it may be. While the group is paused, its lag does not count.

    :param lag: as `OffsetStore.lag` returns it. A group without stored offsets, such as one that was renamed, is not
        behind.
    """
    if lag.owner.pause is not None:
        return ()
    pairs = ((lag.records, limit.records), (lag.seconds, limit.seconds))
    if any(found is not None and most is not None and found > most for found, most in pairs):
        return ("lag-too-high",)
    parts = [part for topic in lag.topics.values() for part in topic.partitions.values() if part.stored is not None]
    is_unknown = any(part.records is None or (limit.seconds is not None and part.seconds is None) for part in parts)
    return ("lag-unknown",) if is_unknown else ()


def judge_group(state: GroupState, lag: GroupLag | None = None, *, limit: LagLimit | None = None) -> GroupHealth:
    """Judge a group: a job owns it and is live, and within the limit, if there is one; no log has lost records.

    :param state: as `OffsetStore.group_state` returns it.
    :param lag: as `OffsetStore.lag` returns it; without it, any limit is one that can't be judged.
    """
    problems: list[Problem] = [] if state.is_live else ["no-live-job"]
    if limit is not None and state.pause is None:
        problems.extend(judge_lag(lag, limit) if lag is not None and lag.topics else ("lag-unknown",))
    if any(one.suspect or one.beyond_end for one in state.partitions.values()) or (lag is not None and lag.beyond_end):
        problems.append("log-lost-records")
    return GroupHealth(state, tuple(problems), lag)


def condition(lag: GroupLag, at: datetime) -> Condition:
    """Say in one word how a group is.

    It is stalled if its job fell silent and recorded no end, unless all records are known to be read; and if an unread
    record and the last change of an offset are known to be older than `STALLED`. So a record that comes after an idle
    time makes no job stalled, unless its timestamp is old, nor does a deploy.

    :param at: when the lag was measured, by the database's clock.
    """
    owner = lag.owner
    if owner.pause is not None:
        return "paused"
    if owner.ending == "failed":
        return "failed"
    has_vanished = owner.ending is None and owner.alive_for is not None and not owner.is_live
    if (has_vanished and (lag.records != 0 or lag.is_part)) or _is_behind(lag, at):
        return "stalled"
    return "live" if owner.is_live else "silent"


def _is_behind(lag: GroupLag, at: datetime) -> bool:
    rows = _rows(lag)
    changed = max((row.updated_at for row in rows if row.updated_at is not None), default=None)
    if changed is not None and at - changed <= STALLED:
        return False
    parts = (part for topic in lag.topics.values() for part in topic.partitions.values() if part.stored is not None)
    most = STALLED.total_seconds()
    return any(part.seconds is not None and part.seconds > most and not part.is_bound for part in parts)


def last_advance(lag: GroupLag) -> datetime | None:
    """When a stored offset of the group last advanced, ``None`` if none ever did."""
    return max((row.advanced_at for row in _rows(lag) if row.advanced_at is not None), default=None)


def _rows(lag: GroupLag) -> list[StoredOffset]:
    parts = (part for topic in lag.topics.values() for part in topic.partitions.values())
    return [part.stored for part in parts if part.stored is not None]
