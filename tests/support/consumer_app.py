"""Functions for ``offsetstore consume``, as an application has them; CONSUMER_APP in the environment says with what."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

from offsetstore import Flush, Handler, OffsetStore, Record
from offsetstore.cli import consume_process
from offsetstore.consumer import Consumer
from tests.support.consumer_job import consumer_of, parse


def consumer() -> Consumer:
    """Make the consumer of `tests.support.consumer_job`."""
    consume_process._EVERY = 0.2  # seconds from one report to the next
    given: dict[str, Any] = json.loads(os.environ["CONSUMER_APP"])
    return consumer_of(
        OffsetStore.connect(),
        given["bootstrap"],
        given["topic"],
        kafka=given.get("kafka"),
        flush=Flush(rows=given.get("rows", 100), seconds=given.get("seconds", 0.2)),
        drain=40.0,
        transform=_transform(given),
    )


def _transform(given: dict[str, Any]) -> Any:
    if "deadly" in given:
        return _dying(given["deadly"], given["how"])

    def transform(records: Any) -> Any:
        return parse(records).rename_columns([given.get("column", "record")])

    return transform


def _dying(deadly: int, how: str) -> Any:
    """A transform, or a handler, that ends its process without a word at one record."""

    def transform(records: Any) -> Any:
        if b"%d" % deadly in records.column("value").to_pylist():
            os.kill(os.getpid(), signal.SIGSEGV)
        return parse(records)

    def handle(record: Record) -> tuple[int]:
        if record.value == b"%d" % deadly:
            os.kill(os.getpid(), signal.SIGSEGV)
        return (int(record.value or b""),)

    return transform if how == "transform" else Handler(handle, "record long", ordering="none")


def nothing() -> None:
    """Return no consumer."""
