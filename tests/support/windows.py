"""Queries with state, as jobs of tests have them: each record's value is the second at which it happened."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

WINDOWS = "CREATE TABLE windows (second int, records bigint)"
"""A table without any key, so that a window that comes twice is there twice."""


def timed(stream: DataFrame) -> DataFrame:
    """Add the time, with a watermark that follows at once."""
    at = F.col("value").cast("string").cast("long").cast("timestamp")
    return stream.withColumn("at", at).withWatermark("at", "0 seconds")


def windows(stream: DataFrame) -> DataFrame:
    """How many records each ten seconds have; a window comes out once, when it is over."""
    return timed(stream).groupBy(F.window("at", "10 seconds")).agg(F.count("*").alias("records"))


def rows(batch: DataFrame) -> DataFrame:
    """For the table `WINDOWS`."""
    return batch.select(F.col("window.start").cast("long").cast("int").alias("second"), "records")
