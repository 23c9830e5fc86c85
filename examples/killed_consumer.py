"""Without Spark, each payment lands exactly once while processes are killed: ``python examples/killed_consumer.py``.

It starts a PostgreSQL and a Kafka of its own, and ``offsetstore consume`` with two processes of `payments_consumer.py`.
Payments come in rounds; in the middle of a round, one of the processes gets SIGKILL. Its transaction is rolled back,
``offsetstore consume`` starts another one in its place, and that one goes on from the stored offsets.

Needs Java 17 and, in the checkout, ``pip install '.[local]'``. An argument says how many rounds: 6 by default.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from sqlalchemy import create_engine, text

from offsetstore import OffsetStore
from offsetstore.kafka.admin import NewRecord, create_topic, produce
from offsetstore.local.kafka import KafkaBroker
from offsetstore.local.postgres import PostgresServer
from offsetstore.postgres.migrate import upgrade

ROUNDS = int(sys.argv[1]) if sys.argv[1:] else 6
PAYMENTS = 20_000  # in each round
OFFSETSTORE = str(Path(sys.executable).with_name("offsetstore"))
CONSUME = [OFFSETSTORE, "consume", "payments_consumer:consumer", "--processes", "2", "--static"]
killed: list[int] = []


def payments(first: int) -> list[NewRecord]:
    """Make a round of payments, each with a payer of its own."""
    return [NewRecord(b"12.50", key=f"payer {number}".encode()) for number in range(first, first + PAYMENTS)]


def count() -> tuple[int, int]:
    """Count the table's rows, and its different payers."""
    with engine.connect() as connection:
        rows, payers = connection.execute(text("SELECT count(*), count(DISTINCT payer) FROM payments")).one()
    return rows, payers


def wait_for(rows: int) -> None:
    """Wait until the table has this many rows."""
    while count()[0] < rows:
        if consumer.poll() is not None:
            sys.exit(f"offsetstore consume has ended with exit code {consumer.returncode}")
        time.sleep(0.02)


def kill_one() -> None:
    """Kill the process that has run for longest."""
    state = store.group_state("billing")
    assert state is not None
    pids = [int(member.owner.rpartition(":")[2]) for member in state.members]
    pid = next(pid for pid in pids if pid not in killed)
    killed.append(pid)
    os.kill(pid, signal.SIGKILL)
    print(f"SIGKILL to process {pid}: {count()[0]:,} payments have landed")


with PostgresServer() as postgres, KafkaBroker() as kafka:
    engine = create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        upgrade(connection)  # as `offsetstore migrate` does
        connection.execute(text("CREATE TABLE payments (payer text, amount numeric(12, 2))"))
    create_topic(kafka.bootstrap_servers, "payments", partitions=4)
    os.environ |= {"OFFSETSTORE_URL": postgres.url, "OFFSETSTORE_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
    with OffsetStore.connect(engine) as store, subprocess.Popen(CONSUME, cwd=Path(__file__).parent) as consumer:
        try:
            for first in range(0, ROUNDS * PAYMENTS, PAYMENTS):
                produce(kafka.bootstrap_servers, "payments", payments(first))
                if 0 < first < (ROUNDS - 1) * PAYMENTS:
                    time.sleep(0.5)  # by now it has polled some of them; it commits once a second
                    kill_one()
                wait_for(first + PAYMENTS)
        finally:
            consumer.terminate()  # it writes what it has polled, and ends
    rows, payers = count()
    engine.dispose()

print(f"{ROUNDS * PAYMENTS:,} payments produced, {rows:,} rows in the table, {payers:,} of them different")
if not rows == payers == ROUNDS * PAYMENTS:
    sys.exit("some are missing, or there twice")
