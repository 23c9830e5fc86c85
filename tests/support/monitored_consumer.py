"""A consumer that tells of its health, as a process that a test can break.

``python -m tests.support.monitored_consumer URL SERVERS TOPIC GROUP [--wait]``, run from the top of the checkout. Its
event ``ready`` names its port. Each line on standard input is a failpoint to set. With ``--wait`` it prints ``waiting``
when all is imported, and waits for a line before it joins the group. Its metrics can be read after an error, too.
"""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from threading import Thread
from typing import Any

import pyarrow as pa

from offsetstore import Append, Flush, OffsetStore
from offsetstore.consumer import Consumer, SkipIf
from offsetstore.monitoring import Monitoring
from offsetstore.runtime import failpoints
from offsetstore.store import heartbeat
from offsetstore.testing.job_process import BatchPrinter, print_event


def _named(records: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    kept: Any = records.select(["topic", "partition", "offset", "value"])
    return {"events": kept.set_column(3, "value", kept.column("value").cast(pa.string()))}


def _follow() -> None:
    for line in sys.stdin:
        failpoints.follow(line.strip() or None)


def _main(url: str, servers: str, topic: str, group: str, *how: str) -> None:
    if "--wait" in how:
        print_event("waiting")
        sys.stdin.readline()
    heartbeat.INTERVAL = 0.5
    monitoring = Monitoring(port=0)
    Thread(target=_follow, daemon=True).start()
    with OffsetStore.connect(url, observers=[monitoring, BatchPrinter()]) as store:
        consumer = Consumer(
            store,
            group,
            topics=[topic],
            kafka={"bootstrap.servers": servers},
            transform=_named,
            into={"events": Append("events")},
            flush=Flush(seconds=0.2),
            filters=[SkipIf(lambda record: record.key == b"dropped")],
        )
        print_event("ready", port=monitoring.port)
        with suppress(failpoints.FailpointReached):
            consumer.run()
            return
        signal.pause()


if __name__ == "__main__":
    _main(*sys.argv[1:])
