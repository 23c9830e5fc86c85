"""A consumer without Spark: Kafka's records and their offsets land in one transaction, from plain Python processes.

The processes share the topic's partitions. A payment that can't be parsed, or that the table refuses, becomes a dead
letter; see docs/consumer.md. ``pip install '.[binary,cli,consumer]'`` in the checkout.

Needs the table: ``CREATE TABLE payments (payer text, amount numeric(12, 2))``; and before the first run, in the deploy,
``offsetstore migrate``. Run it in this directory with::

    OFFSETSTORE_URL=postgresql://shop@localhost/shop offsetstore consume payments_consumer:consumer --processes 3

Ctrl-C ends it. With ``python payments_consumer.py``, it runs in one process, without a supervisor.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from offsetstore import Append, DeadLetters, OffsetStore
from offsetstore.consumer import Consumer

KAFKA = {"bootstrap.servers": os.environ.get("OFFSETSTORE_BOOTSTRAP_SERVERS", "localhost:9092")}


def parse(records: Any) -> pa.RecordBatch:
    """Make the table's columns out of Kafka's; ``records`` is a pyarrow.RecordBatch."""
    payer = records["key"].cast(pa.string())
    amount = records["value"].cast(pa.string()).cast(pa.decimal128(12, 2))
    return pa.record_batch([payer, amount], names=["payer", "amount"])


def consumer() -> Consumer:
    """Make the consumer; each process calls this once."""
    return Consumer(
        OffsetStore.connect(),
        "billing",
        topics=["payments"],
        kafka=KAFKA,
        transform=parse,
        into=Append("payments"),
        dead_letters=DeadLetters(),
    )


if __name__ == "__main__":
    one = consumer()
    with one.store:
        one.run()
