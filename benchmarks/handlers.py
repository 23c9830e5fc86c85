"""How long 500,000 calls that wait for 1 ms take with a `Handler`, and what 5,000,000 records take in memory.

Run it with ``make bench-handlers``, alone on its machine. Before each job its table is empty, PostgreSQL has made a
checkpoint, and the JVM has collected its garbage; after it, the table must have each record once, and the calls' own
log (`benchmarks.calls`) must have one call for each, in order and without overlap. ``--only`` measures only what it
names. The figures go into build/bench/handlers.json, where they replace earlier ones of the same name, and from there
into docs/performance.md, with a plot; ``--page`` only writes the page.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final
from uuid import uuid4

import psutil
from pyspark.sql import SparkSession

from benchmarks.calls import PARTITIONS, SCHEMA, calls_in, check, key_of, waits, waits_async, yields
from benchmarks.peaks import Watching
from benchmarks.report import BUILD, COLOURS, Bar, draw, table, with_figures
from benchmarks.run import commit
from benchmarks.scale import TABLE, Figures, create_tables, observing, one, section, settings
from offsetstore import Append, Broker, Handler, OffsetStore, TransactionalSink
from offsetstore.kafka.admin import NewRecord, create_topic, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.local.spark import local_session, stop_session
from offsetstore.protocol.events import BatchEnded, Event
from offsetstore.spark import tuned

RESULTS: Final = BUILD / "handlers.json"
PAGE: Final = Path("docs/performance.md")
PLOT: Final = Path("docs/handlers.svg")
MARK: Final = "<!-- figures: written by python -m benchmarks.handlers -->\n"

CALLS: Final = 500_000
TENTH: Final = CALLS // 10
MEMORY: Final = 5_000_000
PER_BATCH: Final = 500_000
"""Records of each batch of those."""


@dataclass(frozen=True, slots=True)
class Job:
    """One way to make the calls.

    :param fn: gets the log's directory, too.
    :param arguments: the handler's.
    :param partitions: of the topic.
    :param cores: how many tasks Spark runs at once; the machine has no more cores for it.
    :param order: what calls may not overlap within, by the record's number.
    """

    title: str
    fn: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    records: int = CALLS
    partitions: int = PARTITIONS
    cores: int = 2
    order: Callable[[int], Hashable] = key_of


_IN_ORDER: Final = {"ordering": "partition", "concurrency": 1}
JOBS: Final = {
    "async": Job("`async def`", waits_async),
    "threads": Job("a plain function, in threads", waits),
    "sequential": Job(
        "one call after the other: one partition",
        waits,
        _IN_ORDER,
        records=TENTH,
        partitions=1,
        order=lambda _: None,
    ),
    "partition": Job(
        "one thread per partition: five tasks at once",
        waits,
        _IN_ORDER,
        records=TENTH,
        cores=PARTITIONS,
        order=lambda number: number % PARTITIONS,
    ),
}
NAMES: Final = (*JOBS, "memory")


def measure_jobs(names: list[str], rounds: int) -> Figures:
    """Run each job in each round, after one to warm up; those of a tenth of the records only in the first one."""
    with KafkaBroker() as kafka, PostgresServer() as postgres:
        servers, url = kafka.bootstrap_servers, create_tables(postgres.url)
        for records, partitions in {(JOBS[name].records, JOBS[name].partitions) for name in names}:
            make_topic(servers, records, partitions)
        found: dict[str, list[Figures]] = {name: [] for name in names}
        for cores in sorted({JOBS[name].cores for name in names}):
            with _session(cores) as spark:
                for number in range(rounds + 1):
                    for name in names:
                        job = JOBS[name]
                        if job.cores != cores or (job.records < CALLS and number > 1):
                            continue
                        sample = measure(spark, servers, url, job)
                        print(f"{name:12} {number or 'warm-up':>7} {sample}", flush=True)
                        if number:
                            found[name].append(sample)
        return {name: {"settings": _settings(postgres), "samples": samples} for name, samples in found.items()}


def measure(spark: SparkSession, servers: str, url: str, job: Job) -> Figures:
    """Run a job and check it; return its seconds, those of its calls together, and those of all processors."""
    with tempfile.TemporaryDirectory() as log:
        _prepare(spark, url)
        before = _processor_seconds()
        handler = Handler(partial(job.fn, log), SCHEMA, **job.arguments)
        with OffsetStore.connect(url) as store:
            [seconds] = run(spark, store, servers, handler, _topic(job.records, job.partitions))
        used = _processor_seconds() - before
        _check_rows(url, job.records, job.partitions)
        return {"seconds": seconds, "calls": check(calls_in(Path(log)), job.records, job.order), "used": used}


def measure_memory() -> Figures:
    """Run a job in a process of its own, so that it is not measured with what others have left behind."""
    with KafkaBroker() as kafka, PostgresServer() as postgres:
        servers, url = kafka.bootstrap_servers, create_tables(postgres.url)
        make_topic(servers, MEMORY, PARTITIONS)
        command = [sys.executable, "-m", "benchmarks.handlers", "--watch", servers, url]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)  # noqa: S603 - this file
        _check_rows(url, MEMORY, PARTITIONS)
        return {"memory": {"settings": _settings(postgres), "batches": json.loads(done.stdout.splitlines()[-1])}}


class _Batches:
    """The peaks of each batch."""

    def __init__(self, watching: Watching) -> None:
        self.peaks: list[Figures] = []
        self._watching = watching

    def on(self, event: Event) -> None:
        """Take them when a batch has ended."""
        if isinstance(event, BatchEnded):
            self.peaks.append(asdict(self._watching.take()))


def watch(servers: str, url: str) -> None:
    """Run the job, and print the peaks of each batch."""
    with _session(2) as spark, Watching() as watching:
        batches = _Batches(watching)
        with OffsetStore.connect(url, observers=[batches]) as store:
            run(spark, store, servers, Handler(yields, SCHEMA), _topic(MEMORY, PARTITIONS), per_batch=PER_BATCH)
        print(json.dumps(batches.peaks))


def make_topic(servers: str, records: int, partitions: int) -> None:
    """Produce records whose values are their numbers; of those of one partition, number n has offset n ÷ partitions."""
    topic = _topic(records, partitions)
    create_topic(servers, topic, partitions=partitions)
    made = (
        NewRecord(str(number).encode(), key=key_of(number), partition=number % partitions) for number in range(records)
    )
    produce(servers, topic, made, settings={"linger.ms": 50})


def run(
    spark: SparkSession, store: OffsetStore, servers: str, handler: Handler, topic: str, *, per_batch: int = CALLS
) -> list[float]:
    """Read all records of a topic; return the seconds of each batch, by Spark's own clock."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "maxOffsetsPerTrigger": str(per_batch)}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as checkpoints,
        store.claim(uuid4().hex, Broker.from_spark(options)) as claim,
    ):
        reader = tuned(spark, options) | {"startingOffsets": claim.starting_offsets}
        stream: Any = spark.readStream.format("kafka").options(**reader).load().writeStream
        stream = stream.foreachBatch(TransactionalSink(claim, handler, into=Append(TABLE)))
        query = stream.option("checkpointLocation", claim.checkpoint(checkpoints)).trigger(availableNow=True).start()
        query.awaitTermination()
        return [one["durationMs"]["triggerExecution"] / 1000 for one in query.recentProgress if one["numInputRows"]]


@contextmanager
def _session(cores: int) -> Generator[SparkSession]:
    spark = local_session("benchmark", master=f"local[{cores}]")
    try:
        yield spark
    finally:
        stop_session(spark)


def _topic(records: int, partitions: int) -> str:
    return f"calls-{records}-{partitions}"


def _prepare(spark: SparkSession, url: str) -> None:
    with observing(url) as connection:
        connection.execute(f"TRUNCATE {TABLE}")
        connection.execute("CHECKPOINT")
    jvm: Any = spark._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - py4j's gateway
    jvm.java.lang.System.gc()
    time.sleep(0.2)


def _check_rows(url: str, records: int, partitions: int) -> None:
    """Check that the table has the row of each record, once."""
    place = f'value::bigint = "offset" * {partitions} + partition'
    query = f"SELECT count(*), count(DISTINCT value), count(*) FILTER (WHERE {place}) FROM {TABLE}"  # noqa: S608 - ours
    with observing(url) as connection:
        found = one(connection, query)
    assert found == (records,) * 3, f"expected {records} rows, each once and with its own place; found {found}"


def _processor_seconds() -> float:
    """What this process and its descendants have used so far: Spark, Python, Kafka and PostgreSQL."""
    me, seconds = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def _settings(postgres: PostgresServer) -> Figures:
    versions = {name: version(name) for name in ("pyspark", "pyarrow")}
    return {**settings(postgres), **versions, "commit": commit()}


# -- the page


def page(figures: Figures) -> str:
    """The figures as Markdown."""
    return "\n".join((f"![Seconds for the calls]({PLOT.name})\n", _times(figures), _memory(figures["memory"])))


def _times(figures: Figures) -> str:
    rows: list[list[str]] = []
    for name, job in JOBS.items():
        samples: list[Figures] = figures[name]["samples"]
        seconds, scaled = [each["seconds"] for each in samples], _scaled(figures, name)
        spread = f"{min(seconds):.1f} to {max(seconds):.1f}" if len(seconds) > 1 else "one run"
        calls, used = (median(each[key] for each in samples) for key in ("calls", "used"))
        shown = [f"{scaled:.1f}", f"{calls:.0f}", f"{calls / median(seconds):.1f}", f"{used / job.records * 1e6:.0f}"]
        rows.append([job.title, f"{job.records:,}", f"{median(seconds):.1f}", spread, *shown])
    heads = ["", "calls", "seconds", "spread", f"for {CALLS:,}", "in calls, s", "at once", "processor, µs a call"]
    had: Figures = figures["async"]["settings"]
    return section(
        f"{CALLS:,} calls that wait for 1 ms",
        f"""Measured on {had["at"]} at commit {had["commit"]}: medians of {len(figures["async"]["samples"])} rounds, on
        {had["cores"]} cores and {had["memory_gb"]} GB with a load of {had["load"]:.1f} before; Python {had["python"]},
        PySpark {had["pyspark"]}, pyarrow {had["pyarrow"]}, PostgreSQL {had["server_version"]}.""",
        table(heads, rows, texts=1),
    )


def _scaled(figures: Figures, name: str) -> float:
    """The median, as it would be with all calls."""
    return median(each["seconds"] for each in figures[name]["samples"]) * CALLS / JOBS[name].records


def _memory(measured: Figures) -> str:
    peaks: list[Figures] = measured["batches"]
    kinds = {"largest Python worker": "worker", "Java": "java", "driver's Python": "driver"}
    rows = [[title, *(f"{each[kind]:.0f}" for each in peaks)] for title, kind in kinds.items()]
    return section(
        f"{MEMORY:,} records through a fast handler",
        f"""Peaks of resident memory in MB, by micro-batches of {PER_BATCH:,} records each, measured on
        {measured["settings"]["at"]}:""",
        table(["", *(str(number) for number, _ in enumerate(peaks, 1))], rows, texts=1),
    )


def plot(figures: Figures) -> str:
    """Draw the seconds of each job, scaled."""
    bars = [
        Bar(job.title.partition(":")[0].replace("`", ""), COLOURS["tuned"], _scaled(figures, name))
        for name, job in JOBS.items()
    ]
    return draw(f"seconds for {CALLS:,} calls that wait for 1 ms", {"": bars})


def main() -> None:
    """Measure, and write the page if all is measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.handlers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="that count, after one to warm up")
    parser.add_argument("--only", default=",".join(NAMES), help=f"of {', '.join(NAMES)}")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--watch", nargs=2, metavar=("SERVERS", "URL"), help="only run the job whose memory is watched")
    given = parser.parse_args()
    if given.watch:
        watch(*given.watch)
        return
    names: list[str] = [] if given.page else given.only.split(",")
    figures: Figures = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if jobs := [name for name in JOBS if name in names]:
        figures |= measure_jobs(jobs, given.rounds)
    if "memory" in names:
        figures |= measure_memory()
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    if missing := {*NAMES} - figures.keys():
        print(f"the page needs these too: {', '.join(sorted(missing))}")
        return
    PLOT.write_text(plot(figures))
    PAGE.write_text(with_figures(PAGE.read_text(), page(figures), MARK))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
