"""What follows a record into the calls of a handler: its named headers, and its trace."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage
from opentelemetry.propagate import inject
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import (  # pyright: ignore[reportMissingTypeStubs]
    messaging_attributes as messaging,
)
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from offsetstore import Handler, Record, Retries, current_headers
from offsetstore.processing import spans
from offsetstore.processing.handling import CallOutcome, Handling
from offsetstore.protocol.letters import Headers
from tests.support.modules import forgotten
from tests.unit.processing.calling import both_ways, called, handled

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01".encode()
TRACED = ("traceparent", PARENT)
CANARY = "canary"
MALFORMED = [
    b"",
    b"\xff\0",
    b"00",
    PARENT[:-1],
    PARENT.upper(),
    b"ff" + PARENT[2:],
    PARENT + b"-more",
    b"00-" + b"0" * 32 + PARENT[35:],
    PARENT.replace(SPAN.encode(), b"0" * 16),
    None,
]


def record(offset: int, *headers: tuple[str, bytes | None]) -> Record:
    return Record("payments", 3, offset, None, b"value", headers)


def called_with(
    fn: Callable[[Record], Any], records: Sequence[Record], *propagate: str, is_async: bool = False
) -> list[CallOutcome]:
    """Have a function called for records, with these of their headers."""
    handler = Handler(called(fn, is_async=is_async), None, concurrency=3, retries=Retries(attempts=1))
    return handled(handler, records, propagate=propagate)


def sees(record: Record) -> dict[str, Headers]:
    return {"seen": current_headers()}


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Sequence[ReadableSpan]]]:
    """The spans that have ended."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(spans, "_tracer", provider.get_tracer("offsetstore"))
    yield exporter.get_finished_spans
    provider.shutdown()


@pytest.mark.behaviour("CTX-1", "CTX-4")
@both_ways
def test_each_call_sees_the_named_headers_of_its_own_record_and_no_others(*, is_async: bool) -> None:
    """Threads and the loop are used again, also by a second handler; records without headers come between."""
    seen: dict[int, Headers] = {}

    def looks(record: Record) -> None:
        seen[record.offset] = current_headers()

    records = [record(n, ("tenant", b"%d" % n), ("secret", b"s")) if n % 3 else record(n) for n in range(60)]
    for names in (("tenant",), ("secret", "tenant"), ()):
        seen.clear()
        assert all(one.error is None for one in called_with(looks, records, *names, is_async=is_async))
        assert seen == {
            one.offset: tuple((name, value) for name, value in one.headers if name in names) for one in records
        }
        assert current_headers() == ()


@pytest.mark.behaviour("CTX-1", "CTX-4")
def test_what_an_async_function_awaits_and_has_done_in_threads_sees_its_headers_too() -> None:
    async def looks(record: Record) -> list[dict[str, Any]]:
        async def inner() -> Headers:
            await asyncio.sleep(0.001)
            return current_headers()

        seen = await asyncio.gather(inner(), inner(), asyncio.to_thread(current_headers))
        return [{"seen": one} for one in seen]

    records = [record(n, ("tenant", b"%d" % n)) for n in range(20)]
    found = handled(Handler(looks, None, concurrency=5), records, propagate={"tenant"})
    assert all(one.rows == [{"seen": one.record.headers}] * 3 for one in found)


@pytest.mark.behaviour("CTX-2")
@both_ways
def test_a_call_is_a_span_in_its_records_trace(
    exported: Callable[[], Sequence[ReadableSpan]], *, is_async: bool
) -> None:
    def calls(record: Record) -> dict[str, str]:
        sent: dict[str, str] = {}
        inject(sent)
        return sent

    found = called_with(calls, [record(7, TRACED, ("tracestate", b"vendor=1"))], "traceparent", is_async=is_async)
    [span] = exported()
    assert (span.name, span.kind, span.status.status_code) == ("handle payments", SpanKind.CONSUMER, StatusCode.UNSET)
    assert span.parent is not None
    assert span.context is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert found[0].rows == ({"traceparent": f"00-{TRACE}-{span.context.span_id:016x}-01"},)  # tracestate is not named
    assert span.attributes == {
        messaging.MESSAGING_SYSTEM: "kafka",
        messaging.MESSAGING_OPERATION_NAME: "handle",
        messaging.MESSAGING_OPERATION_TYPE: messaging.MessagingOperationTypeValues.PROCESS.value,
        messaging.MESSAGING_DESTINATION_NAME: "payments",
        messaging.MESSAGING_DESTINATION_PARTITION_ID: "3",
        messaging.MESSAGING_KAFKA_OFFSET: 7,
    }


@pytest.mark.behaviour("CTX-2", "OPS-7")
@both_ways
def test_a_call_that_fails_has_the_errors_class_in_its_span_and_not_its_text(
    exported: Callable[[], Sequence[ReadableSpan]], *, is_async: bool
) -> None:
    def fails(record: Record) -> None:
        raise ValueError(CANARY)

    found = called_with(fails, [record(0, TRACED)], "traceparent", is_async=is_async)
    assert found[0].error is not None
    [span] = exported()
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError")
    assert (span.attributes or {})[ERROR_TYPE] == "ValueError"
    assert CANARY not in span.to_json()


@pytest.mark.behaviour("CTX-1", "CTX-2", "CTX-4")
@both_ways
def test_traces_are_the_records_own_and_only_if_they_are_named(
    exported: Callable[[], Sequence[ReadableSpan]], *, is_async: bool
) -> None:
    """The thread that feeds has a span of its own; calls of records without a trace are not in it."""

    def looks(record: Record) -> dict[str, Any]:
        found = get_current_span().get_span_context()
        return {"trace": found.trace_id if found.is_valid else None, "baggage": dict(baggage.get_all())}

    traces = {n: f"{n + 1:032x}" for n in range(0, 30, 2)}
    parents = {n: ("traceparent", PARENT.replace(TRACE.encode(), trace.encode())) for n, trace in traces.items()}
    records = [record(n, *[parents[n]] if n in parents else (), ("baggage", b"n=%d" % n)) for n in range(30)]
    with spans._tracer.start_as_current_span("ambient"):
        found = called_with(looks, records, "traceparent", is_async=is_async)
        assert [one.rows for one in found] == [
            ({"trace": n + 1 if n in traces else None, "baggage": {}},) for n in range(30)
        ]
        found = called_with(looks, records, "baggage", is_async=is_async)
        assert [one.rows for one in found] == [({"trace": None, "baggage": {"n": str(n)}},) for n in range(30)]
    assert len(exported()) == len(traces) + 1


@pytest.mark.behaviour("CTX-3")
@both_ways
def test_a_record_with_a_malformed_trace_is_handled_like_one_without(
    exported: Callable[[], Sequence[ReadableSpan]], *, is_async: bool
) -> None:
    records = [record(n, ("traceparent", value)) for n, value in enumerate(MALFORMED)]
    found = called_with(sees, records, "traceparent", is_async=is_async)
    assert [one.rows for one in found] == [({"seen": one.headers},) for one in records]
    assert exported() == ()


NAMES = st.sampled_from(["traceparent", "tracestate", "baggage", "tenant"])
VALUES = st.none() | st.binary() | st.sampled_from([PARENT, b"a=1,b=2", b"a=%", b"=,;", b"a=1;p=%ff", *MALFORMED])


@pytest.mark.behaviour("CTX-3")
@given(headers=st.lists(st.tuples(NAMES, VALUES)))
def test_no_header_harms_a_call(headers: list[tuple[str, bytes | None]]) -> None:
    handling = Handling(Handler(sees, None), propagate=("traceparent", "tracestate", "baggage", "tenant"))
    with handling.context_of(record(0, *headers)):
        assert current_headers() == tuple(headers)
    assert len(spans.traces_of([tuple(headers)])) <= 1
    assert current_headers() == ()


@pytest.mark.behaviour("CTX-1", "CTX-2")
def test_without_opentelemetry_headers_are_passed_on_as_they_are() -> None:
    with forgotten(spans.__name__, lacking="opentelemetry"):
        found = called_with(sees, [record(0, TRACED, ("secret", b"s"))], "traceparent")
        assert spans.__name__ not in sys.modules
    assert found[0].rows == ({"seen": (TRACED,)},)
