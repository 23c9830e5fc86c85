"""Whether a job makes progress, from the facts about it. Pure: no clock, no thread, no network.

Liveness fails only for what a restart can cure. While the database or Kafka is unreachable, a query that has ended or
makes no progress does not count against the job, and the limits start again when both answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from offsetstore.protocol.arguments import check_seconds, check_whole
from offsetstore.protocol.job_state import UNREACHABLE, JobState

_INTERVALS: Final = 3  # between triggers, until a query counts as stalled
_IDLE_WORK: Final = {"replay": "dead letters have been replayed", "tick": "a tick has been running"}


class Code(StrEnum):
    """Why a job is not live, or not ready, in order of precedence; see docs/health.md."""

    CLAIM_LOST = "claim-lost"
    QUERY_ENDED = "query-ended"
    BATCH_TOO_LONG = "batch-too-long"
    POLLING_STALLED = "polling-stalled"
    JVM_GONE = "jvm-gone"
    MEMORY = "memory"
    DATABASE_UNREACHABLE = "database-unreachable"
    KAFKA_UNREACHABLE = "kafka-unreachable"
    STARTING = "starting"
    PAUSED = "paused"
    PARTITION_HELD = "partition-held"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a state may last before it counts against a job; in seconds, except ``max_rss``.

    :param starting: to claim a group and start its query.
    :param query: after a query has ended.
    :param batch: for a micro-batch, a tick or a replay of dead letters, the time of a pause or an outage not included.
    :param polling: without a trigger, also one that finds no records; at least three times the trigger's interval.
    :param jvm: without an answer from Java.
    :param unreachable: without an answer from the database, or from Kafka.
    :param exit: from when liveness fails until ``on_dead="exit"`` ends the process: the job may end by itself first.
    :param max_rss: bytes of memory that the driver may use, its Python and its Java together; by default any number.
    :raises ConfigurationError: one is not above 0, or not finite.
    """

    starting: float = 600.0
    query: float = 30.0
    batch: float = 600.0
    polling: float = 300.0
    jvm: float = 15.0
    unreachable: float = UNREACHABLE
    exit: float = 10.0
    max_rss: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "max_rss":
                check_seconds(f"Limits.{field.name}", value)
            elif value is not None:
                check_whole(f"Limits.{field.name}", value, "bytes", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a process: since when it runs, whether it has ever had a claim, its memory and its claims."""

    began: float
    has_claimed: bool = False
    rss: int | None = None
    groups: Collection[JobState] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason.

    :param text: for people; it holds the group's name and our own words.
    :param is_live: whether the job is live in spite of it; ``is_ready`` likewise.
    """

    code: Code
    group: str | None
    text: str
    is_live: bool = False
    is_ready: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, in order of precedence; nothing for a job that makes progress."""

    findings: tuple[Finding, ...] = ()

    @property
    def is_live(self) -> bool:
        """Whether a restart would not help."""
        return all(finding.is_live for finding in self.findings)

    @property
    def is_ready(self) -> bool:
        """Whether the job does its work, or waits because it was told to."""
        return all(finding.is_ready for finding in self.findings)

    @property
    def codes(self) -> tuple[Code, ...]:
        """The codes, each once, in order of precedence."""
        return tuple(dict.fromkeys(finding.code for finding in self.findings))


def judge(facts: Facts, limits: Limits, now: float) -> Verdict:
    """Judge a job.

    :param now: by the clock of the facts.
    """
    found = [finding for group in facts.groups for finding in _of_group(group, limits, now)]
    # Live: a process that has closed its claims may have other work.
    if facts.has_claimed and not facts.groups:
        found.append(Finding(Code.QUERY_ENDED, None, "no group is claimed any more", is_live=True))
    if not facts.has_claimed:
        found.append(_starting(None, "no group was claimed yet", now - facts.began, limits))
    if limits.max_rss is not None and facts.rss is not None and facts.rss > limits.max_rss:
        found.append(Finding(Code.MEMORY, None, f"{facts.rss:,} bytes of memory (limit {limits.max_rss:,})"))
    order = list(Code)
    return Verdict(tuple(sorted(found, key=lambda finding: order.index(finding.code))))


def _of_group(group: JobState, limits: Limits, now: float) -> Iterator[Finding]:
    # It sends no more heartbeats, so the rest is not known.
    if group.is_lost:
        yield Finding(Code.CLAIM_LOST, group.group, f"{group.group}: another claim has taken over")
        return
    is_java_gone = group.java_answered is not None and now - group.java_answered > limits.jvm
    is_out = group.is_database_failing or group.is_kafka_failing
    for code, what, answered, may_be_away in (
        # A request may hang without failing, so silence is enough: a heartbeat comes every 5 s.
        (Code.DATABASE_UNREACHABLE, "the database", group.database_answered, True),
        # Kafka is asked at intervals that the job chooses, and its client has a time limit: silence means nothing.
        (Code.KAFKA_UNREACHABLE, "Kafka", group.kafka_answered, group.is_kafka_failing),
    ):
        if may_be_away and now - answered > limits.unreachable:
            is_out = True
            text = f"no answer from {what} for {_seconds(now - answered, limits.unreachable)}"
            yield Finding(code, group.group, f"{group.group}: {text}", is_live=True)
    if is_java_gone and group.java_answered is not None:
        age = _seconds(now - group.java_answered, limits.jvm)
        yield Finding(Code.JVM_GONE, group.group, f"{group.group}: no answer from Java for {age}")
    yield from _of_progress(group, limits, now, is_out=is_out, is_java_gone=is_java_gone)
    for tp, held in group.held.items():
        text = f"{group.group}: {tp} stands: {held}"
        yield Finding(Code.PARTITION_HELD, group.group, text, is_live=True, is_ready=True)


def _of_progress(group: JobState, limits: Limits, now: float, *, is_out: bool, is_java_gone: bool) -> Iterator[Finding]:
    # An outage stops the clocks of what it may cause, and they begin anew after it: else the job would be killed in the
    # moment in which it can go on (decision 0038).
    def age(since: float) -> float:
        return 0.0 if is_out else now - max(since, group.outage_ended)

    name, running = group.group, group.in_batch_since
    if group.is_draining:
        return
    if group.replays_letters is not None and group.is_active is None:
        yield _starting(name, "its query does not run yet", age(group.claimed), limits)
    elif group.idle_work is not None and age(since := max(group.idle_work_since, group.called)) > limits.batch:
        what = _IDLE_WORK[group.idle_work] + ("" if since > group.called else " without another call of its handler")
        text = f"{what} for {_seconds(now - since, limits.batch)}"
        yield Finding(Code.BATCH_TOO_LONG, name, f"{name}: {text}")
    elif group.phase == "paused":
        yield Finding(Code.PAUSED, name, f"{name}: the group is paused", is_live=True, is_ready=True)
    elif running is not None and age(since := max(running, group.called)) > limits.batch:
        what = "in flight" if since == running else "in flight without another call of its handler"
        text = f"the batch has been {what} for {_seconds(now - since, limits.batch)}"
        yield Finding(Code.BATCH_TOO_LONG, name, f"{name}: {text}")
    elif group.is_active is False and not is_java_gone and age(group.active_since) > limits.query:
        ended = _seconds(now - group.active_since, limits.query)
        how = " without an error" if group.has_ended_well else "" if group.error is None else f" with {group.error}"
        yield Finding(Code.QUERY_ENDED, name, f"{name}: its query ended{how} {ended} ago", is_live=group.has_ended_well)
    elif running is None and group.is_active and group.triggered is not None and not is_java_gone:
        limit = max(limits.polling, _INTERVALS * group.interval)
        if age(group.triggered) > limit:
            text = f"no trigger for {_seconds(now - group.triggered, limit)}"
            yield Finding(Code.POLLING_STALLED, name, f"{name}: {text}")


def _starting(group: str | None, text: str, age: float, limits: Limits) -> Finding:
    is_live = age <= limits.starting
    where = f"{group}: " if group is not None else ""
    return Finding(Code.STARTING, group, f"{where}{text}, for {_seconds(age, limits.starting)}", is_live=is_live)


def _seconds(age: float, limit: float) -> str:
    return f"{age:.0f} s (limit {limit:g} s)"
