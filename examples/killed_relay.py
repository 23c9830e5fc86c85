"""Results go back into Kafka exactly once while the relay is killed: ``python examples/killed_relay.py``.

It starts a PostgreSQL and a Kafka of its own, and a consumer that adds each payment to its payer's total, and puts the
new total into the outbox: one transaction has both, and the offsets. ``offsetstore relay`` produces the totals to
Kafka. It gets SIGKILL twice: before Kafka's COMMIT, and right after it, when the rows are in Kafka and in the outbox.

Needs Java 17 and, in the checkout, ``pip install '.[local]'``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
from sqlalchemy import create_engine, text

from offsetstore import Execute, OffsetStore, Work
from offsetstore.consumer import Consumer
from offsetstore.kafka.admin import NewRecord, create_topic, produce, read_committed
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.postgres.migrate import upgrade

PAYMENTS, PAYERS = 1_000, 50  # before each start of the relay
RELAY = [str(Path(sys.executable).with_name("offsetstore")), "relay", "--bootstrap-servers"]
TABLE = text("CREATE TABLE totals (payer text PRIMARY KEY, payments bigint, amount numeric(12, 2))")
ADD = text("""
    INSERT INTO totals AS stored (payer, payments, amount) VALUES (:payer, 1, :amount)
    ON CONFLICT (payer) DO UPDATE SET payments = stored.payments + 1, amount = stored.amount + excluded.amount
    RETURNING payments, amount
""")
IS_DONE = text("SELECT (SELECT sum(payments) FROM totals) = :produced AND NOT EXISTS (SELECT FROM outbox)")


def parse(records: Any) -> pa.RecordBatch:
    """Make payers and amounts out of Kafka's records; ``records`` is a pyarrow.RecordBatch."""
    amount = records["value"].cast(pa.string()).cast(pa.decimal128(12, 2))
    return pa.record_batch([records["key"].cast(pa.string()), amount], names=["payer", "amount"])


def book(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """Add each payment to its payer's total, and produce the new total, with its number."""
    for payment in (row for batch in batches for row in batch.to_pylist()):
        number, total = work.connection.execute(ADD, payment).one()
        work.produce("totals", payment["payer"], f"{number} {total}")


def is_done() -> bool:
    """Whether all payments are booked, and the outbox is empty."""
    with engine.connect() as connection:
        return bool(connection.execute(IS_DONE, {"produced": 2 * PAYMENTS}).scalar_one())


with PostgresServer() as postgres, KafkaBroker() as kafka, ThreadPoolExecutor() as pool:
    servers = kafka.bootstrap_servers
    engine = create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        upgrade(connection)  # as `offsetstore migrate` does
        connection.execute(TABLE)
    for topic in ("payments", "totals"):
        create_topic(servers, topic, partitions=4)
    store = OffsetStore.connect(engine)
    settings = {"bootstrap.servers": servers}
    consumer = Consumer(store, "totals", topics=["payments"], kafka=settings, transform=parse, into=Execute(book))
    consuming = pool.submit(consumer.run)
    os.environ["OFFSETSTORE_URL"] = postgres.url
    try:
        for failpoint in ("outbox_produced", "outbox_sent"):  # there it sends SIGKILL to itself
            payments = [NewRecord(b"12.50", key=f"payer {number % PAYERS}".encode()) for number in range(PAYMENTS)]
            produce(servers, "payments", payments)
            environment = {**os.environ, "OFFSETSTORE_FAILPOINT": failpoint}
            killed = subprocess.run([*RELAY, servers], env=environment, check=False, timeout=120)
            print(f"the relay has ended with exit status {killed.returncode}")
        with subprocess.Popen([*RELAY, servers]) as relay:
            while not is_done() and not consuming.done() and relay.poll() is None:
                time.sleep(0.1)
            relay.terminate()
    finally:
        consumer.stop()
    consuming.result()
    with engine.connect() as connection:
        stored = connection.execute(text("SELECT payer, payments, amount FROM totals ORDER BY payer")).all()
    found: dict[str, list[str]] = {}
    for message in read_committed(servers, "totals"):
        found.setdefault((message.key() or b"").decode(), []).append((message.value() or b"").decode())
    store.close()
    engine.dispose()

expected = {payer: [f"{number} {12.5 * number:.2f}" for number in range(1, count + 1)] for payer, count, _ in stored}
print(f"{2 * PAYMENTS:,} payments booked, {sum(map(len, found.values())):,} totals in Kafka, for {len(stored)} payers")
if found != expected:
    sys.exit("some are missing, there twice, or not in order")
