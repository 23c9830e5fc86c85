"""What a job does, by its events: one fold for the record of its run, its metrics and its health. Pure: no clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from offsetstore.errors import BrokerUnavailable, ConnectionLost, OffsetStoreError, StoreUnavailable, TlsFailed
from offsetstore.offsets import Token, TopicPartition
from offsetstore.protocol.events import (
    BatchEnded,
    BatchStarted,
    ClaimEnded,
    ClaimTaken,
    DatabaseAsked,
    DrainChanged,
    Event,
    FlushEnded,
    HandlerCalled,
    HeldRecord,
    IdleWorkChanged,
    LettersReplayed,
    LettersWritten,
    MirrorTried,
    PauseChanged,
    QueryStarted,
    QueryStatus,
    RecordsHeld,
    Retried,
    SinkMade,
)
from offsetstore.protocol.runs import Phase

UNREACHABLE: Final = 15.0
"""Seconds without an answer from the database that count as an outage, unless another limit is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """One claim's job. Times are in seconds of the observer's clock; ``None`` means that it has not happened.

    :param token: of the claim, ``None`` if it is unknown.
    :param unreachable: a longer silence of the database was an outage.
    :param claimed: when the group was claimed, or the last drain began or ended.
    :param is_lost: whether another claim has taken over.
    :param is_closed: whether the claim was closed.
    :param replays_letters: whether the sink replays requested letters, ``None`` as long as there is no sink.
    :param query: the last query that gave the sink a batch.
    :param is_draining: whether dead letters are being replayed without a query.
    :param idle_work: what is done while batches wait, if anything, and ``idle_work_since`` since when.
    :param is_active: whether the query runs, ``None`` until it is first seen.
    :param has_ended_well: whether it was stopped, or had no more to do.
    :param active_since: when ``is_active`` last changed.
    :param trigger: the last one seen; see `QueryStatus`.
    :param triggered: when there was last a sign of a trigger.
    :param interval: between two triggers.
    :param pid: of the query's Java process.
    :param java_answered: when Java last answered, ``None`` if it is not asked.
    :param phase_since: when ``phase`` began; a pause within a batch restarts it.
    :param batch: the number of the batch in flight, or of the last one; ``batch_offsets`` is how many it reads.
    :param batch_began: when the batch in flight reached the sink.
    :param called: when calls of its handler were last reported.
    :param error: the class of the error that ended the last batch, if one did.
    :param ended_well: when a batch last ended well.
    :param database_answered: when the database last answered.
    :param is_database_failing: whether it has failed to answer since then.
    :param kafka_answered: when Kafka last answered.
    :param is_kafka_failing: whether it has failed to answer since then.
    :param outage_ended: when the database or Kafka last answered again.
    :param mirrored: when Kafka's group last had the stored offsets; ``mirror_error`` is why it could not since.
    :param held: see `RecordsHeld`.
    :param counters: see `RunStatus.counters`.
    """

    group: str
    token: Token | None = None
    unreachable: float = UNREACHABLE
    claimed: float = 0.0
    is_lost: bool = False
    is_closed: bool = False
    replays_letters: bool | None = None
    query: QueryStarted | None = None
    is_draining: bool = False
    idle_work: str | None = None
    idle_work_since: float = 0.0
    is_active: bool | None = None
    has_ended_well: bool = False
    active_since: float = 0.0
    trigger: int | None = None
    triggered: float | None = None
    interval: float = 0.0
    pid: int | None = None
    java_answered: float | None = None
    phase: Phase = "starting"
    phase_since: float = 0.0
    batch: int | None = None
    batch_offsets: int | None = None
    batch_began: float | None = None
    called: float = 0.0
    error: str | None = None
    ended_well: float | None = None
    database_answered: float = 0.0
    is_database_failing: bool = False
    kafka_answered: float = 0.0
    is_kafka_failing: bool = False
    outage_ended: float = 0.0
    mirrored: float | None = None
    mirror_error: str | None = None
    held: Mapping[TopicPartition, HeldRecord] = field(default_factory=dict["TopicPartition", "HeldRecord"])
    counters: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def in_batch_since(self) -> float | None:
        """When the batch in flight reached the sink, or its pause began or ended."""
        return self.phase_since if self.phase in {"batch", "paused"} else None

    @classmethod
    def claimed_at(cls, at: float, group: str, token: Token, *, unreachable: float = UNREACHABLE) -> Self:
        """The state of a job that has just claimed its group: the database and Kafka have answered."""
        return cls(
            group=group,
            token=token,
            unreachable=unreachable,
            claimed=at,
            phase_since=at,
            database_answered=at,
            kafka_answered=at,
        )

    def after(self, event: Event, at: float) -> Self:  # noqa: C901, PLR0912 - one case for each kind
        """The state after an event of this group.

        :param at: when it happened, by the observer's clock: health counts only seconds in which the process ran, and a
            run's record counts all (decision 0071).
        """
        if isinstance(event, ClaimTaken) and event.token != self.token:
            return self.claimed_at(at, self.group, event.token, unreachable=self.unreachable)
        # It comes late, from a claim that was replaced or is forgotten.
        if isinstance(event, SinkMade | ClaimEnded) and event.token != self.token:
            return self
        changes: dict[str, Any] = {}
        match event:
            case ClaimEnded():
                changes = {"is_lost" if event.outcome == "fenced" else "is_closed": True}
            case SinkMade():
                changes = {"replays_letters": event.replays_letters, "java_answered": at}
            case QueryStarted():
                changes = {"query": event}
            # The time for a query to begin starts anew after a drain.
            case DrainChanged():
                changes = {"is_draining": event.is_running, "claimed": at, "active_since": at}
            case IdleWorkChanged():
                changes = {"idle_work": event.work, "idle_work_since": at}
            case DatabaseAsked():
                changes = self._of_database(event, at)
            case MirrorTried():
                changes = self._of_mirror(event, at)
            case HandlerCalled() | RecordsHeld():
                changes = {"called": at} if isinstance(event, HandlerCalled) else {"held": event.held}
            case BatchStarted() | PauseChanged() | BatchEnded():
                changes = self._of_batch(event, at)
            case _:
                pass
        counters = {**self.counters}
        for what, number in _counts(event).items():
            if number:
                counters[what] = counters.get(what, 0) + number
        return replace(self, counters=counters, **changes)

    def _of_batch(self, event: BatchStarted | PauseChanged | BatchEnded, at: float) -> dict[str, Any]:
        match event:
            case PauseChanged() if event.pause is not None:
                return {"phase": "paused", "phase_since": at}
            case BatchEnded():
                phase: Phase = "failed" if event.outcome == "failed" else "idle"
                ended_well = at if event.is_well else self.ended_well
                return {
                    "phase": phase,
                    "phase_since": at,
                    "batch_began": None,
                    "error": None if event.error is None else type(event.error).__name__,
                    "triggered": at,
                    "ended_well": ended_well,
                }
            case _:
                begun: dict[str, Any] = {"phase": "batch", "phase_since": at}
        if isinstance(event, BatchStarted):
            begun |= {"batch": event.batch, "batch_offsets": event.offsets, "batch_began": at, "error": None}
        # Where Spark can't be read, a batch shows that the query runs.
        if self.is_active is None:
            begun |= {"is_active": True, "active_since": at}
        return begun

    def _of_database(self, event: DatabaseAsked, at: float) -> dict[str, Any]:
        if event.error is not None and _is_silence(event.error):
            return {"is_database_failing": True}
        answered: dict[str, Any] = {"database_answered": at, "is_database_failing": False}
        # One missed heartbeat is no outage.
        if at - self.database_answered > self.unreachable:
            answered["outage_ended"] = at
        return answered

    def _of_mirror(self, event: MirrorTried, at: float) -> dict[str, Any]:
        changes: dict[str, Any] = {"mirror_error": event.reason}
        # Every other error is an answer.
        if isinstance(event.error, BrokerUnavailable | TlsFailed):
            return {**changes, "is_kafka_failing": True}
        changes |= {"kafka_answered": at, "is_kafka_failing": False}
        if event.reason is None:
            changes["mirrored"] = at
        if self.is_kafka_failing:
            changes["outage_ended"] = at
        return changes

    def seen(self, status: QueryStatus, at: float) -> Self:
        """The state after a look at the query."""
        changes: dict[str, Any] = {"java_answered": at, "interval": status.interval, "pid": status.pid or self.pid}
        if status.trigger is not None and status.trigger != self.trigger:
            changes |= {"trigger": status.trigger, "triggered": at}
        looked = replace(self, **changes)
        # It has not begun yet.
        if self.is_active is None and status.is_active is False:
            return looked
        is_active = self.is_active is not False if status.is_active is None else status.is_active
        if is_active is not self.is_active:
            looked = replace(looked, is_active=is_active, active_since=at)
        looked = replace(looked, has_ended_well=status.has_failed is False)
        # Stopped in the middle of a batch.
        if not is_active and self.in_batch_since is not None:
            return replace(looked, batch_began=None).entering("idle", at)
        return looked

    def entering(self, phase: Phase, at: float) -> Self:
        return replace(self, phase=phase, phase_since=at)


class JobStates:
    """The jobs of a process, by group. Any thread may call it.

    :param clock: gives the time of the events, in seconds.
    """

    def __init__(self, clock: Callable[[], float], *, unreachable: float = UNREACHABLE) -> None:
        self._clock = clock
        self._unreachable = unreachable
        self._guard = threading.Lock()
        self._states: dict[str, JobState] = {}

    def on(self, event: Event) -> tuple[JobState, JobState]:
        """Apply an event, and return the group's state before and after it. A closed claim is forgotten."""
        with self._guard:
            group = event.group
            before = self._states.get(group, JobState(group=group, unreachable=self._unreachable))
            after = before.after(event, self._clock())
            if after.is_closed:
                self._states.pop(group, None)
            # A group that no claim has, such as a relay's or a forgotten claim's, gets no state from an event.
            elif after.token is not None:
                self._states[group] = after
            return before, after

    def see(self, group: str, token: Token, status: QueryStatus) -> None:
        """Apply a look at a claim's query, unless another claim has the group by now."""
        with self._guard:
            before = self._states.get(group)
            if before is not None and before.token == token:
                self._states[group] = before.seen(status, self._clock())

    def now(self) -> tuple[JobState, ...]:
        """The states of the groups that this process has claimed."""
        with self._guard:
            return tuple(self._states.values())


def _is_silence(error: Exception) -> bool:
    """Whether the database did not answer; to refuse a lock or the heartbeat is an answer."""
    return not isinstance(error, OffsetStoreError) or isinstance(error, (StoreUnavailable, ConnectionLost))


def _counts(event: Event) -> dict[str, int]:
    counts: dict[str, int] = {}
    match event:
        case BatchEnded():
            milliseconds = round(sum(event.seconds.values()) * 1000)
            counts = {"offsets": event.offsets, "rows": sum(event.written.values()), "batch_milliseconds": milliseconds}
            if event.outcome != "interrupted":
                counts[event.outcome] = 1
        case FlushEnded(error=None):
            milliseconds = round(sum(event.seconds.values()) * 1000)
            counts = {"flushed": 1, "rows": sum(event.rows.values()), "batch_milliseconds": milliseconds}
        case LettersWritten():
            counts = {"letters": sum(event.letters.values())}
        case LettersReplayed():
            counts = {"replayed": event.replayed}
        case Retried():
            counts = {"retries": 1}
        case DatabaseAsked(error=Exception()):
            counts = {"heartbeats_missed": 1}
        case _:
            pass
    return counts
