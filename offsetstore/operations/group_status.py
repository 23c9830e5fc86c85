"""How a group is, in one word and in short, as far as the database and Kafka show it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeAlias

from offsetstore.offsets import StoredOffset, TopicPartition
from offsetstore.operations.lag import GroupLag, Lag, PartitionLag
from offsetstore.operations.reads import GroupState
from offsetstore.protocol.database import GroupRow
from offsetstore.protocol.outbox import RelayState, RelayStatus
from offsetstore.text import counted

State: TypeAlias = Literal["stalled", "failed", "silent", "fenced", "ended", "paused", "live"]
"""Those that need attention come first. A run's states are these too, but for ``stalled`` and ``paused``."""

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
"""What each means."""

STALLED: Final = timedelta(minutes=15)
"""The time without progress after which the alert ``Stalled`` fires, too."""

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

    ``records``, ``seconds``, ``is_bound`` and ``is_part`` are those of `GroupLag`. ``letters`` counts the open dead
    letters. ``error`` is what is worse than being behind, in a few words; the checks have more. ``rate`` is how many
    offsets a second were stored since an earlier measurement, ``None`` if that is not known.
    """

    name: str
    state: State
    is_live: bool
    records: int | None
    seconds: float | None
    is_bound: bool
    is_part: bool
    advanced_at: datetime | None
    letters: int
    error: str | None
    rate: float | None = None

    @classmethod
    def of(cls, name: str, lag: Lag, rate: float | None = None) -> GroupStatus:
        """Add the group up."""
        one = lag.groups[name]
        return cls(
            name=name,
            state=state_of(one, lag.store.at),
            is_live=one.owner.is_live,
            records=one.records,
            seconds=one.seconds,
            is_bound=one.is_bound,
            is_part=one.is_part,
            advanced_at=last_advance(one),
            letters=sum(lag.store.letters.get(name, {}).values()),
            error=next(_troubles(one, lag.store.at), None) or _of_outbox(name, lag),
            rate=rate,
        )


def state_of(lag: GroupLag, at: datetime) -> State:
    """Say in one word how a group is.

    It is stalled if its job fell silent, unless all records are known to be read; and if an unread record and the last
    change of an offset are known to be older than `STALLED`. So a record that comes after an idle time makes no job
    stalled, unless its timestamp is old, nor does a deploy.

    :param at: when the lag was measured, by the database's clock.
    """
    owner = lag.owner
    if owner.pause is not None:
        return "paused"
    has_unread = lag.records != 0 or lag.is_part
    if owner.state != "failed" and ((owner.state == "silent" and has_unread) or _is_behind(lag, at)):
        return "stalled"
    return owner.state


def in_words(owner: GroupRow, state: State | None = None) -> str:
    """Name a group's state for a table; of a paused group also whether no job waits.

    :param state: as `state_of` returns it; without it, only what the owner shows is told.
    """
    if owner.pause is None:
        return state or owner.state
    return "paused" if owner.is_live else "paused, no job"


@dataclass(frozen=True, slots=True)
class LagLimit:
    """How far a group may be behind: so many records in all its partitions together, or so many seconds in any."""

    records: int | None = None
    seconds: float | None = None


def relay_in_words(relay: RelayStatus | None) -> str:
    """Say how the relay is that has the outbox."""
    if relay is None:
        return "No relay was ever started: `offsetstore relay` sends the rows."
    times = {name: "" if at is None else moment(at) for name, at in (("since", relay.since), ("until", relay.until))}
    said = _RELAYS[relay.state].format(who=relay.owner, **times)
    return f"{said}. Its last error: {relay.error}" if relay.error else f"{said}."


def moment(at: datetime) -> str:
    """Write a time, to the minute."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


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


def standing(lag: GroupLag, at: datetime) -> dict[TopicPartition, PartitionLag]:
    """The partitions that stand while others of the group advance, those first that have stood the longest.

    Such a partition has an unread record, and its stored offset has not changed, for longer than `STALLED`; another
    one's has changed since. None counts while the group is paused or has no live job, nor until a new job has had as
    much time. A record counts from its timestamp on, unless it has none, or one that is ahead of the clock. Without an
    answer of Kafka's on the records, no partition counts.

    :param at: when the lag was measured, by the database's clock.
    """
    advanced = last_advance(lag)
    if lag.owner.pause is not None or not lag.owner.is_live or advanced is None or at - advanced > STALLED:
        return {}
    found: dict[TopicPartition, PartitionLag] = {}
    for topic, of_topic in lag.topics.items():
        for number, part in of_topic.partitions.items():
            if not part.records or part.stored is None or part.stored.updated_at is None:
                continue
            is_old = part.is_asked if part.seconds is None else part.seconds > STALLED.total_seconds()
            if (
                (is_old or part.is_ahead)
                and not part.is_bound
                and at - max(part.stored.updated_at, lag.owner.claimed_at) > STALLED
            ):
                found[TopicPartition(topic, number)] = part
    return dict(sorted(found.items(), key=lambda one: _changed(one[1]) or at))


def judge_group(
    state: GroupState, lag: GroupLag | None = None, *, limit: LagLimit | None = None, at: datetime | None = None
) -> tuple[Problem, ...]:
    """Judge a group: its job, its lag if there is a limit, its rows in the outbox, and its logs.

    :param state: as `OffsetStore.group_state` returns it.
    :param lag: as `OffsetStore.lag` returns it; without it, any limit is one that can't be judged.
    :param at: when it was measured, by the database's clock; without it, no partition is known to stand.
    :return: what is wrong; empty if it is well.
    """
    problems: list[Problem] = [] if state.is_live else ["no-live-job"]
    if state.is_live and state.owner is not None and state.owner.state == "failed":
        problems.append("starts-fail")
    if state.outbox is not None and state.outbox.is_late(state.read_at) and not (state.relay and state.relay.is_live):
        problems.append("no-live-relay")
    if limit is not None and state.pause is None:
        problems.extend(judge_lag(lag, limit) if lag is not None and lag.topics else ("lag-unknown",))
    if any(one.suspect or one.beyond_end for one in state.partitions.values()) or (lag is not None and lag.beyond_end):
        problems.append("log-lost-records")
    if lag is not None and at is not None and standing(lag, at):
        problems.append("partition-stands")
    return tuple(problems)


def last_advance(lag: GroupLag) -> datetime | None:
    """When a stored offset of the group last advanced, ``None`` if none ever did."""
    return max((row.advanced_at for row in _rows(lag) if row.advanced_at is not None), default=None)


def _is_behind(lag: GroupLag, at: datetime) -> bool:
    changed = max((row.updated_at for row in _rows(lag) if row.updated_at is not None), default=None)
    if changed is not None and at - changed <= STALLED:
        return False
    parts = (part for topic in lag.topics.values() for part in topic.partitions.values() if part.stored is not None)
    most = STALLED.total_seconds()
    return any(part.seconds is not None and part.seconds > most and not part.is_bound for part in parts)


def _rows(lag: GroupLag) -> list[StoredOffset]:
    parts = (part for topic in lag.topics.values() for part in topic.partitions.values())
    return [part.stored for part in parts if part.stored is not None]


def _changed(part: PartitionLag) -> datetime | None:
    return None if part.stored is None else part.stored.updated_at


def _troubles(group: GroupLag, at: datetime) -> Iterator[str]:
    for topic in group.topics.values():
        if topic.error is not None:
            yield topic.error.what
    parts = [part for topic in group.topics.values() for part in topic.partitions.values()]
    if any(part.is_suspect or part.beyond_end for part in parts):
        yield "a log lost records that had been read"
    if group.headroom is not None and group.headroom < 0:
        yield "records were removed from Kafka unread"
    if stands := standing(group, at):
        yield f"{counted(len(stands), 'partition')} {'stands' if len(stands) == 1 else 'stand'} while others advance"
    if group.mirror_lead and not group.owner.is_live:
        yield f"Kafka's copies are {counted(group.mirror_lead, 'offset')} ahead of the store"


def _of_outbox(group: str, lag: Lag) -> str | None:
    """Rows that nobody sends."""
    found, relay = lag.store.outbox.get(group), lag.store.relay
    if found is None or not found.is_late(lag.store.at) or (relay is not None and relay.is_live):
        return None
    how = "no relay was ever started" if relay is None else f"the relay is {relay.state}"
    return f"{counted(found.rows, 'row')} of the outbox not sent: {how}"
