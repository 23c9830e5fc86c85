"""Traces of single records, with OpenTelemetry's API: which one a record belongs to, and a span for a handler's call.

It needs the extra ``opentelemetry``. Headers are read by the application's own propagators: W3C's ``traceparent``,
``tracestate`` and ``baggage``, unless it has set others.
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
"""The version of the semantic conventions that have the names of attributes."""

_tracer = get_tracer("offsetstore", schema_url=SCHEMA)


def traces_of(records: Iterable[Headers]) -> list[SpanContext]:
    """The spans that have produced the records, each once. A record without a trace, or with a malformed one, has none.

    :param records: the headers of each.
    """
    found = [get_current_span(_context_of(headers)).get_span_context() for headers in records]
    return [*{(one.trace_id, one.span_id): one for one in found if one.is_valid}.values()]


@contextmanager
def span_of_call(record: Record, headers: Headers) -> Generator[None]:
    """A handler's call in its record's trace: with a span, if the record has a trace.

    The context of the block has what the headers say, and nothing of the thread's.

    :param headers: those of the record that are propagated.
    """
    token = attach(_context_of(headers))
    try:
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
