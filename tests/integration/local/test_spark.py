"""Spark with its Kafka connector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from offsetstore.kafka.admin import Record, produce
from offsetstore.local import cache_directory
from offsetstore.local.kafka.server import KafkaBroker
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


def test_spark_starts_from_an_archive_of_its_classes(offsetstore_spark: SparkSession) -> None:
    java: Any = offsetstore_spark.sparkContext._jvm
    pid = java.java.lang.ProcessHandle.current().pid()

    mapped = Path(f"/proc/{pid}/maps").read_text()

    assert str(cache_directory() / "classes") in mapped
