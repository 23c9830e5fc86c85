"""A cut-over: a fee is charged on payments from the first record with the key ``fee`` on, whose value is the rate.

The record's offset and rate are kept as metadata of the offset, in the transaction of the batch that has it. So every
later batch and every later start applies the rate, and a batch that is repeated after a crash cuts at the same record.

Needs the table: ``CREATE TABLE payments (payer text, amount numeric(12, 2))``; and before the first run, in the deploy,
``offsetstore migrate``. Run it with::

    OFFSETSTORE_URL=postgresql://shop@localhost/shop \
        spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/cutover_job.py

or with ``python``, where Spark's own configuration names the packages. It ends when it has read what there is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import text

import offsetstore.spark
from offsetstore import Broker, Execute, OffsetStore, TopicPartition, TransactionalSink, Work

KAFKA = {
    "kafka.bootstrap.servers": os.environ.get("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092"),
    "subscribe": "payments",
    "maxOffsetsPerTrigger": "100000",
}
CHECKPOINTS = os.environ.get("CHECKPOINTS", "/tmp/checkpoints")
INSERT = text("INSERT INTO payments VALUES (:payer, :amount)")


def parse(batch: DataFrame) -> DataFrame:
    """Keep the coordinates: the fee begins at one."""
    return batch.selectExpr(
        "topic", "partition", "offset", "CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value"
    )


def charge(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """Write the payments, with the fee on those after the cut-over."""
    records = sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["offset"])
    for partition in work.ranges:
        cut: Any = work.metadata(partition, cache=False)  # None, or the record at which the fee began
        for record in records:
            if TopicPartition(record["topic"], record["partition"]) != partition:
                continue
            if record["key"] != "fee":
                factor = 1 + Decimal(cut["rate"]) if cut else 1
                amount = Decimal(record["value"]) * factor
                work.connection.execute(INSERT, {"payer": record["key"], "amount": amount})
            elif cut is None:
                cut = {"offset": record["offset"], "rate": record["value"]}
                work.write_metadata(partition, cut)


spark = SparkSession.builder.appName("charges").getOrCreate()
with offsetstore.spark.job() as job, OffsetStore.connect() as store:
    claim = store.claim("charges", Broker.from_spark(KAFKA))
    sink = TransactionalSink(claim, parse, into=Execute(charge))
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
