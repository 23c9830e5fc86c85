"""One micro-batch of 300,000 and one of 3,000,000 records of 70 bytes: what each way of writing it takes in memory.

Run it with ``.venv/bin/python benchmarks/large_batch.py [way …]``. The ways are ``collected`` (staging="never"),
``staged`` (staging="always") and ``partition`` (atomicity="partition"); each batch is a process with its own Spark.
Meanwhile are looked at, ten times a second, the resident memory of the Python driver and of each Python worker; once a
second the JVM is asked for a garbage collection, and for what is left on its heap: the most of it under way, which
records on their way are a part of, and what is left after the batch. What counts are the ratios of the two sizes: 1.00
is memory that does not grow with the batch. Seconds are Spark's own, garbage collections included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from typing import Any, Final

import psutil
from sqlalchemy import text

from offsetstore import Append, Broker, OffsetStore, TransactionalSink
from offsetstore.kafka.admin import Record, create_topic, produce
from offsetstore.local.kafka.server import KafkaBroker
from offsetstore.local.postgres.server import PostgresServer
from offsetstore.local.spark.launch import local_session, stop_session
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine

SIZES: Final = (300_000, 3_000_000)
PARTITIONS: Final = 5
WAYS: Final[dict[str, dict[str, Any]]] = {
    "collected": {"staging": "never"},
    "staged": {"staging": "always"},
    "partition": {"atomicity": "partition"},
}
MEGABYTE: Final = 2**20


@dataclass
class Peaks:
    """In megabytes; ``worker``: the largest of the Python workers; ``heap`` and ``left``: what the JVM holds on to."""

    driver: float = 0
    worker: float = 0
    heap: float = 0
    left: float = 0
    seconds: float = 0


class Watching:
    """Looks at the memory of this process and of those below it, until the end of the block."""

    def __init__(self, jvm: Any) -> None:
        self.peaks = Peaks()
        self._jvm = jvm
        self._over = threading.Event()
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._resident, self._heap)]

    def __enter__(self) -> Peaks:
        for thread in self._threads:
            thread.start()
        return self.peaks

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self.peaks.left = self._live()

    def _resident(self) -> None:
        me = psutil.Process()
        while not self._over.wait(0.1):
            self.peaks.driver = max(self.peaks.driver, me.memory_info().rss / MEGABYTE)
            for child in me.children(recursive=True):
                try:
                    if "python" in child.name():
                        self.peaks.worker = max(self.peaks.worker, child.memory_info().rss / MEGABYTE)
                except psutil.NoSuchProcess:
                    continue

    def _heap(self) -> None:
        while not self._over.wait(1):
            self.peaks.heap = max(self.peaks.heap, self._live())

    def _live(self) -> float:
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        runtime.gc()
        return (runtime.totalMemory() - runtime.freeMemory()) / MEGABYTE


def one(way: str, size: int, url: str, servers: str) -> None:
    """Write one batch, and print its peaks."""
    spark: Any = local_session("benchmark")
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic_of(size)}
    with OffsetStore.connect(url) as store, tempfile.TemporaryDirectory() as directory:
        claim = store.claim(f"{way}-{size}", Broker.from_spark(options))
        sink = TransactionalSink(
            claim,
            lambda batch: batch.selectExpr("_kafka", "partition", "offset", "CAST(value AS STRING) AS value"),
            into=Append("records"),
            **WAYS[way],
        )
        stream = spark.readStream.format("kafka").options(**options).option("startingOffsets", claim.starting_offsets)
        writer = stream.load().writeStream.foreachBatch(sink).option("checkpointLocation", claim.checkpoint(directory))
        with Watching(spark._jvm) as peaks:  # noqa: SLF001 - py4j's gateway
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
        [progress] = query.recentProgress
        peaks.seconds = progress["durationMs"]["triggerExecution"] / 1000
    stop_session(spark)
    print(json.dumps(asdict(peaks)))


def topic_of(size: int) -> str:
    """The topic with so many records."""
    return f"records-{size}"


def run(way: str, size: int, postgres: PostgresServer, servers: str) -> Peaks:
    """Write one batch in a process of its own, and see that it was all of it."""
    engine = make_engine(postgres.url)
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE records"))
    arguments = ["--one", way, str(size), postgres.url, servers]
    done = subprocess.run([sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this file
    with engine.begin() as connection:
        found = connection.execute(text('SELECT count(*), count(DISTINCT (partition, "offset")) FROM records')).one()
    engine.dispose()
    assert tuple(found) == (size, size), f"expected {size} records, found {found}"
    return Peaks(**json.loads(done.stdout.splitlines()[-1]))


def main(ways: list[str]) -> None:
    """Start the services, measure each way, print."""
    with KafkaBroker() as kafka, PostgresServer() as postgres:
        engine = make_engine(postgres.url)
        with engine.begin() as connection:
            upgrade(connection)
            connection.execute(text('CREATE TABLE records (partition integer, "offset" bigint, value text)'))
        engine.dispose()
        for size in SIZES:
            create_topic(kafka.bootstrap_servers, topic_of(size), partitions=PARTITIONS)
            records = (Record(f"{number:070d}".encode(), partition=number % PARTITIONS) for number in range(size))
            produce(kafka.bootstrap_servers, topic_of(size), records)
        print(f"{'':26}  driver   worker  JVM heap     after   seconds")
        for way in ways:
            small, large = (run(way, size, postgres, kafka.bootstrap_servers) for size in SIZES)
            for size, peaks in zip(SIZES, (small, large), strict=True):
                memory = f"{peaks.driver:6.0f}   {peaks.worker:6.0f}    {peaks.heap:6.0f}    {peaks.left:6.0f}"
                print(f"{way:10} {size:>9,} records  {memory}   {peaks.seconds:7.1f}", flush=True)
            ratios = (
                getattr(large, name) / max(getattr(small, name), 1) for name in ("driver", "worker", "heap", "left")
            )
            driver, worker, heap, left = ratios
            print(f"{way:10} {'ratio':>17}  {driver:6.2f}   {worker:6.2f}    {heap:6.2f}    {left:6.2f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
    else:
        main(sys.argv[1:] or list(WAYS))
