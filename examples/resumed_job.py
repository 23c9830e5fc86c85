"""A unit of work that is longer than a batch: a day of payments, which ends with a record of the key ``close``.

A day becomes one row, when it is over. The sum of an unfinished day is kept as metadata of the offset, in the
transaction of each batch. So after a job was killed in the middle of a day, the next start goes on with the sum at the
offset that it belongs to, and reads none of the day's records again.

Needs the table: ``CREATE TABLE days (payments bigint, amount numeric(12, 2))``; and before the first run, in the
deploy, ``offsetstore migrate``. Run it with::

    OFFSETSTORE_URL=postgresql://shop@localhost/shop \
        spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/resumed_job.py

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
INSERT = text("INSERT INTO days VALUES (:payments, :amount)")


def parse(batch: DataFrame) -> DataFrame:
    """Keep the coordinates, to take the records in order."""
    return batch.selectExpr(
        "topic", "partition", "offset", "CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value"
    )


def settle(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """Add each payment to its day, and write the days that are over."""
    records = sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["offset"])
    for partition in work.ranges:
        day: Any = work.metadata(partition, cache=False) or {"payments": 0, "amount": "0"}
        for record in records:
            if TopicPartition(record["topic"], record["partition"]) != partition:
                continue
            if record["key"] == "close":
                work.connection.execute(INSERT, day)
                day = {"payments": 0, "amount": "0"}
            else:
                amount = Decimal(day["amount"]) + Decimal(record["value"])
                day = {"payments": day["payments"] + 1, "amount": str(amount)}
        work.write_metadata(partition, day)


spark = SparkSession.builder.appName("days").getOrCreate()
with offsetstore.spark.job() as job, OffsetStore.connect() as store:
    claim = store.claim("days", Broker.from_spark(KAFKA))
    sink = TransactionalSink(claim, parse, into=Execute(settle))
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
