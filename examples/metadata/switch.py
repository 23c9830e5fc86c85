"""A switch: a record of the topic turns a path of the processing on or off, for all records after it.

The note is the state of the switch. Whoever owns the partition, and however often a batch is repeated, each payment is
processed on the same path. Needs ``CREATE TABLE payments (payer text, amount numeric(12, 2))``. The consumer or sink
has ``into=Execute(charge)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlalchemy import text

from offsetstore import Work

INSERT = text("INSERT INTO payments VALUES (:payer, :amount)")
FEE = Decimal("1.10")


def parse(records: Any) -> pa.RecordBatch:
    """Keep what `charge` needs; ``records`` is a pyarrow.RecordBatch. The key ``fee`` is the switch: on or off."""
    key, value = records["key"].cast("string"), records["value"].cast("string")
    place = {name: records[name] for name in ("topic", "partition", "offset")}
    return pa.record_batch({**place, "key": key, "value": value})


def charge(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """Write the payments, with a fee while the switch is on."""
    records = sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["offset"])
    for partition in work.ranges:
        fee = work.metadata(partition, cache=False) or "off"
        for record in records:
            if (record["topic"], record["partition"]) != partition:
                continue
            if record["key"] == "fee":
                fee = record["value"]
            else:
                amount = Decimal(record["value"]) * (FEE if fee == "on" else 1)
                work.connection.execute(INSERT, {"payer": record["key"], "amount": amount})
        work.write_metadata(partition, fee)
