"""What observers cost: ``python -m benchmarks.observers``.

First the events of one batch, without Spark. Then jobs in pairs, with the metrics and the traces and without: all
records in one batch, and a steady stream of small ones. There, the time that a batch's thread spends in the observers
is measured too: it is much less than the spread of the jobs. The spans go to an exporter that drops them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final
from uuid import uuid4

import psycopg
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.jobs import Jobs
from benchmarks.run import SETTLING
from benchmarks.shapes import PARTITIONS, SHAPES, Shape
from offsetstore import OffsetRange, OffsetStore, Token, TopicPartition
from offsetstore.kafka.admin import create_topic, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.local.spark import local_session, stop_session
from offsetstore.monitoring import Metrics, Tracing
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.protocol.events import BatchEnded, BatchStarted, ClaimTaken, Event
from offsetstore.protocol.observers import Observer, Observers

ROUNDS: Final = 2_000
"""Batches whose events are timed."""


class _Dropping(SpanExporter):
    """Exports nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002 - the interface's
        """Drop them."""
        return SpanExportResult.SUCCESS


def observers() -> dict[str, list[Observer]]:
    """What is measured, by name."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_Dropping()))
    return {
        "log lines only": [],
        "Metrics": [Metrics()],
        "Tracing, without an SDK": [Tracing()],
        "Tracing": [Tracing(provider)],
        "Metrics and Tracing": [Metrics(), Tracing(provider)],
    }


class _Timed:
    """Adds up the time that other observers take for each batch.

    :ivar seconds: of each batch that was written.
    """

    def __init__(self, others: list[Observer]) -> None:
        self._others = others
        self._spent = 0.0
        self.seconds: list[float] = []

    def on(self, event: Event) -> None:
        """Pass it on."""
        if isinstance(event, BatchStarted):
            self._spent = 0.0  # what the claim took
        began = time.perf_counter()
        for other in self._others:
            other.on(event)
        self._spent += time.perf_counter() - began
        if isinstance(event, BatchEnded):
            self.seconds.append(self._spent)


def events(partitions: int) -> None:
    """Time the events of a written batch."""
    ranges = {TopicPartition("payments", number): OffsetRange(0, 100) for number in range(partitions)}
    batch: dict[str, Any] = {"group": "billing", "batch": 1, "ranges": ranges}
    seconds = {"plan": 0.001, "compute": 0.02, "write": 0.005, "commit": 0.002}
    for name, chosen in observers().items():
        told = Observers(chosen)
        told.on(ClaimTaken(group="billing", token=Token(1, uuid4()), owner="", starting=None))
        spent: list[float] = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            told.on(BatchStarted(**batch))
            told.on(BatchEnded(**batch, outcome="written", rows={"": 100 * partitions}, seconds=seconds))
            spent.append((time.perf_counter() - began) * 1e6)
        print(f"{partitions} partitions, {name}: {median(spent):.0f} µs a batch", flush=True)


class Pairs:
    """Runs a job with observers, and without, on one stack."""

    def __init__(self, url: str, servers: str, jobs: Jobs, timed: _Timed) -> None:
        self._timed = timed
        self._connection = psycopg.connect(url, autocommit=True)
        self._servers = servers
        self._jobs = jobs

    def run(self, shape: Shape, rounds: int) -> None:
        """Measure one shape: seconds of the batch, or of the median trigger but the first ones."""
        self._connection.execute(shape.ddl.encode())
        create_topic(self._servers, shape.name, partitions=PARTITIONS)
        produce(self._servers, shape.name, shape.records(), settings={"linger.ms": 50})
        ratios: list[float] = []
        spent: list[float] = []
        parts: list[float] = []
        for number in range(rounds + 1):
            seconds: dict[str, float] = {}
            for which in ("with", "without") if number % 2 else ("without", "with"):
                self._connection.execute(f"TRUNCATE {shape.table}".encode())
                self._connection.execute(b"CHECKPOINT")
                self._jobs.collect_garbage()
                triggers = self._jobs.run(shape, "batch", which)
                seconds[which] = median(triggers[SETTLING:]) if shape.per_trigger else triggers[0]
                query = f"SELECT count(*) FROM {shape.table}"  # noqa: S608 - our own names
                found = self._connection.execute(query.encode()).fetchone()
                assert found == (shape.count,), found
            if number:
                ratios.append(seconds["with"] / seconds["without"])
                spent.append(median(self._timed.seconds))
                parts.append(spent[-1] / seconds["with"])
            self._timed.seconds.clear()
            print(
                f"{shape.name} {number or 'warm-up'}: with {seconds['with']:.3f} s, without {seconds['without']:.3f} s",
                flush=True,
            )
        print(
            f"{shape.name}: with / without: median {median(ratios):.3f} of {rounds} pairs, "
            f"{min(ratios):.3f} to {max(ratios):.3f}; "
            f"in observers: median {median(spent) * 1e6:.0f} µs a batch, {median(parts):.3%} of it",
            flush=True,
        )


def main() -> None:
    """Time the events, then start the services and run the pairs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="pairs that count, after one to warm up")
    parser.add_argument("--only", default="events,small,steady-500", help="events, or shapes")
    given = parser.parse_args()
    chosen = given.only.split(",")
    if "events" in chosen:
        events(20)
        events(1_000)
    shapes = [SHAPES[name] for name in chosen if name != "events"]
    if not shapes:
        return
    with ExitStack() as stack:
        kafka, postgres = stack.enter_context(KafkaBroker()), stack.enter_context(PostgresServer())
        engine = make_engine(postgres.url)
        with engine.begin() as connection:
            upgrade(connection)
        engine.dispose()
        timed = _Timed(observers()["Metrics and Tracing"])
        observed = OffsetStore.connect(postgres.url, observers=[timed])
        stores = {"defaults": OffsetStore.connect(postgres.url), "with": observed}
        for store in stores.values():
            stack.enter_context(store)
        directory = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        spark = local_session("benchmark")
        stack.callback(stop_session, spark)
        jobs = Jobs(spark, kafka.bootstrap_servers, stores, Path(directory))
        for shape in shapes:
            Pairs(postgres.url, kafka.bootstrap_servers, jobs, timed).run(shape, given.rounds)


if __name__ == "__main__":
    main()
