"""The job of `existing_job.py`, made exactly-once: each batch's rows and its offsets in one database transaction.

Three lines of the query differ, 1 to 3; a claim and a sink stand where the function that wrote to the database was.

If the other one has run already, its offsets are in its checkpoint. Stop it, and hand them over, once and for all, by
``adopt_checkpoint=f"{CHECKPOINTS}/payments"`` in the claim (docs/adopting.md); or all payments come a second time.

Needs the table: ``CREATE TABLE payments (payer text, amount numeric(12, 2))``; and before the first run, in the deploy,
``offsetstore migrate --url …``. Run it with::

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/exactly_once_job.py

or with ``python``, where Spark's own configuration names the packages. It runs until it is stopped.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

import offsetstore.spark
from offsetstore import Append, Broker, OffsetStore, TransactionalSink

KAFKA = {
    "kafka.bootstrap.servers": os.environ.get("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092"),
    "subscribe": "payments",
}
DATABASE = os.environ.get("DATABASE", "jdbc:postgresql://localhost:5432/shop?user=shop")
CHECKPOINTS = os.environ.get("CHECKPOINTS", "/tmp/checkpoints")


def parse(batch: DataFrame) -> DataFrame:
    """Make the table's columns out of Kafka's."""
    return batch.selectExpr("CAST(key AS STRING) AS payer", "CAST(CAST(value AS STRING) AS DECIMAL(12, 2)) AS amount")


spark = SparkSession.builder.appName("billing").getOrCreate()
with offsetstore.spark.job() as job, OffsetStore.connect(DATABASE) as store:
    claim = store.claim("billing", Broker.from_spark(KAFKA))  # fences whoever ran before
    sink = TransactionalSink(claim, parse, into=Append("payments"))
    query = (
        spark.readStream.format("kafka")
        .options(**KAFKA)
        .option("startingOffsets", claim.starting_offsets)  # 1
        .load()
        .writeStream.foreachBatch(sink)  # 2
        .option("checkpointLocation", claim.checkpoint(CHECKPOINTS))  # 3
        .start()
    )
    job.run(query, sink)
