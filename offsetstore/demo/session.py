"""The jobs' Spark. They are started ten times in some minutes, so it has to start quickly."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext

from offsetstore.demo.events import Event, tell
from offsetstore.local.spark.launch import QUICK, local_session, quick_conf, spark_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_session(name: str) -> SparkSession:
    """Start Spark, and report its process id, so that it is clear which process to end."""
    os.environ["SPARK_LAUNCHER_OPTS"] = QUICK
    session = local_session(name, extra_conf={**quick_conf(spark_conf()), "spark.sql.adaptive.enabled": "false"})
    context: Any = SparkContext
    tell(Event("started", jvm=context._gateway.proc.pid))  # noqa: SLF001 - no public way
    return session
