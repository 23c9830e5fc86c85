"""A job's metrics, from the events that it tells its observers; see docs/metrics.md.

Every series has the label ``consumergroup``, as kafka_exporter has it, and none has a partition.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary

from offsetstore.offsets import count_offsets
from offsetstore.protocol.events import (
    BatchFailed,
    BatchKept,
    BatchSkipped,
    BatchStarted,
    BatchWritten,
    BufferFlushed,
    ClaimClosed,
    ClaimLost,
    ClaimTaken,
    CommitResolved,
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offsetstore.offsets import OffsetRange, Token, TopicPartition
    from offsetstore.protocol.events import Event

GROUP: Final = "consumergroup"

_SECONDS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

_RESOLVED: Final = {True: "committed", False: "rolled_back", None: "unknown"}


class Metrics:
    """Counts the events of a store's claims; give it to ``OffsetStore.connect(..., observers=[...])``.

    :param registry: where the metrics are registered; by default a registry of their own, `registry`.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._began: dict[str, float] = {}
        self._tokens: dict[str, Token] = {}

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"offsetstore_{name}", what, (GROUP, *labels), registry=self.registry)

        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(f"offsetstore_{name}", what, (GROUP, *labels), registry=self.registry)

        self._build = gauge("build_info", "1, with the version of offsetstore.", "version")
        self._epoch = gauge("claim_epoch", "The epoch of the last claim.")
        self._held = gauge("claim_held", "1 while the claim is open and no other one has taken over.")
        self._paused = gauge("paused", "1 while the job waits because its group is paused.")
        self._batches = counter("batches", "Micro-batches, by outcome: written, skipped, kept, failed.", "outcome")
        self._duration = Histogram(
            "offsetstore_batch_duration_seconds",
            "From a micro-batch's arrival at the sink to its end, unless it failed.",
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
            "mirror_commits", "Comparisons with Kafka's group, by outcome: done, failed.", "outcome"
        )
        self._mirrored_at = gauge(
            "mirror_last_success_timestamp_seconds", "When Kafka's group was last found or made equal."
        )
        self._missed = counter("heartbeats_missed", "Heartbeats that the database did not take.")

    def on(self, event: Event) -> None:
        """Count the event."""
        match event:
            case BatchStarted():
                self._begin(event.group)
            case BatchWritten() | BatchSkipped() | BatchKept() | BatchFailed():
                self._end(event)
            case BufferFlushed():
                self._flushes.labels(event.group, "written").inc()
                self._write(event.group, event.rows, event.seconds)
            case FlushFailed() | IdleWorkFailed():
                self._fail(event)
            case LettersWritten() | LettersReplayed():
                self._count_letters(event)
            case ClaimTaken() | ClaimLost() | ClaimClosed() | HeartbeatMissed():
                self._hold(event)
            case Paused() | Resumed():
                self._paused.labels(event.group).set(isinstance(event, Paused))
            case Retried() | CommitResolved():
                self._count_troubles(event)
            case MirrorCopied() | MirrorFailed():
                self._mirror(event)

    def _begin(self, group: str) -> None:
        self._began[group] = time.monotonic()
        self._started.labels(group).set_to_current_time()

    def _end(self, event: BatchWritten | BatchSkipped | BatchKept | BatchFailed) -> None:
        group = event.group
        self._started.labels(group).set(0)
        began = self._began.pop(group, None)
        if isinstance(event, BatchFailed):
            self._batches.labels(group, "failed").inc()
            self._errors.labels(group, type(event.error).__name__).inc()
            return
        outcome = {BatchWritten: "written", BatchSkipped: "skipped", BatchKept: "kept"}[type(event)]
        self._batches.labels(group, outcome).inc()
        self._ended.labels(group).set_to_current_time()
        for topic, ranges in _by_topic(event.ranges):
            self._offsets.labels(group, topic, outcome).inc(count_offsets(ranges))
        if began is not None:
            self._duration.labels(group).observe(time.monotonic() - began)
        if isinstance(event, BatchWritten):
            self._write(group, event.rows, event.seconds)

    def _write(self, group: str, rows: Mapping[str, int], seconds: Mapping[str, float]) -> None:
        for output, count in rows.items():
            self._rows.labels(group, output).inc(count)
        for phase, spent in seconds.items():
            self._phases.labels(group, phase).observe(spent)

    def _fail(self, event: FlushFailed | IdleWorkFailed) -> None:
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

    def _hold(self, event: ClaimTaken | ClaimLost | ClaimClosed | HeartbeatMissed) -> None:
        if isinstance(event, HeartbeatMissed):
            self._missed.labels(event.group).inc()
            return
        if isinstance(event, ClaimTaken):
            self._tokens[event.group] = event.token
        elif event.token != self._tokens.get(event.group):
            return  # this process has claimed the group again
        self._held.labels(event.group).set(isinstance(event, ClaimTaken))
        if isinstance(event, ClaimTaken):
            self._build.labels(event.group, version("offsetstore")).set(1)
            self._epoch.labels(event.group).set(event.token.epoch)
            self._started.labels(event.group).set(0)
            self._missed.labels(event.group)  # 0, and not absent, which no rule can be about

    def _count_troubles(self, event: Retried | CommitResolved) -> None:
        if isinstance(event, Retried):
            self._retries.labels(event.group, type(event.error).__name__).inc()
        else:
            self._resolved.labels(event.group, _RESOLVED[event.happened]).inc()

    def _mirror(self, event: MirrorCopied | MirrorFailed) -> None:
        is_done = isinstance(event, MirrorCopied)
        self._mirrored.labels(event.group, "done" if is_done else "failed").inc()
        if is_done:
            self._mirrored_at.labels(event.group).set_to_current_time()


def _by_topic(
    ranges: Mapping[TopicPartition, OffsetRange],
) -> Iterable[tuple[str, dict[TopicPartition, OffsetRange]]]:
    topics: dict[str, dict[TopicPartition, OffsetRange]] = {}
    for tp, range_ in ranges.items():
        topics.setdefault(tp.topic, {})[tp] = range_
    return topics.items()
