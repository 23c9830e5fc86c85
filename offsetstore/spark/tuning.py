"""Settings with which Spark reads Kafka, and keeps a checkpoint, in less time than with its defaults."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

READER: Final = {
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": str(4 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
"""Options of the Kafka source, those that gain most first.

See "The recommended settings" in docs/performance.md, and docs/decisions/0031-recommended-settings.md.
"""

MANAGER: Final = "spark.sql.streaming.checkpointFileManagerClass"
_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_MANAGERS: Final = (
    f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
    f"{_STREAMING}.FileSystemBasedCheckpointFileManager",  # Spark 4.0
)

_log = logging.getLogger(__name__)


def tuned(spark: SparkSession, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Kafka source's options with those added that make it read faster, and set the session's file manager.

    What you have set yourself, in the options or in the session, stays as it is. An executor needs up to 10 MiB more
    for each partition that it reads.

    If Hadoop's default file system is the local one, the session writes the files of its checkpoints by Hadoop's
    FileSystem, which starts fewer processes. On other file systems this may leave a file that should be replaced: a
    query with ``checkpoint(base, keep=True)`` there is refused.

    ::

        spark.readStream.format("kafka").options(**tuned(spark, kafka))

    :param options: the source's, ``kafka.bootstrap.servers`` and so on.
    """
    given = {name.lower() for name in options}
    if _is_default(spark) and (manager := _manager(spark)) is not None:
        spark.conf.set(MANAGER, manager)
    return {name: value for name, value in READER.items() if name not in given} | dict(options)


def _is_default(spark: SparkSession) -> bool:
    """Whether no manager has been set, and Hadoop's default file system is the local one."""
    if spark.conf.get(MANAGER, None) is not None:
        return False
    classic: Any = spark
    hadoop = classic._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - with core-site.xml and spark.hadoop.*
    return hadoop.get(MANAGER) is None and hadoop.get("fs.defaultFS").startswith("file:")


def _manager(spark: SparkSession) -> str | None:
    """The class's name in this version of Spark."""
    jvm: Any = spark._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - no public way
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in _MANAGERS:
        if loader.getResource(f"{name.replace('.', '/')}.class") is not None:
            return name
    _log.info("this version of Spark does not have %s: checkpoints are written as by default", _MANAGERS[0])
    return None
