"""docs/context.md: its block runs as it stands there, and what the page says of traces and letters is true on Spark."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from offsetstore import Append, Broker, DeadLetters, Handler, LetterKey, Outbox, Record, Relay, TopicPartition
from offsetstore.kafka.admin import read_committed
from offsetstore.monitoring import Tracing
from offsetstore.monitoring.tracing import LINKS
from offsetstore.protocol.observers import Observers
from offsetstore.testing.fixtures import NewTopic
from tests.integration.spark.conftest import Service, execute_block
from tests.support.world import SECONDS, World


def parent(number: int) -> bytes:
    """The header of a record that span ``number`` has produced."""
    return f"00-{number:032x}-{number:016x}-01".encode()


def asked(service: Service) -> list[tuple[str | None, ...]]:
    """The values and headers that came."""
    return [(value, *map(headers.get, ("traceparent", "tenant", "secret"))) for value, headers in service.asked]


@pytest.mark.behaviour("CTX-1", "CTX-4")
def test_named_headers_reach_the_service_with_each_record_and_again_when_its_letter_is_replayed(
    world: World, service: Service
) -> None:
    service.statuses["0.5"] = 422
    world.database.execute("CREATE TABLE scores (id bigint, score double precision)")
    topic = world.topic()
    sent = [("traceparent", parent(1)), ("tenant", b"ann"), ("secret", b"s")]
    world.produce_whole(topic, [(None, b"0.5", sent, 1), (None, b"0.25", sent[1:], 1), (None, b"0.75", [], 1)])
    given = {"spark": world.spark, "options": world.options(topic), "claim": world.claim(topic)}
    names = execute_block("context.md", 0, {"scores.example.org": service.address}, **given)

    query = world.start(names["sink"], names["stream"], checkpoint=names["claim"].checkpoint(world.checkpoints))
    assert query.awaitTermination(SECONDS)

    refused, letter = ("0.5", parent(1).decode(), "ann", None), TopicPartition(topic, 0)
    assert sorted(asked(service)) == [("0.25", None, "ann", None), *[refused] * 3, ("0.75", None, None, None)]
    assert world.store.letter(world.group, letter, 0).trace_id == f"{1:032x}"
    service.asked.clear()
    service.statuses.clear()
    world.store.request_replay(world.group, LetterKey(letter, 0), reason="the service takes it now")
    assert names["sink"].drain(world.spark) == 1
    assert asked(service) == [refused]
    assert world.database.rows("SELECT * FROM scores ORDER BY id") == [(0, 0.5), (1, 0.25), (2, 0.75)]


def looks(record: Record) -> dict[str, Any]:
    from opentelemetry.trace import get_current_span  # noqa: PLC0415 - in Spark's Python process

    from offsetstore import current_headers  # noqa: PLC0415

    if record.value == b"bad":
        raise ValueError
    found = get_current_span().get_span_context()
    return {"id": record.offset, "headers": str(len(current_headers())), "trace": f"{found.trace_id:x}"}


@pytest.mark.behaviour("CTX-1", "CTX-2", "CTX-3", "CTX-4")
def test_traces_reach_tasks_letters_without_contents_and_the_batchs_links(world: World) -> None:
    world.database.execute("CREATE TABLE seen (id bigint, headers text, trace text)")
    topic = world.topic()
    malformed = [("traceparent", b"\xff"), ("traceparent", None), ("tenant", b"ann")]
    records: list[Any] = [(None, b"", [("traceparent", parent(n + 1))], 1) for n in range(LINKS + 2)]
    records[1:3] = [(None, b"", malformed, 1), (None, b"bad", [("traceparent", parent(3))], 1)]
    world.produce_whole(topic, records)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    claim = world.claim(topic)
    claim.observers = Observers([Tracing(provider)])

    world.run(
        claim,
        Handler(looks, "id long, headers string, trace string"),
        Append("seen"),
        atomicity="partition",
        dead_letters=DeadLetters(keep="coordinates"),
        propagate=("traceparent",),
        includeHeaders="true",
    )

    expected = [(n, "2" if n == 1 else "1", "0" if n == 1 else f"{n + 1:x}") for n in range(LINKS + 2) if n != 2]
    assert world.database.rows("SELECT * FROM seen ORDER BY id") == expected
    letter = world.store.letter(world.group, TopicPartition(topic, 0), 2)
    assert (letter.payload, letter.trace_id) == (None, f"{3:032x}")
    [batch] = [span for span in exporter.get_finished_spans() if span.name == f"process {topic}"]
    assert [link.context.span_id for link in batch.links] == [n + 1 for n in range(LINKS) if n != 1]


@pytest.mark.behaviour("CTX-1", "CTX-3")
def test_a_producers_trace_is_in_the_record_that_comes_of_its_record(world: World, offsetstore_topic: NewTopic) -> None:
    topic, events, anchor = world.topic(), offsetstore_topic(1), offsetstore_topic(1)
    traces: list[tuple[str, bytes | None]] = [("traceparent", value) for value in (parent(1), None, parent(1))]
    world.produce_whole(topic, [(None, b"plain", [("tenant", b"ann"), *traces], 1)])
    rename = "_kafka", "value AS key", "array(struct('tenant' AS key, value)) AS headers", "value"
    settings: dict[str, Any] = {"propagate": ["traceparent"], "includeHeaders": "true", "atomicity": "partition"}
    world.run(world.claim(topic), lambda batch: batch.selectExpr(*rename), Outbox(events), **settings)
    Relay(world.store, Broker({"bootstrap.servers": world.kafka.bootstrap_servers}), anchor=anchor).drain()

    [found] = read_committed(world.kafka.bootstrap_servers, events)
    assert (found.key(), found.headers()) == (b"plain", [("tenant", b"plain"), *traces])
