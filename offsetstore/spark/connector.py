"""Looks for Spark's Kafka connector, which comes in a package of its own, and must be made for this Spark."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError  # pyright: ignore[reportMissingTypeStubs]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from offsetstore.errors import MissingDependency


def check_connector(spark: SparkSession) -> None:
    """Look for the connector, as Spark itself does.

    :raises MissingDependency: there is none, or it is made for another minor version of Spark.
    """
    session: Any = spark
    jvm, version = session._jvm, str(spark.version)  # noqa: SLF001 - py4j's gateway
    try:
        conf = session._jsparkSession.sessionState().conf()  # noqa: SLF001
        source = jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource("kafka", conf)
        package = source.getPackage()
        found = package.getImplementationVersion() if "Kafka" in str(package.getImplementationTitle()) else None
        scala = _minor(str(jvm.scala.util.Properties.versionNumberString()))
    except (PySparkException, Py4JJavaError):
        raise _missing(None, version) from None
    except (Py4JError, TypeError):  # Java has ended, or Spark looks in another way
        return
    if found is not None and _minor(str(found)) != _minor(version):
        raise _missing(str(found), version, scala)


def _missing(found: str | None, version: str, scala: str = "2.13") -> MissingDependency:
    # A connector goes with each patch of its minor version, and not each patch has one; the first has.
    package = f"org.apache.spark:spark-sql-kafka-0-10_{scala}:{_minor(version)}.0"
    return MissingDependency(
        "Spark has no Kafka connector" if found is None else "Spark's Kafka connector is made for another Spark",
        found=found,
        expected=f"one for Spark {_minor(version)}",
        next_step=f"spark-submit --packages {package} job.py, or a later {_minor(version)} where one is published.",
    )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
