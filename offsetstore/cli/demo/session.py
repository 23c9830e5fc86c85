"""The jobs' Spark. They are started ten times in some minutes, so it has to start quickly."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext

from offsetstore.cli.demo.events import Event, tell
from offsetstore.local.spark import local_session, spark_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# For runs of some seconds on few cores, the second compiler costs more than it gives: half of all that Java does.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"


def start_session(name: str) -> SparkSession:
    """Start Spark, and tell in which process it runs, so that nobody need guess which one to end."""
    os.environ["SPARK_LAUNCHER_OPTS"] = _QUICK
    conf = spark_conf()
    quick = {
        _JAVA_OPTIONS: f"{conf[_JAVA_OPTIONS]} {_QUICK}",
        # On the class path from the start, rather than copied to executors that are in the same process.
        "spark.driver.extraClassPath": conf["spark.jars"].replace(",", os.pathsep),
        "spark.jars": "",
        "spark.sql.adaptive.enabled": "false",
    }
    session = local_session(name, extra_conf=quick)
    context: Any = SparkContext
    tell(Event("started", jvm=context._gateway.proc.pid))  # noqa: SLF001 - no public way
    return session
