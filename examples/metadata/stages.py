"""Stages of a complex event: three refused logins of a user, then one that succeeds, are an alarm.

The logins of a user come in several batches. The note is how far each user has come, in the transaction of the alarms.
Needs ``CREATE TABLE alarms (login text, record_offset bigint)``. The consumer or sink has ``into=Execute(watch)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from sqlalchemy import text

from offsetstore import Work

ALARM = text("INSERT INTO alarms VALUES (:login, :offset)")


def parse(records: Any) -> pa.RecordBatch:
    """Make the events; ``records`` is a pyarrow.RecordBatch. A record's key is the user, its value the result."""
    login, result = records["key"].cast("string"), records["value"].cast("string")
    place = {name: records[name] for name in ("topic", "partition", "offset")}
    return pa.record_batch({**place, "login": login, "result": result})


def watch(work: Work, batches: Iterable[pa.RecordBatch]) -> None:
    """Take each user's events in order, from the stage that the last batch has left."""
    events = sorted((row for batch in batches for row in batch.to_pylist()), key=lambda row: row["offset"])
    for partition in work.ranges:
        refused: Any = work.metadata(partition, cache=False) or {}  # by user, 1 to 3
        for event in events:
            if (event["topic"], event["partition"]) != partition:
                continue
            if event["result"] == "refused":
                refused[event["login"]] = min(refused.get(event["login"], 0) + 1, 3)
            elif refused.pop(event["login"], 0) == 3:  # noqa: PLR2004 - the rule
                work.connection.execute(ALARM, event)
        work.write_metadata(partition, refused)
