"""Two outputs that share a random id, on a cluster: what becomes of them if executors lose it, or have it twice."""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from offsetstore.processing.unit import PlanOutdated
from offsetstore.spark.plans.sharing import computed_once


def outdated_by_a_dead_executor(session: SparkSession, *, executors: list[int]) -> bool:
    """Kill the executors after the first of two outputs; tell whether they then count as outdated."""

    def kill() -> None:
        for pid in executors:
            psutil.Process(pid).send_signal(signal.SIGKILL)
            psutil.Process(pid).wait(30)

    return _is_outdated(session, StorageLevel.DISK_ONLY, kill)


def outdated_by_twins(session: SparkSession) -> bool:
    """Tell whether outputs count as outdated if each part of what they share is on two executors."""
    return _is_outdated(session, StorageLevel.DISK_ONLY_2, lambda: None)


def is_kept(session: SparkSession) -> bool:
    """Tell whether outputs do not count as outdated if nothing happens."""
    return not _is_outdated(session, StorageLevel.DISK_ONLY, lambda: None)


def _is_outdated(session: SparkSession, level: StorageLevel, between: Callable[[], None]) -> bool:
    batch = session.createDataFrame(session.sparkContext.parallelize([(number,) for number in range(10)], 4), "k int")
    orders = batch.select("k", F.rand().alias("id"))
    try:
        with computed_once(batch, level) as sharing:
            frames = sharing({"orders": orders, "lines": orders.select("id")})
            ids = {row.id for row in frames["orders"].collect()}
            between()
            assert {row.id for row in frames["lines"].collect()} == ids
    except PlanOutdated:
        return True
    return False
