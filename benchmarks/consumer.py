"""A `Consumer` beside one written by hand, calls of a handler in two processes, and memory over many records.

Run it with ``make bench-consumer``, alone on its machine. The rate is taken from the stored offsets, from the first
that is seen to the end, so that starting and joining don't count; "used" are the processor seconds of the consumer's
own process from its start. After each run, the table must have each record once. In each round the two consumers take
turns, and their ratio is that of one round. Calls are counted from the moment at which a paused group is resumed, and
by their own log (`benchmarks.calls`). The figures go into build/bench/consumer.json, where they replace earlier ones of
the same name, and from there into docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple
from uuid import uuid4

import psutil

from benchmarks.calls import PARTITIONS, calls_in, check, key_of
from benchmarks.consuming import HANDLERS
from benchmarks.report import BUILD, table, with_figures
from benchmarks.run import commit
from benchmarks.scale import TABLE, Figures, create_tables, observing, one, settings
from benchmarks.shapes import SHAPES, Shape
from offsetstore import OffsetStore
from offsetstore.kafka.admin import NewRecord, create_topic, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer

RESULTS: Final = BUILD / "consumer.json"
RECORDS: Final = 500_000
SMALL: Final = SHAPES["small"]
PROCESSES: Final = 2
SHARED: Final = 6
"""Partitions of the topic that the processes share: as many for each."""
NAMES: Final = ("consumers", *HANDLERS, "memory")
MANY: Final = 10_000_000
"""Records of the run whose memory is measured, ten times in equal steps."""
PAGE: Final = Path("docs/performance.md")
MARK: Final = "<!-- figures: written by python -m benchmarks.consumer -->\n"
_LOOK: Final = 0.02
_LIMIT: Final = 900.0


class _Way(NamedTuple):
    """A consumer's program, and the table with its offsets."""

    command: Sequence[str]
    offsets: str


_WAYS: Final = {
    "by hand": _Way(["benchmarks.peers.by_hand"], "by_hand"),
    "consumer": _Way(["benchmarks.consuming", "parse"], "kafka_partitions"),
}


# -- a consumer beside one by hand


def measure_consumers(servers: str, url: str, records: int, rounds: int) -> Figures:
    """Measure both in each round, after one to warm up."""
    with observing(url) as connection:
        connection.execute(SMALL.ddl.encode())
    found: dict[str, list[Figures]] = {"by hand": [], "consumer": []}
    for number in range(rounds + 1):
        for name in [*_WAYS][:: 1 if number % 2 else -1]:
            topic = _small_topic(servers, records)
            sample = _measure(url, topic, records, _WAYS[name], (url, servers, topic))
            print(f"{name:12} {number or 'warm-up':>7} {sample}", flush=True)
            if number:
                found[name].append(sample)
    return {"records": records, "samples": found}


def _measure(url: str, topic: str, records: int, way: _Way, arguments: Sequence[str]) -> Figures:
    with observing(url) as connection:
        connection.execute(f"TRUNCATE {SMALL.table}".encode())
        connection.execute("CHECKPOINT")
        with _process(*way.command, *arguments) as process:
            first = before = 0
            began = time.monotonic()
            while before < records:
                time.sleep(_LOOK)
                before = _stored(connection, way, topic)
                if before and not first:
                    first, began = before, time.monotonic()
                _expect_running(process, began)
            seconds = time.monotonic() - began
            times = psutil.Process(process.pid).cpu_times()
        found = one(connection, f"SELECT count(*), count(DISTINCT id), max(id) FROM {SMALL.table}")  # noqa: S608 - ours
    assert found == (records, records, records - 1), f"expected {records} rows, each once; found {found}"
    return {"rate": (records - first) / seconds, "seconds": seconds, "used": times.user + times.system}


def _stored(connection: Any, way: _Way, topic: str) -> int:
    exists = connection.execute("SELECT to_regclass(%s)", (way.offsets,)).fetchone()[0]
    if exists is None:  # the consumer by hand makes its table itself
        return 0
    query = f"SELECT coalesce(sum(next_offset), 0) FROM {way.offsets} WHERE topic = %s"  # noqa: S608 - ours
    return int(connection.execute(query, (topic,)).fetchone()[0])


def _small_topic(servers: str, records: int) -> str:
    """A new topic: each run reads from its beginning."""
    topic = f"small-{uuid4().hex}"
    create_topic(servers, topic, partitions=PARTITIONS)
    produce(servers, topic, _counted(SMALL, records), settings={"linger.ms": 50})
    return topic


def _counted(shape: Shape, records: int) -> Generator[NewRecord]:
    for number, value in enumerate(shape.values(records)):
        yield NewRecord(value, key=str(number).encode(), partition=number % PARTITIONS)


# -- calls of a handler


def measure_calls(servers: str, url: str, records: int, rounds: int, kind: str) -> Figures:
    """Have two processes make a call for each record, in each round."""
    topic = f"calls-{uuid4().hex}"
    create_topic(servers, topic, partitions=SHARED)
    made = (
        NewRecord(str(number).encode(), key=_key_of(number), partition=number % SHARED) for number in range(records)
    )
    produce(servers, topic, made, settings={"linger.ms": 50})
    found: list[Figures] = []
    for number in range(rounds):
        found.append(_measure_calls(servers, url, topic, records, kind))
        print(f"{kind:12} {number + 1:>7} {found[-1]}", flush=True)
    return {"records": records, "processes": PROCESSES, "samples": found}


def _key_of(number: int) -> bytes:
    return key_of(number, SHARED)


def _measure_calls(servers: str, url: str, topic: str, records: int, kind: str) -> Figures:
    group = uuid4().hex
    with tempfile.TemporaryDirectory() as log, OffsetStore.connect(url) as store, observing(url) as connection:
        connection.execute(f"TRUNCATE {TABLE}".encode())
        connection.execute("CHECKPOINT")
        job = ("benchmarks.consuming", "call", url, servers, topic, group, kind, log)
        with _process(*job) as first:
            _wait(connection, group, 1, first)
            store.pause(group, reason="until both have their partitions")
            with _process(*job) as second:
                _wait(connection, group, PROCESSES, second)
                already = _rows(connection)
                store.resume(group, reason="both have them")
                began = time.monotonic()
                while _rows(connection) < records:
                    time.sleep(_LOOK)
                    _expect_running(first, began)
                    _expect_running(second, began)
                seconds = time.monotonic() - began
                times = [psutil.Process(each.pid).cpu_times() for each in (first, second)]
        spent = check(calls_in(Path(log)), records, _key_of)
        place = f'value::bigint = "offset" * {SHARED} + partition'
        query = f"SELECT count(*), count(DISTINCT value), count(*) FILTER (WHERE {place}) FROM {TABLE}"  # noqa: S608
        assert one(connection, query) == (records,) * 3, "expected the row of each record, once"
    used = sum(each.user + each.system for each in times)
    return {"seconds": seconds, "before": already, "calls": spent, "used": used}


def _wait(connection: Any, group: str, owners: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until so many processes have partitions."""
    began = time.monotonic()
    query = "SELECT count(DISTINCT claim_id) FROM kafka_partitions WHERE consumer_group = %s AND claim_id <> ALL ("
    query += "SELECT claim_id FROM consumer_groups)"
    while connection.execute(query, (group,)).fetchone()[0] < owners:
        time.sleep(_LOOK)
        _expect_running(process, began)


def _rows(connection: Any) -> int:
    return int(one(connection, f"SELECT count(*) FROM {TABLE}")[0])  # noqa: S608 - ours


# -- memory


def measure_memory(servers: str, url: str, records: int) -> Figures:
    """Have one process consume many records, and look at its memory each time it has stored another tenth."""
    with observing(url) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {SMALL.table}".encode())
        connection.execute(SMALL.ddl.encode())
        topic, way, found = _small_topic(servers, records), _WAYS["consumer"], list[float]()
        with _process(*way.command, url, servers, topic) as process:
            began = time.monotonic()
            for step in range(1, 11):
                while _stored(connection, way, topic) < records * step // 10:
                    time.sleep(_LOOK)
                    _expect_running(process, began)
                found.append(psutil.Process(process.pid).memory_info().rss / 2**20)
        assert one(connection, f"SELECT count(*) FROM {SMALL.table}") == (records,)  # noqa: S608 - ours
    print(f"memory       {found}", flush=True)
    return {"records": records, "megabytes": found}


# -- processes


@contextmanager
def _process(module: str, *arguments: str) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", module, *arguments])  # noqa: S603 - this package's
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _expect_running(process: subprocess.Popen[bytes], began: float) -> None:
    assert process.poll() is None, f"the consumer has ended with {process.returncode}"
    assert time.monotonic() - began < _LIMIT, f"it has taken longer than {_LIMIT:g} s"


def shown(figures: Figures) -> str:
    """The figures as tables."""
    had: Figures = figures["settings"]
    on = f"on {had['cores']} cores and {had['memory_gb']} GB with a load of {had['load']:.1f} before"
    parts = [f"Measured on {had['at']} at commit {had['commit']}, {on};\nmedians of the rounds.\n"]
    if "consumers" in figures:
        samples: dict[str, list[Figures]] = figures["consumers"]["samples"]
        ratios = [
            ours["rate"] / theirs["rate"] for ours, theirs in zip(samples["consumer"], samples["by hand"], strict=True)
        ]
        rows = [
            [name, f"{median(each['rate'] for each in of):,.0f}", f"{median(each['used'] for each in of):.1f}"]
            for name, of in samples.items()
        ]
        parts += [table([f"{figures['consumers']['records']:,} records", "records/s", "processor, s"], rows, texts=1)]
        parts += [f"The consumer's rate ÷ that by hand, in each round: {_spread(ratios)}.\n"]
    rows = [
        [
            kind,
            *(f"{median(each[key] for each in figures[kind]['samples']):,.1f}" for key in ("seconds", "calls", "used")),
        ]
        for kind in HANDLERS
        if kind in figures
    ]
    parts += [table(["500,000 calls", "seconds", "in calls, s", "processor, s"], rows, texts=1)] if rows else []
    if "memory" in figures:
        found: list[float] = figures["memory"]["megabytes"]
        heads = ["million records", *(f"{figures['memory']['records'] * n / 1e7:g}" for n in range(1, 11))]
        parts += [table(heads, [["resident memory, MB", *(f"{each:.0f}" for each in found)]], texts=1)]
    return "\n".join(parts)


def _spread(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.consumer", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="that count; the consumers have one more, to warm up")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--many", type=int, default=MANY, help="for the memory")
    parser.add_argument("--only", default=",".join(NAMES), help=f"of {', '.join(NAMES)}")
    given = parser.parse_args()
    names = given.only.split(",")
    figures: Figures = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with KafkaBroker() as kafka, PostgresServer() as postgres:
        servers, url = kafka.bootstrap_servers, create_tables(postgres.url)
        if "consumers" in names:
            figures["consumers"] = measure_consumers(servers, url, given.records, given.rounds)
        for kind in HANDLERS:
            if kind in names:
                figures[kind] = measure_calls(servers, url, given.records, given.rounds, kind)
        if "memory" in names:
            figures["memory"] = measure_memory(servers, url, given.many)
        figures["settings"] = {**settings(postgres), "commit": commit()}
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    print(shown(figures))
    if missing := {*NAMES} - figures.keys():
        print(f"the page needs these too: {', '.join(sorted(missing))}")
        return
    PAGE.write_text(with_figures(PAGE.read_text(), shown(figures), MARK))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
