"""Spark with its Kafka connector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offsetstore.kafka.admin import Record, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from offsetstore.local.kafka import KafkaBroker
    from offsetstore.testing.fixtures import NewTopic


def test_spark_reads_what_kafka_holds(
    offsetstore_spark: SparkSession, offsetstore_kafka: KafkaBroker, offsetstore_topic: NewTopic
) -> None:
    topic = offsetstore_topic(2)
    produce(offsetstore_kafka.bootstrap_servers, topic, (Record(b"v", partition=n % 2) for n in range(100)))
    options = {"kafka.bootstrap.servers": offsetstore_kafka.bootstrap_servers, "subscribe": topic}
    frame = offsetstore_spark.read.format("kafka").options(**options).load()
    counts = {row["partition"]: row["count"] for row in frame.groupBy("partition").count().collect()}
    assert counts == {0: 50, 1: 50}
