"""A consumer as its own process: ``python -m tests.support.consumer_job URL BOOTSTRAP TOPIC [CALLS]``.

A record's value is its row. With a file for CALLS, a handler makes the rows, and writes each of its calls there.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from offsetstore import Append, Flush, Handler, OffsetStore, Record, Retries
from offsetstore.consumer import Consumer


def parse(records: Any) -> pa.RecordBatch:
    """Make a row of each record."""
    numbers: Any = pa.array([int(value) for value in records.column("value").to_pylist()], pa.int64())
    return pa.record_batch({"record": numbers})


def consumer_of(
    store: OffsetStore,
    bootstrap: str,
    topic: str,
    *,
    kafka: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Consumer:
    """Make one that is quick to notice others."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 500,
    }
    arguments: dict[str, Any] = {"transform": parse, "into": Append("results"), "flush": Flush(rows=100, seconds=0.2)}
    return Consumer(store, "billing", topics=[topic], kafka=settings | {**(kafka or {})}, **arguments | changes)


def _handler(calls: str) -> Handler:
    def handle(record: Record) -> tuple[int]:
        with open(calls, "a", encoding="utf-8") as log:  # noqa: PTH123
            log.write(f"{record.id}\n")
        return (int(record.value or b""),)

    return Handler(handle, "record long", concurrency=4)


def _main(url: str, bootstrap: str, topic: str, calls: str | None = None) -> None:
    changes: dict[str, Any] = {} if calls is None else {"transform": _handler(calls)}
    changes["kafka"] = {"group.instance.id": "killed"}  # after a kill the next one has its place at once
    with OffsetStore.connect(url, retries=Retries(shortest=0.001)) as store:
        consumer_of(store, bootstrap, topic, **changes).run()


if __name__ == "__main__":
    _main(*sys.argv[1:])
