"""Jobs whose batches are staged, for a test that kills a part of them.

``python -m tests.support.staging_job URL SERVERS TOPIC GROUP CHECKPOINTS``, run from the top of the checkout, is a job
with a Spark of its own, which dies where OFFSETSTORE_FAILPOINT says. `stage_beside_a_kill` is one for a cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from sqlalchemy import Connection, text

from offsetstore import Append, Broker, OffsetStore, TransactionalSink
from offsetstore.protocol.ports import Writer
from offsetstore.spark.staging_area import StagingArea
from offsetstore.writers.arrow.copying import driver_connection
from offsetstore.writers.staging import Staged, Staging
from offsetstore.writers.staging_schema import StagingWriter
from tests.support.transforms import events

ROOT = Path(__file__).parents[2]


def run_to_its_end(*arguments: str, failpoint: str) -> int:
    """Run the job as its own process; return its exit code, negative for the signal that it died of."""
    command = [sys.executable, "-m", "tests.support.staging_job", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OFFSETSTORE_FAILPOINT": failpoint}, check=False, timeout=180
    ).returncode


class KillsItsExecutor(Append):
    """The first task commits its rows, and then its executor dies before it can report them."""

    def __init__(self, table: str, flag: str) -> None:
        super().__init__(table)
        self.flag = flag

    def stage(self, connection: Connection, staging: Staging, attempt: UUID, batches: Iterable[pa.RecordBatch]) -> int:
        rows = super().stage(connection, staging, attempt, batches)
        try:
            Path(self.flag).touch(exist_ok=False)
        except FileExistsError:
            return rows
        driver_connection(connection).commit()
        os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)
        return rows


def stage_beside_a_kill(session: SparkSession, *, flag: str, url: str, **where: str) -> tuple[int, int]:
    """Run a job to its end; return how many rows its staging table had, and how many of them were reported."""
    counts: list[tuple[int, int]] = []
    stage = StagingArea.stage

    def counted(area: StagingArea, writer: StagingWriter, frame: DataFrame) -> Staged:
        staged = stage(area, writer, frame)
        with OffsetStore.connect(url) as store:
            look = store.database.begin(name="test")
            rows = look.connection.execute(text(f"SELECT count(*) FROM {staged.staging.table}")).scalar_one()
            look.rollback()
        counts.append((rows, staged.rows))
        return staged

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StagingArea, "stage", counted)
        _run(session, KillsItsExecutor("events", flag), url=url, **where)
    [only] = counts
    return only


def _run(spark: SparkSession, writer: Writer, *, url: str, servers: str, topic: str, group: str, base: str) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    with OffsetStore.connect(url) as store:
        claim = store.claim(group, Broker.from_spark(options))
        sink = TransactionalSink(claim, events, into=writer, staging="always")
        stream = spark.readStream.format("kafka").options(**options).option("startingOffsets", claim.starting_offsets)
        query = stream.load().writeStream.foreachBatch(sink).option("checkpointLocation", claim.checkpoint(base))
        assert query.trigger(availableNow=True).start().awaitTermination(120)


def _main(url: str, servers: str, topic: str, group: str, base: str) -> None:
    from offsetstore.local.spark.launch import local_session  # noqa: PLC0415

    spark = local_session("job", master="local[1]")
    _run(spark, Append("events"), url=url, servers=servers, topic=topic, group=group, base=base)


if __name__ == "__main__":
    _main(*sys.argv[1:])
