"""A windowed aggregation: how many records each topic got in each minute, one row when the minute is over.

A stateful query has its state in its checkpoint, so that is kept (``keep=True``) instead of made anew by each start:
put it where it lasts. A minute is over when the watermark is beyond it: the latest timestamp seen, less 30 seconds.

Needs the table: ``CREATE TABLE traffic (minute timestamptz, topic text, records bigint)``; and before the first run, in
the deploy, ``offsetstore migrate``. Run it with::

    OFFSETSTORE_URL=postgresql://shop@localhost/shop \
        spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/windowed_job.py

or with ``python``, where Spark's own configuration names the packages. It ends when it has read what there is.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window

import offsetstore.spark
from offsetstore import Append, Broker, OffsetStore, TransactionalSink

KAFKA = {
    "kafka.bootstrap.servers": os.environ.get("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092"),
    "subscribe": "payments,refunds",
}
CHECKPOINTS = os.environ.get("CHECKPOINTS", "/tmp/checkpoints")


def rows(minutes: DataFrame) -> DataFrame:
    """Make the table's columns out of the minutes that are over."""
    return minutes.selectExpr("window.start AS minute", "topic", "count AS records")


spark = SparkSession.builder.appName("traffic").getOrCreate()
with offsetstore.spark.job() as job, OffsetStore.connect() as store:
    claim = store.claim("traffic", Broker.from_spark(KAFKA))
    checkpoint = claim.checkpoint(CHECKPOINTS, keep=True)
    sink = TransactionalSink(claim, rows, into=Append("traffic"))
    query = (
        spark.readStream.format("kafka")
        .options(**KAFKA)
        .option("startingOffsets", claim.starting_offsets)
        .load()
        .withWatermark("timestamp", "30 seconds")
        .groupBy(window("timestamp", "1 minute"), "topic")
        .count()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    job.run(query, sink)
