"""Broken flights, scattered among the good ones by a seed, and the rules of the table that refuse some of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from offsetstore.demo.flights import ExpectedLetter, Flight, Ledger, as_json, record_of
from offsetstore.kafka.admin import Record
from offsetstore.protocol.letters import Cause


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to break a flight.

    :param words: what is wrong with it, for the report.
    :param cause: who must refuse it.
    :param spoil: returns the record's value.
    """

    words: str
    cause: Cause
    spoil: Callable[[Flight], bytes]


def _cut(flight: Flight) -> bytes:
    whole = as_json(flight)
    return whole[: len(whole) // 2]


KINDS: Final = (
    Kind("half of its JSON is missing (the transform rejects it)", "rejected", _cut),
    Kind(
        "a text has a NUL (no text in PostgreSQL can hold it)", "refused", lambda flight: _with(flight, tailnum="N\0")
    ),
    Kind("its distance is below zero (a CHECK)", "refused", lambda flight: _with(flight, distance=-1)),
    Kind("its airport does not exist (a deferred foreign key)", "refused", lambda flight: _with(flight, origin="XXX")),
)

# The origins of all the CSV's flights. The constraints are named, as a letter names them.
_RULES: Final = (
    "CREATE TABLE airports (faa text PRIMARY KEY)",
    "INSERT INTO airports VALUES ('EWR'), ('JFK'), ('LGA')",
    "ALTER TABLE flights ADD CONSTRAINT distance_is_positive CHECK (distance > 0)",
    """
    ALTER TABLE flights ADD CONSTRAINT origin_is_known
        FOREIGN KEY (origin) REFERENCES airports DEFERRABLE INITIALLY DEFERRED
    """,
)


def add_rules(connection: Connection) -> None:
    """Give our table the constraints that refuse broken flights. It must exist without them."""
    for statement in _RULES:
        connection.exec_driver_sql(statement)


def choose(count: int, flights: int, seed: int) -> dict[int, Kind]:
    """Choose ``count`` of the flights to be broken, by flight_id, and how; as many of each kind as possible."""
    dice = random.Random(seed)  # noqa: S311 - repeatable, not secret
    chosen = dice.sample(range(1, flights + 1), count)
    return {flight_id: KINDS[number % len(KINDS)] for number, flight_id in enumerate(chosen)}


def records_of(flights: Iterable[Flight], broken: Mapping[int, Kind], ledger: Ledger) -> Iterator[Record]:
    """Return the flights' records, some of them broken, and enter each into the ledger."""
    for flight in flights:
        record = record_of(flight)
        kind = broken.get(flight["flight_id"])
        if kind is None:
            ledger.enter(flight)
        else:
            record = Record(kind.spoil(flight), key=record.key)
            ledger.enter_letter(flight, ExpectedLetter(kind.cause, record.key, record.value))
        yield record


def _with(flight: Flight, **values: object) -> bytes:
    return as_json({**flight, **values})
