"""``offsetstore exporter`` with 10,000 partitions that are all behind: its refresh, a scrape, and its memory.

Run with ``python -m benchmarks.exporter`` on a quiet machine; some minutes.
"""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Final

from offsetstore import OffsetRange, OffsetStore, TopicPartition
from offsetstore.kafka.admin import NewRecord, create_topic, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine

TOPICS: Final = 10
PARTITIONS: Final = 1000  # of each topic
RECORDS: Final = 20  # of each partition, over ten days
EVENNESS: Final = (1, 3)  # 1: the records come evenly; 3: most of them are recent
DAY_MS: Final = 86_400_000
SECONDS: Final = 60
SCRAPES: Final = 20


def main() -> None:
    """Measure, and print."""
    for power in EVENNESS:
        print("records that come evenly:" if power == 1 else "records most of which are recent:")
        run(power)


def run(power: int) -> None:
    """Start everything, measure, and print."""
    with KafkaBroker(settings={"log.index.size.max.bytes": "4096"}, heap="1g") as kafka, PostgresServer() as postgres:
        fill(kafka.bootstrap_servers, postgres.url, power)
        environment = {**os.environ, "OFFSETSTORE_URL": postgres.url}
        command = [sys.executable, "-c", "from offsetstore.cli.main import main; main()", "exporter", "--port", "0"]
        command += ["-b", kafka.bootstrap_servers, "--interval", "5", "--timeout", "60"]
        with (
            tempfile.TemporaryFile("w+") as log,
            subprocess.Popen(  # noqa: S603 - ourselves
                command, stdout=log, env=environment
            ) as process,
        ):
            try:
                measure(address(log.fileno()), process.pid)
            finally:
                process.terminate()


def fill(servers: str, url: str, power: int) -> None:
    """Make the topics, their records, and a group that has stored offset 1 to 18 of each partition."""
    now = int(time.time() * 1000)
    names = [f"topic-{number:02}" for number in range(TOPICS)]
    for name in names:
        create_topic(servers, name, partitions=PARTITIONS)
        ages = (int(10 * DAY_MS * ((RECORDS - number) / RECORDS) ** power) for number in range(RECORDS))
        records = (
            NewRecord(b"x", partition=number, timestamp_ms=now - age) for age in ages for number in range(PARTITIONS)
        )
        produce(servers, name, records)
    engine = make_engine(url)
    with engine.begin() as connection:
        upgrade(connection)
    engine.dispose()
    ranges = {
        TopicPartition(name, number): OffsetRange(0, 1 + number % 18) for name in names for number in range(PARTITIONS)
    }
    with (
        OffsetStore.connect(url) as store,
        store.claim("billing", topics=names) as claim,
        store.transaction(claim) as tx,
    ):
        tx.lock(ranges)
        tx.advance(ranges)


def address(log: int) -> int:
    """The port that the exporter says it listens on."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if found := re.search(rb":(\d+)/metrics", os.pread(log, 1000, 0)):
            return int(found[1])
        time.sleep(0.1)
    raise TimeoutError("the exporter does not listen")


def measure(port: int, pid: int) -> None:
    """Wait for some refreshes, scrape, and print."""
    refreshes: dict[bytes, float] = {}
    scrapes: list[float] = []
    text, used = b"", cpu_seconds(pid)
    for _number in range(SCRAPES):
        began = time.perf_counter()
        packed = fetch(port)
        scrapes.append(time.perf_counter() - began)
        text = gzip.decompress(packed)
        at, took = (
            text.partition(b"\noffsetstore_exporter_%s_seconds " % name)[2].split()[0]
            for name in (b"last_refresh_timestamp", b"refresh_duration")
        )
        refreshes[at] = float(took)
        time.sleep(3)
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    print(f"load {os.getloadavg()[0]:.1f}; {len(text) / 1e6:.1f} MB of text in {text.count(b'kafka_'):,} lines")
    took, cpu = refreshes.values(), (cpu_seconds(pid) - used) / (len(refreshes) - 1)
    print(f"refresh {median(took):.2f} s (fastest {min(took):.2f}, slowest {max(took):.2f}), of it {cpu:.2f} s of CPU")
    print(f"scrape {median(scrapes) * 1000:.0f} ms (slowest {max(scrapes) * 1000:.0f}); memory {peak:.0f} MB at most")


def cpu_seconds(pid: int) -> float:
    """What the process has used, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fetch(port: int) -> bytes:
    """Scrape as Prometheus does."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
    body = connection.getresponse().read()
    connection.close()
    return body


if __name__ == "__main__":
    main()
