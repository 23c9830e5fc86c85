"""A job's metrics, from the events that its observers get; see docs/metrics.md.

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
    BatchEnded,
    BatchStarted,
    ClaimEnded,
    ClaimTaken,
    CommitResolved,
    DatabaseAsked,
    Event,
    FlushEnded,
    HandlerCalled,
    IdleWorkFailed,
    LettersReplayed,
    LettersWritten,
    MirrorTried,
    PauseChanged,
    RecordsDropped,
    RecordsHeld,
    Retried,
)
from offsetstore.protocol.job_state import JobState, JobStates
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
        self._jobs = JobStates(time.monotonic)

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
        self._calls = counter("handler_calls", "Calls of a handler, with those that retry.")
        self._call_retries = counter("handler_retries", "Calls of a handler that repeat a failed one.")
        self._timeouts = counter("handler_timeouts", "Calls of a handler that took too long.")
        self._call_seconds = counter("handler_seconds", "Time in all calls of a handler together.")
        self._lag = gauge(
            "handler_loop_lag_seconds", "The longest time for which a handler's event loop did not answer in a batch."
        )
        self._dropped = counter("records_dropped", "Records that a consumer's filters have dropped.", "filter")
        self._held_partitions = gauge(
            "held_partitions", "Partitions that a consumer's filter holds for far longer than its own seconds."
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
        self._of_claim = (
            self._epoch,
            self._held,
            self._paused,
            self._started,
            self._ended,
            self._lag,
            self._held_partitions,
            self._mirrored_at,
        )

    def on(self, event: Event) -> None:
        """Count the event."""
        before, after = self._jobs.on(event)
        group = event.group
        match event:
            case ClaimTaken():
                self._claim(group, event.token)
            case ClaimEnded():
                self._release(before, after)
            case BatchStarted():
                self._started.labels(group).set_to_current_time()
            case BatchEnded():
                self._end(event, before.batch_began)
            case HandlerCalled():
                self._calls.labels(group).inc(event.calls)
                self._call_retries.labels(group).inc(event.retries)
                self._timeouts.labels(group).inc(event.timeouts)
                self._call_seconds.labels(group).inc(event.seconds)
                self._lag.labels(group).set(event.lag)
            case RecordsDropped() | RecordsHeld():
                self._filter(event)
            case PauseChanged():
                self._paused.labels(group).set(event.pause is not None)
            case MirrorTried():
                self._mirrored.labels(group, event.outcome).inc()
                if event.outcome == "done":
                    self._mirrored_at.labels(group).set_to_current_time()
            case _:
                self._count(event)

    def _count(self, event: Event) -> None:
        group = event.group
        match event:
            case FlushEnded():
                self._flushes.labels(group, event.outcome).inc()
                self._write(group, event.rows, event.seconds)
                if event.error is not None:
                    self._errors.labels(group, type(event.error).__name__).inc()
            case IdleWorkFailed():
                self._errors.labels(group, type(event.error).__name__).inc()
            case LettersWritten():
                for cause, count in event.letters.items():
                    self._letters.labels(group, cause).inc(count)
            case LettersReplayed():
                self._replayed.labels(group, "written").inc(event.replayed)
                self._replayed.labels(group, "failed").inc(event.failed)
            case Retried():
                self._retries.labels(group, type(event.error).__name__).inc()
            case CommitResolved():
                self._resolved.labels(group, event.outcome).inc()
            case DatabaseAsked(error=Exception()):
                self._missed.labels(group).inc()
            case _:
                pass

    def _filter(self, event: RecordsDropped | RecordsHeld) -> None:
        if isinstance(event, RecordsDropped):
            self._dropped.labels(event.group, event.by).inc(event.records)
        else:
            self._held_partitions.labels(event.group).set(len(event.held))

    def _end(self, event: BatchEnded, began: float | None) -> None:
        """Count a batch's end; ``began`` is ``None`` if it failed before, or its claim was closed meanwhile."""
        group = event.group
        if began is not None:
            self._started.labels(group).set(0)
            # A stop or another claim ends the wait without an event.
            self._paused.labels(group).set(0)
        self._batches.labels(group, event.outcome).inc()
        if event.error is not None:
            self._errors.labels(group, type(event.error).__name__).inc()
        for topic, ranges in _by_topic(event.done):
            # Of a batch that failed, what was stored before the refused record is done (decision 0058).
            outcome = event.outcome if event.is_well else "written"
            self._offsets.labels(group, topic, outcome).inc(count_offsets(ranges))
        if began is not None and event.is_well:
            self._ended.labels(group).set_to_current_time()
            self._duration.labels(group).observe(time.monotonic() - began)
        self._write(group, event.written, event.seconds if event.outcome == "written" else {})

    def _write(self, group: str, rows: Mapping[str, int], seconds: Mapping[str, float]) -> None:
        for output, count in rows.items():
            self._rows.labels(group, output).inc(count)
        for phase, spent in seconds.items():
            self._phases.labels(group, phase).observe(spent)

    def _claim(self, group: str, token: Token) -> None:
        """Begin the group's series at 0: a counter that appears with the first error shows no increase."""
        self._held.labels(group).set(1)
        self._build.labels(group, self._version).set(1)
        self._epoch.labels(group).set(token.epoch)
        self._started.labels(group).set(0)
        self._paused.labels(group).set(0)
        self._lag.labels(group).set(0)
        self._held_partitions.labels(group).set(0)
        self._duration.labels(group)
        for family in (self._missed, self._calls, self._call_retries, self._timeouts, self._call_seconds):
            family.labels(group)
        for family, outcomes in self._outcomes.items():
            for outcome in outcomes:
                family.labels(group, outcome)

    def _release(self, before: JobState, after: JobState) -> None:
        if after.is_closed:
            # They are about the claim, which is over: a rule about them would fire for ever.
            for family in self._of_claim:
                # The series may not have begun; newer versions of prometheus_client don't mind.
                with suppress(KeyError):
                    family.remove(after.group)
        elif after.is_lost and not before.is_lost:
            self._held.labels(after.group).set(0)


def _by_topic(
    ranges: Mapping[TopicPartition, OffsetRange],
) -> Iterable[tuple[str, dict[TopicPartition, OffsetRange]]]:
    topics: dict[str, dict[TopicPartition, OffsetRange]] = {}
    for tp, range_ in ranges.items():
        topics.setdefault(tp.topic, {})[tp] = range_
    return topics.items()
