"""What the consumer computes of the flights, compared with the ledger, as the Spark job's rows are."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pyarrow as pa

from offsetstore.consumer import Context, Kept
from offsetstore.demo.consume import Slowly, transform_with_day_totals
from offsetstore.demo.flights import Flight, Ledger, as_json, read_flights
from offsetstore.demo.tables import ADDED, KEY, WORST
from offsetstore.offsets import TopicPartition


def computed(flights: list[Flight]) -> dict[str, list[Any]]:
    records = pa.record_batch({"value": pa.array([as_json(flight) for flight in flights], pa.binary())})
    return {name: rows.to_pylist() for name, rows in transform_with_day_totals(records).items()}


def test_the_consumer_computes_what_the_ledger_has() -> None:
    flights, ledger = list(read_flights(2000)), Ledger()
    for flight in flights:
        ledger.enter(flight)
    found = computed(flights)

    assert [{**row, "time_hour": f"{row['time_hour']:%Y-%m-%dT%H:%M:%SZ}"} for row in found["flights"]] == flights
    sums = {
        tuple(row[name] for name in KEY): tuple(row[name] for name in (*ADDED, WORST))
        for row in found["carrier_delays"]
    }
    assert sums == {key: astuple(delays) for key, delays in ledger.delays.items()}
    days = {f"{row['year']}-{row['month']:02}-{row['day']:02}": row["flights"] for row in found["day_totals"]}
    assert days == ledger.days
    assert len(days) == 3


def test_the_demo_of_the_consumer_loads_no_spark() -> None:
    modules = "offsetstore.cli.demo, offsetstore.demo.consume, sys"
    command = [sys.executable, "-c", f"import {modules}; sys.exit('pyspark' in sys.modules)"]
    assert subprocess.run(command, check=False).returncode == 0


def test_the_processes_are_slow_until_they_were_killed(tmp_path: Path) -> None:
    (file := tmp_path / "slowly").touch()
    slowly = Slowly(2, 60.0, file)
    records: list[Any] = [None] * 5
    context = Context(TopicPartition("flights", 0), now=0.0)
    assert slowly.apply(records, context).prefix == 2
    assert slowly.apply(records, context).prefix == 0
    file.unlink()
    assert slowly.apply(records, context) == Kept(5)
