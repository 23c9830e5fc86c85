"""One micro-batch, as Spark hands it to the sink."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from offsetstore.offsets import OffsetRange, TopicPartition
    from offsetstore.spark.plans.query import RunningQuery


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What Spark hands to the sink, with the exact ranges that it reads."""

    frame: DataFrame = field(repr=False)
    number: int
    query: RunningQuery
    ranges: dict[TopicPartition, OffsetRange]
