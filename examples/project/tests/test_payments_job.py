"""The Spark job's transform and table."""

from __future__ import annotations

from pyspark.sql import SparkSession
from shop.payments_job import GROUP, INTO, parse

from offsetstore import DeadLetters, OffsetStore, Record, TransactionalSink
from offsetstore.testing import replay_twice

RECORDS = [Record("payments", n % 2, n // 2, b"ana", f"{n}.50".encode(), timestamp_ms=1_000 * n) for n in range(10)]


def test_the_transform_makes_the_same_rows_after_a_crash(offsetstore_spark: SparkSession) -> None:
    replay_twice(parse, RECORDS, spark=offsetstore_spark, crops=2)


def test_its_columns_fit_the_table(store: OffsetStore, offsetstore_spark: SparkSession) -> None:
    assert offsetstore_spark.version  # the session with which the sink tries the transform on an empty batch
    TransactionalSink(store.claim(GROUP, topics=["payments"]), parse, into=INTO, dead_letters=DeadLetters())
