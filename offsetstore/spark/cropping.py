"""The part of a batch that is still to be written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from offsetstore.offsets import OffsetRange, TopicPartition
from offsetstore.writers.arrow.batches import KAFKA


def within(
    batch: DataFrame,
    ranges: Mapping[TopicPartition, OffsetRange],
    without: Iterable[tuple[TopicPartition, int]] = (),
) -> DataFrame:
    """Keep only the records of the ranges, ``without`` those at the given offsets."""
    key = F.concat_ws("-", F.col("partition"), F.col("topic"))
    begin = [F.lit(part) for tp, range_ in ranges.items() for part in (f"{tp.partition}-{tp.topic}", range_.from_)]
    end = [F.lit(part) for tp, range_ in ranges.items() for part in (f"{tp.partition}-{tp.topic}", range_.until)]
    # For another partition the map returns NULL, and the comparison is not true.
    kept = batch.where((F.col("offset") >= F.create_map(*begin)[key]) & (F.col("offset") < F.create_map(*end)[key]))
    for tp, offset in without:
        kept = kept.where(~((key == f"{tp.partition}-{tp.topic}") & (F.col("offset") == offset)))
    return kept


def with_coordinates(batch: DataFrame) -> DataFrame:
    """Add `KAFKA`, which a transform may keep for writers that order by offset."""
    return batch.withColumn(KAFKA, F.expr("struct(`topic`, `partition`, `offset`, `timestamp`)"))


def with_checked_coordinates(frame: DataFrame, topics: Collection[str]) -> DataFrame:
    """Keep only those fields of `KAFKA` that a task checks: sending each to the Python worker takes time.

    :param topics: those of the batch; the topic is left out if there is only one.
    """
    names = ("topic", "partition", "offset") if len(topics) > 1 else ("partition", "offset")
    return frame.withColumn(KAFKA, F.struct(*(F.col(KAFKA)[name].alias(name) for name in names)))
