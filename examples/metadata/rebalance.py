"""What a member of a group knows of its partitions, for the member that gets them: the last reading of each meter.

Consumption is the difference of two readings. A process that gets a partition in a rebalance finds the last readings in
the note. Needs ``CREATE TABLE used (meter text, units bigint)``. The consumer has ``into=Execute(subtract)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from sqlalchemy import text

from offsetstore import Work

INSERT = text("INSERT INTO used VALUES (:meter, :units)")


def parse(records: Any) -> pa.RecordBatch:
    """Make readings; ``records`` is a pyarrow.RecordBatch. A record's key is the meter, its value what it shows."""
    meter, shows = records["key"].cast("string"), records["value"].cast("string").cast("int64")
    place = {name: records[name] for name in ("topic", "partition", "offset")}
    return pa.record_batch({**place, "meter": meter, "shows": shows})


def subtract(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """Write what each meter has counted since its last reading, whoever has read that."""
    readings = sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["offset"])
    for partition in work.ranges:
        last: Any = work.metadata(partition, cache=False) or {}
        for reading in readings:
            if (reading["topic"], reading["partition"]) != partition:
                continue
            if (before := last.get(reading["meter"])) is not None:
                work.connection.execute(INSERT, {"meter": reading["meter"], "units": reading["shows"] - before})
            last[reading["meter"]] = reading["shows"]
        work.write_metadata(partition, last)
