"""What the jobs of tests do to a micro-batch."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

EVENTS = 'CREATE TABLE events (topic text, partition int, "offset" bigint, value text)'
"""A table without any key, so that a record that comes twice is there twice."""


def events(batch: DataFrame) -> DataFrame:
    """Each record with its coordinates, for the table `EVENTS`."""
    return batch.select("topic", "partition", "offset", F.col("value").cast("string").alias("value"))


def traced(batch: DataFrame) -> DataFrame:
    """The same, with the coordinates that ``atomicity="partition"`` needs."""
    return batch.select("topic", "partition", "offset", F.col("value").cast("string").alias("value"), "_kafka")
