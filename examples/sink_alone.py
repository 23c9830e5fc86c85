"""The sink alone: where to start is Spark's business, by a checkpoint of your own; no Kafka client is needed.

The claim is made without a broker, so ``pip install '.[binary,spark]'`` in the checkout is enough. A batch that Spark
runs again after a crash is found in the database, and skipped. What you do without: the store doesn't choose the start,
so don't lose the checkpoint; a start beyond the stored offset is refused (`OffsetGap`), one below it is cropped.

Needs the table: ``CREATE TABLE payments (payer text, amount numeric(12, 2))``; and before the first run, in the deploy,
``offsetstore migrate``. Run it with::

    OFFSETSTORE_URL=postgresql://shop@localhost/shop \
        spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/sink_alone.py

or with ``python``, where Spark's own configuration names the packages. It ends when it has read what there is.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

import offsetstore.spark
from offsetstore import Append, OffsetStore, TransactionalSink

KAFKA = {
    "kafka.bootstrap.servers": os.environ.get("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092"),
    "subscribe": "payments",
}
CHECKPOINTS = os.environ.get("CHECKPOINTS", "/tmp/checkpoints")


def parse(batch: DataFrame) -> DataFrame:
    """Make the table's columns out of Kafka's."""
    return batch.selectExpr("CAST(key AS STRING) AS payer", "CAST(CAST(value AS STRING) AS DECIMAL(12, 2)) AS amount")


spark = SparkSession.builder.appName("ledger").getOrCreate()
with offsetstore.spark.job() as job, OffsetStore.connect() as store:
    claim = store.claim("ledger", topics=["payments"])
    sink = TransactionalSink(claim, parse, into=Append("payments"))
    query = (
        spark.readStream.format("kafka")
        .options(**KAFKA)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", f"{CHECKPOINTS}/ledger")
        .trigger(availableNow=True)
        .start()
    )
    job.run(query, sink)
