"""A checkpoint within a unit of work: a day of payments is summed over many batches, and written when it is closed.

The sum so far is the note. After a crash the next owner goes on with the sum that belongs to its first offset, and
reads none of the day's records again. Needs ``CREATE TABLE days (payments bigint, amount numeric)``. The consumer or
sink has ``into=Execute(settle)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlalchemy import text

from offsetstore import Work

INSERT = text("INSERT INTO days VALUES (:payments, :amount)")


def parse(records: Any) -> pa.RecordBatch:
    """Keep what `settle` needs; ``records`` is a pyarrow.RecordBatch. A record with the key ``close`` ends the day."""
    key, value = records["key"].cast("string"), records["value"].cast("string")
    place = {name: records[name] for name in ("topic", "partition", "offset")}
    return pa.record_batch({**place, "key": key, "value": value})


def settle(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """Add each payment to the day; write the days that are over."""
    records = sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["offset"])
    for partition in work.ranges:
        day: Any = work.metadata(partition, cache=False) or {"payments": 0, "amount": "0"}
        for record in records:
            if (record["topic"], record["partition"]) != partition:
                continue
            if record["key"] == "close":
                work.connection.execute(INSERT, day)
                day = {"payments": 0, "amount": "0"}
            else:
                amount = str(Decimal(day["amount"]) + Decimal(record["value"]))
                day = {"payments": day["payments"] + 1, "amount": amount}
        work.write_metadata(partition, day)
