"""The job of a compacted topic: a tombstone says that its key is gone, and is no record."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from tests.faults.chaos.harness import landing


def rows(batch: DataFrame) -> DataFrame:
    """As `landing.rows`, without tombstones."""
    return landing.rows(batch.where(F.col("value").isNotNull()))


def outputs(batch: DataFrame) -> dict[str, DataFrame]:
    """As `landing.outputs`, without tombstones."""
    return landing.outputs(batch.where(F.col("value").isNotNull()))
