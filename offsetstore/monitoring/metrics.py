"""A job's metrics, from the events that it tells its observers; see docs/metrics.md.

Every series has the label ``consumergroup``, as kafka_exporter has it, and none has a partition.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Final, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

from offsetstore.offsets import OffsetRange, Token, TopicPartition, count_offsets
from offsetstore.protocol.events import (
    BatchFailed,
    BatchInterrupted,
    BatchKept,
    BatchSkipped,
    BatchStarted,
    BatchWritten,
    BufferFlushed,
    ClaimClosed,
    ClaimLost,
    ClaimTaken,
    CommitResolved,
    Event,
    FlushFailed,
    HeartbeatMissed,
    IdleWorkFailed,
    LettersReplayed,
    LettersWritten,
    MirrorCopied,
    MirrorFailed,
    Paused,
    Resumed,
    Retried,
)
from offsetstore.protocol.letters import Cause

GROUP: Final = "consumergroup"

_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counts the events of a store's claims; give it to ``OffsetStore.connect(..., observers=[...])``.

    :param registry: where the metrics are registered; by default a registry of their own, `registry`.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._version = version("offsetstore")
        self._began: dict[str, float] = {}
        self._tokens: dict[str, Token] = {}

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"offsetstore_{name}", what, (GROUP, *labels), registry=self.registry)

        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"offsetstore_{name}", what, (GROUP, *labels), registry=self.registry)

        self._build = gauge("build_info", "1, with the version of offsetstore.", "version")
        self._epoch = gauge("claim_epoch", "The epoch of the last claim.")
        self._held = gauge("claim_held", "1 while the claim is the group's; 0 when another one has taken over.")
        self._paused = gauge("paused", "1 while the job waits because its group is paused.")
        self._batches = counter(
            "batches", "Micro-batches, by outcome: written, skipped, kept, failed, interrupted.", "outcome"
        )
        self._duration = Histogram(
            "offsetstore_batch_duration_seconds",
            "From a micro-batch's arrival at the sink to its end, unless it failed or was interrupted.",
            (GROUP,),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._phases = Summary(
            "offsetstore_batch_phase_seconds",
            "Time of written micro-batches and flushes, by phase.",
            (GROUP, "phase"),
            registry=self.registry,
        )
        self._started = gauge(
            "batch_started_timestamp_seconds", "When the micro-batch in flight reached the sink; 0 while there is none."
        )
        self._ended = gauge("last_batch_timestamp_seconds", "When the last micro-batch ended well.")
        self._offsets = counter(
            "offsets", "Offsets in micro-batches, by outcome: written, skipped, kept.", "topic", "outcome"
        )
        self._rows = counter("rows_written", "Rows that were committed.", "output")
        self._flushes = counter("flushes", "Flushes of kept batches, by outcome: written, failed.", "outcome")
        self._retries = counter("retries", "Repeated database operations, by the error's class.", "reason")
        self._resolved = counter("lost_commits", "COMMITs without an answer, by what the rows show.", "outcome")
        self._errors = counter("errors", "Errors that ended a batch, a flush or idle work, by class.", "error")
        self._letters = counter("dead_letters", "Records that became dead letters, by cause.", "cause")
        self._replayed = counter(
            "dead_letters_replayed", "Replays of dead letters, by outcome: written, failed.", "outcome"
        )
        self._mirrored = counter(
            "mirror_commits",
            "Comparisons with Kafka's group: done, failed, or ended, which it does once, for good.",
            "outcome",
        )
        self._mirrored_at = gauge(
            "mirror_last_success_timestamp_seconds", "When Kafka's group was last found or made equal."
        )
        self._missed = counter("heartbeats_missed", "Heartbeats that the database did not take.")
        self._outcomes: Mapping[Counter, Iterable[str]] = {
            self._batches: ("written", "skipped", "kept", "failed", "interrupted"),
            self._flushes: ("written", "failed"),
            self._resolved: ("committed", "rolled_back", "unknown"),
            self._letters: get_args(Cause),
            self._replayed: ("written", "failed"),
            self._mirrored: ("done", "failed", "ended"),
        }
        self._of_claim = (self._epoch, self._held, self._paused, self._started, self._ended, self._mirrored_at)

    def on(self, event: Event) -> None:
        """Count the event."""
        match event:
            case BatchStarted():
                self._begin(event.group)
            case BatchWritten() | BatchSkipped() | BatchKept() | BatchFailed() | BatchInterrupted():
                self._end(event)
            case BufferFlushed() | FlushFailed() | IdleWorkFailed():
                self._count_between(event)
            case LettersWritten() | LettersReplayed():
                self._count_letters(event)
            case ClaimTaken():
                self._claim(event.group, event.token)
            case ClaimLost() | ClaimClosed():
                self._release(event)
            case Paused() | Resumed():
                self._paused.labels(event.group).set(isinstance(event, Paused))
            case Retried() | CommitResolved() | HeartbeatMissed():
                self._count_troubles(event)
            case MirrorCopied() | MirrorFailed():
                self._mirror(event)
            case _:
                pass

    def _begin(self, group: str) -> None:
        self._began[group] = time.monotonic()
        self._started.labels(group).set_to_current_time()

    def _end(self, event: BatchWritten | BatchSkipped | BatchKept | BatchFailed | BatchInterrupted) -> None:
        group, outcome = event.group, event.outcome
        began = self._began.pop(group, None)  # none if it failed before, or its claim was closed meanwhile
        if began is not None:
            self._started.labels(group).set(0)
            self._paused.labels(group).set(0)  # a stop or another claim ends the wait without a `Resumed`
        self._batches.labels(group, outcome).inc()
        if isinstance(event, BatchFailed):
            self._errors.labels(group, type(event.error).__name__).inc()
        if isinstance(event, BatchFailed | BatchInterrupted):
            self._store(event)
            return
        for topic, ranges in _by_topic(event.ranges):
            self._offsets.labels(group, topic, outcome).inc(count_offsets(ranges))
        if began is not None:
            self._ended.labels(group).set_to_current_time()
            self._duration.labels(group).observe(time.monotonic() - began)
        if isinstance(event, BatchWritten):
            self._write(group, event.rows, event.seconds)

    def _store(self, event: BatchFailed | BatchInterrupted) -> None:
        for topic, ranges in _by_topic(event.stored):
            self._offsets.labels(event.group, topic, "written").inc(count_offsets(ranges))
        self._write(event.group, event.rows, {})

    def _write(self, group: str, rows: Mapping[str, int], seconds: Mapping[str, float]) -> None:
        for output, count in rows.items():
            self._rows.labels(group, output).inc(count)
        for phase, spent in seconds.items():
            self._phases.labels(group, phase).observe(spent)

    def _count_between(self, event: BufferFlushed | FlushFailed | IdleWorkFailed) -> None:
        if isinstance(event, BufferFlushed):
            self._flushes.labels(event.group, "written").inc()
            self._write(event.group, event.rows, event.seconds)
            return
        if isinstance(event, FlushFailed):
            self._flushes.labels(event.group, "failed").inc()
        self._errors.labels(event.group, type(event.error).__name__).inc()

    def _count_letters(self, event: LettersWritten | LettersReplayed) -> None:
        if isinstance(event, LettersReplayed):
            self._replayed.labels(event.group, "written").inc(event.replayed)
            self._replayed.labels(event.group, "failed").inc(event.failed)
            return
        for cause, count in event.letters.items():
            self._letters.labels(event.group, cause).inc(count)

    def _claim(self, group: str, token: Token) -> None:
        """Begin the group's series: a counter that is absent until the first error has no increase then."""
        self._tokens[group] = token
        self._held.labels(group).set(1)
        self._build.labels(group, self._version).set(1)
        self._epoch.labels(group).set(token.epoch)
        self._started.labels(group).set(0)
        self._paused.labels(group).set(0)
        self._duration.labels(group)
        self._missed.labels(group)
        for family, outcomes in self._outcomes.items():
            for outcome in outcomes:
                family.labels(group, outcome)

    def _release(self, event: ClaimLost | ClaimClosed) -> None:
        if event.token != self._tokens.get(event.group):
            return  # this process has claimed the group again
        if isinstance(event, ClaimLost):
            self._held.labels(event.group).set(0)
            return
        del self._tokens[event.group]
        self._began.pop(event.group, None)
        for family in self._of_claim:  # what they tell is over; a rule about them would fire for ever
            with suppress(KeyError):  # there is none yet; newer versions of prometheus_client don't mind
                family.remove(event.group)

    def _count_troubles(self, event: Retried | CommitResolved | HeartbeatMissed) -> None:
        match event:
            case Retried():
                self._retries.labels(event.group, type(event.error).__name__).inc()
            case CommitResolved():
                self._resolved.labels(event.group, event.outcome).inc()
            case HeartbeatMissed():
                self._missed.labels(event.group).inc()

    def _mirror(self, event: MirrorCopied | MirrorFailed) -> None:
        if isinstance(event, MirrorCopied):
            self._mirrored.labels(event.group, "done").inc()
            self._mirrored_at.labels(event.group).set_to_current_time()
        else:
            self._mirrored.labels(event.group, "ended" if event.is_over else "failed").inc()


def _by_topic(
    ranges: Mapping[TopicPartition, OffsetRange],
) -> Iterable[tuple[str, dict[TopicPartition, OffsetRange]]]:
    topics: dict[str, dict[TopicPartition, OffsetRange]] = {}
    for tp, range_ in ranges.items():
        topics.setdefault(tp.topic, {})[tp] = range_
    return topics.items()
