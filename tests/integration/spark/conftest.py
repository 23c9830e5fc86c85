"""The world of each test of the sink, the pages that tests run, and a service that handlers call."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import offsetstore
from offsetstore import OffsetStore, TransactionalSink
from offsetstore.local.kafka import KafkaBroker
from offsetstore.processing import blame
from offsetstore.store import mirror
from tests.support.background import serving
from tests.support.postgres import Database
from tests.support.world import SECONDS, World

_DOCS = Path(__file__).parents[3] / "docs"


def page_text(page: str) -> str:
    return (_DOCS / page).read_text(encoding="utf-8")


def blocks(page: str, language: str = "python") -> list[str]:
    """The blocks of a page of the documentation that are in this language."""
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", page_text(page), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def execute_block(page: str, number: int, replaced: Mapping[str, str] | None = None, **names: Any) -> dict[str, Any]:
    """Execute a block of Python as in a job's own file, with some of its words replaced; return its names."""
    block = blocks(page)[number]
    for old, new in (replaced or {}).items():
        block = block.replace(old, new)
    public = {name: getattr(offsetstore, name) for name in offsetstore.__all__}
    names = {**public, "__name__": "__main__", **names}
    exec(compile(block, page, "exec"), names)  # noqa: S102 - the page's own words
    return names


def run_sink(world: World, sink: TransactionalSink, **options: str) -> StreamingQuery:
    """Let a sink write all that Kafka has."""
    checkpoint = sink.claim.checkpoint(world.checkpoints)
    query = world.start(sink, world.read(sink.claim, **options), checkpoint=checkpoint)
    assert query.awaitTermination(SECONDS)
    return query


@pytest.fixture(autouse=True)
def however_busy_all_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that is closed has copied its offsets to Kafka, and searches come to their end."""
    monkeypatch.setattr(mirror, "LAST_COMMIT", 60.0)
    monkeypatch.setattr(blame, "SECONDS", 600.0)


@pytest.fixture
def world_of(
    offsetstore_spark: SparkSession, offsetstore_database: str, offsetstore_group: str, tmp_path: Path
) -> Iterator[Callable[[KafkaBroker], World]]:
    """Make the world of a test on a Kafka."""
    with ExitStack() as made:

        def make(kafka: KafkaBroker) -> World:
            database, store = Database(offsetstore_database), OffsetStore.connect(offsetstore_database)
            checkpoints = str(tmp_path / "checkpoints")
            world = World(offsetstore_spark, kafka, database, store, offsetstore_group, checkpoints)
            made.callback(world.close)
            return world

        yield make


@pytest.fixture
def world(world_of: Callable[[KafkaBroker], World], offsetstore_kafka: KafkaBroker) -> World:
    return world_of(offsetstore_kafka)


@pytest.fixture
def nothing_persisted(offsetstore_spark: SparkSession) -> None:
    """Have Spark keep nothing of earlier tests.

    If a query is stopped in mid batch, Spark may interrupt its thread while that lets go of what it has persisted.
    """
    context: Any = offsetstore_spark.sparkContext
    for rdd in context._jsc.getPersistentRDDs().values():
        rdd.unpersist(True)  # noqa: FBT003 - Java


class Service(ThreadingHTTPServer):
    """Answers ``POST /scores`` with the record's value as its score, or with the status that the value has."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.address = f"127.0.0.1:{self.server_port}"
        self.statuses = {"bad": 422, "down": 503}
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    @property
    def keys(self) -> Counter[str]:
        """How often it was asked for each record."""
        return Counter(headers["Idempotency-Key"] for _, headers in self.asked)


class _Requests(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def do_POST(self) -> None:
        value = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((value, self.headers))
        status = self.server.statuses.get(value, 200)
        body = json.dumps({"score": float(value)} if status == 200 else {}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the method that it replaces
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service, serving(service):
        yield service
