"""A job's traces for OpenTelemetry: one span for each micro-batch; see docs/tracing.md.

Only OpenTelemetry's API is used: the application sets up the SDK, with its sampler and its exporter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextvars import Token
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Final

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider, get_tracer, set_span_in_context
from opentelemetry.util.types import AttributeValue

from offsetstore.offsets import count_offsets
from offsetstore.processing.spans import SCHEMA, traces_of
from offsetstore.protocol.events import (
    BatchEnded,
    BatchStarted,
    ClaimTaken,
    CommitResolved,
    Event,
    FlushEnded,
    HandlerCalled,
    LettersWritten,
    PauseChanged,
    Retried,
)

LINKS: Final = 128
"""The most records to which a batch's span has links: OpenTelemetry's SDK keeps as many of a span, by default."""

_SYSTEM: Final = "messaging.system"
_OPERATION: Final = "messaging.operation.name"
_OPERATION_TYPE: Final = "messaging.operation.type"
_GROUP: Final = "messaging.consumer.group.name"
_TOPIC: Final = "messaging.destination.name"
_COUNT: Final = "messaging.batch.message_count"
_ERROR: Final = "error.type"

_SECOND: Final = 1_000_000_000  # OpenTelemetry's times are nanoseconds


@dataclass(slots=True)
class _BatchSpans:
    """The batch in flight in a thread.

    :param flushed: when the flush that was due with it began, in nanoseconds; ``None`` if there was none.
    """

    span: Span
    token: Token[Context]
    letters: int = 0
    flushed: int | None = None
    handler: dict[str, float] = field(default_factory=dict[str, float])


class _Here(threading.local):
    """The batch in flight in each thread: all events of a batch come in the thread that writes it (decision 0042)."""

    batch: _BatchSpans | None = None


class Tracing:
    """One span for each micro-batch; give it to ``OffsetStore.connect(..., observers=[...])``.

    While a batch is written, its span is the current one in its thread: the application's spans in a transform or a
    writer are its children.

    :param tracer_provider: by default the application's global one, which may be set later.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = get_tracer("offsetstore", version("offsetstore"), tracer_provider, SCHEMA)
        self._epochs: dict[str, int] = {}
        self._here = _Here()

    def on(self, event: Event) -> None:
        """Begin or end a span, or add what happens meanwhile to the batch's span."""
        match event:
            case ClaimTaken():
                self._epochs[event.group] = event.token.epoch
            case BatchStarted():
                span = self._begin(event).span
                if event.headers is not None and span.is_recording():
                    for trace in traces_of(event.headers(LINKS)):
                        span.add_link(trace)
            case BatchEnded():
                self._end(event)
            case FlushEnded(error=None):
                self._flush(event)
            case _:
                if self._here.batch is not None:
                    _note(self._here.batch, event)

    def _begin(self, event: BatchStarted | BatchEnded) -> _BatchSpans:
        topics = {tp.topic for tp in event.ranges}
        attributes: dict[str, AttributeValue] = {
            _SYSTEM: "kafka",
            _OPERATION: "process",
            _OPERATION_TYPE: "process",
            _GROUP: event.group,
            _COUNT: event.offsets if isinstance(event, BatchStarted) else count_offsets(event.ranges),
            "offsetstore.batch": event.batch,
            "offsetstore.partitions": len(event.ranges),
        }
        if event.group in self._epochs:
            attributes["offsetstore.claim.epoch"] = self._epochs[event.group]
        name = "process"
        if len(topics) == 1:
            [attributes[_TOPIC]] = topics
            name = f"process {attributes[_TOPIC]}"
        span = self._tracer.start_span(name, kind=SpanKind.CONSUMER, attributes=attributes)
        self._here.batch = _BatchSpans(span, attach(set_span_in_context(span)))
        return self._here.batch

    def _end(self, event: BatchEnded) -> None:
        # A query that is refused fails before any batch has begun.
        batch = self._here.batch or self._begin(event)
        self._here.batch = None
        now = time.time_ns()
        span = batch.span
        span.set_attribute("offsetstore.outcome", event.outcome)
        if batch.letters:
            span.set_attribute("offsetstore.dead_letters", batch.letters)
        # No text of an error: a driver's may quote a row (decision 0042).
        if event.error is not None:
            name = type(event.error).__name__
            span.set_attribute(_ERROR, name)
            span.set_status(StatusCode.ERROR, name)
        if event.outcome in {"written", "kept"}:
            span.set_attribute("offsetstore.rows", sum(event.rows.values()))
            # A flush that was due with the batch comes after its phases.
            self._add_phases(span, event.group, event.seconds, batch.flushed or now)
        detach(batch.token)
        span.end(now)

    def _flush(self, event: FlushEnded) -> None:
        """Add a span for a flush, which is known only at its end; a child of the span of the batch it was due with."""
        now = time.time_ns()
        began = now - round(sum(event.seconds.values()) * _SECOND)
        if self._here.batch is not None:
            self._here.batch.flushed = self._here.batch.flushed or began
        attributes: dict[str, AttributeValue] = {
            _SYSTEM: "kafka",
            _GROUP: event.group,
            _COUNT: count_offsets(event.ranges),
            "offsetstore.batches": event.batches or (),
            "offsetstore.rows": sum(event.rows.values()),
        }
        span = self._tracer.start_span("offsetstore.flush", attributes=attributes, start_time=began)
        self._add_phases(span, event.group, event.seconds, now)
        span.end(now)

    def _add_phases(self, parent: Span, group: str, seconds: Mapping[str, float], until: int) -> None:
        """Add the phases' spans, one after the other, up to a time.

        An event tells only how long each phase took, in their order; see decision 0042. Several rounds of a phase are
        one span.
        """
        context = set_span_in_context(parent)
        began = until - round(sum(seconds.values()) * _SECOND)
        for phase, spent in seconds.items():
            attributes = {_GROUP: group}
            span = self._tracer.start_span(f"offsetstore.{phase}", context, attributes=attributes, start_time=began)
            began += round(spent * _SECOND)
            span.end(began)


def _note(batch: _BatchSpans, event: Event) -> None:
    match event:
        case LettersWritten():
            batch.letters += sum(event.letters.values())
        case HandlerCalled():
            for name in ("calls", "retries", "timeouts", "seconds"):
                batch.handler[name] = batch.handler.get(name, 0) + getattr(event, name)
                batch.span.set_attribute(f"offsetstore.handler.{name}", batch.handler[name])
        case Retried():
            error = type(event.error).__name__
            attributes = {_ERROR: error, "offsetstore.attempt": event.attempt, "offsetstore.wait": event.wait}
            batch.span.add_event("retried", attributes)
        case CommitResolved():
            batch.span.add_event("commit resolved", {"offsetstore.outcome": event.outcome})
        case PauseChanged():
            batch.span.add_event("paused" if event.pause else "resumed")
        case _:
            pass
