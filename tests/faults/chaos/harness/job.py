"""The job, as a process of its own: ``python -m tests.faults.chaos.harness.job``, from the top of the checkout.

It starts Spark, says ``ready``, and waits for work: one JSON object a line on standard input, the fields of `Work`.
What happens it tells on standard output, one JSON object a line. ``stop`` ends the work that is under way, ``measure``
asks what the process and its Java use; the end of the input ends the process.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, Literal, NoReturn
from urllib.parse import urlsplit

import psutil
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from offsetstore import (
    BatchInfo,
    Broker,
    Claim,
    DeadLetters,
    Flush,
    Handler,
    OffsetStore,
    StartPolicy,
    TransactionalSink,
)
from offsetstore.errors import OffsetStoreError, RowsRefused
from offsetstore.local.spark import local_session, quick_conf, spark_conf
from offsetstore.protocol.retries import Retries, Timeouts
from offsetstore.runtime import failpoints
from offsetstore.spark.sink import SparkTransform
from offsetstore.testing.job_process import BatchPrinter, print_event
from tests.faults.chaos.harness import calls, landing

Way = Literal["batch", "partition"]
_TEXT = 4000

SPARK_VARIABLE = "OFFSETSTORE_FAULTS_SPARK"
"""Another master, and settings on top, as JSON; see `tests.faults.chaos.harness.clusters`."""


@dataclass(frozen=True)
class Work:
    """What one job is to do.

    :param checkpoint: ``claim`` for the claim's own under ``base``, ``keep`` for the kept one, or a path.
    :param extra: further options of Spark's reader.
    :param transform: ``module:name`` of a function like `landing.rows`, or of `landing.rows_or_rejects` with letters.
    :param flush: the limits of a `Flush`; not with ``partition``.
    :param dead_letters: the settings of `DeadLetters`; each row is then made from one record.
    :param handler: the settings of `calls.handler`, which is the transform then.
    :param gate: a directory of `tests.faults.chaos.harness.gate`; for tasks on executors.
    """

    url: str
    servers: str
    topics: list[str]
    group: str
    base: str
    way: Way = "batch"
    failpoint: str | None = None
    policy: Mapping[str, Any] = field(default_factory=dict[str, Any])
    takeover: str = "fence"
    takeover_timeout: float = 5.0
    checkpoint: str = "claim"
    records_per_trigger: int = 60
    mirror_every: float | None = 0.3
    timeouts: Mapping[str, float] = field(default_factory=dict[str, float])
    retries: Mapping[str, float] = field(default_factory=dict[str, float])
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
    transform: str | None = None
    flush: Mapping[str, Any] | None = None
    gate: str | None = None
    dead_letters: Mapping[str, Any] | None = None
    handler: Mapping[str, Any] | None = None


class _Stoppable:
    """Holds the query that runs, for the thread that listens."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self.work: queue.Queue[str] = queue.Queue()
        self.is_stopped = False
        self.phase, self.url = "connect", ""
        self._query: StreamingQuery | None = None
        self._guard = threading.Lock()

    def running(self, query: StreamingQuery) -> None:
        """From now on this one is stopped; at once, if that was asked for before it had begun."""
        with self._guard:
            self._query = query
            stop = self.is_stopped
        if stop:
            query.stop()

    def listen(self) -> None:
        """Take what comes on standard input, to its end."""
        for line in sys.stdin:
            if line.strip() == "measure":
                print_event("measured", uses=measure(self._session, urlsplit(self.url).port))
                continue
            if line.strip() != "stop":
                with self._guard:  # here, so that a word that follows at once is about this work
                    self.is_stopped, self._query, self.phase = False, None, "connect"
                self.work.put(line)
                continue
            with self._guard:
                self.is_stopped, query = True, self._query
            if query is not None:
                query.stop()
        os._exit(0)  # whoever started us is gone; Java ends with its own standard input


def measure(session: SparkSession, port: int | None) -> dict[str, int]:
    """What this process and its Java use: memory in KiB, Java's heap without its garbage, threads and open files.

    :param port: the database's.
    """
    jvm: Any = session._jvm
    gc.collect()
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    java = jvm.java.lang.ProcessHandle.current().pid()
    ours = psutil.Process()
    open_ones = [one for one in ours.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
    return {
        "database connections": sum(1 for one in open_ones if one.raddr and one.raddr.port == port),
        "Python's memory": ours.memory_info().rss // 1024,
        "Java's heap": (runtime.totalMemory() - runtime.freeMemory()) // 1024,
        "Python's threads": ours.num_threads(),
        "Java's threads": psutil.Process(java).num_threads(),
        "Python's open files": ours.num_fds(),
        "Java's open files": psutil.Process(java).num_fds(),
    }


def serve(session: SparkSession) -> NoReturn:
    stoppable = _Stoppable(session)
    threading.Thread(target=stoppable.listen, daemon=True).start()
    jvm: Any = session._jvm
    print_event("ready", pid=os.getpid(), jvm=jvm.java.lang.ProcessHandle.current().pid())
    while True:
        line = stoppable.work.get()
        work = Work(**json.loads(line))
        stoppable.url = work.url
        failpoints.follow(work.failpoint)
        try:
            run(session, work, stoppable)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            print_event("failed", **report(error, during=stoppable.phase))
        print_event("ended")


def run(session: SparkSession, work: Work, stoppable: _Stoppable) -> None:
    options = {
        "kafka.bootstrap.servers": work.servers,
        "subscribe": ",".join(work.topics),
        "maxOffsetsPerTrigger": str(work.records_per_trigger),
        **work.extra,
    }
    timeouts, retries = Timeouts(**work.timeouts), Retries(**work.retries)  # pyright: ignore[reportArgumentType]
    with OffsetStore.connect(work.url, timeouts=timeouts, retries=retries, observers=[BatchPrinter()]) as store:
        stoppable.phase = "claim"
        claim = store.claim(
            work.group,
            Broker.from_spark(options),
            policy=StartPolicy(**work.policy),
            takeover=work.takeover,  # pyright: ignore[reportArgumentType]
            takeover_timeout=work.takeover_timeout,
            mirror_every=work.mirror_every,
        )
        print_event(
            "claimed",
            epoch=claim.token.epoch,
            claim_id=str(claim.token.claim_id),
            starting=json.loads(claim.starting_offsets),
        )
        check_notes(claim)
        stoppable.phase = "sink"
        sink = make_sink(claim, work)
        stoppable.phase = "batch"
        query = (
            session.readStream.format("kafka")
            .options(**options)
            .option("startingOffsets", claim.starting_offsets)
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", _checkpoint(claim, work))
            .trigger(processingTime="50 milliseconds")
            .start()
        )
        stoppable.running(query)
        try:
            query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            if stoppable.is_stopped and sink.error is None:
                return  # Spark raises where it was stopped in the middle of something
            print_event("failed", **report(sink.error or error, during="batch"), spark=str(error)[:_TEXT])


def make_sink(claim: Claim, work: Work) -> TransactionalSink:
    letters = None if work.dead_letters is None else DeadLetters(**work.dead_letters)
    how: dict[str, Any] = {"into": landing.writers(), "flush": None if work.flush is None else Flush(**work.flush)}
    if work.way == "partition":
        into = landing.one_writer(work.gate) if letters is None else landing.Landing(work.gate)
        how = {"into": into, "atomicity": "partition"}
    return TransactionalSink(claim, _transform(claim, work), metadata=note, dead_letters=letters, **how)


def _transform(claim: Claim, work: Work) -> SparkTransform | Handler:
    by_partition, has_letters = work.way == "partition", work.dead_letters is not None
    if work.handler is not None:
        return calls.handler(**work.handler, epoch=claim.token.epoch, by_partition=by_partition)
    rows: Any = landing.rows_or_rejects if has_letters else landing.rows
    if work.transform is not None:
        rows = resolve_name(work.transform)
    outputs = landing.outputs_by_record if has_letters else landing.outputs
    return landing.gated(rows if by_partition else lambda batch: outputs(rows(batch)), work.gate)


def note(info: BatchInfo) -> object:
    """Each advance takes along where it leads: the observer and the next job compare."""
    return {tp: {"until": range_.until} for tp, range_ in info.ranges.items()}


def check_notes(claim: Claim) -> None:
    """Compare the note of each partition with the offset at which the claim begins.

    :raises AssertionError: it is of another offset.
    """
    assert claim.starting is not None
    for tp, start in claim.starting.starts.items():
        found: Any = claim.metadata(tp)
        assert found is None or found["until"] == start.offset, (
            f"{tp} begins at {start.offset}, and its note is {found}"
        )


def _checkpoint(claim: Claim, work: Work) -> str:
    if work.checkpoint == "claim":
        return claim.checkpoint(work.base)
    return claim.checkpoint(work.base, keep=True) if work.checkpoint == "keep" else work.checkpoint


def report(error: BaseException, *, during: str) -> dict[str, Any]:
    """The fields of `errors.Report`."""
    told: dict[str, Any] = {"during": during, "class_name": type(error).__name__, "text": str(error)[:_TEXT]}
    if isinstance(error, OffsetStoreError):
        told |= {"ours": True, "next_step": error.next_step}
        told |= {"found": None if error.found is None else str(error.found)[:_TEXT]}
        told |= {"expected": None if error.expected is None else str(error.expected)[:_TEXT]}
        told |= {"topic_partition": str(error.topic_partition) if error.topic_partition else None}
    if isinstance(error, RowsRefused):
        told["stored"] = {str(tp): (range_.from_, range_.until) for tp, range_ in error.stored.items()}
    return {"ours": False, **told}


def main() -> None:
    given = json.loads(os.environ.get(SPARK_VARIABLE, "{}"))
    # Spark's memory of what it has done is as full after five minutes as it ever gets.
    kept = {"spark.ui.retainedJobs": "50", "spark.ui.retainedStages": "50", "spark.ui.retainedTasks": "500",
            "spark.sql.ui.retainedExecutions": "20"}  # fmt: skip
    conf = quick_conf(spark_conf()) | kept | given.get("conf", {})
    session = local_session("offsetstore-faults", master=given.get("master", "local[2]"), extra_conf=conf)
    session.range(2).repartition(2).toArrow()  # the first job loads most of what later ones need
    serve(session)


if __name__ == "__main__":
    main()
