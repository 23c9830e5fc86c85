"""A consumer for ``offsetstore consume`` that a record kills, in whose value a word is; CONSUMER_APP says which."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from offsetstore import Append, Flush, Handler, OffsetStore, Record, Upsert
from offsetstore.consumer import Consumer
from tests.faults.chaos.means.members import SESSION_TIMEOUT, note, transform

_SCHEMA = {
    "landed": "topic string, partition int, offset long, seq long, key string, amount long",
    "sums": "key string, records long, total long",
}


def consumer() -> Consumer:
    """Make it; it does to records what `harness.landing` does."""
    given = json.loads(os.environ["CONSUMER_APP"])
    word: str = given["word"]

    def check(value: bytes | None) -> bytes:
        if word.encode() in (value or b""):
            os.kill(os.getpid(), signal.SIGSEGV)
        return value or b""

    def rows(records: Any) -> Any:
        for value in records.column("value").to_pylist():
            check(value)
        return transform(records)

    def handle(record: Record) -> dict[str, Any]:
        one = json.loads(check(record.value))
        place = (record.topic, record.partition, record.offset)
        amount = one["amount"] or 0
        return {"landed": [(*place, one["seq"], one["key"], one["amount"])], "sums": [(one["key"], 1, amount)]}

    return Consumer(
        OffsetStore.connect(),
        given["group"],
        topics=[given["topic"]],
        kafka={
            "bootstrap.servers": given["bootstrap"],
            "session.timeout.ms": int(SESSION_TIMEOUT * 1000),
            "heartbeat.interval.ms": 500,
        },
        transform=rows if given["how"] == "transform" else Handler(handle, _SCHEMA),
        into={"landed": Append("landed"), "sums": Upsert("sums", key=["key"], add=["records", "total"])},
        flush=Flush(rows=given["rows"], seconds=0.2),
        metadata=note,
    )
