"""Fewer transactions: batches come each second, and are written together, once a minute or at 50,000 rows (`Flush`).

What waits in memory is written at a clean stop, too: at SIGTERM `job.run` stops the query, and writes the rest. A job
that is killed writes nothing of it; its next start reads those records again.

Needs the table: ``CREATE TABLE payments (payer text, amount numeric(12, 2))``; and before the first run, in the deploy,
``offsetstore migrate``. Run it with::

    OFFSETSTORE_URL=postgresql://shop@localhost/shop \
        spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/buffered_job.py

or with ``python``, where Spark's own configuration names the packages. It runs until it is stopped.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

import offsetstore.spark
from offsetstore import Append, Broker, Flush, OffsetStore, TransactionalSink

KAFKA = {
    "kafka.bootstrap.servers": os.environ.get("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092"),
    "subscribe": "payments",
}
CHECKPOINTS = os.environ.get("CHECKPOINTS", "/tmp/checkpoints")


def parse(batch: DataFrame) -> DataFrame:
    """Make the table's columns out of Kafka's."""
    return batch.selectExpr("CAST(key AS STRING) AS payer", "CAST(CAST(value AS STRING) AS DECIMAL(12, 2)) AS amount")


spark = SparkSession.builder.appName("buffered").getOrCreate()
with offsetstore.spark.job() as job, OffsetStore.connect() as store:
    claim = store.claim("buffered", Broker.from_spark(KAFKA))
    sink = TransactionalSink(claim, parse, into=Append("payments"), flush=Flush(rows=50_000, seconds=60))
    query = (
        spark.readStream.format("kafka")
        .options(**KAFKA)
        .option("startingOffsets", claim.starting_offsets)
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", claim.checkpoint(CHECKPOINTS))
        .trigger(processingTime="1 second")
        .start()
    )
    job.run(query, sink)
