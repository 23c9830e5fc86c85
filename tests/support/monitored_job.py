"""A job that tells of its health, as a process that a test can break.

``python -m tests.support.monitored_job URL SERVERS TOPIC GROUP CHECKPOINTS``, run from the top of the checkout, with
the limits of `LIMITS`. Its event ``ready`` names its port and its Java. Each line on standard input is a failpoint to
set. SIGTERM stops it cleanly.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from offsetstore import Append, Broker, Claim, OffsetStore, Retries, TransactionalSink
from offsetstore.local.spark import local_session, quick_conf, spark_conf
from offsetstore.monitoring import Limits, Monitoring
from offsetstore.runtime import failpoints
from offsetstore.store import heartbeat
from offsetstore.testing.job_process import BatchPrinter, print_event
from tests.support.transforms import events

LIMITS: Final = Limits(starting=120, query=4, batch=12, polling=12, jvm=10, unreachable=3, exit=2)
"""On a busy machine a job's first batch takes seconds, and so may an answer of Java's."""


def _named(batch: DataFrame) -> dict[str, DataFrame]:
    return {"events": events(batch)}


def _start(session: SparkSession, claim: Claim, options: dict[str, str], base: str) -> StreamingQuery:
    sink = TransactionalSink(claim, _named, into={"events": Append("events")})
    return (
        session.readStream.format("kafka")
        .options(**options)
        .option("startingOffsets", claim.starting_offsets)
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", claim.checkpoint(base))
        .start()
    )


def _leave(*_: object) -> None:
    sys.exit()


def _main(url: str, servers: str, topic: str, group: str, base: str) -> None:
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic}
    session = local_session("monitored", extra_conf=quick_conf(spark_conf()))
    signal.signal(signal.SIGTERM, _leave)
    jvm: Any = session._jvm
    java = jvm.java.lang.ProcessHandle.current().pid()
    heartbeat.INTERVAL = 0.5
    monitoring = Monitoring(port=0, limits=LIMITS)
    retries = Retries(attempts=1_000, longest=0.5)
    with OffsetStore.connect(url, observers=[monitoring, BatchPrinter()], retries=retries) as store:
        broker = Broker.from_spark(options, timeout=60)  # for the claim; Kafka may be busy
        claim = store.claim(group, broker, mirror_every=0.5)
        broker._timeout = 2.0  # from now on an outage is seen soon
        query = _start(session, claim, options, base)
        print_event("ready", port=monitoring.port, jvm=java)
        try:
            for line in sys.stdin:
                failpoints.follow(line.strip() or None)
            os._exit(0)
        finally:
            query.stop()


if __name__ == "__main__":
    _main(*sys.argv[1:])
