"""Measure offsetstore and Spark's own writers, on one Spark, one Kafka and one durable PostgreSQL: ``make bench``.

Each round runs all of a shape's jobs, and begins with another one; the first round warms up and does not count. Before
a job its table is empty, PostgreSQL has made a checkpoint, and the JVM has collected its garbage; after it, the table
must have each record exactly once. Samples go to build/bench/results.json.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeAlias

import psutil
import psycopg

from benchmarks.from_memory import TOTALS, FromMemory
from benchmarks.jobs import BARE_FILES, JDBC_BATCH, OURS, Jobs
from benchmarks.peaks import peaks_of
from benchmarks.report import write
from benchmarks.shapes import PARTITIONS, SHAPES, Shape
from offsetstore import OffsetStore
from offsetstore.kafka.admin import create_topic, delete_topic, produce
from offsetstore.local.jars import KAFKA_VERSION, POSTGRES_JDBC, jars
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.local.spark import local_session, spark_conf, stop_session
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from tests.support.trips import TripCounter

SETTLING: Final = 5
"""The number of a stream's first triggers that do not count."""

ROUND_TRIP: Final = 0.005
_MEMORY: Final = ("memory",)
_Plan: TypeAlias = "Mapping[str, tuple[str, ...]]"
_BOTH: Final = ("defaults", "tuned")
_TUNED: Final = ("tuned",)
_BULK: Final[_Plan] = {"noop": _BOTH, "batch": _BOTH, "partition": _BOTH, "jdbc": _BOTH}
_LARGE: Final[_Plan] = {"noop": _TUNED, "batch": _TUNED}
_COPY: Final[_Plan] = {"copy": _MEMORY, "append": _MEMORY}
_MERGE: Final[_Plan] = {"merge by hand": _MEMORY, "upsert": _MEMORY}
_STEADY: Final[_Plan] = {
    "noop": ("defaults", "fetch", "tuned", "jar"),
    "batch": ("defaults", "tuned", "jar"),
    "partition": _BOTH,
    "jdbc": _BOTH,
}

PLAN: Final[dict[str, _Plan]] = {
    "small": {**_BULK, "noop": ("defaults", "wait", "poll", "fetch", "tuned"), **_COPY, **_MERGE},
    "wide": {**_BULK, **_COPY},
    "flights": _BULK,
    "latest": {"noop": ("defaults", "wait", "tuned"), "batch": ("defaults", "wait", "tuned")},
    "steady-5000": {**_STEADY, "batch": ("defaults", "tuned", "jar", "5 ms"), "partition": (*_BOTH, "5 ms")},
    "steady-500": _STEADY,
    "tenth": _LARGE,
    "large": _LARGE,
}
"""By shape and job, the settings to measure: see `Jobs`. All of them, in one round."""

_POSTGRES_SETTINGS: Final = (
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "wal_compression",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "autovacuum",
)


# Spark keeps the consumers of queries that have ended, and the records that these have fetched, for five minutes: those
# of a dozen queries would fill the JVM's heap.
_POOLS: Final = {
    f"spark.kafka.consumer.{pool}.{name}": "2s"
    for pool in ("cache", "fetchedData.cache")
    for name in ("timeout", "evictorThreadRunInterval")
}


class Bench:
    """What is measured, and what came out."""

    def __init__(self, url: str, servers: str, jobs: Jobs, spark: Any) -> None:
        self._url = url
        self._servers = servers
        self._jobs = jobs
        self._spark = spark
        self._connection = psycopg.connect(url, autocommit=True)
        self.results: dict[str, Any] = {"samples": [], "peaks": []}

    def describe(self, rounds: int) -> None:
        """Note what is measured, with which settings, and where."""
        jvm = self._spark._jvm  # noqa: SLF001 - py4j's gateway
        shown = {name: self._one(f"SHOW {name}") for name in _POSTGRES_SETTINGS}
        jdbc = POSTGRES_JDBC.artifacts[0].revision
        self.results |= {
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "rounds": rounds,
            "settling": SETTLING,
            "machine": {
                "cores": os.cpu_count(),
                "memory_gb": round(psutil.virtual_memory().total / 2**30),
                "system": platform.platform(),
                "load": os.getloadavg()[0],
            },
            "versions": {
                "python": platform.python_version(),
                "java": jvm.java.lang.System.getProperty("java.version"),
                "postgresql": self._one("SHOW server_version"),
                "kafka": KAFKA_VERSION,
                "postgresql-jdbc": jdbc,
                **{name: version(name) for name in ("pyspark", "pyarrow", "psycopg", "pgpq", "offsetstore")},
            },
            "postgresql": shown,
            "spark": {name: self._spark.conf.get(name) for name in ("spark.master", "spark.driver.memory")},
            "jdbc": {"batchsize": JDBC_BATCH, "reWriteBatchedInserts": "true"},
            "shapes": {
                name: {"records": one.count, "per_trigger": one.per_trigger, "columns": len(one.columns)}
                for name, one in SHAPES.items()
            },
        }
        print(f"commit {self.results['commit']}, {self.results['machine']}, {self.results['versions']}")
        print("PostgreSQL:", ", ".join(f"{name} = {value}" for name, value in shown.items()), flush=True)

    def measure(self, shape: Shape, plan: list[tuple[str, str]], rounds: int) -> None:
        """Produce the shape's records, and run each job of the plan in each round."""
        self._connection.execute(shape.ddl.encode())
        create_topic(self._servers, shape.name, partitions=PARTITIONS)
        produce(self._servers, shape.name, shape.records(), settings={"linger.ms": 50})
        if shape.name in {"tenth", "large"}:
            self._watch(shape)
        needs_rows = any(settings == "memory" for _, settings in plan)
        in_memory = FromMemory(self._url, shape, self._jobs.rows(shape)) if needs_rows else None
        for number in range(rounds + 1):
            for job, settings in [*plan[number % len(plan) :], *plan[: number % len(plan)]]:
                self._prepare(shape)
                if in_memory is not None and settings == "memory":
                    seconds = in_memory.run(job)
                else:
                    triggers = self._jobs.run(shape, job, settings)
                    seconds = median(triggers[SETTLING:]) if shape.per_trigger else triggers[0]
                self._check(shape, job)
                if number:
                    sample = {"shape": shape.name, "job": job, "settings": settings, "seconds": seconds}
                    self.results["samples"].append(sample)
                print(f"{shape.name:12} {number or 'warm-up':>7} {job:14} {settings:9} {seconds:7.3f} s", flush=True)
        if in_memory is not None:
            in_memory.close()
        delete_topic(self._servers, shape.name)
        self._connection.execute(f"DROP TABLE {shape.table}".encode())

    def _watch(self, shape: Shape) -> None:
        """Note what each way takes in memory."""
        for job in ("noop", "partition", "batch"):
            self._prepare(shape)
            peaks = peaks_of(shape, job, self._servers, self._url)
            self._check(shape, job)
            self.results["peaks"].append({"shape": shape.name, "job": job, **peaks})
            print(f"{shape.name:12} memory: {job:14} {peaks}", flush=True)

    def _prepare(self, shape: Shape) -> None:
        self._connection.execute(f"TRUNCATE {shape.table}, totals".encode())
        self._connection.execute("CHECKPOINT")
        self._jobs.collect_garbage()

    def _check(self, shape: Shape, job: str) -> None:
        """Check that the table has each record once."""
        query = f"SELECT count(*), count(DISTINCT {shape.key}) FROM {shape.table}"  # noqa: S608 - our own names
        expected = 0 if job in {"noop", *_MERGE} else shape.count
        found = self._connection.execute(query.encode()).fetchone()
        assert found == (expected, expected), f"{shape.name}, {job}: expected {expected} rows, each once; found {found}"

    def _one(self, query: str) -> Any:
        row = self._connection.execute(query.encode()).fetchone()
        return row and row[0]


def commit() -> str:
    """The tree's commit, with a plus if that is not all."""
    return _git("rev-parse", "--short=12", "HEAD") + ("+" if _git("status", "--porcelain") else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607 - git
    return done.stdout.strip()


def _plans(only: list[str], jobs: list[str]) -> Iterator[tuple[Shape, list[tuple[str, str]]]]:
    for name, wanted in PLAN.items():
        plan = [(job, one) for job, settings in wanted.items() for one in settings if not jobs or job in jobs]
        if plan and (not only or name in only):
            yield SHAPES[name], plan


def main() -> None:
    """Start the services, measure, and write the results after each shape."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="that count, after one to warm up")
    parser.add_argument("--only", default="", help=f"shapes, of {', '.join(PLAN)}")
    parser.add_argument("--jobs", default="", help=f"jobs, of noop, {', '.join(OURS)}, jdbc, copy, append, ...")
    given = parser.parse_args()
    plans = list(_plans(_words(given.only), _words(given.jobs)))
    conf = spark_conf()
    class_path = ",".join([conf["spark.jars"], *map(str, jars(BARE_FILES))])
    with ExitStack() as stack:
        kafka, postgres = stack.enter_context(KafkaBroker()), stack.enter_context(PostgresServer())
        _create_tables(postgres.url)
        slow = stack.enter_context(TripCounter(postgres.url, delay=ROUND_TRIP))
        stores = {"defaults": OffsetStore.connect(postgres.url), "5 ms": OffsetStore.connect(slow.url)}
        for store in stores.values():
            stack.enter_context(store)
        directory = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        spark = local_session("benchmark", extra_conf={"spark.jars": class_path, **_POOLS})
        stack.callback(stop_session, spark)
        jobs = Jobs(spark, kafka.bootstrap_servers, stores, Path(directory), jdbc_port=postgres.port)
        bench = Bench(postgres.url, kafka.bootstrap_servers, jobs, spark)
        bench.describe(given.rounds)
        for shape, plan in plans:
            bench.measure(shape, plan, given.rounds)
            write(bench.results)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _create_tables(url: str) -> None:
    engine = make_engine(url)
    with engine.begin() as connection:
        upgrade(connection)
        connection.exec_driver_sql(TOTALS)
    engine.dispose()


if __name__ == "__main__":
    main()
