"""What dead letters cost, and how long bad records take: ``python -m benchmarks.dead_letters``.

Each case is checked: the good records once in the table, each bad one once as a letter with the bytes that were
produced. The last case pairs a job that has dead letters on, and no bad record, with one that has not.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any, Final
from uuid import uuid4

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from offsetstore import Append, Broker, DeadLetters, OffsetStore, TransactionalSink
from offsetstore.kafka.admin import NewRecord, create_topic, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.local.spark import local_session, stop_session
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine

PARTITIONS: Final = 2
TABLES: Final = """
DROP TABLE IF EXISTS payments, customers;
CREATE TABLE customers (name text PRIMARY KEY);
INSERT INTO customers SELECT 'customer ' || n FROM generate_series(0, 99) AS n;
CREATE TABLE payments (
    id int PRIMARY KEY,
    customer text NOT NULL REFERENCES customers DEFERRABLE INITIALLY DEFERRED,
    amount numeric(9, 2) NOT NULL CHECK (amount > 0),
    note varchar(20))
"""

SLOW: Final = """
CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.02); RETURN NULL; END';
CREATE TRIGGER slow AFTER INSERT ON payments FOR EACH STATEMENT EXECUTE FUNCTION slow()
"""

_SUBTRANSACTIONS: Final = b"""
SELECT max(s.subxact_count), bool_or(s.subxact_overflowed)
FROM pg_stat_get_backend_idset() AS backend (id), pg_stat_get_backend_subxact(backend.id) AS s
"""


def rows(batch: DataFrame) -> DataFrame:
    """Id, customer, amount and note, separated by semicolons."""
    part = F.split(F.col("value").cast("string"), ";")
    return batch.select(
        part[0].cast("int").alias("id"),
        part[1].alias("customer"),
        part[2].cast("decimal(18,2)").alias("amount"),
        part[3].alias("note"),
        "_kafka",
    )


def good(number: int) -> str:
    """A record that the table takes."""
    return f"{number};customer {number % 100};{number % 1000 + 1}.50;a note"


def misfit(number: int) -> str:
    """One with a note that is too long, or with too large an amount; a check of the values finds it."""
    return good(number) + " that is much too long" if number % 2 else f"{number};customer 1;12345678901.00;a note"


def refused(number: int) -> str:
    """One with a customer that is missing, which COMMIT would find, or with a negative amount."""
    return f"{number};nobody;1.00;a note" if number % 2 else f"{number};customer 1;-1.00;a note"


def checked(number: int) -> str:
    """One that a CHECK refuses where its row arrives: the error's context says which row of the COPY that was."""
    return f"{number};customer 1;-1.00;a note"


def malformed(number: int) -> str:
    """One with an id that no cast takes: Spark's own error ends the job that computes it."""
    return f"x{number};customer 1;1.00;a note"


class Bench:
    """Runs jobs on one stack."""

    def __init__(self, url: str, servers: str, spark: SparkSession, directory: str) -> None:
        self._servers = servers
        self._spark = spark
        self._directory = directory
        self._connection = psycopg.connect(url, autocommit=True)
        self._url = url
        self._topic = ""
        self._store = OffsetStore.connect(url)

    def find(self, name: str, count: int, bad: Mapping[int, str], *, also: str = "", **settings: Any) -> None:
        """Run a job over records with bad ones, and check the result.

        :param also: SQL that is run once the tables are there.
        """
        self._produce([bad.get(number, good(number)) for number in range(count)])
        self._connection.execute(f"{TABLES};{also}".encode())
        most, done = [0, False], Event()
        watcher = Thread(target=self._watch, args=(most, done))
        watcher.start()
        group, seconds = self._run(dead_letters=DeadLetters(**settings))
        done.set()
        watcher.join()
        found = self._one("SELECT count(*), count(DISTINCT id) FROM payments")
        assert found == (count - len(bad), count - len(bad)), found
        letters = self._connection.execute(
            b"SELECT convert_from(value, 'UTF8') FROM dead_letters WHERE consumer_group = %s", [group]
        ).fetchall()
        assert sorted(value for (value,) in letters) == sorted(bad.values())
        print(
            f"{name}: {len(bad)} bad of {count}: {seconds:.1f} s, "
            f"at most {most[0]} subtransactions, overflowed: {most[1]}",
            flush=True,
        )

    def pair(self, count: int, rounds: int) -> None:
        """Compare a job with dead letters, and no bad record, with one without."""
        self._produce(map(good, range(count)))
        ratios: list[float] = []
        for number in range(rounds + 1):
            seconds: dict[bool, float] = {}
            for with_letters in [True, False] if number % 2 else [False, True]:
                self._connection.execute(TABLES.encode())
                self._connection.execute(b"CHECKPOINT")
                arguments: dict[str, Any] = {"dead_letters": DeadLetters()} if with_letters else {}
                _, seconds[with_letters] = self._run(**arguments)
                assert self._one("SELECT count(*) FROM payments") == (count,)
            if number:
                ratios.append(seconds[True] / seconds[False])
            print(f"{number or 'warm-up'}: with {seconds[True]:.2f} s, without {seconds[False]:.2f} s", flush=True)
        print(f"with / without, {count} records: median {median(ratios):.3f} of {rounds} pairs", flush=True)

    def _produce(self, values: Any) -> None:
        self._topic = f"records-{uuid4().hex}"
        create_topic(self._servers, self._topic, partitions=PARTITIONS)
        records = (
            NewRecord(value.encode(), key=None, partition=number % PARTITIONS) for number, value in enumerate(values)
        )
        produce(self._servers, self._topic, records, settings={"linger.ms": 50})

    def _run(self, **arguments: Any) -> tuple[str, float]:
        options = {"kafka.bootstrap.servers": self._servers, "subscribe": self._topic}
        group = uuid4().hex
        with self._store.claim(group, Broker.from_spark(options), mirror_every=None) as claim:
            sink = TransactionalSink(claim, rows, into=Append("payments"), **arguments)
            reader = self._spark.readStream.format("kafka").options(**options)
            reader = reader.option("startingOffsets", claim.starting_offsets)
            writer = reader.load().writeStream.foreachBatch(sink)
            writer = writer.option("checkpointLocation", claim.checkpoint(f"{self._directory}/{group}"))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            [seconds] = [
                one["durationMs"]["triggerExecution"] / 1000 for one in query.recentProgress if one["numInputRows"]
            ]
        return group, seconds

    def _watch(self, most: list[Any], done: Event) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not done.is_set():
                count, overflowed = connection.execute(_SUBTRANSACTIONS).fetchone() or (0, False)
                most[:] = max(most[0], count or 0), most[1] or bool(overflowed)
                time.sleep(0.05)

    def _one(self, query: str) -> Any:
        return self._connection.execute(query.encode()).fetchone()


def main() -> None:
    """Start the services, and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dead_letters", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="pairs that count, after one to warm up")
    parser.add_argument("--only", default="misfits,refused,retried,checked,slow,malformed,none", help="cases")
    given = parser.parse_args()
    chosen = random.Random(7)  # noqa: S311 - not a secret
    cases: dict[str, Callable[[Bench], None]] = {
        "misfits": lambda bench: bench.find("misfits", *_scattered(chosen, 100_000, 10_000, misfit)),
        "refused": lambda bench: bench.find("refused", *_scattered(chosen, 100_000, 200, refused), max_retries=0),
        "retried": lambda bench: bench.find("refused, retried 3 times", *_scattered(chosen, 100_000, 200, refused)),
        "checked": lambda bench: bench.find("checked", *_scattered(chosen, 100_000, 200, checked), max_retries=0),
        "slow": lambda bench: bench.find(
            "checked, by a table whose trigger sleeps 20 ms a statement",
            *_scattered(chosen, 5_000, 50, checked),
            max_retries=0,
            also=SLOW,
        ),
        "malformed": lambda bench: bench.find("malformed", *_scattered(chosen, 100_000, 20, malformed)),
        "none": lambda bench: bench.pair(500_000, given.rounds),
    }
    with ExitStack() as stack:
        kafka, postgres = stack.enter_context(KafkaBroker()), stack.enter_context(PostgresServer())
        engine = make_engine(postgres.url)
        with engine.begin() as connection:
            upgrade(connection)
        engine.dispose()
        directory = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        spark = local_session("benchmark")
        stack.callback(stop_session, spark)
        bench = Bench(postgres.url, kafka.bootstrap_servers, spark, str(Path(directory)))
        for name in given.only.split(","):
            cases[name](bench)


def _scattered(chosen: random.Random, count: int, bad: int, make: Callable[[int], str]) -> tuple[int, dict[int, str]]:
    return count, {number: make(number) for number in sorted(chosen.sample(range(count), bad))}


if __name__ == "__main__":
    main()
