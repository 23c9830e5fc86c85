"""How the store scales: with partitions, updates, jobs on one database, records, and copies to Kafka.

Run it with ``python -m benchmarks.scale``, alone on its machine; names of `PARTS` as arguments measure only these. The
figures go into ``build/bench/scale.json``, where they replace earlier ones of the same part, and from there into
docs/scale.md, between two comments; ``--page`` only writes the page. Spark is not used.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import platform
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import psycopg
import pyarrow as pa
from sqlalchemy import text

from offsetstore import Append, Broker, Claim, OffsetRange, OffsetStore, TopicPartition, resolve_starting_offsets
from offsetstore.kafka.admin import NewRecord, create_topic, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.protocol.events import Event, MirrorTried
from offsetstore.protocol.ports import BrokerOffsets
from offsetstore.testing.broker import StaticBroker

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "build" / "bench" / "scale.json"
PAGE: Final = ROOT / "docs" / "scale.md"
MARKS: Final = ("<!-- figures of `make bench-scale`: not to be edited -->\n", "<!-- end of the figures -->\n")

SIZES: Final = (10, 100, 1_000, 10_000)
PER_TOPIC: Final = 1_000
REPETITIONS: Final = 9
END: Final = 2**40
"""Of every log that only a `StaticBroker` knows: no trigger comes as far."""

UPDATES: Final = 1_000_000
UPDATED: Final = 100
"""Partitions of each transaction of the updates."""

JOBS: Final = (1, 5, 20)
JOB_PARTITIONS: Final = 100
JOB_RECORDS: Final = (0, 5_000)
JOB_SECONDS: Final = 8.0
START_SECONDS: Final = 120.0
TABLE: Final = "records"

COPIED: Final = (1_000, 10_000)
KAFKA_SECONDS: Final = 60.0
# An index of Kafka's takes 10 MB of address space by default, twice for each partition.
KAFKA_SETTINGS: Final = {"log.index.size.max.bytes": "4096"}

SETTINGS: Final = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_level", "shared_buffers")

Figures = dict[str, Any]


class Laps(NamedTuple):
    """The seconds of one trigger; `write` is the time of the results' own rows."""

    lock: float
    write: float
    advance: float
    commit: float

    @property
    def offsets(self) -> float:
        """The store's part."""
        return self.lock + self.advance + self.commit


def trigger(claim: Claim, ranges: Mapping[TopicPartition, OffsetRange], batches: Iterable[pa.RecordBatch] = ()) -> Laps:
    """Do what a batch does with the database: lock, write, advance, commit."""
    began = time.perf_counter()
    with claim.transaction() as tx:
        plan = tx.lock(ranges)
        locked = time.perf_counter()
        if batches:
            Append(TABLE).write(tx, batches)
        written = time.perf_counter()
        tx.finish({tp: decision.remaining for tp, decision in plan.items()})
        advanced = time.perf_counter()
    return Laps(locked - began, written - locked, advanced - written, time.perf_counter() - advanced)


def steps(partitions: Iterable[TopicPartition], size: int = 1) -> Iterator[dict[TopicPartition, OffsetRange]]:
    """The ranges of one trigger after the other, ``size`` offsets of each partition, from 0."""
    ordered = sorted(partitions)
    for begin in count(0, size):
        yield dict.fromkeys(ordered, OffsetRange(begin, begin + size))


def timed(work: Callable[[], object]) -> float:
    """The seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def middle(work: Callable[[], object]) -> float:
    """The median seconds; the first run does not count."""
    work()
    return median(timed(work) for _ in range(REPETITIONS))


def create_tables(url: str) -> str:
    """Make the store's tables, and one for results; return the URL."""
    engine = make_engine(url)
    with engine.begin() as connection:
        upgrade(connection)
        connection.execute(text(f'CREATE TABLE {TABLE} (partition integer, "offset" bigint, value text)'))
    engine.dispose()
    return url


@contextmanager
def observing(url: str) -> Generator[psycopg.Connection[Any]]:
    """A connection that commits each statement."""
    with psycopg.connect(url, autocommit=True, application_name="observer") as connection:
        yield connection


def one(connection: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    """The only row."""
    [row] = connection.execute(query.encode()).fetchall()
    return row


def log_position(connection: psycopg.Connection[Any]) -> int:
    """How many bytes of WAL have been written in all."""
    return int(one(connection, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")[0])


def topics_of(partitions: int, prefix: str = "topic") -> dict[str, int]:
    """Topics with that many partitions in all, by their number of partitions."""
    return {f"{prefix}-{first}": min(PER_TOPIC, partitions) for first in range(0, partitions, PER_TOPIC)}


# -- claim, resolve, lock, advance and commit, by the number of partitions


def measure_partitions() -> Figures:
    """Each number of partitions in a database of its own, Kafka's part left out."""
    with PostgresServer() as postgres:
        figures: list[Figures] = []
        for size in SIZES:
            first, later = (create_tables(postgres.create_database(f"{name}_{size}")) for name in ("first", "later"))
            figures.append({"partitions": size, **_measure_first_claim(first, size), **_measure_size(later, size)})
        unknown = _measure_unknown_claim(create_tables(postgres.create_database("claimed_again")))
        return {"settings": settings(postgres), "sizes": figures, "claimed_again": unknown}


def claims(store: OffsetStore, broker: BrokerOffsets, groups: Iterable[str]) -> list[float]:
    """The seconds of a claim of each group, one after the other."""
    seconds: list[float] = []
    for group in groups:
        began = time.perf_counter()
        claim = store.claim(group, broker, mirror_every=None)
        seconds.append(time.perf_counter() - began)
        claim.close()
    return seconds


def _measure_first_claim(url: str, size: int) -> Figures:
    broker = StaticBroker.with_topics(topics_of(size), end=END)
    with OffsetStore.connect(url) as store:
        return {"first_claim": median(claims(store, broker, [f"job-{number}" for number in range(REPETITIONS)]))}


def _measure_size(url: str, size: int) -> Figures:
    broker = StaticBroker.with_topics(topics_of(size), end=END)
    with OffsetStore.connect(url) as store, observing(url) as observer:
        _, *again = claims(store, broker, ["job"] * (REPETITIONS + 1))
        resolve = middle(lambda: resolve_starting_offsets(broker, group="job", store=store))
        read = middle(lambda: store.offsets("job"))
        state = middle(lambda: store.group_state("job", broker))
        with store.claim("job", broker, mirror_every=None) as claim:
            ranges = steps(claim.partitions)
            trigger(claim, next(ranges))
            before = log_position(observer)
            laps = [trigger(claim, next(ranges)) for _ in range(2 * REPETITIONS)]
            wal = (log_position(observer) - before) / len(laps)
    return {
        "claim": median(again),
        "resolve": resolve,
        "read": read,
        "state": state,
        "lock": median(lap.lock for lap in laps),
        "advance": median(lap.advance for lap in laps),
        "commit": median(lap.commit for lap in laps),
        "trigger": median(lap.offsets for lap in laps),
        "wal_bytes": wal,
    }


def _measure_unknown_claim(url: str) -> Figures:
    """A part of the partitions, right after a claim whose epoch is not in the planner's statistics."""
    largest, part = SIZES[-1], SIZES[-2]
    broker = StaticBroker.with_topics(topics_of(largest), end=END)
    with OffsetStore.connect(url) as store, observing(url) as observer:
        store.claim("job", broker, mirror_every=None).close()
        observer.execute("ANALYZE")
        with store.claim("job", broker, mirror_every=None) as claim:
            ranges = steps(sorted(claim.partitions)[:part])
            laps = [trigger(claim, next(ranges)) for _ in range(REPETITIONS)]
    return {"partitions": part, "of": largest, "trigger": median(lap.offsets for lap in laps)}


# -- a million updates of the same rows


def measure_updates() -> Figures:
    """Advance the same partitions again and again, with autovacuum as PostgreSQL has it by default."""
    transactions = UPDATES // UPDATED
    sizes: list[int] = []
    with PostgresServer() as postgres, OffsetStore.connect(create_tables(postgres.url)) as store:
        broker = StaticBroker.with_topics({"topic": UPDATED}, end=END)
        with observing(postgres.url) as observer, store.claim("job", broker, mirror_every=None) as claim:
            ranges = steps(claim.partitions)
            for number in range(transactions):
                trigger(claim, next(ranges))
                if number % 100 == 0:
                    sizes.append(int(one(observer, "SELECT pg_total_relation_size('kafka_partitions')")[0]))
            fresh, worn = _measure_in_turn(create_tables(postgres.create_database("fresh")), claim, ranges)
        with observing(postgres.url) as observer:  # the job's statistics are there once it has left
            table, index = one(
                observer, "SELECT pg_relation_size('kafka_partitions'), pg_relation_size('kafka_partitions_pkey')"
            )
            updated, hot, vacuums = _update_statistics(observer, at_least=UPDATES)
        return {
            "settings": settings(postgres),
            "updates": UPDATES,
            "transactions": transactions,
            "partitions": UPDATED,
            "largest_bytes": max(sizes),
            "table_bytes": table,
            "index_bytes": index,
            "updated": updated,
            "hot": hot,
            "autovacuums": vacuums,
            "fresh": fresh,
            "worn": worn,
        }


def _measure_in_turn(url: str, worn: Claim, ranges: Iterator[dict[TopicPartition, OffsetRange]]) -> tuple[float, float]:
    """The seconds of a trigger in a new database, and in the one that has had all the updates."""
    broker = StaticBroker.with_topics({"topic": UPDATED}, end=END)
    with OffsetStore.connect(url) as store, store.claim("job", broker, mirror_every=None) as fresh:
        others = steps(fresh.partitions)
        pairs = [(trigger(fresh, next(others)).offsets, trigger(worn, next(ranges)).offsets) for _ in range(300)]
    return median(first for first, _ in pairs), median(second for _, second in pairs)


def _update_statistics(observer: psycopg.Connection[Any], *, at_least: int) -> tuple[int, int, int]:
    """PostgreSQL's own count, which sessions report with a delay of some seconds."""
    deadline = time.monotonic() + 60
    while True:
        updated, hot, vacuums = one(
            observer,
            "SELECT n_tup_upd, n_tup_hot_upd, autovacuum_count FROM pg_stat_user_tables"
            " WHERE relname = 'kafka_partitions'",
        )
        if updated >= at_least or time.monotonic() > deadline:
            return updated, hot, vacuums
        time.sleep(0.5)


# -- several jobs on one database


def measure_jobs() -> Figures:
    """Each job is a process with a group of its own. The server logs who waits for a lock longer than 10 ms."""
    waits = {"log_lock_waits": "on", "deadlock_timeout": "10ms"}
    with PostgresServer(settings=waits) as postgres:
        url = create_tables(postgres.url)
        loads = [_measure_load(postgres, url, jobs, records) for records in JOB_RECORDS for jobs in JOBS]
        return {"settings": settings(postgres), "partitions": JOB_PARTITIONS, "loads": loads}


def _measure_load(postgres: PostgresServer, url: str, jobs: int, records: int) -> Figures:
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(jobs + 1, timeout=START_SECONDS), context.Queue()
    groups = [f"{number}-of-{jobs}-with-{records}" for number in range(jobs)]
    processes = [context.Process(target=_run_job, args=(url, group, records, start, results)) for group in groups]
    for process in processes:
        process.start()
    with observing(url) as observer:
        observer.execute(f"TRUNCATE {TABLE}")
        waited, extended, deadlocks = *_lock_waits(postgres), _deadlocks(observer)
        start.wait()
        before, connections = log_position(observer), 0
        end = time.monotonic() + JOB_SECONDS
        while time.monotonic() < end:
            connections = max(connections, _connections(observer))
            time.sleep(0.1)
        laps = [lap for _ in processes for lap in results.get(timeout=JOB_SECONDS + START_SECONDS)]
        wal = log_position(observer) - before
        for process in processes:
            process.join()
        return {
            "jobs": jobs,
            "records": records,
            "transactions_per_second": len(laps) / JOB_SECONDS,
            "records_per_second": len(laps) * records / JOB_SECONDS,
            "median": median(lap.offsets for lap in laps),
            "p99": _percentile([lap.offsets for lap in laps], 0.99),
            "wal_bytes": wal / len(laps),
            "connections": connections,
            "lock_waits": _lock_waits(postgres)[0] - waited,
            "extension_waits": _lock_waits(postgres)[1] - extended,
            "deadlocks": _deadlocks(observer) - deadlocks,
        }


def _run_job(url: str, group: str, records: int, start: Any, results: Any) -> None:
    """One job, in its process."""
    broker = StaticBroker.with_topics({"topic": JOB_PARTITIONS}, end=END)
    with OffsetStore.connect(url) as store, store.claim(group, broker, mirror_every=None) as claim:
        batches = [_batch(records)] if records else []
        ranges = steps(claim.partitions, size=max(1, records // JOB_PARTITIONS))
        trigger(claim, next(ranges), batches)
        laps: list[Laps] = []
        start.wait()
        end = time.monotonic() + JOB_SECONDS
        while time.monotonic() < end:
            laps.append(trigger(claim, next(ranges), batches))
        results.put(laps)


def _batch(records: int) -> pa.RecordBatch:
    """Rows of 70 bytes, and where they come from."""
    numbers = range(records)
    return pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([number % JOB_PARTITIONS for number in numbers], pa.int32()),
            "offset": pa.array(numbers, pa.int64()),
            "value": pa.array([f"{number:070d}" for number in numbers]),
        }
    )


def _lock_waits(postgres: PostgresServer) -> tuple[int, int]:
    """Waits for other transactions, and for the right to make a table's file longer."""
    lines = [line for line in postgres.log.read_text(errors="replace").splitlines() if "still waiting for" in line]
    extensions = sum("on extension of relation" in line for line in lines)
    return len(lines) - extensions, extensions


def _deadlocks(observer: psycopg.Connection[Any]) -> int:
    return int(one(observer, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")[0])


def _connections(observer: psycopg.Connection[Any]) -> int:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        " AND datname = current_database()"
    )
    return int(one(observer, query)[0])


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


# -- Kafka's part: the start of a job, and the copy of its offsets


class Copies:
    """Remembers how many offsets the mirror has copied."""

    def __init__(self) -> None:
        self.copied = 0

    def on(self, event: Event) -> None:
        """Add them up."""
        if isinstance(event, MirrorTried):
            self.copied += len(event.offsets)


def measure_kafka() -> Figures:
    """With the embedded broker, which has one node."""
    with KafkaBroker(settings=KAFKA_SETTINGS, heap="1g") as kafka, PostgresServer() as postgres:
        url = create_tables(postgres.url)
        sizes = [_measure_copies(kafka.bootstrap_servers, url, size) for size in COPIED]
        return {"settings": settings(postgres), "sizes": sizes}


def _measure_copies(servers: str, url: str, size: int) -> Figures:
    topics, group = topics_of(size, prefix=f"of-{size}"), f"copied-{size}"
    for topic, partitions in topics.items():
        create_topic(servers, topic, partitions=partitions)
        numbers = (number for number in range(partitions) for _ in range(REPETITIONS + 1))
        produce(servers, topic, (NewRecord(b"", partition=number) for number in numbers))
    broker = Broker({"bootstrap.servers": servers}, topics=list(topics), timeout=KAFKA_SECONDS)
    copies = Copies()
    claims: list[float] = []
    closes: list[float] = []
    with OffsetStore.connect(url, observers=[copies]) as store:
        broker.view(group, list(topics))  # the first one creates Kafka's own topic of offsets
        ranges: Iterator[dict[TopicPartition, OffsetRange]] | None = None
        for _ in range(REPETITIONS + 1):
            began = time.perf_counter()
            claim = store.claim(group, broker, mirror_every=3600)
            claims.append(time.perf_counter() - began)
            ranges = ranges or steps(claim.partitions)
            trigger(claim, next(ranges))
            closes.append(timed(claim.close))  # which copies all offsets a last time
        view = middle(lambda: broker.view(group, list(topics)))
        resolve = middle(lambda: resolve_starting_offsets(broker, group=group, store=store))
        _check_copied(broker, group, store)
    broker.close()
    return {
        "partitions": size,
        "view": view,
        "resolve": resolve,
        "claim": median(claims[1:]),
        "copy": median(closes[1:]),
        "copied": copies.copied / (REPETITIONS + 1),
    }


def _check_copied(broker: BrokerOffsets, group: str, store: OffsetStore) -> None:
    stored = {tp: row.next_offset for tp, row in store.offsets(group).items()}
    found = {tp: copy.next_offset for tp, copy in broker.committed_offsets(group, stored).items()}
    assert found == stored, "Kafka has other offsets than the store"


# -- what is kept of it


def settings(postgres: PostgresServer) -> Figures:
    """What the figures depend on."""
    with observing(postgres.url) as observer:
        shown = {name: one(observer, f"SHOW {name}")[0] for name in SETTINGS}
    return {
        **shown,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "load": os.getloadavg()[2],
        "at": time.strftime("%Y-%m-%d"),
    }


# -- the page


def page(figures: Figures) -> str:
    """The figures as Markdown."""
    parts = (_partitions(figures["partitions"]), _updates(figures["updates"]), _jobs(figures["jobs"]))
    return "\n".join((*parts, _kafka(figures["kafka"]), _arithmetic(figures), _conditions(figures)))


def _partitions(measured: Figures) -> str:
    sizes: list[Figures] = measured["sizes"]
    columns = {
        "first claim": "first_claim",
        "claim": "claim",
        "resolve": "resolve",
        "`store.offsets`": "read",
        "lock": "lock",
        "advance": "advance",
        "commit": "commit",
        "the three": "trigger",
    }
    rows: list[list[str]] = []
    for size in sizes:
        times = [ms(size[key]) for key in columns.values()]
        rows.append([f"{size['partitions']:,}", *times, f"{size['wal_bytes'] / size['partitions']:.0f}"])
    first, last, unknown = sizes[0], sizes[-1], measured["claimed_again"]
    grown = {key: f"{last[key] / first[key]:,.0f} times" for key in ("claim", "resolve", "trigger")}
    return section(
        "Partitions",
        "Milliseconds, and bytes of WAL for each partition that advances; medians. Kafka's part is left out.",
        table(["partitions", *columns, "WAL"], rows),
        f"""With {last["partitions"] / first["partitions"]:,.0f} times as many partitions, a claim takes
        {grown["claim"]} as long, resolving {grown["resolve"]}, and lock, advance and commit {grown["trigger"]}. These
        three take {ms(unknown["trigger"])} ms for {unknown["partitions"]:,} of {unknown["of"]:,} partitions, right
        after a claim that is newer than PostgreSQL's statistics.""",
    )


def _updates(measured: Figures) -> str:
    hot = measured["hot"] / measured["updated"]
    rows, index, largest = (f"{measured[f'{name}_bytes'] / 1024:,.0f} kB" for name in ("table", "index", "largest"))
    return section(
        "Updates",
        f"""{measured["transactions"]:,} transactions, each of which advances the same {measured["partitions"]:,}
        partitions, with autovacuum as PostgreSQL has it by default: {measured["updates"]:,} updates, {hot:.2%} of them
        HOT, and {measured["autovacuums"]:,} runs of autovacuum. At the end the table had {rows} and its index {index};
        the two and their maps never had more than {largest}. After it, lock, advance and commit took
        {ms(measured["worn"])} ms, and {ms(measured["fresh"])} ms in a new database, asked in turn.""",
    )


def _jobs(measured: Figures) -> str:
    columns: dict[str, Callable[[Figures], str]] = {
        "jobs": lambda load: f"{load['jobs']}",
        "records each": lambda load: f"{load['records']:,}",
        "transactions/s": lambda load: f"{load['transactions_per_second']:,.0f}",
        "records/s": lambda load: f"{load['records_per_second']:,.0f}",
        "median": lambda load: ms(load["median"]),
        "p99": lambda load: ms(load["p99"]),
        "connections": lambda load: f"{load['connections']}",
        "waits": lambda load: f"{load['lock_waits']}",
        "extending": lambda load: f"{load['extension_waits']}",
        "deadlocks": lambda load: f"{load['deadlocks']}",
    }
    return section(
        "Jobs on one database",
        f"""Each job is a process of its own, without Spark, that advances {measured["partitions"]:,} partitions in each
        transaction and begins the next one at once. `Append` writes the records, about 80 bytes each, from memory; all
        jobs write to one table without an index. Median and p99 are milliseconds of lock, advance and commit. Waits
        are those for another transaction that took longer than 10 ms, extending those for the right to make the file
        of the results longer.""",
        table(list(columns), [[show(load) for show in columns.values()] for load in measured["loads"]]),
    )


def _kafka(measured: Figures) -> str:
    columns = {"Kafka's part of a start": "view", "resolve": "resolve", "claim": "claim", "copy to Kafka": "copy"}
    rows = [[f"{size['partitions']:,}", *[ms(size[key]) for key in columns.values()]] for size in measured["sizes"]]
    return section(
        "With Kafka",
        f"""Milliseconds; topics of {PER_TOPIC:,} partitions on one broker. A claim asks Kafka twice. The copy is that
        of all offsets, as at the end of a claim.""",
        table(["partitions", *columns], rows),
    )


def _arithmetic(figures: Figures) -> str:
    loads: list[Figures] = figures["jobs"]["loads"]
    alone = {load["records"]: load["wal_bytes"] for load in loads if load["jobs"] == 1}
    record = (alone[JOB_RECORDS[-1]] - alone[0]) / JOB_RECORDS[-1]
    best = max(loads, key=lambda load: load["records_per_second"])
    streams = [
        [
            f"{rate:,}",
            f"{rate * record / 1e6:,.1f}",
            f"{rate * record * 86_400 / 1e12:,.2f}",
            f"{math.ceil(rate / best['records_per_second'])}",
        ]
        for rate in (10_000, 100_000, 1_000_000)
    ]
    seconds = (1, 5, 30)
    offsets = [
        [
            f"{size['partitions']:,}",
            *[f"{size['trigger'] / each:.2%}" for each in seconds],
            f"{size['wal_bytes'] / 1000:,.1f}",
        ]
        for size in figures["partitions"]["sizes"]
    ]
    return section(
        "Arithmetic",
        f"A record of these costs {record:.0f} bytes of WAL. So a stream of them costs, whatever writes it:",
        table(["records/s", "WAL, MB/s", "WAL, TB a day", "databases like this one"], streams),
        f"""The last column divides by {best["records_per_second"]:,.0f} records/s, which is what {best["jobs"]} jobs
        and the database reached together on {figures["jobs"]["settings"]["cores"]} cores. The offsets take this
        share of one connection's time, by the number of partitions and the time from trigger to trigger:""",
        table(["partitions", *[f"{each} s" for each in seconds], "WAL, kB a trigger"], offsets),
    )


def _conditions(figures: Figures) -> str:
    had = figures["partitions"]["settings"]
    measured = [(name, figures[name]["settings"]) for name in PARTS]
    when = ", ".join(f"{name} on {each['at']} ({each['load']:.1f})" for name, each in measured)
    server = ", ".join(f"`{name}` {had[name]}" for name in SETTINGS[1:])
    return section(
        "Conditions",
        f"""PostgreSQL {had["server_version"]} ({server}), Python {had["python"]}, {had["cores"]} cores,
        {had["memory_gb"]} GB of memory; client, database and Kafka on one machine. Measured, with the load average of
        the 15 minutes before: {when}.""",
    )


def section(title: str, *paragraphs: str) -> str:
    """A section; what is not a table is broken into lines anew."""
    texts = [text if text.startswith("|") else textwrap.fill(" ".join(text.split()), 119) for text in paragraphs]
    return "\n\n".join((f"### {title}", *texts)) + "\n"


def ms(seconds: float) -> str:
    """Milliseconds, with two or three digits that count."""
    value = seconds * 1000
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"  # noqa: PLR2004


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, its columns to the right."""
    lines = [heads, ["---:"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_page(figures: Figures) -> None:
    """Replace what is between the two comments."""
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    PAGE.write_text(f"{before}{MARKS[0]}\n{page(figures)}\n{MARKS[1]}{after}")


PARTS: Final[dict[str, Callable[[], Figures]]] = {
    "partitions": measure_partitions,
    "updates": measure_updates,
    "jobs": measure_jobs,
    "kafka": measure_kafka,
}


def main(arguments: Sequence[str]) -> None:
    """Measure the parts that are named, or all; then write the page."""
    figures: Figures = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    named: Sequence[str] = [] if "--page" in arguments else arguments or tuple(PARTS)
    for name in named:
        print(f"measuring: {name}", flush=True)
        figures[name] = PARTS[name]()
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    if missing := PARTS.keys() - figures.keys():
        print(f"the page needs these too: {', '.join(sorted(missing))}")
        return
    write_page(figures)
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main(sys.argv[1:])
