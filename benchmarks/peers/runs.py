"""One run: fill a topic, start the peer, wait for its rows; kill it while it runs, if asked to, and count."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
from confluent_kafka import Producer

from benchmarks.peers.programs import Peer, Place
from benchmarks.shapes import PARTITIONS, SMALL
from offsetstore.kafka.admin import create_topic, delete_topic
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.local.servers import Watchdog, tail

WARM: Final = 10_000
"""Records that go ahead, so that everything is started and connected."""
END: Final = 500
"""Records that follow a kill: when they are in the table, all before them have been read."""
IDLE_SECONDS: Final = 2.0
GIVE_UP_SECONDS: Final = 180.0
LOOK_SECONDS: Final = 0.01


class NotFinished(Exception):
    """A peer has ended, or has not done in time what was expected."""


class Feed:
    """A topic whose records come in transactions: a consumer sees all records of one at the same moment."""

    def __init__(self, servers: str, topic: str, count: int) -> None:
        create_topic(servers, topic, partitions=PARTITIONS)
        self._topic = topic
        self._records = replace(SMALL, count=count).records()
        self._producer = Producer({
            "bootstrap.servers": servers,
            "transactional.id": topic,
            "transaction.timeout.ms": 600_000,
            "linger.ms": 20,
            "log_level": 0,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
        })  # fmt: skip
        self._producer.init_transactions()

    def send(self, count: int) -> None:
        """Send the next records; consumers don't see them yet."""
        self._producer.begin_transaction()
        for record in islice(self._records, count):
            self._producer.produce(self._topic, record.value, record.key, record.partition)
        left = self._producer.flush(GIVE_UP_SECONDS)
        assert not left, f"{left} records were not sent"

    def show(self) -> None:
        """Let consumers see what was sent."""
        self._producer.commit_transaction()


class Table:
    """The results table, empty at first, seen from a session of its own."""

    def __init__(self, url: str, *, unique: bool) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self.roll_back_prepared()
        key = f"ALTER TABLE {SMALL.table} ADD PRIMARY KEY ({SMALL.key})"
        drop, options = f"DROP TABLE IF EXISTS {SMALL.table}", "SET max_parallel_workers_per_gather = 0"
        for statement in (drop, SMALL.ddl, *([key] if unique else []), "CHECKPOINT", options):
            self._ask(statement)

    def select(self, what: str) -> Any:
        """Return the one row that this SELECT returns."""
        return self._ask(f"SELECT {what}").fetchone()

    def count(self, where: str = "true") -> int:
        """Count rows."""
        return self.select(f"count(*) FROM {SMALL.table} WHERE {where}")[0]

    def size(self) -> int:
        """Return its bytes on disk, with the rows of open transactions. This costs nothing, unlike counting."""
        return self.select(f"pg_relation_size('{SMALL.table}')")[0]

    def size_of_rows(self, count: int) -> float:
        """Return the bytes that so many rows take at least, from the rows that are there."""
        return count * float(self.select(f"avg(pg_column_size({SMALL.table}.*)) FROM {SMALL.table}")[0])

    def roll_back_prepared(self) -> int:
        """Roll back the transactions that were prepared and left; return how many there were."""
        left = self._ask("SELECT gid FROM pg_prepared_xacts").fetchall()
        for (name,) in left:
            self._ask(f"ROLLBACK PREPARED '{name}'")
        return len(left)

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    def _ask(self, statement: str) -> Any:
        return self._connection.execute(statement.encode())


class Process:
    """The peer's processes: one group, killed as one."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603 - our own commands
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        # Kills the group if this process is killed.
        self._watchdog: Watchdog | None = Watchdog(-self._process.pid, how="KILL", temporary=None)

    def kill(self) -> None:
        """Send SIGKILL to all of them, once."""
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        watchdog.leave()

    def wait_until(self, condition: Callable[[], bool], *, look: float = LOOK_SECONDS) -> None:
        """Wait for the condition while the peer runs.

        :raises NotFinished: the peer has ended, or time is up; with the end of its log.
        """
        deadline = time.monotonic() + GIVE_UP_SECONDS
        while not condition():
            if self._process.poll() is not None or time.monotonic() > deadline:
                state = "ended" if self._process.poll() is not None else f"not there after {GIVE_UP_SECONDS:.0f} s"
                raise NotFinished(f"{state}; the end of {self.log}:\n{tail(self.log)}")
            time.sleep(look)


@dataclass(frozen=True, slots=True)
class Kill:
    """What one SIGKILL did.

    :param moment: seconds after the records were there, or ``None``: as the first rows became visible.
    :param seen: rows that were visible just after the kill, of those under way.
    :param prepared: transactions that were still prepared at the end.
    :param finished: whether the restarted peer has written the last records in time.
    """

    moment: float | None
    seen: int
    doubled: int
    lost: int
    prepared: int
    finished: bool


class Services:
    """Kafka and PostgreSQL, and a run of a peer on them."""

    def __init__(self, kafka: KafkaBroker, postgres: PostgresServer, records: int) -> None:
        self._servers, self._postgres, self._records = kafka.bootstrap_servers, postgres, records

    def measure(self, peer: Peer) -> float:
        """Return the seconds from the moment when the records are there until all rows are visible."""
        with self._started(peer) as (process, table, feed, _):
            whole = WARM + self._records
            nearly = 0.9 * table.size_of_rows(whole)
            began = time.monotonic()
            feed.show()
            process.wait_until(lambda: table.size() > nearly and table.count() >= whole)
            seconds = time.monotonic() - began
            assert table.count() == whole, f"{table.count()} rows, expected {whole}"
            return seconds

    def kill(self, peer: Peer, moment: float | None) -> Kill:
        """Kill the peer at the moment, start it again, wait until it has read everything, and count."""
        with self._started(peer) as (process, table, feed, again):
            feed.show()
            if moment is None:
                first = f"EXISTS (SELECT FROM {SMALL.table} WHERE {SMALL.key} >= {WARM})"
                process.wait_until(lambda: table.select(first)[0])
            else:
                time.sleep(moment)
            process.kill()
            seen = table.count() - WARM
            feed.send(END)
            feed.show()
            end, whole = f"{SMALL.key} >= {WARM + self._records}", WARM + self._records + END
            finished = True
            try:
                again().wait_until(lambda: table.count(end) >= END, look=IDLE_SECONDS / 4)
            except NotFinished as error:
                print(error, flush=True)
                finished = False
            rows, distinct = table.select(f'count(*), count(DISTINCT ("partition", "offset")) FROM {SMALL.table}')
            return Kill(moment, seen, rows - distinct, whole - distinct, table.roll_back_prepared(), finished)

    @contextmanager
    def _started(self, peer: Peer) -> Generator[tuple[Process, Table, Feed, Callable[[], Process]]]:
        """Start a peer on a new topic, and wait until it has written the first records and idles."""
        topic = uuid4().hex
        table = Table(self._postgres.url, unique=peer.unique)
        feed = Feed(self._servers, topic, WARM + self._records + END)
        processes: list[Process] = []
        with tempfile.TemporaryDirectory(prefix="offsetstore-peers-") as name:
            directory = Path(name)

            def start() -> Process:
                place = Place(self._postgres.port, self._servers, topic, directory)
                processes.append(Process(peer.command(place), directory / "log"))
                return processes[-1]

            try:
                feed.send(WARM)
                feed.show()
                feed.send(self._records)
                process = start()
                process.wait_until(lambda: table.count() >= WARM)
                time.sleep(IDLE_SECONDS)
                yield process, table, feed, start
            finally:
                for process in processes:
                    process.kill()
                table.close()
                delete_topic(self._servers, topic)
