"""docs/context.md: its block runs as it stands there, and what the page says of traces and letters is true on Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import offsetstore
from offsetstore import (
    Append,
    Broker,
    DeadLetters,
    Handler,
    LetterKey,
    Outbox,
    Record,
    Relay,
    Retries,
    TopicPartition,
    TransactionalSink,
)
from offsetstore.errors import KafkaColumnsMissing
from offsetstore.kafka.admin import read_committed
from offsetstore.monitoring import Tracing
from offsetstore.monitoring.tracing import LINKS
from offsetstore.protocol.observers import Observers
from offsetstore.testing.fixtures import NewTopic
from tests.support.background import serving
from tests.support.world import SECONDS, World

PAGE = Path(__file__).parents[3] / "docs" / "context.md"
SEEN = "CREATE TABLE seen (id bigint, headers text, trace text)"


def parent(number: int) -> bytes:
    """The header of a record that span ``number`` has produced."""
    return f"00-{number:032x}-{number:016x}-01".encode()


class Service(ThreadingHTTPServer):
    """Answers ``POST /scores`` with the record's value as its score, or with 422 while it is told to."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.asked: list[tuple[str, str | None, str | None, str | None]] = []
        self.refuses: str | None = "0.5"


class _Requests(BaseHTTPRequestHandler):
    server: Any

    def do_POST(self) -> None:
        value = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((value, *map(self.headers.get, ("traceparent", "tenant", "secret"))))
        self.send_response(422 if value == self.server.refuses else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"score": float(value)}).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the method that it replaces
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service, serving(service):
        yield service


@pytest.mark.behaviour("CTX-1", "CTX-4")
def test_named_headers_reach_the_service_with_each_record_and_again_when_its_letter_is_replayed(
    world: World, service: Service
) -> None:
    world.database.execute("CREATE TABLE scores (id bigint, score double precision)")
    topic = world.topic()
    sent = [("traceparent", parent(1)), ("tenant", b"ann"), ("secret", b"s")]
    world.produce_whole(topic, [(None, b"0.5", sent, 1), (None, b"0.25", sent[1:], 1), (None, b"0.75", [], 1)])
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {name: getattr(offsetstore, name) for name in offsetstore.__all__}
    names |= {
        "__name__": "__main__",
        "spark": world.spark,
        "options": world.options(topic),
        "claim": world.claim(topic),
    }
    block = block.replace("scores.example.org", f"127.0.0.1:{service.server_port}")
    exec(compile(block, PAGE.name, "exec"), names)  # noqa: S102 - the page's own words

    query = world.start(names["sink"], names["stream"], checkpoint=names["claim"].checkpoint(world.checkpoints))
    assert query.awaitTermination(SECONDS)

    refused, letter = ("0.5", parent(1).decode(), "ann", None), TopicPartition(topic, 0)
    assert sorted(service.asked) == [("0.25", None, "ann", None), *[refused] * 3, ("0.75", None, None, None)]
    assert world.store.letter(world.group, letter, 0).trace_id == f"{1:032x}"
    service.asked.clear()
    service.refuses = None
    world.store.request_replay(world.group, LetterKey(letter, 0), reason="the service takes it now")
    assert names["sink"].drain(world.spark) == 1
    assert service.asked == [refused]
    assert world.database.rows("SELECT * FROM scores ORDER BY id") == [(0, 0.5), (1, 0.25), (2, 0.75)]


def looks(record: Record) -> dict[str, Any]:
    from opentelemetry.trace import get_current_span  # noqa: PLC0415 - in Spark's Python process

    from offsetstore import current_headers  # noqa: PLC0415

    if record.value == b"bad":
        raise ValueError
    found = get_current_span().get_span_context()
    return {"id": record.offset, "headers": str(len(current_headers())), "trace": f"{found.trace_id:x}"}


@pytest.mark.behaviour("CTX-1", "CTX-2", "CTX-3", "CTX-4")
@pytest.mark.parametrize("way", ["batch", "partition"])
def test_traces_reach_tasks_letters_without_contents_and_the_batchs_links(world: World, way: str) -> None:
    world.database.execute(SEEN)
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
        atomicity=way,
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


class Traced:
    """A handler's function, whose row is the trace that it sees; until there is a file, it fails for ``bad``."""

    def __init__(self, flag: Path) -> None:
        self._flag = flag

    def __call__(self, record: Record) -> dict[str, Any]:
        from offsetstore import current_headers  # noqa: PLC0415 - in Spark's Python process

        if record.value == b"bad" and not self._flag.exists():
            raise ValueError
        return {"key": record.value, "value": dict(current_headers())["traceparent"]}


@pytest.mark.behaviour("CTX-1", "CTX-3")
def test_a_producers_trace_is_seen_in_the_handler_the_letter_and_the_record_that_comes_of_it(
    world: World, offsetstore_topic: NewTopic, tmp_path: Path
) -> None:
    topic, events, anchor = world.topic(), offsetstore_topic(1), offsetstore_topic(1)
    handler = Handler(Traced(tmp_path / "flag"), "key binary, value binary", retries=Retries(attempts=1))
    sent: list[list[tuple[str, bytes | None]]] = [
        [("tenant", b"ann"), ("traceparent", parent(number)), ("traceparent", None), ("traceparent", parent(number))]
        for number in range(3)
    ]
    settings: dict[str, Any] = {"propagate": ["traceparent"], "includeHeaders": "true"}
    world.produce_whole(topic, [(None, b"good", sent[0], 1), (None, b"bad", sent[1], 1)])
    world.run(world.claim(topic), handler, Outbox(events), dead_letters=DeadLetters(), **settings)

    letter = LetterKey(TopicPartition(topic, 0), 1)
    assert world.store.letter(world.group, *letter).trace_id == f"{1:032x}"
    (tmp_path / "flag").touch()
    world.store.request_replay(world.group, letter, reason="it is good now")
    with world.claim(topic) as claim:
        sink = TransactionalSink(
            claim, handler, into=Outbox(events), dead_letters=DeadLetters(), propagate=["traceparent"]
        )
        assert sink.drain(world.spark) == 1
    world.produce_whole(topic, [(None, b"plain", sent[2], 1)])
    rename = "_kafka", "value AS key", "array(struct('tenant' AS key, value)) AS headers", "value"
    claim = world.claim(topic)
    world.run(claim, lambda batch: batch.selectExpr(*rename), Outbox(events), atomicity="partition", **settings)
    Relay(world.store, Broker({"bootstrap.servers": world.kafka.bootstrap_servers}), anchor=anchor).drain()

    found = {one.key(): (one.value(), one.headers()) for one in read_committed(world.kafka.bootstrap_servers, events)}
    assert found == {
        b"good": (parent(0), sent[0][1:]),
        b"bad": (parent(1), sent[1][1:]),
        b"plain": (b"plain", [("tenant", b"plain"), *sent[2][1:]]),
    }


@pytest.mark.behaviour("CTX-1")
def test_a_stream_without_headers_is_refused_before_anything_is_called(world: World) -> None:
    world.database.execute(SEEN)
    topic = world.topic(["a"])
    handler = Handler(looks, "id long, headers string, trace string")
    failed = world.run_to_failure(world.claim(topic), handler, Append("seen"), propagate=("tenant",))
    assert isinstance(failed.error, KafkaColumnsMissing)
    assert 'includeHeaders="true"' in failed.text
    assert world.stored(topic) == {0: 0}
