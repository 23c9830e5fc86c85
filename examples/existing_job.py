"""A job as many run it today: payments from Kafka into a table, by `foreachBatch` and Spark's JDBC writer.

It is at-least-once: after a crash between the write and the checkpoint's commit, the batch is written a second time.
`exactly_once_job.py` is the same job without that; compare the two with ``diff``.

Needs the table: ``CREATE TABLE payments (payer text, amount numeric(12, 2))``. Run it with::

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,org.postgresql:postgresql:42.7.14 \
        examples/existing_job.py

or with ``python``, where Spark's own configuration names the packages. It runs until it is stopped.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

KAFKA = {
    "kafka.bootstrap.servers": os.environ.get("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092"),
    "subscribe": "payments",
}
DATABASE = os.environ.get("DATABASE", "jdbc:postgresql://localhost:5432/shop?user=shop")
CHECKPOINTS = os.environ.get("CHECKPOINTS", "/tmp/checkpoints")


def parse(batch: DataFrame) -> DataFrame:
    """Make the table's columns out of Kafka's."""
    return batch.selectExpr("CAST(key AS STRING) AS payer", "CAST(CAST(value AS STRING) AS DECIMAL(12, 2)) AS amount")


def write(batch: DataFrame, _batch_id: int) -> None:
    """Append to the table."""
    parse(batch).write.jdbc(DATABASE, "payments", mode="append", properties={"driver": "org.postgresql.Driver"})


spark = SparkSession.builder.appName("billing").getOrCreate()
query = (
    spark.readStream.format("kafka")
    .options(**KAFKA)
    .option("startingOffsets", "earliest")
    .load()
    .writeStream.foreachBatch(write)
    .option("checkpointLocation", f"{CHECKPOINTS}/payments")
    .start()
)
query.awaitTermination()
