"""The demo's consumer, exactly-once without Spark: ``offsetstore consume offsetstore.demo.consume:consumer``.

Its processes do to the flights what the job does (`offsetstore.demo.job`), into the same tables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from offsetstore import Flush, OffsetStore, Record
from offsetstore.consumer import Consumer, Context, Kept, Throttle
from offsetstore.demo.job_settings import GROUP, TOPIC, JobSettings
from offsetstore.demo.landing import carrier_delays, day_totals, parse, writers
from offsetstore.protocol import failpoints
from offsetstore.protocol.events import BatchStarted, Event
from offsetstore.testing.job_process import BatchPrinter, print_event

PROCESSES: Final = 2
_EVERY: Final = 0.5
"""Seconds between two batches of a process that has to be slow."""
_SHARE: Final = 0.1
"""What it gets in each of them, of what the job gets in a micro-batch: both processes take a minute for all flights."""


class Pause:
    """An observer that arms a failpoint in the next batch, once a file names it; of all processes, in one."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def on(self, event: Event) -> None:
        """Take the file, if it is there."""
        if isinstance(event, BatchStarted):
            mine = self._file.with_suffix(f".{os.getpid()}")
            with suppress(FileNotFoundError):
                self._file.rename(mine)
                failpoints.follow(f"{mine.read_text()}:hang")


class Slowly(Throttle):
    """Lets few records through for as long as there is a file, so that the kills meet the processes under way."""

    def __init__(self, limit: int, per: float, file: Path) -> None:
        super().__init__(limit, per)
        self._file = file

    def apply(self, records: Sequence[Record], context: Context) -> Kept:
        """See `Filter`."""
        return super().apply(records, context) if self._file.exists() else Kept(len(records))


def slow_file(settings: JobSettings) -> Path:
    """The file for `Slowly`."""
    return settings.checkpoints / "slowly"


def pause_file(settings: JobSettings) -> Path:
    """The file that `Pause` waits for."""
    return settings.checkpoints / "pause"


def transform(records: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    """Compute the rows for each table."""
    flights = parse(records)
    return {"flights": flights, "carrier_delays": carrier_delays(flights)}


def transform_with_day_totals(records: pa.RecordBatch) -> dict[str, pa.RecordBatch]:
    """Compute the rows for each table, and how many flights each day has in them."""
    flights = parse(records)
    return {"flights": flights, "carrier_delays": carrier_delays(flights), "day_totals": day_totals(flights)}


def consumer() -> Consumer:
    """Make one process's."""
    settings = JobSettings.from_environment()
    print_event("started", pid=os.getpid())
    observers = [BatchPrinter(), Pause(pause_file(settings))]
    compute: Callable[[pa.RecordBatch], dict[str, pa.RecordBatch]]
    compute = transform_with_day_totals if settings.outbox else transform
    return Consumer(
        OffsetStore.connect(settings.url, schema="public", observers=observers),
        GROUP,
        topics=[TOPIC],
        kafka={
            "bootstrap.servers": settings.bootstrap_servers,
            "heartbeat.interval.ms": 500,  # so that a process soon hears of another one
            "session.timeout.ms": 6000,
        },
        transform=compute,
        into=writers(has_day_totals=settings.outbox),
        flush=Flush(rows=settings.batch, seconds=_EVERY),
        filters=[Slowly(max(1, round(_SHARE * settings.batch)), _EVERY, slow_file(settings))],
    )
