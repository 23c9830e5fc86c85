"""A consumer without Spark: the topic ``refunds`` lands in the table of that name. See README.md for how to run it."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from offsetstore import Append, DeadLetters, OffsetStore
from offsetstore.consumer import Consumer

GROUP = "shop-refunds"
INTO = Append("refunds")


def parse(records: Any) -> pa.RecordBatch:
    """Make the table's columns; ``records`` is a pyarrow.RecordBatch."""
    payer = records["key"].cast(pa.string())
    amount = records["value"].cast(pa.string()).cast(pa.decimal128(12, 2))
    return pa.record_batch([payer, amount], names=["payer", "amount"])


def consumer() -> Consumer:
    """Make the consumer; each process calls this once."""
    kafka = {"bootstrap.servers": os.environ.get("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092")}
    return Consumer(
        OffsetStore.connect(),
        GROUP,
        topics=["refunds"],
        kafka=kafka,
        transform=parse,
        into=INTO,
        dead_letters=DeadLetters(),
    )
