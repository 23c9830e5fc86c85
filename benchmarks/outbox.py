"""How fast a relay produces the outbox, beside a bare transactional producer; and how late a record is, at rest.

Run ``python -m benchmarks.outbox``, alone on its machine. Each round has both, one after the other, with as many
records in each transaction, so that what else the machine does meets both. Processor seconds are this process's: of the
relay also what it takes to read rows and to make records of them. After each round each row is in Kafka once.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from collections.abc import Callable, Sequence
from statistics import median
from threading import Thread
from typing import Final

import confluent_kafka as ck

from offsetstore import Broker, OffsetStore, Relay
from offsetstore.kafka.admin import create_topic, read_committed
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.postgres.migrate import upgrade
from offsetstore.postgres.url import make_engine
from offsetstore.protocol.events import Event, OutboxSent
from offsetstore.protocol.outbox import MOST_ROWS, OutboxRecord
from offsetstore.runtime.background import as_main_work
from tests.support.outbox import put

PARTITIONS: Final = 5
VALUE: Final = 200  # bytes
AT_REST: Final = 100  # commits, one after the other
SENT: Final[list[float]] = []


def main() -> None:
    """Measure, and print a line for each round and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    rows = [OutboxRecord("", f"key {n % 1000}".encode(), os.urandom(VALUE)) for n in range(arguments.rows)]
    with (
        PostgresServer() as postgres,
        KafkaBroker() as kafka,
        as_main_work(),
    ):  # as `offsetstore relay` has it; for both
        engine = make_engine(postgres.url)
        with engine.begin() as connection:
            upgrade(connection)
        engine.dispose()
        with OffsetStore.connect(postgres.url, observers=[_Watching()]) as store:
            Relay(store, Broker({"bootstrap.servers": kafka.bootstrap_servers})).drain()  # makes the anchor
            rounds = range(arguments.rounds)
            ratios = [_round(store, kafka.bootstrap_servers, rows, number) for number in rounds]
            print(f"median: {median(ratios):.2f} of the bare producer's rows a second")
            print(f"at rest: {1000 * _at_rest(store, kafka.bootstrap_servers):.0f} ms at the median")


class _Watching:
    """Notes when the first batch began: a relay asks and fences at its start, and a producer has done that before."""

    def on(self, event: Event) -> None:
        if isinstance(event, OutboxSent):
            SENT.append(time.monotonic() - event.seconds)


def _round(store: OffsetStore, servers: str, rows: Sequence[OutboxRecord], number: int) -> float:
    bare, relayed = f"bare-{number}", f"relayed-{number}"
    for topic in (bare, relayed):
        create_topic(servers, topic, partitions=PARTITIONS)
    for first in range(0, len(rows), MOST_ROWS):
        put(store, [row._replace(topic=relayed) for row in rows[first : first + MOST_ROWS]])
    relay = Relay(store, Broker({"bootstrap.servers": servers}))
    producer = ck.Producer({"bootstrap.servers": servers, "transactional.id": bare, "linger.ms": 5})
    producer.init_transactions(30)
    seconds = {"bare": _timed("bare", lambda: _produce(producer, bare, rows))}
    SENT.clear()
    _timed("relay, with its start", relay.drain)
    seconds["relay"] = time.monotonic() - SENT[0]
    for topic in (bare, relayed):
        found = sorted(message.value() or b"" for message in read_committed(servers, topic))
        assert found == sorted(row.value or b"" for row in rows), topic
    ratio = seconds["bare"] / seconds["relay"]
    print(f"round {number}: relay {len(rows) / seconds['relay']:.0f} rows/s, {ratio:.2f} of the bare producer")
    return ratio


def _produce(producer: ck.Producer, topic: str, rows: Sequence[OutboxRecord]) -> None:
    for first in range(0, len(rows), MOST_ROWS):
        producer.begin_transaction()
        for row in rows[first : first + MOST_ROWS]:
            while True:
                try:
                    producer.produce(topic, row.value, row.key)
                except BufferError:
                    producer.poll(0.01)
                    continue
                break
        producer.commit_transaction(60)


def _timed(name: str, what: Callable[[], object]) -> float:
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    what()
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"  {name}: {seconds:.2f} s, {used:.2f} s of a processor")
    return seconds


def _at_rest(store: OffsetStore, servers: str) -> float:
    """Seconds from a commit until a ``read_committed`` reader has the record, at the median."""
    create_topic(servers, "rest")
    consumer = ck.Consumer(
        {"bootstrap.servers": servers, "group.id": "rest", "isolation.level": "read_committed", "fetch.wait.max.ms": 10}
    )
    consumer.assign([ck.TopicPartition("rest", 0, 0)])
    relay = Relay(store, Broker({"bootstrap.servers": servers}))
    thread = Thread(target=relay.run)
    thread.start()
    waited: list[float] = []
    claim = store.claim("at-rest", topics=["payments"])
    try:
        for _ in range(AT_REST):
            with store.transaction(claim) as tx:
                tx.lock({})
                tx.produce("rest", None, b"")
            began = time.monotonic()
            while (message := consumer.poll(10)) is None or message.error() is not None:
                pass
            waited.append(time.monotonic() - began)
    finally:
        relay.stop()
        thread.join()
        consumer.close()
        claim.close()
    return median(waited)


if __name__ == "__main__":
    main()
