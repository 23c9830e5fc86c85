"""Who runs: the runs of a group's job, with the errors that they met, and the members of its fleet.

The database keeps runs and errors after a job is gone. A job writes its own run with each heartbeat and reads none:
none of its decisions depends on runs (decision 0041).

In a *fleet*, several processes, the *members*, share a group's claim, and Kafka distributes the partitions among them.
The group's row has the fleet's token, as it would have a claim's: a claim, a reset or another fleet takes the group
away by replacing it, and needs nothing else. A partition's row has the token of the member that took it last, with the
fleet's epoch. A member writes to rows that have its own token, until it gives the partition back.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol, TypeAlias, get_args
from uuid import UUID

from offsetstore.errors import next_step_after
from offsetstore.offsets import Token, TopicPartition

LIVE: Final = timedelta(seconds=15)
"""A job is live if its last heartbeat is younger than this, by the database's clock. It may miss two."""

KEPT: Final = 1_000
"""How many runs, and how many lines of errors, are kept for each group, so that a crash loop fills no disk."""

Phase: TypeAlias = Literal["starting", "idle", "batch", "paused", "failed"]
"""``starting``: no batch has come yet. ``idle``: between two batches. ``failed``: the last one ended the query."""

Ending: TypeAlias = Literal["closed", "failed", "fenced"]
"""What a job writes at its end. ``closed``: it ended cleanly. ``failed``: the last batch failed, or an error left the
block of the claim. ``fenced``: it noticed another claim, a reset or a rename."""

RunState: TypeAlias = Literal["live", "silent", "ended", "failed", "fenced"]
"""``live``: the job sends heartbeats. ``silent``: they stopped, and no end was recorded. ``ended``: cleanly."""

ErrorSource: TypeAlias = Literal["batch", "job", "flush", "idle", "retry", "mirror", "start"]
"""Where an error came from: a batch, the job's own code or Spark, a flush, idle work, an operation that was repeated,
the copy to Kafka, a start that was refused."""

LOOP: Final = 3
"""A live job counts as ``failed`` if this many runs failed or fell silent in the last 15 minutes, and no run has lasted
a minute since then: it is started again and again. A good run counts as live a minute after its start."""

_LATE: Final = timedelta(seconds=8)
"""A heartbeat comes every five seconds; a run without one for this long was probably silent when it was replaced."""

SOURCES: Final[tuple[ErrorSource, ...]] = get_args(ErrorSource)


def is_live(silence: timedelta | None) -> bool:
    """Whether a job is live, by the time since its last heartbeat; ``None`` if there is no heartbeat.

    This is the one definition: claims, resets and everything that shows a group use it.
    """
    # A heartbeat far in the future doesn't count: the database's clock has stepped back since (a failover, a restored
    # machine), and a dead owner would seem live until it caught up. A running job is live again with its next
    # heartbeat, at most five seconds later (decision 0026).
    return silence is not None and -LIVE < silence < LIVE


def run_state(ending: Ending | None, silence: timedelta | None, failures: int = 0) -> RunState:
    """The state of a job that nobody has replaced.

    :param silence: the time since its last heartbeat.
    :param failures: how many runs have failed lately, see `LOOP`.
    """
    match ending:
        case "failed" | "fenced":
            return ending
        case None if silence is not None:
            return "silent" if not is_live(silence) else "failed" if failures >= LOOP else "live"
        # It was closed, or is the owner of a decision, which sends no heartbeats.
        case _:
            return "ended"


def telling_run(runs: Sequence[Run]) -> Run | None:
    """The run that shows how the group's job is: the last one; ``None`` without runs.

    In a fleet it is the live member whose batch has been in flight for the longest time or, if no member is live, the
    one that ended last.
    """
    live = [run for run in runs if run.state == "live"]
    if not runs or not runs[-1].is_member:
        return runs[-1] if runs else None
    if not live:
        return max((run for run in runs if run.token.epoch == runs[-1].token.epoch), key=lambda run: run.until)
    return max(live, key=lambda run: (run.status.phase == "batch", run.status.phase_age))


@dataclass(frozen=True, slots=True)
class NewRun:
    """What is known of a run when it begins."""

    owner: str
    topics: tuple[str, ...]
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """What a job is doing. Ages are in seconds.

    :param batch: the number of the batch in flight, or of the last one.
    :param batch_offsets: how many offsets it reads.
    :param last_batch_age: the time since a batch last ended well.
    :param counters: what was done since the claim, such as ``written``, ``rows`` or ``letters``; and the total time of
        batches, in ``batch_milliseconds``.
    :param memory: resident bytes of the driver's Python process, ``None`` if unknown.
    :param mirror_age: the time since the offsets in Kafka were last equal to the stored ones.
    :param mirror_error: why they could not be made equal since then.
    :param replays_letters: whether the job replays requested dead letters: its sink has ``dead_letters=``. ``None`` if
        no sink has been made.
    """

    phase: Phase = "starting"
    phase_age: float = 0.0
    batch: int | None = None
    # A count, not the ranges: ten thousand partitions would be written every five seconds (decision 0041).
    batch_offsets: int | None = None
    last_batch_age: float | None = None
    counters: Mapping[str, int] = field(default_factory=dict[str, int])
    memory: int | None = None
    mirror_age: float | None = None
    mirror_error: str | None = None
    query_id: UUID | None = None
    application_id: str | None = None
    ui_url: str | None = None
    replays_letters: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """An error of a job. An error that recurs between two heartbeats is one line.

    :param error_class: the name of its class.
    :param text: the text of an `OffsetStoreError`, which holds no values of rows; ``None`` for other errors.
    :param batch: the number of the micro-batch.
    :param ranges: what the micro-batch read, in words.
    :param times: how often it occurred.
    :param epoch: of the run; 0 until the error is written.
    :param at: by the database's clock; ``None`` until the error is written.
    """

    source: ErrorSource
    error_class: str
    text: str | None = None
    sqlstate: str | None = None
    topic_partition: TopicPartition | None = None
    batch: int | None = None
    ranges: str | None = None
    times: int = 1
    epoch: int = 0
    at: datetime | None = None

    @property
    def next_step(self) -> str:
        """The next step at the end of the text, if it is the usual one after such an error; else ``""``."""
        usual = next_step_after(self.error_class)
        return usual if usual and (self.text or "").endswith(usual) else ""

    @property
    def what(self) -> str | None:
        return None if self.text is None else self.text.removesuffix(self.next_step).rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a group's job, as it was last recorded. All times come from the database's clock.

    :param is_member: whether it was a member of a fleet: ``token`` then has the fleet's epoch and the member's id.
    :param seen_at: its last heartbeat; ``read_at`` is now.
    :param next_at: when the group was next claimed or moved, ``None`` if that has not happened.
    :param phase_since: of ``status.phase``; the other ages of ``status`` are as of ``read_at``, too.
    """

    group: str
    token: Token
    owner: str
    topics: tuple[str, ...]
    versions: Mapping[str, str]
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    ending: Ending | None
    next_at: datetime | None
    read_at: datetime
    status: RunStatus
    is_member: bool = False

    @property
    def state(self) -> RunState:
        """How it ended, or whether it runs."""
        if self.ending is not None or self.next_at is None:
            return run_state(self.ending, self.read_at - self.seen_at)
        # A run that was replaced records ``fenced`` with its next heartbeat. If it does not, it was silent by then: its
        # process was killed or is frozen. Until that heartbeat is due, the last one tells which (decision 0058).
        is_fenced = self.next_at - self.seen_at < _LATE and is_live(self.read_at - self.next_at)
        return "fenced" if is_fenced else "silent"

    def is_of(self, owner: Token) -> bool:
        """Whether it is the run of this owner, or of a member of its fleet."""
        return self.token.epoch == owner.epoch if self.is_member else self.token == owner

    @property
    def until(self) -> datetime:
        return self.seen_at if self.ended_at is None else self.ended_at


class RunSession(Protocol):
    """The part of a `Session` for runs. Each statement concerns one group."""

    def begin_run(self, group: str, token: Token, run: NewRun, *, of_member: bool = False) -> None:
        """Write the run's row. Needs the group's lock, or a share of it for a member of a fleet."""
        ...

    def write_run(
        self, group: str, token: Token, status: RunStatus, ending: Ending | None, *, of_member: bool = False
    ) -> None:
        """Rewrite the run's row, if there is one. An end keeps its first time; ``None`` takes the end back."""
        ...

    def append_errors(self, group: str, token: Token, errors: Sequence[JobError], *, keep: int = KEPT) -> None:
        """Write the errors in order; the database sets ``at``. Then delete all but the newest errors and runs.

        :param keep: how many of each stay.
        """
        ...


def fleet_name(cluster_id: str | None, kafka_group: str) -> str:
    """Name the fleet of a process: all members of one group in one cluster, among which Kafka distributes partitions.

    :param cluster_id: ``None`` if the broker does not tell it.
    """
    return json.dumps([cluster_id, kafka_group])


def may_share(found: str | None, fleet: str, *, is_live: bool, decides: bool = False) -> bool:
    """Whether a process joins the group's claim; otherwise it founds a fleet, which fences the present owner.

    :param found: the fleet that has the group, ``None`` if a claim has it or nobody.
    :param is_live: whether any of its members is.
    :param decides: whether the policy decides where a partition starts: to read a recreated topic again, or to trust a
        restored database.
    """
    # A copy of the database has the fleet's row too, without live members: its processes found a fleet, and get an
    # epoch that tells their stamps in Kafka apart. A policy's decision holds for all partitions and needs an epoch
    # above all that Kafka has seen, so no single member makes it (decision 0090).
    return found == fleet and is_live and not decides


@dataclass(frozen=True, slots=True)
class FleetMember:
    """One member of a group's fleet. ``alive_for`` is the time since its last heartbeat."""

    member_id: UUID
    owner: str
    joined_at: datetime
    alive_for: timedelta

    @property
    def is_live(self) -> bool:
        return is_live(self.alive_for)


class FleetSession(Protocol):
    """The part of a `Session` for fleets. It has no heartbeat itself: a fleet is live while one of its members is."""

    def take_partitions(self, group: str, token: Token, partitions: Collection[TopicPartition]) -> None:
        """Write a member's token to these rows. Needs their locks."""
        ...

    def add_member(self, group: str, fleet: Token, member_id: UUID, owner: str) -> None:
        """Write a member's row, with a first heartbeat.

        :param fleet: the fleet's token, which is that of the group.
        """
        ...

    def trim_members(self, group: str, fleet_id: UUID) -> None:
        """Remove members of other fleets, and members that have been silent for a day. Rows that are locked stay.

        Only under the group's lock: without it, the members of a fleet that takes the group meanwhile would go.
        """
        ...

    def beat_member(self, group: str, fleet: Token, member_id: UUID) -> bool:
        """Write a member's heartbeat; return ``False`` if it has no row, or if the fleet no longer has the group."""
        ...

    def drop_member(self, group: str, member_id: UUID) -> None:
        """Remove a member that has left."""
        ...

    def members(self, group: str) -> list[FleetMember]:
        """The members of the fleet that has the group, the oldest first; none if a claim has it."""
        ...
