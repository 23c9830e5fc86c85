"""A job's traces: the spans that its events make. No Spark, no database, and the SDK's exporter in memory."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from threading import Thread
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv import schemas
from opentelemetry.semconv._incubating.attributes import (  # pyright: ignore[reportMissingTypeStubs]
    messaging_attributes as messaging,
)
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from offsetstore import OffsetRange, Pause, Token, TopicPartition
from offsetstore.errors import LockTimeout, MissingDependency, RowsRefused
from offsetstore.monitoring import Tracing, tracing
from offsetstore.protocol.events import (
    BatchEnded,
    BatchStarted,
    ClaimTaken,
    CommitResolved,
    Event,
    FlushEnded,
    HandlerCalled,
    LettersWritten,
    MirrorTried,
    PauseChanged,
    Retried,
)
from offsetstore.protocol.observers import Observers
from tests.support.modules import forgotten

pytestmark = pytest.mark.behaviour("OPS-15")

GROUP = "billing"
CANARY = "canary"
P0, P1 = TopicPartition("payments", 0), TopicPartition("payments", 1)
BATCH: dict[str, Any] = {"group": GROUP, "batch": 3, "ranges": {P0: OffsetRange(0, 5), P1: OffsetRange(2, 4)}}
TAKEN = ClaimTaken(group=GROUP, token=Token(7, uuid4()), owner="host", starting=None)
STARTED = BatchStarted(**BATCH)
SECONDS = {"plan": 0.5, "compute": 20.0, "write": 1.25, "commit": 0.25}
WRITTEN = BatchEnded(outcome="written", **BATCH, rows={"": 8, "sums": 2}, seconds=SECONDS)
FAILED = BatchEnded(outcome="failed", **BATCH, error=RowsRefused(f"refused {CANARY}", found=CANARY, sqlstate="23514"))
MEANWHILE: list[Event] = [
    PauseChanged(group=GROUP, pause=Pause(datetime.now(UTC), None, CANARY)),
    PauseChanged(pause=None, group=GROUP),
    Retried(group=GROUP, attempt=1, error=LockTimeout(CANARY), wait=0.25),
    CommitResolved(group=GROUP, topic_partition=P0, happened=None),
    LettersWritten(group=GROUP, batch=3, ranges={}, letters={"refused": 2, "rejected": 1}),
    LettersWritten(group=GROUP, batch=3, ranges={}, letters={"refused": 1}),
    HandlerCalled(group=GROUP, calls=5, retries=1, timeouts=1, seconds=0.5),
    HandlerCalled(group=GROUP, calls=4, retries=2, timeouts=0, seconds=2.0),
]


class Traced:
    """A `Tracing` and the spans that it has ended."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        provider = provider or TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("application")
        self.observer = Tracing(provider)

    def on(self, *events: Event) -> Traced:
        for event in events:
            self.observer.on(event)
        return self

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        [span] = [span for span in self.spans if span.name == name]
        return span


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def children(traced: Traced, parent: ReadableSpan) -> list[ReadableSpan]:
    found = [span for span in traced.spans if span.parent is not None and span.parent == parent.context]
    return sorted(found, key=lambda span: span.start_time or 0)


def test_a_batch_is_a_span_with_the_names_of_the_messaging_conventions_and_its_phases_are_its_children() -> None:
    traced = Traced().on(TAKEN, STARTED, WRITTEN)
    batch = traced.named("process payments")
    assert (batch.kind, batch.parent, batch.status.status_code) == (SpanKind.CONSUMER, None, StatusCode.UNSET)
    assert batch.attributes == {
        messaging.MESSAGING_SYSTEM: "kafka",
        messaging.MESSAGING_OPERATION_NAME: "process",
        messaging.MESSAGING_OPERATION_TYPE: messaging.MessagingOperationTypeValues.PROCESS.value,
        messaging.MESSAGING_CONSUMER_GROUP_NAME: GROUP,
        messaging.MESSAGING_DESTINATION_NAME: "payments",
        messaging.MESSAGING_BATCH_MESSAGE_COUNT: 7,
        "offsetstore.batch": 3,
        "offsetstore.partitions": 2,
        "offsetstore.claim.epoch": 7,
        "offsetstore.outcome": "written",
        "offsetstore.rows": 10,
    }
    scope = batch.instrumentation_scope
    assert scope is not None
    assert (scope.name, scope.schema_url) == ("offsetstore", tracing.SCHEMA)
    assert tracing.SCHEMA in {schema.value for schema in schemas.Schemas}

    phases = children(traced, batch)
    assert [(span.name.removeprefix("offsetstore."), seconds(span)) for span in phases] == [*SECONDS.items()]
    assert [span.start_time for span in phases[1:]] + [batch.end_time] == [span.end_time for span in phases]
    assert all(span.attributes == {messaging.MESSAGING_CONSUMER_GROUP_NAME: GROUP} for span in phases)


@pytest.mark.parametrize(
    ("end", "rows"),
    [
        (BatchEnded(outcome="skipped", **BATCH), None),
        (BatchEnded(outcome="kept", **BATCH, rows={"": 8}, seconds={"plan": 1.0}), 8),
        (FAILED, None),
        (BatchEnded(outcome="interrupted", **BATCH), None),
    ],
    ids=lambda given: given.outcome if isinstance(given, BatchEnded) else "",
)
def test_its_outcome_is_told(end: BatchEnded, rows: int | None) -> None:
    attributes = attributes_of(Traced().on(STARTED, end).named("process payments"))
    assert (attributes["offsetstore.outcome"], attributes.get("offsetstore.rows")) == (end.outcome, rows)


@pytest.mark.behaviour("OPS-7")
def test_a_failure_is_told_by_its_class_and_no_text_gets_into_a_span() -> None:
    [failed] = Traced().on(TAKEN, STARTED, *MEANWHILE, FAILED).spans
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "RowsRefused")
    assert attributes_of(failed)[ERROR_TYPE] == "RowsRefused"
    assert CANARY not in failed.to_json()
    before_it_begins = BatchEnded(outcome="failed", group=GROUP, batch=0, ranges={}, error=ValueError(CANARY))
    assert Traced().on(STARTED, WRITTEN, before_it_begins).named("process").status.description == "ValueError"


def test_what_happens_meanwhile_is_noted_on_the_batch() -> None:
    batch = Traced().on(STARTED, *MEANWHILE, WRITTEN).named("process payments")
    assert [(event.name, dict(event.attributes or {})) for event in batch.events] == [
        ("paused", {}),
        ("resumed", {}),
        ("retried", {ERROR_TYPE: "LockTimeout", "offsetstore.attempt": 1, "offsetstore.wait": 0.25}),
        ("commit resolved", {"offsetstore.outcome": "unknown"}),
    ]
    attributes = attributes_of(batch)
    assert attributes["offsetstore.dead_letters"] == 4
    calls = {name: attributes[f"offsetstore.handler.{name}"] for name in ("calls", "retries", "timeouts", "seconds")}
    assert calls == {"calls": 9, "retries": 3, "timeouts": 1, "seconds": 2.5}


def test_a_batch_of_several_topics_is_named_after_none() -> None:
    ranges = {P0: OffsetRange(0, 1), TopicPartition("refunds", 0): OffsetRange(0, 1)}
    event = BatchStarted(group=GROUP, batch=0, ranges=ranges)
    [batch] = Traced().on(event, BatchEnded(outcome="skipped", group=GROUP, batch=0, ranges=ranges)).spans
    assert batch.name == "process"
    assert messaging.MESSAGING_DESTINATION_NAME not in attributes_of(batch)


def test_the_applications_spans_of_a_batch_are_its_children_and_later_ones_are_not() -> None:
    traced = Traced().on(STARTED)
    with traced.tracer.start_as_current_span("own"):
        pass
    traced.on(WRITTEN)
    with traced.tracer.start_as_current_span("later"):
        pass
    batch = traced.named("process payments")
    assert traced.named("own") in children(traced, batch)
    assert traced.named("later").parent is None
    assert not get_current_span().is_recording()


def test_batches_in_two_threads_of_one_group_are_kept_apart() -> None:
    traced = Traced().on(TAKEN, STARTED)
    other: dict[str, Any] = {**BATCH, "batch": 0}
    events = (BatchStarted(**other), MEANWHILE[2], BatchEnded(outcome="skipped", **other))
    thread = Thread(target=traced.on, args=events)  # the new claim's job
    thread.start()
    thread.join()
    traced.on(WRITTEN)
    told = [(attributes_of(span), len(span.events)) for span in traced.spans if span.parent is None]
    found = {(one["offsetstore.batch"], one["offsetstore.outcome"], events) for one, events in told}
    assert found == {(0, "skipped", 1), (3, "written", 0)}


def produced(number: int) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a record that span ``number`` has produced."""
    return (("traceparent", f"00-{number:032x}-{number:016x}-01".encode()),)


@pytest.mark.behaviour("CTX-2", "CTX-3")
def test_a_batch_links_once_to_each_span_that_has_produced_its_records_and_asks_for_128() -> None:
    asked: list[int] = []
    none = [(), (("traceparent", None),), (("traceparent", b"\xff"),), produced(0)]

    def headers(limit: int) -> list[tuple[tuple[str, bytes | None], ...]]:
        asked.append(limit)
        return [*map(produced, (1, 2, 1)), *none, produced(3)]

    batch = Traced().on(BatchStarted(**BATCH, headers=headers), WRITTEN).named("process payments")
    assert asked == [tracing.LINKS] == [128]
    assert [link.context.span_id for link in batch.links] == [1, 2, 3]
    assert (batch.parent, batch.dropped_links) == (None, 0)
    unrecorded = Traced(TracerProvider(sampler=ALWAYS_OFF)).on(BatchStarted(**BATCH, headers=headers), WRITTEN)
    assert (unrecorded.spans, asked) == ((), [128]), "no one records it, so no headers are read"


@pytest.mark.behaviour("CTX-2")
def test_a_batch_whose_headers_cant_be_read_is_a_span_without_links() -> None:
    def headers(limit: int) -> Any:
        raise OSError(limit)

    traced = Traced()
    observers = Observers([traced.observer])
    for event in (BatchStarted(**BATCH, headers=headers), WRITTEN):
        observers.on(event)
    batch = traced.named("process payments")
    assert (batch.links, attributes_of(batch)["offsetstore.outcome"]) == ((), "written")


FLUSHED = FlushEnded(group=GROUP, batches=(1, 3), ranges=BATCH["ranges"], rows={"": 9}, seconds={"write": 2.0})


def test_a_flush_is_a_span_and_a_kept_batchs_phases_end_where_its_flush_begins() -> None:
    traced = Traced().on(STARTED, FLUSHED, BatchEnded(outcome="kept", **BATCH, rows={"": 8}, seconds={"compute": 4.0}))
    batch, flush, compute = map(traced.named, ("process payments", "offsetstore.flush", "offsetstore.compute"))
    assert children(traced, batch) == [compute, flush]
    assert compute.end_time == flush.start_time
    assert seconds(flush) == seconds(traced.named("offsetstore.write")) == 2.0
    assert attributes_of(flush)["offsetstore.batches"] == (1, 3)
    assert attributes_of(flush)[messaging.MESSAGING_BATCH_MESSAGE_COUNT] == 7

    traced = Traced().on(TAKEN, *MEANWHILE, MirrorTried(group=GROUP, offsets={}), FLUSHED)
    assert {span.name for span in traced.spans} == {"offsetstore.flush", "offsetstore.write"}
    assert traced.named("offsetstore.flush").parent is None


def test_without_the_sdk_nothing_is_recorded_and_nothing_fails() -> None:
    observer = Tracing()  # the global provider, which no test sets
    for event in (TAKEN, STARTED, *MEANWHILE, FLUSHED, WRITTEN, STARTED, FAILED):
        observer.on(event)
    assert not get_current_span().get_span_context().is_valid


def test_without_opentelemetry_it_says_which_extra_brings_it() -> None:
    with (
        forgotten("offsetstore.monitoring.tracing", lacking="opentelemetry.context"),
        pytest.raises(MissingDependency, match=r"offsetstore\[opentelemetry\]"),
    ):
        from offsetstore.monitoring import Tracing  # noqa: F401, PLC0415 # pyright: ignore[reportUnusedImport]
