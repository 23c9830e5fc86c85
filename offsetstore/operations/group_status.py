"""A group's state in one word and in short, as far as the database and Kafka show it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

from offsetstore.offsets import TopicPartition
from offsetstore.operations.group_state import GroupState, PartitionState, TopicState
from offsetstore.protocol.database import GroupRow
from offsetstore.protocol.outbox import RelayState, RelayStatus
from offsetstore.text import counted, short

State: TypeAlias = Literal["stalled", "failed", "silent", "fenced", "ended", "paused", "live"]
"""States that need attention come first. A run has these states too, except ``stalled`` and ``paused``."""

STATES: Final[Mapping[State, str]] = {
    "stalled": "records are unread, and the job is silent or has stored nothing for 15 minutes",
    "failed": "an error ended the job, or ends it soon after each start, or refuses its start",
    "silent": (
        "heartbeats stopped without notice: the job was killed (for memory, for example), hangs, or can't reach the "
        "database"
    ),
    "fenced": "another claim, a reset or a rename took the group from the job",
    "ended": "the job ended cleanly, or a decision has taken the group over",
    "paused": "an operator paused the group; its lag grows",
    "live": "the job sends heartbeats",
}
"""What each state means."""

STALLED: Final = timedelta(minutes=15)
"""The time without progress after which the alert ``Stalled`` fires, too (decision 0043)."""

_RELAYS: Final[Mapping[RelayState, str]] = {
    "live": "The relay {who} runs",
    "stalled": "The relay {who} runs, and sends nothing",
    "silent": "The relay {who} fell silent at {until}: it was killed, hangs, or can't reach the database",
    "ended": "The relay {who} ended cleanly at {until}: start it again",
    "failed": "The relay {who} failed, or fails soon after each start, at {until}",
    "fenced": "The relay {who} was fenced by another one at {until}, which does not run any more",
    "unknown": "A relay of an earlier release has the outbox since {since}, {who}, and sends no heartbeats",
}

Problem: TypeAlias = Literal[
    "no-live-job",
    "no-live-relay",
    "starts-fail",
    "lag-too-high",
    "lag-unknown",
    "log-lost-records",
    "partition-stands",
]


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group at one moment, added up once: it may have thousands of partitions.

    ``lag`` and ``lag_seconds`` are of the topics whose lag is known; with ``is_part`` that of a topic is not.
    ``letters`` counts the open dead letters. ``error`` is a trouble worse than being behind, in a few words; the checks
    have more. ``rate`` is how many offsets a second were stored since an earlier measurement, ``None`` if not known.
    """

    name: str
    state: State
    is_live: bool
    lag: int | None
    lag_seconds: float | None
    is_bound: bool
    is_part: bool
    advanced_at: datetime | None
    letters: int
    error: str | None
    rate: float | None = None

    @classmethod
    def of(cls, group: GroupState, rate: float | None = None) -> GroupStatus:
        """Add the group up."""
        seconds = group.known_lag_seconds
        return cls(
            name=group.group,
            state=state_of(group),
            is_live=group.is_live,
            lag=group.known_lag,
            lag_seconds=seconds,
            is_bound=any(topic.is_bound and topic.lag_seconds == seconds for topic in group.topics.values()),
            is_part=any(topic.lag is None for topic in group.topics.values()),
            advanced_at=last_advance(group),
            letters=sum(group.dead_letters.values()),
            error=next(_troubles(group), None),
            rate=rate,
        )


def state_of(group: GroupState) -> State:
    """Return a group's state.

    It is stalled if its job fell silent, unless all records are known to be read; and if an unread record and the last
    change of an offset are known to be older than `STALLED`. So a record that comes after an idle time makes no job
    stalled, unless its timestamp is old, nor does a deploy.
    """
    owner = group.owner
    if owner.pause is not None:
        return state_of_owner(owner)
    # A killed job stalls at once, unless nothing is unread; one that left cleanly may be a deploy (decision 0046).
    if owner.state != "failed" and ((owner.state == "silent" and group.lag != 0) or _is_behind(group)):
        return "stalled"
    return owner.state


def state_of_owner(owner: GroupRow) -> State:
    """Return a group's state by its row alone: without Kafka it is not known whether the group is stalled."""
    return "paused" if owner.pause is not None else owner.state


def in_words(owner: GroupRow, state: State | None = None) -> str:
    """Name a group's state for a table; for a paused group, also say if no job waits.

    :param state: as `state_of` returns it; ``None`` to go by the group's row alone.
    """
    if owner.pause is None:
        return state or owner.state
    return "paused" if owner.is_live else "paused, no job"


def behind(state: GroupStatus | TopicState | PartitionState) -> str | None:
    """The lag in time for a table: at most that long after ``<=``; ``None`` if it is not known."""
    if state.lag_seconds is None:
        return None
    return f"{'<=' if state.is_bound else ''}{short(timedelta(seconds=state.lag_seconds))}"


@dataclass(frozen=True, slots=True)
class LagLimit:
    """How far a group may be behind: in records, of all its partitions together, or in seconds, of any partition."""

    records: int | None = None
    seconds: float | None = None


def relay_in_words(relay: RelayStatus | None) -> str:
    """Describe the relay that has the outbox."""
    if relay is None:
        return "No relay was ever started: `offsetstore relay` sends the rows."
    times = {name: "" if at is None else moment(at) for name, at in (("since", relay.since), ("until", relay.until))}
    said = _RELAYS[relay.state].format(who=relay.owner, **times)
    return f"{said}. Its last error: {relay.error}" if relay.error else f"{said}."


def moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def notes(part: PartitionState) -> Iterator[str]:
    """Return what a table of partitions has no column for."""
    if part.headroom is not None and part.headroom < 0:
        yield f"Kafka has removed {counted(-part.headroom, 'offset')} unread."
    if part.stored is not None and part.stored.suspect is not None:
        yield "the log lost records that had been read, and each start is refused until a reset."
        yield part.stored.suspect.what
    if part.beyond_end:
        yield f"the stored offset is {part.beyond_end} beyond the end of the log."


def judge_lag(group: GroupState, limit: LagLimit) -> tuple[Problem, ...]:
    """Compare a group's lag with its limit. While the group is paused, its lag does not count."""
    if group.pause is not None:
        return ()
    # The lag that is known may exceed the limit already, whatever the unknown rest is.
    pairs = ((group.known_lag, limit.records), (group.known_lag_seconds, limit.seconds))
    if any(lag is not None and most is not None and lag > most for lag, most in pairs):
        return ("lag-too-high",)
    is_unknown = group.lag is None or (limit.seconds is not None and group.lag_seconds is None)
    # A group without stored offsets, such as one that was renamed, is not behind.
    return ("lag-unknown",) if is_unknown and group.rows else ()


def standing(group: GroupState) -> dict[TopicPartition, PartitionState]:
    """Return the partitions that stand while others of the group advance, the longest standing first.

    Such a partition has an unread record, and its stored offset has not changed, for longer than `STALLED`, while that
    of another partition has. None counts while the group is paused or has no live job, nor until a new job has had as
    much time.
    """
    advanced, at = last_advance(group), group.read_at
    if group.pause is not None or not group.is_live or advanced is None or at - advanced > STALLED:
        return {}
    found: dict[TopicPartition, datetime] = {}
    partitions = group.partitions
    for tp, part in partitions.items():
        if not part.lag or part.stored is None or part.stored.updated_at is None:
            continue
        # A record counts from its timestamp on. One without a timestamp counts, too, if Kafka was asked for it.
        is_old = part.is_asked if part.lag_seconds is None else part.lag_seconds > STALLED.total_seconds()
        # A partition that was just claimed or assigned has had no time to advance (decision 0101).
        if (
            (is_old or part.is_ahead)
            and not part.is_bound
            and at - max(part.stored.updated_at, group.owner.claimed_at) > STALLED
        ):
            found[tp] = part.stored.updated_at
    return {tp: partitions[tp] for tp in sorted(found, key=found.__getitem__)}


def judge_group(group: GroupState, limit: LagLimit | None = None) -> tuple[Problem, ...]:
    """Judge a group: its job, its lag if there is a limit, its rows in the outbox, and its logs.

    :return: what is wrong; empty if it is well.
    """
    problems: list[Problem] = [] if group.is_live else ["no-live-job"]
    if group.is_live and group.owner.state == "failed":
        problems.append("starts-fail")
    if _is_unsent(group):
        problems.append("no-live-relay")
    if limit is not None and group.pause is None:
        problems.extend(judge_lag(group, limit) if group.topics else ("lag-unknown",))
    if _has_lost_records(group):
        problems.append("log-lost-records")
    if standing(group):
        problems.append("partition-stands")
    return tuple(problems)


def last_advance(group: GroupState) -> datetime | None:
    return max((row.advanced_at for row in group.rows.values() if row.advanced_at is not None), default=None)


def _is_behind(group: GroupState) -> bool:
    changed = max((row.updated_at for row in group.rows.values() if row.updated_at is not None), default=None)
    if changed is not None and group.read_at - changed <= STALLED:
        return False
    most = STALLED.total_seconds()
    return any(
        part.lag_seconds is not None and part.lag_seconds > most and not part.is_bound
        for part in group.partitions.values()
    )


def _has_lost_records(group: GroupState) -> bool:
    return any(part.is_suspect or part.beyond_end for part in group.partitions.values())


def _is_unsent(group: GroupState) -> bool:
    is_late = group.outbox is not None and group.outbox.is_late(group.read_at)
    return is_late and not (group.relay and group.relay.is_live)


def _troubles(group: GroupState) -> Iterator[str]:
    for topic in group.topics.values():
        if topic.error is not None:
            yield topic.error.what
    if _has_lost_records(group):
        yield "a log lost records that had been read"
    if group.headroom is not None and group.headroom < 0:
        yield "records were removed from Kafka unread"
    if stands := standing(group):
        yield f"{counted(len(stands), 'partition')} {'stands' if len(stands) == 1 else 'stand'} while others advance"
    if not group.is_live and (lead := group.mirror_lead):
        yield f"Kafka's copies are {counted(lead, 'offset')} ahead of the store"
    if group.outbox is not None and _is_unsent(group):
        how = "no relay was ever started" if group.relay is None else f"the relay is {group.relay.state}"
        yield f"{counted(group.outbox.rows, 'row')} of the outbox not sent: {how}"
