"""Whether a group's job is well, as far as the database and Kafka show it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from offsetstore.store.lag import GroupLag
    from offsetstore.store.reads import GroupState

Problem: TypeAlias = Literal["no-live-job", "lag-too-high", "lag-unknown"]


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
    """Judge a group: a job must own it and be live, and within the limit, if there is one.

    :param state: as `OffsetStore.group_state` returns it.
    :param lag: as `OffsetStore.lag` returns it; without it, any limit is one that can't be judged.
    """
    problems: list[Problem] = [] if state.is_live else ["no-live-job"]
    if limit is not None and state.pause is None:
        problems.extend(judge_lag(lag, limit) if lag is not None and lag.topics else ("lag-unknown",))
    return GroupHealth(state, tuple(problems), lag)
