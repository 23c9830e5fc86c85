"""A Spark job: the topic ``payments`` lands in the table of that name. See README.md for how to run it."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession

import offsetstore.spark
from offsetstore import Append, Broker, DeadLetters, OffsetStore, TransactionalSink

GROUP = "shop-payments"
INTO = Append("payments")


def parse(batch: DataFrame) -> DataFrame:
    """Make the table's columns; ``_kafka`` stays, so that a record that can't be written becomes a dead letter."""
    return batch.selectExpr(
        "_kafka",
        "CAST(key AS STRING) AS payer",
        "CAST(CAST(value AS STRING) AS DECIMAL(12, 2)) AS amount",
        "timestamp AS paid_at",  # the record's: now() would be another one after a crash
    )


def main() -> None:
    """Run until SIGTERM."""
    kafka = {
        "kafka.bootstrap.servers": os.environ.get("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092"),
        "subscribe": "payments",
    }
    with offsetstore.spark.job() as job, OffsetStore.connect() as store:
        spark = SparkSession.builder.appName(GROUP).getOrCreate()
        claim = store.claim(GROUP, Broker.from_spark(kafka))
        sink = TransactionalSink(claim, parse, into=INTO, dead_letters=DeadLetters())
        query = (
            spark.readStream.format("kafka")
            .options(**offsetstore.spark.tuned(spark, kafka))
            .option("startingOffsets", claim.starting_offsets)
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", claim.checkpoint(os.environ.get("CHECKPOINTS", "/tmp/checkpoints")))
            .start()
        )
        job.run(query, sink)


if __name__ == "__main__":
    main()
