"""The consumers that `benchmarks.consumer` measures, each as a process that runs until it is ended.

``python -m benchmarks.consuming parse URL SERVERS TOPIC``, or ``… call URL SERVERS TOPIC GROUP KIND LOG``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final

import pyarrow as pa

from benchmarks.calls import SCHEMA, waits, waits_async
from offsetstore import Append, Flush, Handler, OffsetStore
from offsetstore.consumer import Consumer

HANDLERS: Final[dict[str, Callable[..., Any]]] = {"async": waits_async, "threads": waits}
WINDOW: Final = 20_000
"""Records of a flush with a handler."""
_AMOUNT: Final = pa.decimal128(18, 2)
_MOMENT: Final = pa.timestamp("us", tz="UTC")
_READER: Final = {"fetch.max.bytes": 64 << 20, "queued.min.messages": 500_000}


def parsed(loads: Callable[[bytes], Any], records: Any) -> pa.RecordBatch:
    """Make the rows that the consumer by hand makes."""
    found = [loads(value) for value in records.column("value").to_pylist()]
    columns: dict[str, Any] = {
        "id": pa.array([each["id"] for each in found], pa.int64()),
        "customer": pa.array([each["customer"] for each in found], pa.string()),
        "amount": pa.array([each["amount"] for each in found], pa.float64()).cast(_AMOUNT),
        "at": pa.array([each["at"] for each in found], pa.string()).cast(_MOMENT),
        "partition": records.column("partition"),
        "offset": records.column("offset"),
    }
    return pa.record_batch(columns)


def parse(url: str, servers: str, topic: str) -> None:
    """Parse JSON."""
    transform = partial(parsed, import_module("orjson").loads)  # by name: only the benchmarks install it
    kafka = {"bootstrap.servers": servers, **_READER}
    with OffsetStore.connect(url) as store:
        Consumer(store, topic, topics=[topic], kafka=kafka, transform=transform, into=Append("small")).run()


def call(url: str, servers: str, topic: str, *handled: str) -> None:
    """Call a handler for each record."""
    group, kind, log = handled
    handler = Handler(partial(HANDLERS[kind], log), SCHEMA)
    kafka, flush = {"bootstrap.servers": servers, **_READER}, Flush(rows=WINDOW, seconds=1.0)
    with OffsetStore.connect(url) as store:
        Consumer(
            store, group, topics=[topic], kafka=kafka, transform=handler, into=Append("records"), flush=flush
        ).run()


if __name__ == "__main__":
    {"parse": parse, "call": call}[sys.argv[1]](*sys.argv[2:])
