"""Executors lose what they keep."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from tests.support.waiting import wait_until


def lose_blocks(session: SparkSession, *, number: int = 0) -> list[int]:
    """Lose the block with this number of everything that is persisted; return the RDDs' numbers."""
    spark: Any = session
    master = spark._jvm.org.apache.spark.SparkEnv.get().blockManager().master()
    rdds = list(spark.sparkContext._jsc.getPersistentRDDs())
    for rdd in rdds:
        block = spark._jvm.org.apache.spark.storage.RDDBlockId(rdd, number)
        assert master.contains(block)
        master.removeBlock(block)
        wait_until(lambda block=block: not master.contains(block))
    return rdds
