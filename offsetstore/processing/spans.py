"""Traces of single records, with OpenTelemetry's API: a record's trace, and the span of a handler's call.

This needs the extra ``opentelemetry``. The application's own propagators read the headers: W3C's ``traceparent``,
``tracestate`` and ``baggage``, unless the application has set others.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Final

from opentelemetry.context import Context, attach, detach
from opentelemetry.propagate import extract
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, get_current_span, get_tracer

from offsetstore.processing.handling import Record
from offsetstore.protocol.letters import Headers

SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the semantic conventions that define the attributes' names."""

_tracer = get_tracer("offsetstore", schema_url=SCHEMA)


def traces_of(records: Iterable[Headers]) -> list[SpanContext]:
    """The spans that produced the records, each once. A record without a trace, or with a malformed one, has none.

    :param records: the headers of each record.
    """
    spans = [get_current_span(_context_of(headers)).get_span_context() for headers in records]
    return [*{(span.trace_id, span.span_id): span for span in spans if span.is_valid}.values()]


@contextmanager
def span_of_call(record: Record, headers: Headers) -> Generator[None]:
    """Make a handler's call in its record's trace, with a span if the record has a trace.

    The block's context holds what the headers say, and nothing of the thread's context.

    :param headers: the record's headers that are propagated.
    """
    token = attach(_context_of(headers))
    try:
        # Without a trace, a span would begin one for each record, which nobody has asked for (decision 0097).
        if get_current_span().get_span_context().is_valid:
            with _span(record):
                yield
        else:
            yield
    finally:
        detach(token)


def _context_of(headers: Headers) -> Context:
    carrier = {name: value.decode(errors="replace") for name, value in headers if value is not None}
    return extract(carrier, Context())


@contextmanager
def _span(record: Record) -> Generator[None]:
    attributes = {
        "messaging.system": "kafka",
        "messaging.operation.name": "handle",
        "messaging.operation.type": "process",
        "messaging.destination.name": record.topic,
        "messaging.destination.partition.id": str(record.partition),
        "messaging.kafka.offset": record.offset,
    }
    with _tracer.start_as_current_span(
        f"handle {record.topic}",
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        record_exception=False,  # its text may quote the record
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except BaseException as error:
            name = type(error).__name__
            span.set_attribute("error.type", name)
            span.set_status(StatusCode.ERROR, name)
            raise
