"""The queries that are measured: one source, one transform, and each way to write the rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from benchmarks.shapes import Shape
from offsetstore import Append, Broker, OffsetStore, TransactionalSink
from offsetstore.local.jars import Artifact, JarSet
from offsetstore.spark import tuned
from offsetstore.spark.settings import MANAGER, READER

OURS: Final[dict[str, dict[str, Any]]] = {
    "batch": {},
    "partition": {"atomicity": "partition"},
}
"""The sink's arguments."""

JDBC_BATCH: Final = 1_000
"""Spark's default. With 10,000 the writer is no faster."""

BARE_FILES: Final = JarSet(
    "bare-local-fs", (Artifact("com.globalmentor", "hadoop-bare-naked-local-fs", "0.1.0", transitive=False),)
)
"""A local file system for Hadoop that starts no processes."""

FILE_SYSTEM: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_BARE: Final = {
    "fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
    "fs.file.impl.disable.cache": "true",  # the session's other queries use the usual one
}


class Jobs:
    """Runs queries in one session.

    :param stores: by settings; all but ``"5 ms"`` use ``"defaults"``.
    :param directory: for checkpoints.
    :param jdbc_port: PostgreSQL's.
    """

    def __init__(
        self, spark: SparkSession, servers: str, stores: dict[str, OffsetStore], directory: Path, *, jdbc_port: int = 0
    ) -> None:
        self._spark = spark
        self._servers = servers
        self._jdbc_url = f"jdbc:postgresql://127.0.0.1:{jdbc_port}/postgres"
        self._stores = stores
        self._directory = directory

    def run(self, shape: Shape, job: str, settings: str) -> list[float]:
        """Read all records of the shape's topic; return the seconds of each trigger, by Spark's own clock."""
        options = {
            "kafka.bootstrap.servers": self._servers,
            "subscribe": shape.name,
            "startingOffsets": "earliest",
            **({} if shape.per_trigger is None else {"maxOffsetsPerTrigger": str(shape.per_trigger)}),
        }
        reader = self._with_settings(settings, options)
        checkpoints = str(self._directory / uuid4().hex)
        if job not in OURS:
            return self._query(shape, reader, self._noop(shape) if job == "noop" else self._jdbc(shape), checkpoints)
        store = self._stores.get(settings, self._stores["defaults"])
        with store.claim(uuid4().hex, Broker.from_spark(options)) as claim:
            kept = ["_kafka"] if job == "partition" else []
            sink = TransactionalSink(
                claim, lambda batch: shape.rows(batch, *kept), into=Append(shape.table), **OURS[job]
            )
            reader["startingOffsets"] = claim.starting_offsets
            return self._query(shape, reader, sink, claim.checkpoint(checkpoints))

    def _with_settings(self, settings: str, options: dict[str, str]) -> dict[str, str]:
        """Set the session's settings; return the reader's."""
        conf: Any = self._spark.conf
        for name in (MANAGER, *_BARE):
            conf.unset(name)
        if settings == "defaults":
            return options
        recommended = tuned(self._spark, options)
        if settings in {"wait", "poll", "fetch"}:  # one after the other, in `READER`'s order
            names = list(READER)[: {"wait": 1, "poll": 2, "fetch": 4}[settings]]
            return options | {name: READER[name] for name in names}
        conf.set(MANAGER, FILE_SYSTEM)
        if settings == "jar":
            for name, value in _BARE.items():
                conf.set(name, value)
        return recommended

    def _query(
        self, shape: Shape, reader: dict[str, str], write: Callable[[DataFrame, int], None], checkpoint: str
    ) -> list[float]:
        source: Any = self._spark.readStream.format("kafka").options(**reader)
        writer = source.load().writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [one for one in query.recentProgress if one["numInputRows"]]
        read, triggers = (
            sum(one["numInputRows"] for one in progress),
            -(-shape.count // (shape.per_trigger or shape.count)),
        )
        assert (read, len(progress)) == (shape.count, triggers), f"read {read} records in {len(progress)} triggers"
        return [one["durationMs"]["triggerExecution"] / 1000 for one in progress]

    def _noop(self, shape: Shape) -> Callable[[DataFrame, int], None]:
        return lambda batch, _: shape.rows(batch).write.format("noop").mode("overwrite").save()

    def _jdbc(self, shape: Shape) -> Callable[[DataFrame, int], None]:
        options = {
            "url": self._jdbc_url,
            "driver": "org.postgresql.Driver",
            "user": "postgres",
            "dbtable": shape.table,
            "batchsize": str(JDBC_BATCH),
            "reWriteBatchedInserts": "true",
            # A string goes into a jsonb column only if PostgreSQL is left to find out its type.
            **({"stringtype": "unspecified"} if "jsonb" in shape.columns.values() else {}),
        }
        return lambda batch, _: shape.rows(batch).write.format("jdbc").options(**options).mode("append").save()

    def rows(self, shape: Shape) -> Any:
        """Return the shape's rows as an Arrow table."""
        options = {"kafka.bootstrap.servers": self._servers, "subscribe": shape.name}
        batch: Any = self._spark.read.format("kafka").options(**options).load()
        return shape.rows(batch).toArrow()

    def collect_garbage(self) -> None:
        """Have the JVM collect its garbage, so that no job pays for the one before."""
        jvm: Any = self._spark._jvm  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - py4j's gateway
        jvm.java.lang.System.gc()
        time.sleep(0.2)
