"""Options with which Spark reads Kafka in less time than with its defaults, and in batches of a limited size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READER: Final = {
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
    "maxOffsetsPerTrigger": "2000000",
}
"""Options of the Kafka source: those that make it faster, and one that limits a batch.

See "The recommended settings" in docs/performance.md, and docs/decisions/0031-recommended-settings.md.
"""

MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
"""A setting of the session, and of all its queries: not set here. See docs/performance.md."""


def tuned(spark: SparkSession, options: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG001 - callers give it
    """Return the Kafka source's options with those added that make it read faster, in batches of 2,000,000 records.

    What you have set yourself stays as it is. With ``minOffsetsPerTrigger``, batches are not limited: Spark refuses a
    limit below it. An executor needs up to 10 MiB more for each partition that it reads.

    ::

        spark.readStream.format("kafka").options(**tuned(spark, kafka))

    :param spark: the session. Nothing of it is changed: other queries may run in it.
    :param options: the source's, ``kafka.bootstrap.servers`` and so on.
    """
    given = {name.lower() for name in options}
    if "minoffsetspertrigger" in given:
        given.add("maxoffsetspertrigger")
    return {name: value for name, value in READER.items() if name.lower() not in given} | dict(options)
