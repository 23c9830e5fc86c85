"""A service is called for each record, with many calls at once (`Handler`), and its answers are written exactly once.

A call may be repeated: after a crash, a batch that was not committed is handled again. So each request has the record's
id as its ``Idempotency-Key``, by which the service (`charging_service.py`) charges each payment once. A payment that
the service refuses becomes a dead letter; while the service is down, the job ends, and no payment is to blame.

Needs the table: ``CREATE TABLE charges (payer text, amount numeric(12, 2), charge bigint)``; and before the first run,
in the deploy, ``offsetstore migrate``. Run it with::

    python examples/charging_service.py 8085 &
    OFFSETSTORE_URL=postgresql://shop@localhost/shop \
        spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/charging_job.py

or with ``python``, where Spark's own configuration names the packages. With the argument ``async`` it makes its calls
on an event loop instead of in threads. It ends when it has read what there is.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import sys
from decimal import Decimal

from pyspark.sql import SparkSession

import offsetstore.spark
from offsetstore import Append, Broker, DeadLetters, Handler, OffsetStore, Record, TransactionalSink
from offsetstore.errors import Outage

KAFKA = {
    "kafka.bootstrap.servers": os.environ.get("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092"),
    "subscribe": "payments",
    "maxOffsetsPerTrigger": "10000",  # a batch: after a crash, at most so many payments are sent again
}
CHECKPOINTS = os.environ.get("CHECKPOINTS", "/tmp/checkpoints")
HOST, PORT = os.environ.get("CHARGING_SERVICE", "localhost:8085").split(":")
SECONDS = 5  # for one request: less than the handler's timeout


def charge(record: Record) -> dict[str, object]:
    """Charge a payment; called in threads."""
    connection = http.client.HTTPConnection(HOST, int(PORT), timeout=SECONDS)
    try:
        connection.request("POST", "/charges", body(record), headers(record))
        answer = connection.getresponse()
        return row(record, answer.status, answer.read())
    finally:
        connection.close()


async def charge_async(record: Record) -> dict[str, object]:
    """Charge a payment; called on an event loop. An HTTP client for asyncio does this in a line or two."""
    sent = body(record)
    lines = [f"{name}: {value}" for name, value in {**headers(record), "Content-Length": len(sent)}.items()]
    try:
        async with asyncio.timeout(SECONDS):
            reader, writer = await asyncio.open_connection(HOST, int(PORT))
            writer.write("\r\n".join(["POST /charges HTTP/1.0", *lines, "", ""]).encode() + sent)
            head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
    except OSError as error:  # a TimeoutError is one, too
        raise Outage(f"the service is unavailable: {error!r}") from None
    return row(record, int(head.split()[1]), answer)


def body(record: Record) -> bytes:
    """What the service is sent."""
    return json.dumps({"payer": (record.key or b"").decode(), "amount": str(amount(record))}).encode()


def headers(record: Record) -> dict[str, str]:
    """The id is the same each time the record is handled."""
    return {"Content-Type": "application/json", "Idempotency-Key": record.id}


def row(record: Record, status: int, answer: bytes) -> dict[str, object]:
    """Make the row that is written, of a good answer."""
    if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Outage(f"the service answers {status}")  # retried, and then the job ends: no payment is to blame
    if status != http.HTTPStatus.OK:
        raise ValueError(f"the service answers {status}")  # retried, and then a dead letter
    return {"payer": (record.key or b"").decode(), "amount": amount(record), "charge": json.loads(answer)["charge"]}


def amount(record: Record) -> Decimal:
    """Read the payment's amount."""
    return Decimal((record.value or b"").decode())


calls = Handler(
    charge_async if "async" in sys.argv[1:] else charge,
    "payer string, amount decimal(12, 2), charge long",
    concurrency=32,  # in each task: with 8 cores, 256 calls at once
    timeout=15,
)
spark = SparkSession.builder.appName("charging").getOrCreate()
with offsetstore.spark.job() as job, OffsetStore.connect() as store:
    claim = store.claim("charging", Broker.from_spark(KAFKA))
    sink = TransactionalSink(claim, calls, into=Append("charges"), dead_letters=DeadLetters())
    query = (
        spark.readStream.format("kafka")
        .options(**KAFKA)
        .option("startingOffsets", claim.starting_offsets)
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", claim.checkpoint(CHECKPOINTS))
        .trigger(availableNow=True)
        .start()
    )
    job.run(query, sink)
