"""A cron job: whatever has come since the last run is added to each payer's total, then it ends (`availableNow`).

The sums, and the offsets up to which they go, are in one transaction: a run that is killed and repeated adds nothing
twice. Two runs at once don't get in each other's way: the second ends with `GroupBusy` (a killed run counts as running
for 15 more seconds).

Needs the table: ``CREATE TABLE totals (payer text PRIMARY KEY, payments bigint, amount numeric(12, 2))``; and before
the first run, in the deploy, ``offsetstore migrate``. Run it with::

    OFFSETSTORE_URL=postgresql://shop@localhost/shop \
        spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/cron_job.py

or with ``python``, where Spark's own configuration names the packages.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import count
from pyspark.sql.functions import sum as sum_

import offsetstore.spark
from offsetstore import Broker, OffsetStore, TransactionalSink, Upsert

KAFKA = {
    "kafka.bootstrap.servers": os.environ.get("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092"),
    "subscribe": "payments",
    "maxOffsetsPerTrigger": "100000",  # after a long outage: many batches, each a transaction, rather than a huge one
}
CHECKPOINTS = os.environ.get("CHECKPOINTS", "/tmp/checkpoints")


def totals(batch: DataFrame) -> DataFrame:
    """One row a payer, to be added to what the table has."""
    payments = batch.selectExpr("CAST(key AS STRING) AS payer", "CAST(CAST(value AS STRING) AS DECIMAL(12, 2)) AS paid")
    return payments.groupBy("payer").agg(count("*").alias("payments"), sum_("paid").alias("amount"))


spark = SparkSession.builder.appName("totals").getOrCreate()
with offsetstore.spark.job() as job, OffsetStore.connect() as store:
    claim = store.claim("totals", Broker.from_spark(KAFKA), takeover="refuse")
    sink = TransactionalSink(claim, totals, into=Upsert("totals", key=["payer"], add=["payments", "amount"]))
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
